/* Two threads call the library at the same time, each on a stream of its own. They get the same bits as one thread
 * after the other. */
#include "work.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNNERS = 2, ROUNDS = 50, FEW_ROUNDS = 10, CALLS_OF_ROUND = 8 };

typedef struct runner {
    work w;
    struct CUstream_st *stream;
    unsigned char *expected, *got;
    pthread_barrier_t *begin;
    int wrong; /* rounds */
    gpuloss_status status;
    char message[MESSAGE_BYTES];
} runner;

/* The same outputs are written several times over, so that one thread's calls last as long as it takes the other to come. */
static gpuloss_status run_round(runner *r) {
    gpuloss_status status = work_clear(&r->w);
    int i;
    (void)pthread_barrier_wait(r->begin);
    for (i = 0; i < (is_small ? 1 : CALLS_OF_ROUND) && status == GPULOSS_OK; i++)
        status = work_calls(&r->w, r->stream);
    if (status == GPULOSS_OK)
        status = gpuloss_synchronize(r->w.context, r->stream);
    if (status == GPULOSS_OK)
        status = work_fetch(&r->w, r->got);
    if (status == GPULOSS_OK && memcmp(r->got, r->expected, r->w.output_bytes) != 0)
        r->wrong++;
    return status;
}

/* A round that fails ends no thread, because the other thread waits for it. */
static void *run(void *given) {
    runner *r = (runner *)given;
    int round;
    for (round = 0; round < (is_small ? FEW_ROUNDS : ROUNDS); round++) {
        const gpuloss_status status = run_round(r);
        if (status != GPULOSS_OK && r->status == GPULOSS_OK) {
            r->status = status;
            (void)snprintf(r->message, sizeof r->message, "%s", gpuloss_last_error());
        }
    }
    return NULL;
}

static void expect_same_bits(gpuloss_context *const contexts[RUNNERS]) {
    pthread_t threads[RUNNERS];
    runner runners[RUNNERS];
    pthread_barrier_t begin;
    int i;
    memset(runners, 0, sizeof runners);
    assert_int_equal(pthread_barrier_init(&begin, NULL, RUNNERS), 0);
    for (i = 0; i < RUNNERS; i++) {
        runner *r = &runners[i];
        r->w = work_new(contexts[i], GPULOSS_F32, (unsigned)i + 1);
        EXPECT(gpuloss_stream_create(contexts[i], &r->stream), GPULOSS_OK);
        r->expected = work_results(&r->w, r->stream);
        r->got = (unsigned char *)malloc(r->w.output_bytes);
        assert_non_null(r->got);
        r->begin = &begin;
    }
    assert_true(memcmp(runners[0].expected, runners[1].expected, runners[0].w.output_bytes) != 0);
    for (i = 0; i < RUNNERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run, &runners[i]), 0);
    for (i = 0; i < RUNNERS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (i = 0; i < RUNNERS; i++) {
        runner *r = &runners[i];
        if (r->status != GPULOSS_OK)
            fail_msg("thread %d: %s: %s", i, gpuloss_status_name(r->status), r->message);
        if (r->wrong > 0)
            fail_msg("thread %d: %d rounds have other bits", i, r->wrong);
        free(r->expected);
        free(r->got);
        EXPECT(gpuloss_stream_destroy(contexts[i], r->stream), GPULOSS_OK);
        work_free(&r->w);
    }
    (void)pthread_barrier_destroy(&begin);
}

static void threads_of_one_context(void **state) {
    gpuloss_context *contexts[RUNNERS];
    (void)state;
    require_gpu();
    contexts[0] = contexts[1] = new_context(0);
    expect_same_bits(contexts);
    gpuloss_destroy(contexts[0]);
}

static void contexts_of_one_cucontext(void **state) {
    gpuloss_context *contexts[RUNNERS];
    (void)state;
    require_gpu();
    contexts[0] = new_context(0);
    contexts[1] = new_context(0);
    expect_same_bits(contexts);
    gpuloss_destroy(contexts[0]);
    gpuloss_destroy(contexts[1]);
}

static void contexts_of_two_cucontexts(void **state) {
    gpuloss_context *contexts[RUNNERS];
    struct CUctx_st *cuda[RUNNERS];
    int i;
    (void)state;
    require_gpu();
    REQUIRE_FUNCTION(context_create);
    for (i = 0; i < RUNNERS; i++) {
        MUST(driver.context_create(&cuda[i], 0, 0));
        contexts[i] = new_context(0);
    }
    expect_same_bits(contexts);
    for (i = 0; i < RUNNERS; i++) {
        gpuloss_destroy(contexts[i]);
        MUST(driver.context_destroy(cuda[i]));
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(threads_of_one_context),
    cmocka_unit_test(contexts_of_one_cucontext),
    cmocka_unit_test(contexts_of_two_cucontexts),
};
const test_list context_tests = TEST_LIST(tests);
