/* Built without one of the two types of 16 bits, or without both: what they share is there for the other alone. */
#include "check.h"

#ifdef GPULOSS_NO_F16
enum { HAS_F16 = 0 };
#else
enum { HAS_F16 = 1 };
#endif
#ifdef GPULOSS_NO_BF16
enum { HAS_BF16 = 0 };
#else
enum { HAS_BF16 = 1 };
#endif

static gpuloss_context *context;

static void expect_built(const gpuloss_cross_entropy_desc *d, int is_built, const char *kernel, int line) {
    const int launches = fake.launches;
    const long loads = fake.loads;
    if (is_built) {
        expect_ok_(gpuloss_cross_entropy_preload(context, d, NULL), line);
        expect_ok_(gpuloss_cross_entropy(context, d, NULL), line);
        assert_string_equal(last_launch()->entry, kernel);
        return;
    }
    expect_error_(gpuloss_cross_entropy_preload(context, d, NULL), GPULOSS_ERROR_NOT_BUILT,
                  "gpuloss_cross_entropy_preload", kernel, line);
    expect_error_(gpuloss_cross_entropy(context, d, NULL), GPULOSS_ERROR_NOT_BUILT, "gpuloss_cross_entropy", kernel,
                  line);
    assert_int_equal(fake.launches, launches);
    assert_int_equal(fake.loads, loads);
}

static void expect_types(gpuloss_cross_entropy_desc d, int line) {
    d.dtype = GPULOSS_F16;
    expect_built(&d, HAS_F16, "gpuloss_cross_entropy_row_pipeline_any16", line);
    d.dtype = GPULOSS_BF16;
    expect_built(&d, HAS_BF16, "gpuloss_cross_entropy_row_pipeline_any16", line);
    d.dtype = GPULOSS_F16;
    expect_built(&d, HAS_F16, "gpuloss_cross_entropy_row_pipeline_any16", line);
    d.dtype = GPULOSS_F32;
    expect_built(&d, 1, "gpuloss_cross_entropy_row_pipeline_f32", line);
}

static void a_type_is_left_out_of_what_two_share(void **state) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    (void)state;
    context = new_context();
    d.softcap = 2.0;
    expect_types(d, __LINE__);
    d.softcap = 0.0;
    d.classes = 100000;
    expect_types(d, __LINE__);
    gpuloss_destroy(context);
}

static void a_type_is_left_out_of_its_own(void **state) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    (void)state;
    context = new_context();
    d.classes = 20;
    d.softcap = 2.0;
    d.dtype = GPULOSS_F16;
    expect_built(&d, HAS_F16, "gpuloss_cross_entropy_row_thread_any16", __LINE__);
    d.dtype = GPULOSS_BF16;
    expect_built(&d, HAS_BF16, "gpuloss_cross_entropy_row_thread_any16", __LINE__);
    gpuloss_destroy(context);
}

/* Arrays of other types belong to the type of the logits. */
static void other_arrays_may_have_the_type(void **state) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    (void)state;
    context = new_context();
    d.grad_dtype = GPULOSS_F16;
    expect_built(&d, 1, "gpuloss_cross_entropy_row_pipeline_f32", __LINE__);
    d.grad_dtype = GPULOSS_BF16;
    expect_built(&d, 1, "gpuloss_cross_entropy_row_pipeline_f32", __LINE__);
    gpuloss_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {TEST(a_type_is_left_out_of_what_two_share), TEST(a_type_is_left_out_of_its_own),
                                       TEST(other_arrays_may_have_the_type)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
