/* Many threads on one context, at its first use. */
#include "check.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

enum { THREADS = 8, CALLS = 4 };

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

static void first_use(void **state) {
    pthread_t threads[THREADS];
    worker workers[THREADS];
    pthread_barrier_t start;
    gpuloss_context *context = new_context();
    gpuloss_info info;
    int i;
    (void)state;
    assert_int_equal(pthread_barrier_init(&start, NULL, THREADS), 0);
    for (i = 0; i < THREADS; i++) {
        workers[i].context = context;
        workers[i].start = &start;
        workers[i].number = i;
        workers[i].wrong = 0;
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(workers[i].wrong, 0);
    }
    pthread_barrier_destroy(&start);
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

/* A thread whose call begins between the two launches of another call on its stream. */
static struct {
    gpuloss_context *context;
    pthread_t thread;
    int (*launch)(const void *, void *, void **, void **);
    int begins, waits, ends; /* begins: with the next launch */
} second;

static int is_set(int *flag) {
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}
static void set(int *flag) {
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
}
static void sleep_shortly(void) {
    const struct timespec a_microsecond = {0, 1000};
    (void)nanosleep(&a_microsecond, NULL);
}

/* In place of the C library's: the implementation calls it where a thread waits. */
int sched_yield(void) {
    set(&second.waits);
    sleep_shortly();
    return 0;
}

/* A mean over targets with a gradient: its rows are counted by a launch of its own. */
static gpuloss_cross_entropy_desc mean_gradient(int64_t rows) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    d.rows = rows;
    d.target_type = GPULOSS_I64;
    return d;
}

static void *second_call(void *wrong) {
    const gpuloss_cross_entropy_desc d = mean_gradient(16384);
    fake_set_current(&fake.context[2]);
    *(int *)wrong = gpuloss_cross_entropy(second.context, &d, stream_number(1)) != GPULOSS_OK;
    set(&second.ends);
    return NULL;
}

static int second_is_wrong;
static int launch_and_let_second_begin(const void *config, void *function, void **parameters, void **extra) {
    const int code = second.launch(config, function, parameters, extra);
    if (__atomic_exchange_n(&second.begins, 0, __ATOMIC_ACQ_REL)) {
        assert_int_equal(pthread_create(&second.thread, NULL, second_call, &second_is_wrong), 0);
        while (!is_set(&second.waits) && !is_set(&second.ends))
            sleep_shortly();
    }
    return code;
}
static void *symbol_of_launch(void *user, const char *name) {
    void *found = fake_symbol(user, name);
    if (strcmp(name, "cuLaunchKernelEx") != 0)
        return found;
    second.launch = (int (*)(const void *, void *, void **, void **))(uintptr_t)found;
    return (void *)(uintptr_t)launch_and_let_second_begin;
}

static void two_launches_on_one_stream(void **state) {
    const gpuloss_cross_entropy_desc d = mean_gradient(8192);
    gpuloss_create_desc desc = fake_desc();
    int i;
    (void)state;
    fake_set_current(&fake.context[2]);
    desc.symbol = symbol_of_launch;
    expect_ok(gpuloss_create(&second.context, &desc));
    expect_ok(gpuloss_cross_entropy_preload(second.context, &d, stream_number(1)));
    second.waits = second.ends = 0;
    second.begins = 1;
    expect_ok(gpuloss_cross_entropy(second.context, &d, stream_number(1)));
    assert_int_equal(pthread_join(second.thread, NULL), 0);
    assert_int_equal(second_is_wrong, 0);
    assert_string_equal(fake.violation, "");
    assert_int_equal(fake.launches, 4);
    for (i = 0; i < fake.launches; i++)
        assert_int_equal(fake.launch[i].parameters.rows.rows, i < 2 ? 8192 : 16384);
    gpuloss_destroy(second.context);
}

int thread_tests(void) {
    const struct CMUnitTest tests[] = {TEST(first_use), TEST(first_use_repeated), TEST(two_launches_on_one_stream)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
