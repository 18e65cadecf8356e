/* Measures the cost of a call on the host: the same call many times without waiting, beside bare launches, and in a
 * CUDA graph. */
#define _POSIX_C_SOURCE 200809L
#include "bench.h"
#include "clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCHES = 10, GRAPH_CALLS = 20, CAPTURE_THREAD_LOCAL = 1, NON_BLOCKING = 1 };

typedef struct batch_times {
    double issued, done; /* microseconds a call */
} batch_times;

static struct {
    int (*stream_create)(void **, unsigned);
    int (*stream_synchronize)(void *);
    int (*capture_begin)(void *, int mode);
    int (*capture_end)(void *, void **graph);
    int (*instantiate)(void **executable, void *graph, unsigned long long flags);
    int (*graph_launch)(void *executable, void *stream);
    int (*graph_destroy)(void *);
    int (*executable_destroy)(void *);
    int has_graphs;
} driver;

static void *stream;
static int launches;
static void *executable;

static int open_stream(void) {
    if (stream != NULL)
        return 0;
#define FIND(field, name, arguments) (driver.field = (int(*) arguments)(uintptr_t)bench_symbol(name))
    FIND(stream_create, "cuStreamCreate", (void **, unsigned));
    FIND(stream_synchronize, "cuStreamSynchronize", (void *));
    driver.has_graphs = FIND(capture_begin, "cuStreamBeginCapture_v2", (void *, int)) &&
                        FIND(capture_end, "cuStreamEndCapture", (void *, void **)) &&
                        FIND(instantiate, "cuGraphInstantiateWithFlags", (void **, void *, unsigned long long)) &&
                        FIND(graph_launch, "cuGraphLaunch", (void *, void *)) &&
                        FIND(graph_destroy, "cuGraphDestroy", (void *)) &&
                        FIND(executable_destroy, "cuGraphExecDestroy", (void *));
#undef FIND
    return bench_check("cuStreamCreate", driver.stream_create(&stream, NON_BLOCKING));
}

static int call_cell(void) {
    return bench_call(stream);
}

static int call_bare(void) {
    int i;
    for (i = 0; i < launches; i++)
        if (bench_launch_nothing(stream))
            return 1;
    return 0;
}

static int call_graph(void) {
    return bench_check("cuGraphLaunch", driver.graph_launch(executable, stream));
}

static int wait(void) {
    return bench_check("cuStreamSynchronize", driver.stream_synchronize(stream));
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times) {
    qsort(times, BATCHES, sizeof times[0], ascending);
    return (times[BATCHES / 2 - 1] + times[BATCHES / 2]) / 2;
}

/* The medians over batches of `calls` calls. Between batches the queue is drained, so that it never fills up. */
static int measure(int (*call)(void), int calls, batch_times *times) {
    double issued[BATCHES], done[BATCHES];
    int batch, i;
    if (call() || wait())
        return 1;
    for (batch = 0; batch < BATCHES; batch++) {
        double start = seconds();
        for (i = 0; i < calls; i++)
            if (call())
                return 1;
        issued[batch] = 1e6 * (seconds() - start) / calls;
        if (wait())
            return 1;
        done[batch] = 1e6 * (seconds() - start) / calls;
    }
    times->issued = median(issued);
    times->done = median(done);
    return 0;
}

static int capture(void) {
    void *graph;
    int i, code, bad = 0;
    if (bench_check("cuStreamBeginCapture", driver.capture_begin(stream, CAPTURE_THREAD_LOCAL)))
        return 1;
    for (i = 0; i < GRAPH_CALLS && !bad; i++)
        bad = bench_call(stream);
    code = driver.capture_end(stream, &graph);
    if (bad || bench_check("cuStreamEndCapture", code))
        return 1;
    code = driver.instantiate(&executable, graph, 0);
    (void)driver.graph_destroy(graph);
    return bench_check("cuGraphInstantiateWithFlags", code);
}

static int measure_graph(int calls, double *microseconds) {
    batch_times times;
    int bad;
    if (capture())
        return 1;
    bad = measure(call_graph, calls < GRAPH_CALLS ? 1 : calls / GRAPH_CALLS, &times);
    (void)driver.executable_destroy(executable);
    *microseconds = times.done / GRAPH_CALLS;
    return bad;
}

int bench_measure_calls(int calls, bench_calls *measured) {
    batch_times ours, bare;
    long long before;
    int batch = calls < BATCHES ? 1 : calls / BATCHES;
    /* The first call loads the kernel and readies the stream; only the next is like all others. */
    if (open_stream() || bench_check("cuStreamSynchronize", driver.stream_synchronize(NULL)) || call_cell() || wait())
        return 1;
    before = bench_launches();
    if (call_cell() || wait())
        return 1;
    launches = (int)(bench_launches() - before);
    if (measure(call_cell, batch, &ours) || measure(call_bare, batch, &bare))
        return 1;
    measured->launches = launches;
    measured->issued = ours.issued;
    measured->done = ours.done;
    measured->bare = bare.issued;
    measured->graph = (double)NAN;
    return driver.has_graphs && measure_graph(batch, &measured->graph);
}

const char *bench_calls_heading(int calls) {
    static char text[600];
    snprintf(
        text, sizeof text,
        "what a call costs, in microseconds, over %d calls: issued: until it returns, many in a row without waiting;\n"
        "bare: the same for as many launches of an empty kernel; more: the difference; done: until the GPU has "
        "finished "
        "too;\ngraph: done, in a CUDA graph of %d calls%s\n"
        "%-14s %-5s %6s %7s  %-15s %8s %8s %8s %8s %8s %8s",
        calls, GRAPH_CALLS, bench_symbol("cuStreamBeginCapture_v2") ? "" : ", which this driver does not have", "loss",
        "dtype", "rows", "classes", "pass", "launches", "issued", "bare", "more", "done", "graph");
    return text;
}

const char *bench_calls_line(int cell, const bench_calls *m) {
    static char line[200];
    const bench_cell *c = &bench_cells[cell];
    int length = snprintf(line, sizeof line, "%-14s %-5s %6lld %7lld  %-15s %8d %8.2f %8.2f %8.2f %8.2f ", c->loss,
                          c->dtype, (long long)c->rows, (long long)c->classes, bench_pass_name(c->pass), m->launches,
                          m->issued, m->bare, m->issued - m->bare, m->done);
    if (isnan(m->graph))
        snprintf(line + length, sizeof line - (size_t)length, "%8s", "none");
    else
        snprintf(line + length, sizeof line - (size_t)length, "%8.2f", m->graph);
    return line;
}
