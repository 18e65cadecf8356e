#include "graph.h"

enum { LAUNCHES = 3 };

capture_kind global_non_blocking = {CAPTURE_GLOBAL, STREAM_NON_BLOCKING};
capture_kind thread_local_non_blocking = {CAPTURE_THREAD_LOCAL, STREAM_NON_BLOCKING};
capture_kind relaxed_non_blocking = {CAPTURE_RELAXED, STREAM_NON_BLOCKING};
capture_kind global_blocking = {CAPTURE_GLOBAL, STREAM_BLOCKING};
capture_kind thread_local_blocking = {CAPTURE_THREAD_LOCAL, STREAM_BLOCKING};
capture_kind relaxed_blocking = {CAPTURE_RELAXED, STREAM_BLOCKING};

const capture_kind *graph_kind_of(void **state) {
    require_gpu();
    REQUIRE_FUNCTION(capture_begin);
    REQUIRE_FUNCTION(capture_end);
    REQUIRE_FUNCTION(stream_capturing);
    REQUIRE_FUNCTION(graph_nodes);
    REQUIRE_FUNCTION(graph_instantiate);
    REQUIRE_FUNCTION(graph_launch);
    REQUIRE_FUNCTION(graph_exec_destroy);
    REQUIRE_FUNCTION(graph_destroy);
    (void)use_primary();
    return (const capture_kind *)*state;
}

void graph_begin(const capture_kind *kind, struct CUstream_st *stream) {
    MUST(driver.capture_begin(stream, kind->mode));
}

int graph_is_valid(struct CUstream_st *stream) {
    int capturing = 0;
    MUST(driver.stream_capturing(stream, &capturing));
    return capturing == CAPTURE_ACTIVE;
}

void *graph_end(struct CUstream_st *stream) {
    void *graph = NULL;
    MUST(driver.capture_end(stream, &graph));
    assert_non_null(graph);
    return graph;
}

void *graph_end_of_any(struct CUstream_st *stream) {
    void *graph = NULL;
    const int code = driver.capture_end(stream, &graph);
    if (code != 0 && code != CODE_CAPTURE_INVALIDATED)
        fail_msg("the end of a capture: the driver says %d", code);
    return code == 0 ? graph : NULL;
}

static size_t count_nodes(void *graph) {
    size_t nodes = 0;
    MUST(driver.graph_nodes(graph, NULL, &nodes));
    return nodes;
}

size_t graph_nodes_of(const work *w, const capture_kind *kind, struct CUstream_st *stream) {
    size_t nodes;
    void *graph;
    graph_begin(kind, stream);
    EXPECT(work_calls(w, stream), GPULOSS_OK);
    graph = graph_end(stream);
    nodes = count_nodes(graph);
    MUST(driver.graph_destroy(graph));
    if (nodes < WORK_CALLS)
        fail_msg("a graph of %d calls has %lu nodes", WORK_CALLS, (unsigned long)nodes);
    return nodes;
}

void graph_expect(void *graph, size_t nodes, const work *w, struct CUstream_st *stream, const unsigned char *results) {
    void *executable;
    int launch;
    if (count_nodes(graph) != nodes)
        fail_msg("the graph has %lu nodes instead of %lu", (unsigned long)count_nodes(graph), (unsigned long)nodes);
    MUST(driver.graph_instantiate(&executable, graph, 0));
    MUST(driver.graph_destroy(graph));
    for (launch = 0; launch < LAUNCHES; launch++) {
        EXPECT(work_clear(w), GPULOSS_OK);
        MUST(driver.graph_launch(executable, stream));
        MUST(driver.stream_synchronize(stream));
        work_expect(w, results, "a launch of the graph");
    }
    MUST(driver.graph_exec_destroy(executable));
}

void graph_capture_and_expect(const capture_kind *kind, size_t nodes, const work *w, struct CUstream_st *stream,
                              const unsigned char *results) {
    graph_begin(kind, stream);
    EXPECT(work_calls(w, stream), GPULOSS_OK);
    assert_true(graph_is_valid(stream));
    graph_expect(graph_end(stream), nodes, w, stream, results);
}
