/* Another thread of the process calls the library during a capture. The driver forbids this thread to load and to
 * allocate while a capture is global. The library then returns the driver's error. The capture may be lost, but its
 * stream is not. */
#include "graph.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct other_thread {
    work w;
    struct CUstream_st *stream;
    gpuloss_create_desc desc;
    gpuloss_context *made;
    gpuloss_status status;
    char message[MESSAGE_BYTES];
} other_thread;
typedef void *action(void *other);

static void *end_action(other_thread *other, gpuloss_status status) {
    other->status = status;
    (void)snprintf(other->message, sizeof other->message, "%s", gpuloss_last_error());
    return NULL;
}

static void *call(void *given) {
    other_thread *other = (other_thread *)given;
    return end_action(other, work_calls(&other->w, other->stream));
}

static void *preload(void *given) {
    other_thread *other = (other_thread *)given;
    return end_action(other, work_preloads(&other->w, other->stream));
}

static void *create(void *given) {
    other_thread *other = (other_thread *)given;
    return end_action(other, gpuloss_create(&other->made, &other->desc));
}

static void *destroy(void *given) {
    other_thread *other = (other_thread *)given;
    gpuloss_destroy(other->made);
    other->made = NULL;
    return end_action(other, GPULOSS_OK);
}

static void run_in_thread(action *act, other_thread *other) {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, act, other), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

/* Whether the driver allows the action, which then does no harm to the capture. */
static int is_allowed(const capture_kind *kind, action *act) {
    if (act == call)
        return 1;
    if (act == create)
        return kind->mode != CAPTURE_GLOBAL && kind->stream_flags == STREAM_NON_BLOCKING;
    return act == preload && kind->mode != CAPTURE_GLOBAL;
}

/* The results of the other thread's work, in a context that has nothing to do with the test. */
static unsigned char *results_elsewhere(void) {
    gpuloss_context *context = new_context(0);
    work w = work_new(context, GPULOSS_F64, 2);
    unsigned char *results = work_results(&w, w.copies);
    work_free(&w);
    gpuloss_destroy(context);
    return results;
}

/* Calls from `first` on, while their stream is captured. */
static void expect_calls(const work *w, int first, int is_valid, struct CUstream_st *stream) {
    int i;
    for (i = first; i < WORK_CALLS; i++) {
        EXPECT(work_call(w, i, stream), is_valid ? GPULOSS_OK : GPULOSS_ERROR_DRIVER);
        if (!is_valid)
            expect_code_in_message(CODE_CAPTURE_INVALIDATED);
    }
}

static void expect_usable(const capture_kind *kind, size_t nodes, const work *w, struct CUstream_st *stream,
                          unsigned char *results) {
    EXPECT(work_clear(w), GPULOSS_OK);
    EXPECT(work_calls(w, stream), GPULOSS_OK);
    MUST(driver.stream_synchronize(stream));
    work_expect(w, results, "calls after the capture");
    graph_capture_and_expect(kind, nodes, w, stream, results);
    free(results);
}

static void during_capture(void **state, action *act) {
    const capture_kind *kind = graph_kind_of(state);
    unsigned char *other_results = results_elsewhere(), *results;
    gpuloss_context *context = new_context(0);
    struct CUstream_st *stream = new_stream(kind->stream_flags);
    work captured = work_new(context, GPULOSS_F32, 1);
    other_thread other;
    size_t nodes;
    int is_valid;
    void *graph;
    memset(&other, 0, sizeof other);
    other.w = work_new(context, GPULOSS_F64, 2);
    other.stream = new_stream(STREAM_NON_BLOCKING);
    other.desc.driver_path = driver_path();
    other.desc.cuda_context = current_context();
    if (act == destroy)
        other.made = new_context(0);
    if (act == call)
        EXPECT(work_preloads(&other.w, other.stream), GPULOSS_OK);
    EXPECT(work_clear(&other.w), GPULOSS_OK);
    results = work_results(&captured, stream);
    nodes = graph_nodes_of(&captured, kind, stream);

    graph_begin(kind, stream);
    EXPECT(work_call(&captured, 0, stream), GPULOSS_OK);
    run_in_thread(act, &other);
    is_valid = graph_is_valid(stream);
    expect_calls(&captured, 1, is_valid, stream);
    graph = graph_end_of_any(stream);
    assert_int_equal(graph != NULL, is_valid);
    if (other.status != GPULOSS_OK)
        note("the other thread: ", other.message);
    if (!is_valid)
        note("the capture is lost", "");
    if (is_allowed(kind, act)) {
        assert_int_equal(other.status, GPULOSS_OK);
        assert_true(is_valid);
    }
    if (other.status != GPULOSS_OK)
        assert_int_equal(other.status, GPULOSS_ERROR_DRIVER);
    if (graph != NULL)
        graph_expect(graph, nodes, &captured, stream, results);
    expect_usable(kind, nodes, &captured, stream, results);

    if (act != call)
        EXPECT(work_calls(&other.w, other.stream), GPULOSS_OK);
    MUST(driver.stream_synchronize(other.stream));
    work_expect(&other.w, other_results, "the other thread's calls");
    if (act == create && other.made == NULL)
        other.made = new_context(0);
    gpuloss_destroy(other.made);
    free(other_results);
    work_free(&captured);
    work_free(&other.w);
    gpuloss_destroy(context);
}

static void thread_that_calls(void **state) {
    during_capture(state, call);
}
static void thread_that_preloads(void **state) {
    during_capture(state, preload);
}
static void thread_that_creates_a_context(void **state) {
    during_capture(state, create);
}
/* The driver refuses to wait for a CUcontext of which a stream is captured. */
static void thread_that_destroys_a_context(void **state) {
    during_capture(state, destroy);
}

static const struct CMUnitTest tests[] = {
    GRAPH_TESTS_NON_BLOCKING(thread_that_calls),
    GRAPH_TESTS_BLOCKING(thread_that_calls),
    GRAPH_TESTS_NON_BLOCKING(thread_that_preloads),
    GRAPH_TESTS_BLOCKING(thread_that_preloads),
    GRAPH_TESTS_NON_BLOCKING(thread_that_creates_a_context),
    GRAPH_TESTS_BLOCKING(thread_that_creates_a_context),
    GRAPH_TESTS_NON_BLOCKING(thread_that_destroys_a_context),
    GRAPH_TESTS_BLOCKING(thread_that_destroys_a_context),
};
const test_list beside_tests = TEST_LIST(tests);
