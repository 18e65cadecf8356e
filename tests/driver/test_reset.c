/* The GPU's primary CUcontext ends under a gpuloss context: it is released by someone who should not, or reset. Calls
 * report this, gpuloss_destroy does no harm, and a new context works. */
#include "work.h"

#include <stdlib.h>
#include <string.h>

typedef struct reset_kind {
    int resets;     /* else it is released */
    int is_current; /* the CUcontext, to the thread */
    int calls;      /* whether there are calls between the end and gpuloss_destroy */
} reset_kind;
static reset_kind release_then_destroy = {0, 0, 0}, release_then_call = {0, 0, 1};
static reset_kind release_current_then_destroy = {0, 1, 0}, release_current_then_call = {0, 1, 1};
static reset_kind reset_then_destroy = {1, 0, 0}, reset_then_call = {1, 0, 1};
static reset_kind reset_current_then_destroy = {1, 1, 0}, reset_current_then_call = {1, 1, 1};

#define EXPECT_REFUSED(call) EXPECT(call, GPULOSS_ERROR_DRIVER)

static void expect_refusals(const work *w, const work *not_loaded) {
    unsigned char byte = 0;
    struct CUstream_st *stream;
    void *pointer;
    int i;
    for (i = 0; i < WORK_CALLS; i++) {
        EXPECT_REFUSED(work_call(w, i, NULL));
        if (i == 0)
            note("", gpuloss_last_error());
        EXPECT_REFUSED(work_call(not_loaded, i, NULL));
        EXPECT_REFUSED(work_preload(not_loaded, i, NULL));
    }
    EXPECT_REFUSED(gpuloss_alloc(w->context, &pointer, 1));
    EXPECT_REFUSED(gpuloss_upload(w->context, w->outputs, &byte, 1, NULL));
    EXPECT_REFUSED(gpuloss_download(w->context, &byte, w->outputs, 1, NULL));
    EXPECT_REFUSED(gpuloss_synchronize(w->context, NULL));
    EXPECT_REFUSED(gpuloss_stream_create(w->context, &stream));
    EXPECT_REFUSED(gpuloss_free(w->context, w->outputs));
    EXPECT_REFUSED(gpuloss_stream_destroy(w->context, w->copies));
    EXPECT(gpuloss_release_stream(w->context, w->copies), GPULOSS_OK);
}

/* The context keeps the primary CUcontext, which then ends at its first release. */
static void make_primary_current(void) {
    (void)use_primary();
    MUST(driver.primary_release(0));
}

static void primary_ends(void **state) {
    const reset_kind *kind = (const reset_kind *)*state;
    struct CUctx_st *before;
    gpuloss_context *context;
    work w, not_loaded;
    unsigned char *results;
    require_gpu();
    if (kind->resets)
        REQUIRE_FUNCTION(primary_reset);
    context = new_context(0);
    w = work_new(context, GPULOSS_F32, 1);
    not_loaded = work_new(context, GPULOSS_F64, 1);
    results = work_results(&w, NULL);
    if (kind->is_current)
        make_primary_current();
    assert_int_equal(current_context() != NULL, kind->is_current);
    MUST(kind->resets ? driver.primary_reset(0) : driver.primary_release(0));
    before = current_context();
    if (kind->calls)
        expect_refusals(&w, &not_loaded);
    assert_ptr_equal(current_context(), before);
    gpuloss_destroy(context);
    assert_ptr_equal(current_context(), before);

    MUST(driver.context_set(NULL));
    context = new_context(0);
    w = work_new(context, GPULOSS_F32, 1);
    free(work_results(&w, NULL));
    work_expect(&w, results, "a context after that");
    free(results);
    work_free(&w);
    gpuloss_destroy(context);
}

#define RESET_TEST(kind)                                                                                               \
    { "primary_ends." #kind, primary_ends, NULL, NULL, &kind }
static const struct CMUnitTest tests[] = {
    RESET_TEST(release_then_destroy),         RESET_TEST(release_then_call),
    RESET_TEST(release_current_then_destroy), RESET_TEST(release_current_then_call),
    RESET_TEST(reset_then_destroy),           RESET_TEST(reset_then_call),
    RESET_TEST(reset_current_then_destroy),   RESET_TEST(reset_current_then_call),
};
const test_list reset_tests = TEST_LIST(tests);
