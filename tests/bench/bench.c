/* Measures gpuloss against the limits of the GPU, both in one process. */
#define _POSIX_C_SOURCE 200809L
#include "bench.h"

#include "ceilings.h"
#include "cells.h"
#include "clock.h"
#include "data.h"
#include "driver.h"
#include "library.h"
#include "timing.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static char failure[BENCH_FAILURE_BYTES];
static void *events[BENCH_MOST_RUNS][2];
static int prepared, usual_runs = BENCH_MOST_RUNS;

/* ---- failing ---- */

const char *bench_failure(void) {
    return failure;
}

int bench_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure, sizeof failure, format, arguments);
    va_end(arguments);
    return 1;
}

int bench_check(const char *what, int code) {
    return code != 0 && bench_fail("%s: driver error %d", what, code);
}

/* ---- the cell at hand ---- */

static int finish_preparing(int cell) {
    prepared = cell;
    return bench_cells[cell].pass == BENCH_BACKWARD && bench_library_save_lse(cell);
}

int bench_prepare(int cell) {
    return bench_fill_cell(&bench_cells[cell]) || finish_preparing(cell);
}

int bench_prepare_beside(int cell, uint64_t (*address)(int which)) {
    bench_borrow(address);
    return finish_preparing(cell);
}

int bench_call(void *stream) {
    return bench_library_call(prepared, stream);
}

static int call_cell(void) {
    return bench_call(NULL);
}

/* ---- timing ---- */

int bench_use_runs(int runs) {
    usual_runs = runs;
    return (runs < 1 || runs > BENCH_MOST_RUNS) && bench_fail("--runs is from 1 to %d", BENCH_MOST_RUNS);
}

static int by_time(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median_of(double *times, int count) {
    qsort(times, (size_t)count, sizeof times[0], by_time);
    return times[count / 2];
}

static int wait(void) {
    return bench_check("cuEventRecord", bench_cuda.event_record(events[0][0], NULL)) ||
           bench_check("cuEventSynchronize", bench_cuda.event_synchronize(events[0][0]));
}

const int bench_usual_rest = 300;

/* At the limit of its power a GPU lowers its clock, and does not raise it at once. Without a rest, earlier work would
 * affect the times. */
int bench_rest(int milliseconds) {
    struct timespec rest = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    return wait() || (milliseconds > 0 && nanosleep(&rest, NULL) != 0 && bench_fail("the rest was interrupted"));
}

/* While a kernel is loaded the GPU is idle, and takes a while to come back to its speed. */
static int warm_up(int (*call)(void), int milliseconds, int *in_a_row) {
    double end;
    int calls = 0;
    if (call() || wait())
        return 1;
    for (end = seconds() + 1e-3 * milliseconds; seconds() < end; calls++)
        if (call() || wait())
            return 1;
    *in_a_row = calls > milliseconds ? calls / milliseconds : 1;
    return 0;
}

static int queue_run(int (*call)(void), int run, int in_a_row) {
    int i;
    if (bench_check("cuEventRecord", bench_cuda.event_record(events[run][0], NULL)))
        return 1;
    for (i = 0; i < in_a_row; i++)
        if (call())
            return 1;
    return bench_check("cuEventRecord", bench_cuda.event_record(events[run][1], NULL));
}

int bench_run_time(int run, int in_a_row, double *milliseconds) {
    float elapsed;
    if (bench_check("cuEventSynchronize", bench_cuda.event_synchronize(events[run][1])) ||
        bench_check("cuEventElapsedTime", bench_cuda.event_elapsed(&elapsed, events[run][0], events[run][1])))
        return 1;
    *milliseconds = (double)elapsed / in_a_row;
    return 0;
}

int bench_warm_up(int *in_a_row) {
    return warm_up(call_cell, BENCH_WARM_UP, in_a_row);
}

int bench_queue_run(int run, int in_a_row) {
    return queue_run(call_cell, run, in_a_row);
}

/* The calls are queued before the first is waited for, so that the time is the GPU's, without the latency of a call.
 * The calls of a run take a millisecond in all. They follow each other without a pause, like the work that programs
 * queue. */
int bench_median(int (*call)(void), int milliseconds_before, int runs, double *milliseconds) {
    double times[BENCH_MOST_RUNS];
    int in_a_row, i;
    if (warm_up(call, milliseconds_before, &in_a_row))
        return 1;
    for (i = 0; i < runs; i++)
        if (queue_run(call, i, in_a_row))
            return 1;
    for (i = 0; i < runs; i++)
        if (bench_run_time(i, in_a_row, &times[i]))
            return 1;
    *milliseconds = bench_median_of(times, runs);
    return 0;
}

int bench_measure_call(int (*call)(void), double *milliseconds) {
    return bench_median(call, BENCH_WARM_UP, usual_runs, milliseconds);
}

int bench_measure(double *milliseconds) {
    return bench_measure_call(call_cell, milliseconds);
}

/* ---- opening and closing ---- */

const char *bench_taken_for(void) {
    static char text[160];
    const bench_model model = bench_model_taken();
    snprintf(text, sizeof text,
             "gpuloss takes the GPU for one of compute capability %d.%d, with %d bytes of shared memory a block and %s",
             model.compute_capability / 10, model.compute_capability % 10, model.shared_bytes,
             model.clusters ? "with clusters" : "without clusters");
    return text;
}

int bench_open(const char *ceilings_ptx, int64_t bytes) {
    int i, k;
    bench_ceilings_of(2 * bytes);
    bench_list(bytes);
    if (bench_driver_open() || bench_library_open(bench_symbol_for_gpuloss))
        return 1;
    for (i = 0; i < BENCH_MOST_RUNS; i++)
        for (k = 0; k < 2; k++)
            if (bench_check("cuEventCreate", bench_cuda.event_create(&events[i][k], 0)))
                return 1;
    return bench_data_open(ceilings_ptx);
}

void bench_close(void) {
    bench_data_close();
    bench_library_close();
}
