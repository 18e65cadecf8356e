/* The checks of the numerics tests reject wrong results, and the number formats are exact. Needs no GPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bounds.h"
#include "checks.h"
#include "compare.h"
#include "data.h"

static bool value_passes(double got, long double want, long double bound) {
    report r = report_on("self-test");
    bool passed = compare_value(&r, CE_LOSS, GPULOSS_F32, GPULOSS_F32, 1, 2, got, want, bound);
    assert_int_equal(passed, r.failures == 0);
    return passed;
}

static void values_are_compared_with_the_bound(void **state) {
    const double inf = (double)INFINITY, nan = (double)NAN;
    (void)state;
    assert_true(value_passes(1.0, 1.0L, 0));
    assert_true(value_passes(1.5, 1.0L, 0.5L));
    assert_false(value_passes(2.0, 1.0L, 0.5L));
    assert_false(value_passes(-1.0, 1.0L, 0.5L));
    assert_false(value_passes(nan, 1.0L, 1e30L));
    assert_false(value_passes(1.0, (long double)NAN, 1e30L));
    assert_true(value_passes(nan, (long double)NAN, 0));
    assert_true(value_passes(inf, (long double)INFINITY, 0));
    assert_false(value_passes(-inf, (long double)INFINITY, 0));
    assert_false(value_passes(nan, (long double)INFINITY, 0));
    assert_false(value_passes(3e38, (long double)INFINITY, 1));
    assert_false(value_passes(inf, 1.0L, 1.0L));
    assert_true(value_passes(inf, 5e38L, 1.0L));
    assert_false(value_passes(-inf, 5e38L, 1.0L));
    assert_false(value_passes(1.5, 1.0L, (long double)NAN));
}

static void failures_are_told(void **state) {
    report r = report_on("self-test");
    (void)state;
    compare_value(&r, KL_GRAD, GPULOSS_F32, GPULOSS_F32, 3, 4, 2.0, 1.0L, 0.5L);
    compare_value(&r, KL_GRAD, GPULOSS_F32, GPULOSS_F32, 5, 6, 2.0, 1.0L, 0.5L);
    assert_int_equal(r.failures, 2);
    assert_non_null(strstr(r.first, "self-test: kl.grad[3, 4]: got 2, want 1, off by 1 where 0.5 is allowed"));
}

static void counts_and_bits(void **state) {
    const unsigned char a[3] = {1, 2, 3}, b[3] = {1, 2, 4};
    report r = report_on("self-test");
    (void)state;
    assert_true(compare_count(&r, "count", 3, 3));
    assert_false(compare_count(&r, "count", 3, 4));
    assert_true(compare_bits(&r, "bits", a, a, sizeof a));
    assert_true(compare_bits(&r, "bits", a, b, 2));
    assert_false(compare_bits(&r, "bits", a, b, sizeof a));
    assert_int_equal(r.failures, 2);
}

static void untouched_memory(void **state) {
    unsigned char before[64], after[64];
    size_t i;
    (void)state;
    fill_bits(before, sizeof before, MOAT_BITS);
    for (i = 0; i < sizeof before; i++) {
        report r = report_on("self-test");
        memcpy(after, before, sizeof after);
        assert_true(compare_untouched(&r, "moat", before, after, sizeof after));
        after[i] ^= 1;
        assert_false(compare_untouched(&r, "moat", before, after, sizeof after));
    }
}

/* One element that was left out is found in every type, and no element of a result is taken for one. */
static void unwritten_elements(void **state) {
    enum { COUNT = 5 };
    size_t d;
    int64_t left;
    (void)state;
    for (d = 0; d < DTYPE_COUNT; d++)
        for (left = 0; left < COUNT; left++) {
            size_t size = dtype_size(all_dtypes[d]);
            unsigned char row[COUNT * 8];
            report r = report_on("self-test");
            int64_t i;
            fill_bits(row, sizeof row, POISON_BITS);
            assert_true(isnan(dtype_load(all_dtypes[d], row)));
            for (i = 0; i < COUNT; i++)
                if (i != left)
                    dtype_store(all_dtypes[d], row + (size_t)i * size, i % 2 ? (double)NAN : -1.0);
            assert_false(compare_written(&r, "row", 0, row, COUNT, size));
            dtype_store(all_dtypes[d], row + (size_t)left * size, (double)NAN);
            assert_true(compare_written(&r, "row", 0, row, COUNT, size));
        }
}

/* Every 16-bit number survives the round trip. A number between two neighbours rounds to the closer one, and at half
 * way to the even one. */
static void sixteen_bit_formats(void **state) {
    static const gpuloss_dtype dtypes[] = {GPULOSS_F16, GPULOSS_BF16};
    size_t d;
    uint32_t bits;
    (void)state;
    for (d = 0; d < 2; d++)
        for (bits = 0; bits < 0x10000; bits++) {
            uint16_t from = (uint16_t)bits, next = (uint16_t)(bits + 1), to;
            double value = dtype_load(dtypes[d], &from), above;
            dtype_store(dtypes[d], &to, value);
            if (isnan(value)) {
                assert_true(isnan(dtype_load(dtypes[d], &to)));
                continue;
            }
            assert_int_equal(to, from);
            above = dtype_load(dtypes[d], &next);
            if (!isfinite(value) || !isfinite(above) || bits == 0x7fff)
                continue;
            assert_true(fabs(above - value) == dtype_ulp(dtypes[d], value));
            dtype_store(dtypes[d], &to, (value + above) / 2);
            assert_int_equal(to, bits % 2 ? next : from);
            dtype_store(dtypes[d], &to, 0.51 * value + 0.49 * above);
            assert_int_equal(to, from);
            dtype_store(dtypes[d], &to, 0.49 * value + 0.51 * above);
            assert_int_equal(to, next);
        }
}

static uint16_t stored(gpuloss_dtype dtype, double value) {
    uint16_t bits;
    dtype_store(dtype, &bits, value);
    return bits;
}

static void known_numbers(void **state) {
    (void)state;
    assert_int_equal(stored(GPULOSS_F16, 1.0), 0x3c00);
    assert_int_equal(stored(GPULOSS_F16, -1.0 / 3.0), 0xb555);
    assert_int_equal(stored(GPULOSS_F16, 65504.0), 0x7bff);
    assert_int_equal(stored(GPULOSS_F16, 65519.9), 0x7bff);
    assert_int_equal(stored(GPULOSS_F16, 65520.0), 0x7c00);
    assert_int_equal(stored(GPULOSS_F16, 0x1p-24), 1);
    assert_int_equal(stored(GPULOSS_F16, 0x1p-25), 0);
    assert_int_equal(stored(GPULOSS_F16, -0x1.8p-25), 0x8001);
    assert_int_equal(stored(GPULOSS_BF16, 1.0 / 3.0), 0x3eab);
    assert_int_equal(stored(GPULOSS_BF16, 3.4e38), 0x7f80);
    assert_int_equal(stored(GPULOSS_BF16, -(double)INFINITY), 0xff80);
    assert_true(dtype_max(GPULOSS_F32) == 0x1.fffffep127 && dtype_max(GPULOSS_F16) == 65504.0);
    assert_true(dtype_min_normal(GPULOSS_F32) == 0x1p-126 && dtype_min_normal(GPULOSS_F16) == 0x1p-14);
    assert_true(dtype_ulp(GPULOSS_F32, 1.0) == 0x1p-23 && dtype_ulp(GPULOSS_F32, 0.9) == 0x1p-24);
    assert_true(dtype_ulp(GPULOSS_F64, 1.0) == 0x1p-52 && dtype_ulp(GPULOSS_F32, 0.0) == 0x1p-149);
    assert_true(dtype_round(GPULOSS_F32, 0.1) == (double)0.1f && dtype_round(GPULOSS_F64, 0.1) == 0.1);
}

/* The results of float arithmetic are within the bounds, and results that are wrong in a few of the last bits are not.
 * */
static void bounds_are_close_to_the_arithmetic(void **state) {
    enum { CLASSES = 100 };
    double x[CLASSES];
    float m = -INFINITY, sum = 0.0f, loss;
    reference_row info;
    row_bounds bounds;
    long double want;
    int i;
    (void)state;
    make_logits(x, 1, CLASSES, LOGITS_NORMAL, GPULOSS_F32, 3);
    for (i = 0; i < CLASSES; i++)
        m = fmaxf(m, (float)x[i]);
    for (i = 0; i < CLASSES; i++)
        sum += expf((float)x[i] - m);
    loss = logf(sum) + (m - (float)x[7]);
    reference_softmax(x, CLASSES, &info);
    want = info.log_sum + info.max - (long double)x[7];
    bounds = cross_entropy_row_bounds(GPULOSS_F32, CLASSES, &info, (long double)x[7]);
    assert_true(fabsl((long double)loss - want) <= bounds.loss);
    assert_true(bounds.loss < 64 * (long double)dtype_ulp(GPULOSS_F32, (double)want));
    bounds = cross_entropy_row_bounds(GPULOSS_F64, CLASSES, &info, (long double)x[7]);
    assert_true(fabsl((long double)loss - want) > bounds.loss);
    assert_true(bounds.loss < 64 * (long double)dtype_ulp(GPULOSS_F64, (double)want));
}

/* The worst errors are remembered by quantity and type. */
static void worst_is_stored(void **state) {
    report r = report_on("self-test");
    (void)state;
    worst_reset();
    compare_value(&r, CE_GRAD, GPULOSS_BF16, GPULOSS_BF16, 0, 0, 1.0, 1.0L, 0.5L);
    compare_value(&r, CE_GRAD, GPULOSS_BF16, GPULOSS_BF16, 0, 0, 1.0 + 0x1p-7, 1.0L, 0x1p-6L);
    assert_true(worst_of(CE_GRAD, GPULOSS_BF16)->fraction == 0.5L);
    note_ulps(CE_GRAD, GPULOSS_BF16, 1.0, 1.0L + 0x1p-7L);
    assert_true(worst_of(CE_GRAD, GPULOSS_BF16)->ulps == 1.0);
    assert_int_equal(worst_of(CE_GRAD, GPULOSS_BF16)->compared, 2);
    assert_int_equal(worst_of(CE_GRAD, GPULOSS_F32)->compared, 0);
    worst_reset();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_compared_with_the_bound),
        cmocka_unit_test(failures_are_told),
        cmocka_unit_test(counts_and_bits),
        cmocka_unit_test(untouched_memory),
        cmocka_unit_test(unwritten_elements),
        cmocka_unit_test(sixteen_bit_formats),
        cmocka_unit_test(known_numbers),
        cmocka_unit_test(bounds_are_close_to_the_arithmetic),
        cmocka_unit_test(worst_is_stored),
    };
    return cmocka_run_group_tests_name("harness", tests, NULL, NULL) + run_check_tests() + run_kl_div_check_tests();
}
