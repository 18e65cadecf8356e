/* The reference of the sparse teacher against PyTorch's results, and against closed forms. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checks.h"
#include "reference_kl_div_sparse.h"
#include "vectors.h"

static const char *folder;

static const double *required(const vector_case *c, const char *name, size_t count) {
    const double *values = vector_values(c, name, count);
    if (!values)
        fail_msg("%s has no %s of %zu numbers", c->name, name, count);
    return values;
}

static void *memory(size_t count, size_t size) {
    void *p = calloc(count, size);
    assert_non_null(p);
    return p;
}

static int64_t *integers(const double *values, size_t count) {
    int64_t *to = (int64_t *)memory(count, sizeof *to);
    size_t i;
    for (i = 0; i < count; i++)
        to[i] = (int64_t)values[i];
    return to;
}

static void read_case(const vector_case *c, reference_sparse *r) {
    size_t rows, n, entries;
    memset(r, 0, sizeof *r);
    r->rows = vector_integer(c, "rows", 0);
    r->classes = vector_integer(c, "classes", 0);
    r->k = vector_integer(c, "k", 0);
    rows = (size_t)r->rows;
    n = rows * (size_t)r->classes;
    entries = rows * (size_t)r->k;
    assert_true(n > 0 && entries > 0);
    r->logits = required(c, "logits", n);
    r->indices = integers(required(c, "indices", entries), entries);
    r->values = required(c, "values", entries);
    r->value_kind = (gpuloss_kind)vector_integer(c, "value_kind", 0);
    r->residual = (gpuloss_residual)vector_integer(c, "residual", 0);
    r->reduction = (gpuloss_reduction)vector_integer(c, "reduction", 0);
    r->temperature = vector_number(c, "temperature", 0);
    r->temperature_squared = (int)vector_integer(c, "squared", 0);
    r->external_divisor = vector_number(c, "divisor", 0);
    r->row_weights = vector_values(c, "row_weights", rows);
    r->labels = vector_values(c, "labels", rows) ? integers(required(c, "labels", rows), rows) : NULL;
    r->ignore_index = vector_integer(c, "ignore_index", 0);
    r->grad_scale = (long double)vector_number(c, "grad_scale", 1);
    r->grad_loss_rows = vector_values(c, "grad_loss_rows", rows);
    r->loss_rows = (long double *)memory(rows, sizeof *r->loss_rows);
    r->grad = (long double *)memory(n, sizeof *r->grad);
}

static void free_case(reference_sparse *r) {
    free((void *)(uintptr_t)r->indices);
    free((void *)(uintptr_t)r->labels);
    free(r->loss_rows);
    free(r->grad);
}

/* PyTorch's result comes from at most 64 operations, each within an ulp (2^-52). Temperatures are at least 1/2 and
 * logits at most 3, so that logarithms are below 2^4. Probabilities add up to 5 at most and leave 1/16 over, or
 * nothing. This raises the errors of their sum by 2^4. The square of a temperature, a row weight and an upstream factor
 * are at most 3.1 each. */
static void expect_all(const vector_case *c, const char *what, const long double *got, size_t count) {
    const double *want = required(c, what, count);
    const long double allowed = 64 * 0x1p-52L * 5 * 0x1p8L * 30;
    size_t i;
    for (i = 0; i < count; i++)
        if (!(fabsl(got[i] - (long double)want[i]) <= allowed))
            fail_msg("%s: %s[%zu]: reference %.17Lg, PyTorch %.17g, allowed %.3Lg", c->name, what, i, got[i], want[i],
                     allowed);
}

static void check_case(const vector_case *c) {
    reference_sparse r;
    assert_string_equal(c->loss, "kl_div_sparse");
    read_case(c, &r);
    reference_sparse_run(&r);
    expect_all(c, "loss_rows", r.loss_rows, (size_t)r.rows);
    expect_all(c, "grad", r.grad, (size_t)(r.rows * r.classes));
    if (r.reduction != GPULOSS_NONE)
        expect_all(c, "loss", &r.loss, 1);
    assert_true(r.bad_indices == 0);
    free_case(&r);
}

static void kl_div_sparse_as_pytorch(void **state) {
    char path[512];
    vector_case c;
    FILE *file;
    int cases = 0, found;
    (void)state;
    (void)snprintf(path, sizeof path, "%s/kl_div_sparse.txt", folder);
    file = fopen(path, "r");
    if (!file)
        fail_msg("%s is missing: make it with tests/vectors/make_vectors.py", path);
    for (; (found = vector_read(file, &c)) == 1; cases++) {
        check_case(&c);
        vector_free(&c);
    }
    (void)fclose(file);
    if (found < 0)
        fail_msg("%s: case %d cannot be read", path, cases + 1);
    if (cases < 53)
        fail_msg("%s holds %d cases, at least 53 are expected", path, cases);
}

/* Equal logits give each class 1/4. Of two known classes of 1/8 and 3/8, and none at a bad index. */
static void kl_div_sparse_of_equal_logits(void **state) {
    const double logits[8] = {3, 3, 3, 3, -7, -7, -7, -7}, values[4] = {0.125, 0.375, 0.5, 0.5};
    const int64_t indices[4] = {2, 0, 1, 4};
    const long double half = 0.5L, known = 0.125L * logl(0.5L) + 0.375L * logl(1.5L);
    const long double want[3] = {known, (known + half * logl(2)) / half, known};
    long double loss_rows[2], grad[8];
    reference_sparse r;
    int i;
    (void)state;
    memset(&r, 0, sizeof r);
    r.rows = 2;
    r.classes = 4;
    r.k = 2;
    r.logits = logits;
    r.indices = indices;
    r.values = values;
    r.value_kind = GPULOSS_PROBABILITIES;
    r.reduction = GPULOSS_NONE;
    r.grad_scale = 1;
    r.loss_rows = loss_rows;
    r.grad = grad;
    for (i = 0; i < 3; i++) {
        r.residual = (gpuloss_residual)((int)GPULOSS_DROP + i);
        reference_sparse_run(&r);
        assert_true(fabsl(loss_rows[0] - want[i]) < 1e-15L);
        assert_true(isnan(loss_rows[1]) && r.bad_indices == 1);
        assert_true(fabsl(grad[0] + grad[1] + grad[2] + grad[3]) < 1e-15L);
        assert_true(grad[4] == 0 && grad[5] == 0 && grad[6] == 0 && grad[7] == 0);
    }
    /* A half is left over on both sides: the other classes have the right probability. */
    assert_true(fabsl(grad[1]) < 1e-15L && fabsl(grad[0] + 0.125L) < 1e-15L);
}

/* A row of five logits at a temperature of 2, and three of its classes. The values come from the formulas with 40 digits. */
typedef struct five {
    double logits[5];
    long double loss, grad[5];
} five;
static const int64_t three_indices[3] = {2, 0, 3};
static const double three_values[3] = {0.125, 0.375, 0.0625};

static void of_five(five *row, gpuloss_residual residual, gpuloss_divergence divergence, double beta,
                    const double *values) {
    reference_sparse r;
    memset(&r, 0, sizeof r);
    r.rows = 1;
    r.classes = 5;
    r.k = 3;
    r.logits = row->logits;
    r.indices = three_indices;
    r.values = values;
    r.value_kind = GPULOSS_PROBABILITIES;
    r.residual = residual;
    r.divergence = divergence;
    r.beta = beta;
    r.temperature = 2;
    r.reduction = GPULOSS_NONE;
    r.grad_scale = 1;
    r.loss_rows = &row->loss;
    r.grad = row->grad;
    reference_sparse_run(&r);
}

static const five some_five = {{0.5, -1, 1.25, 0, 0.25}, 0, {0, 0, 0, 0, 0}};

static const struct {
    gpuloss_residual residual;
    gpuloss_divergence divergence;
    double beta;
    long double loss;
} known_losses[] = {
    {GPULOSS_DROP, GPULOSS_FORWARD_KL, 0, 0.024739783275427166694L},
    {GPULOSS_RENORMALIZE, GPULOSS_FORWARD_KL, 0, 0.61934598183765459567L},
    {GPULOSS_BUCKET, GPULOSS_FORWARD_KL, 0, 0.19676821487608246101L},
    {GPULOSS_BUCKET, GPULOSS_REVERSE_KL, 0, 0.23033057557330299431L},
    {GPULOSS_BUCKET, GPULOSS_JENSEN_SHANNON, 1, 0.23033057557330299431L},
    {GPULOSS_DROP, GPULOSS_JENSEN_SHANNON, 0, 0.024739783275427166694L},
    {GPULOSS_DROP, GPULOSS_JENSEN_SHANNON, 0x1.3333333333333p-2, 0.11020233186370747015L},
    {GPULOSS_RENORMALIZE, GPULOSS_JENSEN_SHANNON, 0x1.3333333333333p-2, 0.13371882313242792263L},
    {GPULOSS_BUCKET, GPULOSS_JENSEN_SHANNON, 0x1.3333333333333p-2, 0.042476053031328334569L},
    {GPULOSS_DROP, GPULOSS_TOTAL_VARIATION, 0, 0.37582124796063141685L},
    {GPULOSS_RENORMALIZE, GPULOSS_TOTAL_VARIATION, 0, 0.44873791462729808352L},
    {GPULOSS_BUCKET, GPULOSS_TOTAL_VARIATION, 0, 0.29930754595777439734L},
};

/* The gradient is the slope of the loss. The difference of two losses is off by h^2 / 6 times a third derivative, and
 * by the roundings of two losses over h. The derivative is below 4 for logarithms of ratios below 2. */
static void expect_slopes(gpuloss_residual residual, gpuloss_divergence divergence, double beta) {
    const long double h = 0x1p-14L, allowed = h * h * 4 / 6 + 16 * LDBL_EPSILON / h;
    five here = some_five;
    int i;
    of_five(&here, residual, divergence, beta, three_values);
    for (i = 0; i < 5; i++) {
        five up = some_five, down = some_five;
        up.logits[i] += (double)h;
        down.logits[i] -= (double)h;
        of_five(&up, residual, divergence, beta, three_values);
        of_five(&down, residual, divergence, beta, three_values);
        assert_true(fabsl((up.loss - down.loss) / (2 * h) - here.grad[i]) <= allowed);
    }
}

static void kl_div_sparse_of_known_losses(void **state) {
    size_t n;
    (void)state;
    for (n = 0; n < sizeof known_losses / sizeof known_losses[0]; n++) {
        five row = some_five;
        of_five(&row, known_losses[n].residual, known_losses[n].divergence, known_losses[n].beta, three_values);
        assert_true(fabsl(row.loss - known_losses[n].loss) < 64 * LDBL_EPSILON);
        expect_slopes(known_losses[n].residual, known_losses[n].divergence, known_losses[n].beta);
    }
}

/* The teacher has no probability at all. Forward KL is 0, Jensen-Shannon (1-b) log(1 / (1-b)), total variation 1/2. No
 * logit changes them, because the student's probabilities add up to 1. */
static void kl_div_sparse_of_nothing(void **state) {
    static const double nothing[3] = {0, 0, 0};
    static const struct {
        gpuloss_divergence divergence;
        double beta;
        long double loss;
    } cases[] = {{GPULOSS_FORWARD_KL, 0, 0},
                 {GPULOSS_JENSEN_SHANNON, 0.5, 0.34657359027997265471L},
                 {GPULOSS_TOTAL_VARIATION, 0, 0.5L}};
    int n, residual, i;
    (void)state;
    for (n = 0; n < 3; n++)
        for (residual = GPULOSS_DROP; residual <= GPULOSS_RENORMALIZE; residual++) {
            five row = some_five;
            of_five(&row, (gpuloss_residual)residual, cases[n].divergence, cases[n].beta, nothing);
            assert_true(fabsl(row.loss - cases[n].loss) < 64 * LDBL_EPSILON);
            for (i = 0; i < 5; i++)
                assert_true(fabsl(row.grad[i]) < 64 * LDBL_EPSILON);
        }
}

/* All unknown classes are masked. Their bucket of 1/4 makes the divergence infinite, and their gradient is 0. The
 * student gives 1/3 to each known class. */
static void kl_div_sparse_of_masked_classes(void **state) {
    static const double values[3] = {0.25, 0.25, 0.25};
    int divergence, i;
    (void)state;
    for (divergence = GPULOSS_FORWARD_KL; divergence <= GPULOSS_TOTAL_VARIATION; divergence++) {
        five row = {{0, -(double)INFINITY, 0, 0, -(double)INFINITY}, 0, {0, 0, 0, 0, 0}};
        of_five(&row, GPULOSS_BUCKET, (gpuloss_divergence)divergence, divergence == GPULOSS_JENSEN_SHANNON ? 0.5 : 0,
                values);
        assert_true(row.grad[1] == 0 && row.grad[4] == 0);
        assert_true((isinf(row.loss) && row.loss > 0) == (divergence == GPULOSS_FORWARD_KL));
        for (i = 0; i < 4; i += 2) /* of forward KL q - p, over a temperature of 2; else all three are alike */
            assert_true(fabsl(row.grad[i] - (divergence == GPULOSS_FORWARD_KL ? 1.0L / 24 : 0)) < 64 * LDBL_EPSILON);
    }
}

int run_sparse_reference_tests(const char *vectors) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kl_div_sparse_as_pytorch),        cmocka_unit_test(kl_div_sparse_of_equal_logits),
        cmocka_unit_test(kl_div_sparse_of_known_losses),   cmocka_unit_test(kl_div_sparse_of_nothing),
        cmocka_unit_test(kl_div_sparse_of_masked_classes),
    };
    folder = vectors;
    return cmocka_run_group_tests_name("reference of kl_div_sparse", tests, NULL, NULL);
}
