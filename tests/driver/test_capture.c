/* Calls that are captured in every mode, and calls that are refused during a capture without harm to it. */
#include "graph.h"

#include <stdlib.h>

enum { SLOTS = 34 /* streams that the first scratch of a context serves */ };

static void expect_captures(const capture_kind *kind, unsigned context_flags, gpuloss_dtype dtype, int has_workspace) {
    gpuloss_context *context = new_context(context_flags);
    struct CUstream_st *stream = new_stream(kind->stream_flags);
    work w = work_new(context, dtype, 1);
    unsigned char *results;
    void *graph;
    size_t nodes;
    if (has_workspace)
        work_give_workspace(&w);
    EXPECT(work_preloads(&w, stream), GPULOSS_OK);
    nodes = graph_nodes_of(&w, kind, stream);
    graph_begin(kind, stream);
    EXPECT(work_preloads(&w, stream), GPULOSS_OK);
    EXPECT(work_calls(&w, stream), GPULOSS_OK);
    assert_true(graph_is_valid(stream));
    graph = graph_end(stream);
    results = work_results(&w, stream);
    graph_expect(graph, nodes, &w, stream, results);
    free(results);
    work_free(&w);
    EXPECT(gpuloss_release_stream(context, stream), GPULOSS_OK);
    MUST(driver.stream_destroy(stream));
    gpuloss_destroy(context);
}

static void preloaded_calls(void **state) {
    const capture_kind *kind = graph_kind_of(state);
    expect_captures(kind, 0, GPULOSS_F32, 0);
    expect_captures(kind, 0, GPULOSS_F64, 1);
    expect_captures(kind, GPULOSS_CHECK_POINTERS, GPULOSS_BF16, 0);
}

static void first_use_of_kernels(void **state) {
    const capture_kind *kind = graph_kind_of(state);
    gpuloss_context *context = new_context(0);
    struct CUstream_st *stream = new_stream(kind->stream_flags);
    work ready = work_new(context, GPULOSS_F32, 1), other = work_new(context, GPULOSS_F64, 2);
    unsigned char *results = work_results(&ready, stream);
    const size_t nodes = graph_nodes_of(&ready, kind, stream);
    EXPECT(work_clear(&other), GPULOSS_OK);
    graph_begin(kind, stream);
    work_expect_not_preloaded(&other, stream, "a kernel can't be loaded");
    EXPECT(work_calls(&ready, stream), GPULOSS_OK);
    work_expect_not_preloaded(&other, stream, "a kernel can't be loaded");
    assert_true(graph_is_valid(stream));
    graph_expect(graph_end(stream), nodes, &ready, stream, results);
    work_expect_clear(&other, "calls that were refused");
    free(results);
    EXPECT(work_preloads(&other, stream), GPULOSS_OK);
    results = work_results(&other, stream);
    graph_capture_and_expect(kind, graph_nodes_of(&other, kind, stream), &other, stream, results);
    free(results);
    work_free(&ready);
    work_free(&other);
    gpuloss_destroy(context);
}

/* The kernels are loaded, but all scratch belongs to other streams. */
static void first_use_of_a_stream(void **state) {
    const capture_kind *kind = graph_kind_of(state);
    gpuloss_context *context = new_context(0);
    struct CUstream_st *stream = new_stream(kind->stream_flags), *first = new_stream(STREAM_NON_BLOCKING);
    work w = work_new(context, GPULOSS_F32, 1), with_workspace;
    unsigned char *results = work_results(&w, first);
    size_t nodes;
    int slot;
    for (slot = 1; slot < SLOTS; slot++)
        EXPECT(work_preloads(&w, new_stream(STREAM_NON_BLOCKING)), GPULOSS_OK);
    with_workspace = w;
    work_give_workspace(&with_workspace);
    nodes = graph_nodes_of(&with_workspace, kind, stream);
    graph_begin(kind, stream);
    work_expect_not_preloaded(&w, stream, "its scratch can't be allocated");
    EXPECT(work_calls(&with_workspace, stream), GPULOSS_OK);
    assert_true(graph_is_valid(stream));
    graph_expect(graph_end(stream), nodes, &w, stream, results);
    EXPECT(work_preloads(&w, stream), GPULOSS_OK);
    graph_capture_and_expect(kind, graph_nodes_of(&w, kind, stream), &w, stream, results);
    free(results);
    work_free(&with_workspace);
    gpuloss_destroy(context);
}

static const struct CMUnitTest tests[] = {
    GRAPH_TESTS_NON_BLOCKING(preloaded_calls),       GRAPH_TESTS_BLOCKING(preloaded_calls),
    GRAPH_TESTS_NON_BLOCKING(first_use_of_kernels),  GRAPH_TESTS_BLOCKING(first_use_of_kernels),
    GRAPH_TESTS_NON_BLOCKING(first_use_of_a_stream), GRAPH_TESTS_BLOCKING(first_use_of_a_stream),
};
const test_list capture_tests = TEST_LIST(tests);
