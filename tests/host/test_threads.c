/* Many threads on one context, at its first use. */
#include "check.h"

#include <pthread.h>
#include <stdio.h>

enum { THREADS = 8, CALLS = 4, ON_ONE_STREAM = 20 };

typedef struct worker {
    gpuloss_context *context;
    pthread_barrier_t *start;
    int number;
    int wrong;
} worker;

static void *work(void *argument) {
    worker *w = (worker *)argument;
    gpuloss_cross_entropy_desc ce = some_cross_entropy(), of_long_rows = ce, with_options = ce;
    gpuloss_kl_div_desc kl = some_kl_div();
    char got[32];
    int i;
    of_long_rows.classes = 100000;
    with_options.softcap = 2.0;
    fake_set_current(w->number % 2 ? &fake.context[2] : NULL);
    pthread_barrier_wait(w->start);
    w->wrong += gpuloss_last_error()[0] != 0;
    for (i = 0; i < CALLS; i++) {
        w->wrong += gpuloss_cross_entropy(w->context, &ce, stream_number(w->number)) != GPULOSS_OK;
        w->wrong += gpuloss_kl_div_preload(w->context, &kl, stream_number(w->number)) != GPULOSS_OK;
        w->wrong += gpuloss_kl_div(w->context, &kl, stream_number(w->number)) != GPULOSS_OK;
        w->wrong += gpuloss_cross_entropy_preload(w->context, &of_long_rows, stream_number(w->number)) != GPULOSS_OK;
        w->wrong += gpuloss_cross_entropy(w->context, &of_long_rows, stream_number(w->number)) != GPULOSS_OK;
        w->wrong += gpuloss_cross_entropy(w->context, &with_options, stream_number(w->number)) != GPULOSS_OK;
        kl.rows = -1000 - w->number;
        w->wrong += gpuloss_kl_div(w->context, &kl, NULL) != GPULOSS_ERROR_INVALID_ARGUMENT;
        kl.rows = 1000;
        snprintf(got, sizeof got, "(got %d)", -1000 - w->number);
        w->wrong += strstr(gpuloss_last_error(), got) == NULL;
    }
    w->wrong += gpuloss_release_stream(w->context, stream_number(w->number)) != GPULOSS_OK;
    w->wrong += fake_current() != (w->number % 2 ? &fake.context[2] : NULL);
    return NULL;
}

/* Runs the threads side by side, and expects that nothing goes wrong in them. */
static void run_threads(gpuloss_context *context, void *(*body)(void *)) {
    pthread_t threads[THREADS];
    worker workers[THREADS];
    pthread_barrier_t start;
    int i;
    assert_int_equal(pthread_barrier_init(&start, NULL, THREADS), 0);
    for (i = 0; i < THREADS; i++) {
        workers[i].context = context;
        workers[i].start = &start;
        workers[i].number = i;
        workers[i].wrong = 0;
        assert_int_equal(pthread_create(&threads[i], NULL, body, &workers[i]), 0);
    }
    for (i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(workers[i].wrong, 0);
    }
    pthread_barrier_destroy(&start);
}

static void first_use(void **state) {
    gpuloss_context *context = new_context();
    gpuloss_info info;
    (void)state;
    run_threads(context, work);
    assert_int_equal(fake.launches, THREADS * CALLS * 7);
    /* One copy of a kernel stays loaded, whatever the number of threads that loaded it. That holds for two kernels of one
     * text, too. */
    assert_int_equal(fake_live_modules(), 5);
    assert_true(fake.loads >= 5 && fake.loads <= 5 * THREADS);
    expect_ok(gpuloss_get_info(context, &info));
    assert_int_equal(info.kernels_loaded, 5);
    gpuloss_destroy(context);
}

/* The same again and again: who comes first differs. */
static void first_use_repeated(void **state) {
    int i;
    for (i = 0; i < 50; i++) {
        fake_reset();
        fake_set_current(&fake.context[2]);
        first_use(state);
        assert_int_equal(fake_leaks(), 0);
        assert_string_equal(fake.violation, "");
    }
}

/* Calls on one stream, of which each launches two kernels: the fake driver refuses a launch between them. */
static void *mean_gradients(void *argument) {
    worker *w = (worker *)argument;
    gpuloss_cross_entropy_desc ce = some_cross_entropy();
    int i;
    ce.rows = 8192 * (w->number + 1);
    ce.target_type = GPULOSS_I64;
    fake_set_current(&fake.context[2]);
    pthread_barrier_wait(w->start);
    for (i = 0; i < ON_ONE_STREAM; i++)
        w->wrong += gpuloss_cross_entropy(w->context, &ce, stream_number(1)) != GPULOSS_OK;
    return NULL;
}

static void two_launches_on_one_stream(void **state) {
    gpuloss_context *context = new_context();
    (void)state;
    run_threads(context, mean_gradients);
    assert_int_equal(fake.launches, THREADS * ON_ONE_STREAM * 2);
    assert_string_equal(fake.violation, "");
    gpuloss_destroy(context);
}

int thread_tests(void) {
    const struct CMUnitTest tests[] = {TEST(first_use), TEST(first_use_repeated), TEST(two_launches_on_one_stream)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
