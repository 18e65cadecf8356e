/* The default stream, while a stream that waits for it is captured. The driver can't say then whether the default stream is
 * captured, and launches nothing on it. */
#include "graph.h"

#include <stdlib.h>

static void expect_query_fails(void) {
    int capturing = 0;
    assert_int_equal(driver.stream_capturing(NULL, &capturing), CODE_CAPTURE_IMPLICIT);
}

/* Calls on the default stream load nothing, like calls on a captured stream. The capture goes on. */
static void first_use_of_kernels_on_default_stream(void **state) {
    const capture_kind *kind = graph_kind_of(state);
    gpuloss_context *context = new_context(0);
    struct CUstream_st *stream = new_stream(kind->stream_flags);
    work captured = work_new(context, GPULOSS_F32, 1), other = work_new(context, GPULOSS_F64, 2);
    unsigned char *results = work_results(&captured, stream);
    const size_t nodes = graph_nodes_of(&captured, kind, stream);
    EXPECT(work_clear(&other), GPULOSS_OK);
    graph_begin(kind, stream);
    expect_query_fails();
    work_expect_not_preloaded(&other, NULL, "a kernel can't be loaded");
    EXPECT(work_calls(&captured, stream), GPULOSS_OK);
    work_expect_not_preloaded(&other, NULL, "a kernel can't be loaded");
    assert_true(graph_is_valid(stream));
    graph_expect(graph_end(stream), nodes, &captured, stream, results);
    work_expect_clear(&other, "calls that were refused");
    free(results);
    EXPECT(work_preloads(&other, NULL), GPULOSS_OK);
    free(work_results(&other, NULL));
    work_free(&captured);
    work_free(&other);
    gpuloss_destroy(context);
}

/* The driver refuses its launches. The capture may be lost, but its stream is not. */
static void preloaded_calls_on_default_stream(void **state) {
    const capture_kind *kind = graph_kind_of(state);
    gpuloss_context *context = new_context(0);
    struct CUstream_st *stream = new_stream(kind->stream_flags);
    work captured = work_new(context, GPULOSS_F32, 1), other = work_new(context, GPULOSS_F32, 2);
    unsigned char *results = work_results(&captured, stream), *other_results = work_results(&other, NULL);
    const size_t nodes = graph_nodes_of(&captured, kind, stream);
    void *graph;
    int i, is_valid;
    EXPECT(work_clear(&other), GPULOSS_OK);
    graph_begin(kind, stream);
    expect_query_fails();
    EXPECT(work_preloads(&other, NULL), GPULOSS_OK);
    EXPECT(work_call(&other, 0, NULL), GPULOSS_ERROR_DRIVER);
    expect_code_in_message(CODE_CAPTURE_IMPLICIT);
    for (i = 1; i < WORK_CALLS; i++)
        EXPECT(work_call(&other, i, NULL), GPULOSS_ERROR_DRIVER);
    is_valid = graph_is_valid(stream);
    if (!is_valid)
        note("the capture is lost", "");
    EXPECT(work_calls(&captured, stream), is_valid ? GPULOSS_OK : GPULOSS_ERROR_DRIVER);
    graph = graph_end_of_any(stream);
    assert_int_equal(graph != NULL, is_valid);
    work_expect_clear(&other, "calls that were refused");
    if (graph != NULL)
        graph_expect(graph, nodes, &captured, stream, results);
    EXPECT(work_calls(&other, NULL), GPULOSS_OK);
    MUST(driver.stream_synchronize(NULL));
    work_expect(&other, other_results, "calls after the capture");
    graph_capture_and_expect(kind, nodes, &captured, stream, results);
    free(results);
    free(other_results);
    work_free(&captured);
    work_free(&other);
    gpuloss_destroy(context);
}

static const struct CMUnitTest tests[] = {
    GRAPH_TESTS_BLOCKING(first_use_of_kernels_on_default_stream),
    GRAPH_TESTS_BLOCKING(preloaded_calls_on_default_stream),
};
const test_list default_stream_tests = TEST_LIST(tests);
