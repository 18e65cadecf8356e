/* The references against PyTorch's results (tests/vectors), and against closed forms.
 *
 *   test_reference [folder of the vectors] */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checks.h"
#include "reference.h"
#include "vectors.h"

static const char *folder = "tests/vectors";

/* PyTorch's double-precision result comes from at most `operations` operations, each within an ulp (2^-52) of numbers
 * no larger than `largest`. The reference's own error is far smaller. It has the same size where long double is double.
 */
static long double tolerance(long double operations, long double largest) {
    return 2 * operations * ldexpl(1, -52) * (1 + largest);
}

static void expect_close(const char *name, const char *what, size_t i, long double got, double want,
                         long double allowed) {
    if (isnan(want) ? isnan(got) : isinf(want) ? got == (long double)want : fabsl(got - (long double)want) <= allowed)
        return;
    fail_msg("%s: %s[%zu]: reference %.17Lg, PyTorch %.17g, allowed %.3Lg", name, what, i, got, want, allowed);
}

static long double largest_of(const double *values, size_t count) {
    long double largest = 0;
    size_t i;
    for (i = 0; i < count; i++)
        if (isfinite(values[i]) && fabsl((long double)values[i]) > largest)
            largest = fabsl((long double)values[i]);
    return largest;
}

/* An array of the vector file, if the case has it. Each entry's own size counts towards the tolerance as well. */
static void expect_all(const vector_case *c, const char *what, const long double *got, size_t count,
                       long double operations, long double largest) {
    const double *want = vector_values(c, what, count);
    size_t i;
    for (i = 0; want && i < count; i++)
        expect_close(c->name, what, i, got[i], want[i], tolerance(operations, largest + fabsl((long double)want[i])));
}

static const double *required(const vector_case *c, const char *name, size_t count) {
    const double *values = vector_values(c, name, count);
    if (!values)
        fail_msg("%s %s has no %s of %zu numbers", c->loss, c->name, name, count);
    return values;
}

static void *memory(size_t count, size_t size) {
    void *p = calloc(count, size);
    assert_non_null(p);
    return p;
}

static long double upstream_of(const vector_case *c) {
    return (long double)vector_number(c, "grad_scale", 1);
}

static int64_t *integers(const vector_case *c, const char *name, size_t count) {
    const double *values = required(c, name, count);
    int64_t *to = (int64_t *)memory(count, sizeof *to);
    size_t i;
    for (i = 0; i < count; i++)
        to[i] = (int64_t)values[i];
    return to;
}

static void read_cross_entropy(const vector_case *c, reference_cross_entropy *r) {
    size_t rows, n;
    memset(r, 0, sizeof *r);
    r->rows = vector_integer(c, "rows", 0);
    r->classes = vector_integer(c, "classes", 0);
    r->inner = vector_integer(c, "inner", 0);
    rows = (size_t)r->rows;
    n = rows * (size_t)r->classes;
    assert_true(n > 0);
    r->x = required(c, "x", n);
    r->target_probabilities = vector_values(c, "target_probabilities", n);
    r->targets = r->target_probabilities ? NULL : integers(c, "targets", rows);
    r->reduction = (gpuloss_reduction)vector_integer(c, "reduction", 0);
    r->use_ignore_index = 1;
    r->ignore_index = vector_integer(c, "ignore_index", -100);
    r->class_weights = vector_values(c, "class_weights", (size_t)r->classes);
    r->row_weights = vector_values(c, "row_weights", rows);
    r->label_smoothing = vector_number(c, "label_smoothing", 0);
    r->lse_square_scale = vector_number(c, "lse_square_scale", 0);
    r->logit_scale = vector_number(c, "logit_scale", 0);
    r->softcap = vector_number(c, "softcap", 0);
    r->external_divisor = vector_number(c, "divisor", 0);
    r->grad_scale = upstream_of(c);
    r->grad_loss_rows = vector_values(c, "grad_loss_rows", rows);
    r->argmax = (int64_t *)memory(rows, sizeof *r->argmax);
    r->loss_rows = (long double *)memory(rows, sizeof(long double));
    r->z_loss_rows = (long double *)memory(rows, sizeof(long double));
    r->lse = (long double *)memory(rows, sizeof(long double));
    r->grad = (long double *)memory(n, sizeof(long double));
    r->grad_target_probabilities = (long double *)memory(n, sizeof(long double));
}

static void free_cross_entropy(reference_cross_entropy *r) {
    free((void *)(uintptr_t)r->targets);
    free(r->argmax);
    free(r->loss_rows);
    free(r->z_loss_rows);
    free(r->lse);
    free(r->grad);
    free(r->grad_target_probabilities);
}

/* The size of the terms of a row's loss. The weights of the classes add up to at most the largest class weight times
 * the sum of the targets. They are multiplied with differences of logits. The options of the vectors make logits larger
 * by a factor below 2. */
static long double largest_term(const vector_case *c, const reference_cross_entropy *r) {
    size_t rows = (size_t)r->rows, classes = (size_t)r->classes;
    long double logit = 4 * largest_of(r->x, rows * classes) + logl((long double)classes), weight = 1;
    if (r->target_probabilities)
        weight += (long double)classes * largest_of(r->target_probabilities, rows * classes);
    if (r->class_weights)
        weight *= 1 + largest_of(r->class_weights, classes);
    weight += (long double)r->lse_square_scale * logit;
    if (r->row_weights)
        weight *= 1 + largest_of(r->row_weights, rows);
    if (r->grad_loss_rows)
        weight *= 1 + largest_of(r->grad_loss_rows, rows);
    return weight * logit * (1 + fabsl(upstream_of(c)));
}

static void expect_counts(const vector_case *c, const reference_cross_entropy *r) {
    const double *best = vector_values(c, "argmax", (size_t)r->rows);
    int64_t row;
    for (row = 0; best && row < r->rows; row++)
        if (r->argmax[row] != (int64_t)best[row])
            fail_msg("%s: argmax[%d]: reference %d, PyTorch %g", c->name, (int)row, (int)r->argmax[row], best[row]);
    if (r->correct != vector_integer(c, "correct", r->correct))
        fail_msg("%s: correct: reference %d", c->name, (int)r->correct);
}

static void check_cross_entropy(const vector_case *c) {
    reference_cross_entropy r;
    size_t rows, n;
    long double operations, largest;
    read_cross_entropy(c, &r);
    reference_cross_entropy_run(&r);
    rows = (size_t)r.rows;
    n = rows * (size_t)r.classes;
    operations = (long double)n + 24;
    largest = largest_term(c, &r);
    required(c, "grad", n);
    expect_all(c, "loss_rows", r.loss_rows, rows, operations, largest);
    expect_all(c, "z_loss_rows", r.z_loss_rows, rows, operations, largest);
    expect_all(c, "lse", r.lse, rows, operations, largest);
    expect_all(c, "grad", r.grad, n, operations, largest);
    expect_all(c, "grad_target_probabilities", r.grad_target_probabilities, n, operations, largest);
    expect_counts(c, &r);
    if (r.reduction != GPULOSS_NONE) {
        expect_close(c->name, "loss", 0, r.loss, *required(c, "loss", 1),
                     tolerance(operations, largest * (1 + (long double)rows)));
        if (r.lse_square_scale > 0)
            expect_close(c->name, "z_loss", 0, r.z_loss, *required(c, "z_loss", 1),
                         tolerance(operations, largest * (1 + (long double)rows)));
    }
    free_cross_entropy(&r);
}

static void check_kl_div(const vector_case *c) {
    int is_nan_case = strcmp(c->name, "pytorch_nan") == 0;
    reference_kl_div r;
    size_t n, i;
    long double operations, largest;
    int zeros;
    memset(&r, 0, sizeof r);
    r.rows = vector_integer(c, "rows", 0);
    r.classes = vector_integer(c, "classes", 0);
    n = (size_t)r.rows * (size_t)r.classes;
    assert_true(n > 0);
    r.input = required(c, "input", n);
    r.target = required(c, "target", n);
    r.input_kind = vector_integer(c, "input_is_log", 0) ? GPULOSS_LOG_PROBABILITIES : GPULOSS_PROBABILITIES;
    r.target_kind = vector_integer(c, "target_is_log", 0) ? GPULOSS_LOG_PROBABILITIES : GPULOSS_PROBABILITIES;
    r.reduction = (gpuloss_reduction)vector_integer(c, "reduction", 0);
    r.grad_scale = upstream_of(c);
    r.grad_loss_rows = vector_values(c, "grad_loss_rows", (size_t)r.rows);
    r.terms = (long double *)memory(n, sizeof(long double));
    r.grad = (long double *)memory(n, sizeof(long double));
    operations = (long double)n + 16;
    /* Logarithms of probabilities down to 1/64 are below 5; the given logarithms count themselves. */
    largest = 5 + largest_of(r.input, n) + largest_of(r.target, n);
    required(c, "terms", n);
    required(c, "grad", n);
    /* PyTorch's zeros, and ours wherever PyTorch's are not NaN. */
    for (zeros = is_nan_case; zeros < 2; zeros++) {
        r.pytorch_zeros = zeros;
        reference_kl_div_run(&r);
        expect_all(c, "terms", r.terms, n, operations, largest);
        expect_all(c, "grad", r.grad, n, operations, largest);
        if (r.reduction != GPULOSS_NONE)
            expect_close(c->name, "loss", 0, r.loss, *required(c, "loss", 1),
                         tolerance(operations, largest * (long double)n));
    }
    if (is_nan_case) {
        r.pytorch_zeros = 0;
        reference_kl_div_run(&r);
        for (i = 0; i < n; i++)
            assert_true(!isnan(r.terms[i]) && !isnan(r.grad[i]));
    }
    free(r.terms);
    free(r.grad);
}

static void read_kl_div_options(const vector_case *c, reference_kl_div *r) {
    size_t rows, n;
    memset(r, 0, sizeof *r);
    r->rows = vector_integer(c, "rows", 0);
    r->classes = vector_integer(c, "classes", 0);
    rows = (size_t)r->rows;
    n = rows * (size_t)r->classes;
    assert_true(n > 0);
    r->input = required(c, "input", n);
    r->target = required(c, "target", n);
    r->input_kind = (gpuloss_kind)vector_integer(c, "input_kind", 0);
    r->target_kind = (gpuloss_kind)vector_integer(c, "target_kind", 0);
    r->divergence = (gpuloss_divergence)vector_integer(c, "divergence", -1);
    r->reduction = (gpuloss_reduction)vector_integer(c, "reduction", 0);
    r->beta = vector_number(c, "beta", 0);
    r->temperature = vector_number(c, "temperature", 0);
    r->temperature_squared = (int)vector_integer(c, "squared", 0);
    r->eps = vector_number(c, "eps", 0);
    r->row_weights = vector_values(c, "row_weights", rows);
    r->labels = vector_values(c, "labels", rows) ? integers(c, "labels", rows) : NULL;
    r->ignore_index = vector_integer(c, "ignore_index", 0);
    r->external_divisor = vector_number(c, "divisor", 0);
    r->grad_scale = upstream_of(c);
    r->grad_loss_rows = vector_values(c, "grad_loss_rows", rows);
    r->loss_rows = (long double *)memory(rows, sizeof(long double));
    r->terms = (long double *)memory(n, sizeof(long double));
    r->grad = (long double *)memory(n, sizeof(long double));
    r->grad_target = (long double *)memory(n, sizeof(long double));
}

/* Probabilities are at least 1/64, or e^-5, so that p / q and the logarithms are below 2^8. The square of a
 * temperature, a row weight and an upstream factor are at most 3.1 each. */
static void check_kl_div_options(const vector_case *c) {
    reference_kl_div r;
    size_t rows, n;
    long double operations, largest = 30 * 256;
    read_kl_div_options(c, &r);
    reference_kl_div_run(&r);
    rows = (size_t)r.rows;
    n = rows * (size_t)r.classes;
    operations = (long double)n + 32;
    required(c, "terms", n);
    required(c, "grad", n);
    required(c, "grad_target", n);
    expect_all(c, "terms", r.terms, n, operations, largest);
    expect_all(c, "loss_rows", r.loss_rows, rows, operations, largest);
    expect_all(c, "grad", r.grad, n, operations, largest);
    expect_all(c, "grad_target", r.grad_target, n, operations, largest);
    if (r.reduction != GPULOSS_NONE)
        expect_close(c->name, "loss", 0, r.loss, *required(c, "loss", 1), tolerance(operations, largest));
    free((void *)(uintptr_t)r.labels);
    free(r.loss_rows);
    free(r.terms);
    free(r.grad);
    free(r.grad_target);
}

static void check_file(const char *file_name, const char *loss, int least, void (*check)(const vector_case *)) {
    char path[512];
    vector_case c;
    FILE *file;
    int cases = 0, found;
    (void)snprintf(path, sizeof path, "%s/%s", folder, file_name);
    file = fopen(path, "r");
    if (!file)
        fail_msg("%s is missing: make it with tests/vectors/make_vectors.py", path);
    while ((found = vector_read(file, &c)) == 1) {
        assert_string_equal(c.loss, loss);
        check(&c);
        vector_free(&c);
        cases++;
    }
    (void)fclose(file);
    if (found < 0)
        fail_msg("%s: case %d cannot be read", path, cases + 1);
    if (cases < least)
        fail_msg("%s holds %d cases, at least %d are expected", path, cases, least);
}

static void cross_entropy_as_pytorch(void **state) {
    (void)state;
    check_file("cross_entropy.txt", "cross_entropy", 17, check_cross_entropy);
}

static void cross_entropy_options_as_pytorch(void **state) {
    (void)state;
    check_file("cross_entropy_options.txt", "cross_entropy", 65, check_cross_entropy);
}

static void kl_div_as_pytorch(void **state) {
    (void)state;
    check_file("kl_div.txt", "kl_div", 27, check_kl_div);
}

static void kl_div_options_as_pytorch(void **state) {
    (void)state;
    check_file("kl_div_options.txt", "kl_div", 52, check_kl_div_options);
}

/* Equal logits: loss = log C, gradient 1/C - [c = y]. */
static void cross_entropy_of_equal_logits(void **state) {
    const double x[8] = {3, 3, 3, 3, -7, -7, -7, -7};
    const int64_t targets[2] = {1, 2};
    long double grad[8];
    reference_cross_entropy r;
    size_t i;
    (void)state;
    memset(&r, 0, sizeof r);
    r.rows = 2;
    r.classes = 4;
    r.x = x;
    r.targets = targets;
    r.reduction = GPULOSS_SUM;
    r.grad_scale = 1;
    r.grad = grad;
    reference_cross_entropy_run(&r);
    assert_true(fabsl(r.loss - 2 * logl(4)) < 1e-15L);
    for (i = 0; i < 8; i++)
        assert_true(fabsl(grad[i] - (i == 1 || i == 6 ? -0.75L : 0.25L)) < 1e-15L);
    /* PyTorch has no counterpart for batchmean, a bad target and an lse that is given. */
    {
        const double lse[2] = {4, -7};
        const int64_t bad[2] = {4, 0};
        r.reduction = GPULOSS_BATCHMEAN;
        r.targets = bad;
        r.lse_in = lse;
        reference_cross_entropy_run(&r);
        assert_true(r.bad_targets == 1 && isnan(r.loss) && r.divisor == 2);
        for (i = 0; i < 4; i++)
            assert_true(grad[i] == 0);
        assert_true(grad[4] == 0 && grad[5] == 0.5L);
    }
}

/* The divergence of close distributions is the sum of (q - t)^2 / (2 t), to first order. */
static void kl_div_of_close_distributions(void **state) {
    const double q[2] = {0.5 + 0x1p-20, 0.5 - 0x1p-20}, t[2] = {0.5, 0.5};
    reference_kl_div r;
    (void)state;
    memset(&r, 0, sizeof r);
    r.rows = 1;
    r.classes = 2;
    r.input = q;
    r.target = t;
    r.input_kind = r.target_kind = GPULOSS_PROBABILITIES;
    r.reduction = GPULOSS_BATCHMEAN;
    r.grad_scale = 1;
    reference_kl_div_run(&r);
    assert_true(fabsl(r.loss / 0x1p-39L - 1) < 1e-6L);
    /* eps is on both sides: log((t + eps) / (q + eps)). A large eps leaves little of it. */
    r.eps = 0.5;
    reference_kl_div_run(&r);
    assert_true(fabsl(r.loss / 0x1p-41L - 1) < 1e-6L);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cross_entropy_as_pytorch),
        cmocka_unit_test(cross_entropy_options_as_pytorch),
        cmocka_unit_test(kl_div_as_pytorch),
        cmocka_unit_test(kl_div_options_as_pytorch),
        cmocka_unit_test(cross_entropy_of_equal_logits),
        cmocka_unit_test(kl_div_of_close_distributions),
    };
    if (argc > 1)
        folder = argv[1];
    return cmocka_run_group_tests_name("reference", tests, NULL, NULL) + run_sparse_reference_tests(folder);
}
