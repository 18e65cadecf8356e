/* Every misuse is refused with its status and a message "function: field: what (got ...)", by the call and by the query
 * of its workspace. It launches nothing: all outputs stay as they were. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "harness.h"
#include "suites.h"

enum { ROWS = 6, CLASSES = 40, STRIDE = 43, SHARDS = 2, ENTRIES = 5, NEEDS_WORKSPACE = 1, ONLY_THE_CALL = 2 };
enum { SHARD_NUMBERS = SHARDS * ROWS * (int)(sizeof(gpuloss_shard_row) / sizeof(double)) };

/* Device memory for one correct call of any loss: inputs, then outputs. */
typedef struct world {
    operand logits, second, targets, indices, row_input, scalar_input, weights, shard_rows;
    operand grad, grad_second, loss, loss_rows, z_loss, z_loss_rows, lse, argmax, correct, elements, bad_targets;
    operand workspace;
} world;
enum { WORLD_OPERANDS = sizeof(world) / sizeof(operand) };

static void world_each(world *w, operand **all) {
    operand *const list[WORLD_OPERANDS] = {
        &w->logits,     &w->second, &w->targets,     &w->indices,  &w->row_input,   &w->scalar_input, &w->weights,
        &w->shard_rows, &w->grad,   &w->grad_second, &w->loss,     &w->loss_rows,   &w->z_loss,       &w->z_loss_rows,
        &w->lse,        &w->argmax, &w->correct,     &w->elements, &w->bad_targets, &w->workspace};
    memcpy(all, list, sizeof list);
}

static operand filled(const char *name, size_t size, int64_t rows, int64_t columns, int64_t stride) {
    operand o = operand_new(name, size, rows, columns, stride, 0, 256);
    operand_poison(&o);
    return o;
}

/* Inputs hold small probabilities, which do for logits as well; targets are class 1, the entries of a row different. */
static world world_new(void) {
    double values[ROWS * CLASSES];
    int64_t classes[ROWS], indices[ROWS * ENTRIES];
    world w;
    size_t i;
    for (i = 0; i < ROWS * CLASSES; i++)
        values[i] = 0.025;
    for (i = 0; i < ROWS; i++)
        classes[i] = 1;
    w.logits = operand_new("logits", 4, ROWS, CLASSES, STRIDE, 0, 256);
    operand_put(&w.logits, GPULOSS_F32, values);
    w.second = operand_new("target", 4, ROWS, CLASSES, STRIDE, 0, 256);
    operand_put(&w.second, GPULOSS_F32, values);
    w.targets = operand_new("targets", 8, 1, ROWS, ROWS, 0, 256);
    operand_put_indices(&w.targets, classes);
    for (i = 0; i < ROWS * ENTRIES; i++)
        indices[i] = (int64_t)i;
    w.indices = operand_new("indices", 8, 1, ROWS * ENTRIES, ROWS * ENTRIES, 0, 256);
    operand_put_indices(&w.indices, indices);
    w.row_input = operand_new("a value a row", 4, 1, ROWS, ROWS, 0, 256);
    operand_put(&w.row_input, GPULOSS_F32, values);
    w.scalar_input = operand_new("a value", 4, 1, 1, 1, 0, 256);
    operand_put(&w.scalar_input, GPULOSS_F32, values);
    w.weights = operand_new("weights", 4, 1, CLASSES, CLASSES, 0, 256);
    operand_put(&w.weights, GPULOSS_F32, values);
    w.shard_rows = operand_new("shard_rows", 8, 1, SHARD_NUMBERS, SHARD_NUMBERS, 0, 256);
    operand_put(&w.shard_rows, GPULOSS_F64, values);
    w.grad = filled("gradient", 4, ROWS, CLASSES, STRIDE);
    w.grad_second = filled("gradient of the target", 4, ROWS, CLASSES, STRIDE);
    w.loss = filled("loss", 4, 1, 1, 1);
    w.loss_rows = filled("loss_rows", 4, 1, ROWS, ROWS);
    w.z_loss = filled("z_loss", 4, 1, 1, 1);
    w.z_loss_rows = filled("z_loss_rows", 4, 1, ROWS, ROWS);
    w.argmax = filled("argmax", 8, 1, ROWS, ROWS);
    w.correct = filled("correct", 8, 1, 1, 1);
    w.lse = filled("lse", 4, 1, ROWS, ROWS);
    w.elements = filled("loss_elements", 4, ROWS, CLASSES, STRIDE);
    w.bad_targets = filled("bad_targets", 8, 1, 1, 1);
    w.workspace = filled("workspace", 1, 1, 1 << 16, 1 << 16);
    return w;
}

static void world_free(world *w) {
    operand *all[WORLD_OPERANDS];
    size_t i;
    world_each(w, all);
    for (i = 0; i < WORLD_OPERANDS; i++)
        operand_free(all[i]);
}

static void world_unchanged(world *w, report *r) {
    operand *all[WORLD_OPERANDS];
    size_t i;
    require_ok(gpuloss_synchronize(harness_context, NULL));
    world_each(w, all);
    for (i = 0; i < WORLD_OPERANDS; i++)
        operand_unchanged(all[i], r);
}

/* `fields` are the names that the message may blame, separated by '|'. */
static bool names_field(const char *message, const char *function, const char *fields) {
    while (*fields) {
        size_t length = strcspn(fields, "|");
        char start[128];
        (void)snprintf(start, sizeof start, "%s: %.*s: ", function, (int)length, fields);
        if (strncmp(message, start, strlen(start)) == 0)
            return true;
        fields += length + (fields[length] == '|');
    }
    return false;
}

static void expect_refusal(report *r, const char *function, const char *fields, const char *got, gpuloss_status want,
                           gpuloss_status status) {
    const char *message = gpuloss_last_error();
    if (status != want)
        report_failure(r, "status", 0, 0, "%s, want %s (%s)", gpuloss_status_name(status), gpuloss_status_name(want),
                       message);
    else if (gpuloss_group_of(status) != GPULOSS_GROUP_USAGE)
        report_failure(r, "group", 0, 0, "not a usage error");
    else if (!names_field(message, function, fields) || !strstr(message, "(got ") || !strstr(message, got))
        report_failure(r, "message", 0, 0, "\"%s\" does not name %s of %s with \"%s\"", message, fields, function, got);
}

static void *byte_after(const void *pointer) {
    return (void *)((uintptr_t)pointer + 1);
}

/* ------------------------------------------------------------------------------------------------------- all losses */

typedef gpuloss_cross_entropy_desc ce_desc;
typedef gpuloss_kl_div_desc kl_desc;
typedef gpuloss_kl_div_sparse_desc sparse_desc;
typedef union any_desc {
    ce_desc ce;
    kl_desc kl;
    sparse_desc sparse;
} any_desc;

/* The functions that the loop over the misuses of a loss calls. */
typedef struct loss_calls {
    const char *name;
    const char *query_name; /* of the function that has the query of its workspace */
    any_desc (*correct)(const world *w);
    gpuloss_status (*call)(const any_desc *d);
    gpuloss_status (*query)(const any_desc *d, size_t *bytes);
    void (*give_workspace)(any_desc *d, void *workspace, size_t bytes);
} loss_calls;

typedef struct misuse {
    const char *what, *fields, *got;
    gpuloss_status status;
    int how;
    void (*spoil)(any_desc *d, world *w);
} misuse;

/* The rows of the .def files: a name, the misuse, the fields that the message may blame, the value in the message, the
 * status, the way it is tried, and the statement that makes the loss's correct desc `d` wrong. They are read twice: for
 * a function of each, and for the table of them. */
#define SPOIL(name, loss, statements)                                                                                  \
    static void name(any_desc *any, world *w) {                                                                        \
        loss##_desc *d = &any->loss;                                                                                   \
        (void)w;                                                                                                       \
        statements;                                                                                                    \
    }
#define MISUSE_ROW(name, what, fields, got, status, how, statements) {what, fields, got, status, how, name},
#define AT(name) operand_pointer(&w->name)

static void check_misuse(const loss_calls *loss, const misuse *m) {
    char text[128], call[64], query[64];
    world w = world_new();
    any_desc d = loss->correct(&w);
    size_t bytes = 0;
    report r;
    (void)snprintf(text, sizeof text, "%s refuses: %s", loss->name, m->what);
    (void)snprintf(call, sizeof call, "gpuloss_%s", loss->name);
    (void)snprintf(query, sizeof query, "gpuloss_%s_workspace", loss->query_name);
    r = report_on(text);
    if (m->how & NEEDS_WORKSPACE) {
        require_ok(loss->query(&d, &bytes));
        loss->give_workspace(&d, operand_pointer(&w.workspace), bytes);
    }
    m->spoil(&d, &w);
    expect_refusal(&r, call, m->fields, m->got, m->status, loss->call(&d));
    if (!(m->how & ONLY_THE_CALL))
        expect_refusal(&r, query, m->fields, m->got, m->status, loss->query(&d, &bytes));
    world_unchanged(&w, &r);
    world_free(&w);
    case_done(&r);
}

static void check_misuses(const loss_calls *loss, const misuse *misuses, size_t count) {
    world w;
    any_desc d;
    size_t i;
    for (i = 0; i < count; i++)
        check_misuse(loss, &misuses[i]);
    /* The call that all of these spoil is a good one. */
    w = world_new();
    d = loss->correct(&w);
    require_ok(loss->call(&d));
    require_ok(gpuloss_synchronize(harness_context, NULL));
    world_free(&w);
    test_done();
}

#define INVALID GPULOSS_ERROR_INVALID_ARGUMENT
#define MISALIGNED GPULOSS_ERROR_MISALIGNED
#define TOO_SMALL GPULOSS_ERROR_WORKSPACE_TOO_SMALL

/* ------------------------------------------------------------------------------------------------- cross_entropy */

static any_desc ce_correct(const world *w) {
    ce_desc d = GPULOSS_CROSS_ENTROPY_DEFAULTS;
    any_desc any;
    d.logits = operand_pointer(&w->logits);
    d.logits_stride = STRIDE;
    d.targets = operand_pointer(&w->targets);
    d.rows = ROWS;
    d.classes = CLASSES;
    d.dtype = GPULOSS_F32;
    d.target_type = GPULOSS_I64;
    d.loss = operand_pointer(&w->loss);
    d.loss_rows = operand_pointer(&w->loss_rows);
    d.lse = operand_pointer(&w->lse);
    d.grad_logits = operand_pointer(&w->grad);
    d.grad_logits_stride = STRIDE;
    d.bad_targets = (int64_t *)operand_pointer(&w->bad_targets);
    d.grad_loss = operand_pointer(&w->scalar_input);
    d.grad_loss_rows = operand_pointer(&w->row_input);
    d.class_weights = operand_pointer(&w->weights);
    d.row_weights = operand_pointer(&w->row_input);
    d.z_loss = operand_pointer(&w->z_loss);
    d.z_loss_rows = operand_pointer(&w->z_loss_rows);
    d.argmax = (int64_t *)operand_pointer(&w->argmax);
    d.correct = (int64_t *)operand_pointer(&w->correct);
    any.ce = d;
    return any;
}

static gpuloss_status ce_call(const any_desc *d) {
    return gpuloss_cross_entropy(harness_context, &d->ce, NULL);
}

static gpuloss_status ce_query(const any_desc *d, size_t *bytes) {
    return gpuloss_cross_entropy_workspace(harness_context, &d->ce, bytes);
}

static void ce_give_workspace(any_desc *d, void *workspace, size_t bytes) {
    d->ce.workspace = workspace;
    d->ce.workspace_bytes = bytes;
}

/* Makes probabilities its targets. */
static void soften(ce_desc *d, world *w) {
    d->targets = NULL;
    d->target_type = GPULOSS_INDEX_UNSET;
    d->correct = d->bad_targets = NULL;
    d->target_probabilities = AT(second);
    d->target_probabilities_stride = STRIDE;
    d->grad_target_probabilities = AT(elements);
    d->grad_target_probabilities_stride = STRIDE;
}

static void no_output_but_bad_targets(ce_desc *d) {
    d->loss = d->loss_rows = d->z_loss = d->z_loss_rows = d->lse = d->grad_logits = NULL;
    d->grad_loss = d->grad_loss_rows = NULL;
    d->argmax = d->correct = NULL;
}

/* Makes it the second one of two shards. */
static void take_shard(ce_desc *d, world *w) {
    no_output_but_bad_targets(d);
    d->total_classes = SHARDS * CLASSES;
    d->class_offset = CLASSES;
    d->shard_rows = (gpuloss_shard_row *)AT(shard_rows);
}

#define MISUSE(name, what, fields, got, status, how, ...) SPOIL(name, ce, __VA_ARGS__)
#include "misuse_combine.def"
#include "misuse_cross_entropy.def"
#undef MISUSE
#define MISUSE MISUSE_ROW
static const misuse ce_misuses[] = {
#include "misuse_cross_entropy.def"
};
static const misuse combine_misuses[] = {
#include "misuse_combine.def"
};
#undef MISUSE

static void cross_entropy_refuses(void **state) {
    static const loss_calls cross_entropy = {"cross_entropy", "cross_entropy", ce_correct,
                                             ce_call,         ce_query,        ce_give_workspace};
    (void)state;
    REQUIRE_GPU();
    check_misuses(&cross_entropy, ce_misuses, sizeof ce_misuses / sizeof ce_misuses[0]);
}

static any_desc combine_correct(const world *w) {
    any_desc any = ce_correct(w);
    any.ce.logits = any.ce.grad_loss = any.ce.grad_loss_rows = NULL;
    any.ce.grad_logits = NULL;
    any.ce.shards = SHARDS;
    any.ce.shard_rows = (gpuloss_shard_row *)AT(shard_rows);
    return any;
}

static gpuloss_status combine_call(const any_desc *d) {
    return gpuloss_cross_entropy_combine(harness_context, &d->ce, NULL);
}

static void combine_refuses(void **state) {
    static const loss_calls combine = {
        "cross_entropy_combine", "cross_entropy", combine_correct, combine_call, ce_query, ce_give_workspace};
    (void)state;
    REQUIRE_GPU();
    check_misuses(&combine, combine_misuses, sizeof combine_misuses / sizeof combine_misuses[0]);
}

/* -------------------------------------------------------------------------------------------------------- kl_div */

static any_desc kl_correct(const world *w) {
    kl_desc d = GPULOSS_KL_DIV_DEFAULTS;
    any_desc any;
    d.input = operand_pointer(&w->logits);
    d.input_stride = STRIDE;
    d.target = operand_pointer(&w->second);
    d.target_stride = STRIDE;
    d.rows = ROWS;
    d.classes = CLASSES;
    d.dtype = GPULOSS_F32;
    d.input_kind = d.target_kind = GPULOSS_PROBABILITIES;
    d.loss = operand_pointer(&w->loss);
    d.loss_rows = operand_pointer(&w->loss_rows);
    d.loss_elements = operand_pointer(&w->elements);
    d.loss_elements_stride = STRIDE;
    d.grad_input = operand_pointer(&w->grad);
    d.grad_input_stride = STRIDE;
    d.grad_loss = operand_pointer(&w->scalar_input);
    d.grad_loss_rows = operand_pointer(&w->row_input);
    any.kl = d;
    return any;
}

/* Requests the gradient of the target as well. */
static void want_both(kl_desc *d, world *w) {
    d->grad_target = AT(grad_second);
    d->grad_target_stride = STRIDE;
}

/* Both sides are logits. */
static void take_logits(kl_desc *d) {
    d->input_kind = d->target_kind = GPULOSS_LOGITS;
}

static gpuloss_status kl_call(const any_desc *d) {
    return gpuloss_kl_div(harness_context, &d->kl, NULL);
}

static gpuloss_status kl_query(const any_desc *d, size_t *bytes) {
    return gpuloss_kl_div_workspace(harness_context, &d->kl, bytes);
}

static void kl_give_workspace(any_desc *d, void *workspace, size_t bytes) {
    d->kl.workspace = workspace;
    d->kl.workspace_bytes = bytes;
}

#define MISUSE(name, what, fields, got, status, how, ...) SPOIL(name, kl, __VA_ARGS__)
#include "misuse_kl_div.def"
#undef MISUSE
#define MISUSE MISUSE_ROW
static const misuse kl_misuses[] = {
#include "misuse_kl_div.def"
};
#undef MISUSE

static void kl_div_refuses(void **state) {
    static const loss_calls kl_div = {"kl_div", "kl_div", kl_correct, kl_call, kl_query, kl_give_workspace};
    (void)state;
    REQUIRE_GPU();
    check_misuses(&kl_div, kl_misuses, sizeof kl_misuses / sizeof kl_misuses[0]);
}

/* ------------------------------------------------------------------------------------------------- kl_div_sparse */

static any_desc sparse_correct(const world *w) {
    sparse_desc d = GPULOSS_KL_DIV_SPARSE_DEFAULTS;
    any_desc any;
    d.logits = operand_pointer(&w->logits);
    d.logits_stride = STRIDE;
    d.indices = operand_pointer(&w->indices);
    d.values = operand_pointer(&w->second);
    d.values_stride = STRIDE;
    d.rows = ROWS;
    d.classes = CLASSES;
    d.k = ENTRIES;
    d.dtype = GPULOSS_F32;
    d.index_type = GPULOSS_I64;
    d.value_kind = GPULOSS_PROBABILITIES;
    d.residual = GPULOSS_BUCKET;
    d.loss = operand_pointer(&w->loss);
    d.loss_rows = operand_pointer(&w->loss_rows);
    d.grad_logits = operand_pointer(&w->grad);
    d.grad_logits_stride = STRIDE;
    d.bad_indices = (int64_t *)operand_pointer(&w->bad_targets);
    d.grad_loss = operand_pointer(&w->scalar_input);
    d.grad_loss_rows = operand_pointer(&w->row_input);
    any.sparse = d;
    return any;
}

static gpuloss_status sparse_call(const any_desc *d) {
    return gpuloss_kl_div_sparse(harness_context, &d->sparse, NULL);
}

static gpuloss_status sparse_query(const any_desc *d, size_t *bytes) {
    return gpuloss_kl_div_sparse_workspace(harness_context, &d->sparse, bytes);
}

static void sparse_give_workspace(any_desc *d, void *workspace, size_t bytes) {
    d->sparse.workspace = workspace;
    d->sparse.workspace_bytes = bytes;
}

#define MISUSE(name, what, fields, got, status, how, ...) SPOIL(name, sparse, __VA_ARGS__)
#include "misuse_kl_div_sparse.def"
#undef MISUSE
#define MISUSE MISUSE_ROW
static const misuse sparse_misuses[] = {
#include "misuse_kl_div_sparse.def"
};
#undef MISUSE

static void kl_div_sparse_refuses(void **state) {
    static const loss_calls sparse = {"kl_div_sparse", "kl_div_sparse", sparse_correct,
                                      sparse_call,     sparse_query,    sparse_give_workspace};
    (void)state;
    REQUIRE_GPU();
    check_misuses(&sparse, sparse_misuses, sizeof sparse_misuses / sizeof sparse_misuses[0]);
}

/* With no rows there may be no arrays. */
static void cross_entropy_of_no_rows(world *w, report *r) {
    ce_desc d = ce_correct(w).ce;
    d.rows = 0;
    d.logits = d.targets = d.grad_loss = d.grad_loss_rows = NULL;
    d.loss_rows = d.z_loss_rows = d.lse = d.grad_logits = NULL;
    d.argmax = NULL;
    d.class_weights = d.row_weights = NULL;
    require_ok(gpuloss_cross_entropy(harness_context, &d, NULL));
    operand_fetch(&w->loss, r, true);
    operand_fetch(&w->bad_targets, r, true);
    if (!isnan(operand_value(&w->loss, GPULOSS_F32, 0, 0)) || operand_integer(&w->bad_targets, 0) != 0)
        report_failure(r, "cross_entropy", 0, 0, "the mean of nothing is not NaN, or bad targets were counted");
}

static void kl_div_of_no_rows(world *w, report *r) {
    kl_desc d = kl_correct(w).kl;
    d.rows = 0;
    d.reduction = GPULOSS_SUM;
    d.input = d.target = d.grad_loss = d.grad_loss_rows = NULL;
    d.loss_rows = d.loss_elements = d.grad_input = NULL;
    require_ok(gpuloss_kl_div(harness_context, &d, NULL));
    operand_fetch(&w->loss, r, true);
    if (!(fabs(operand_value(&w->loss, GPULOSS_F32, 0, 0)) <= 0))
        report_failure(r, "kl_div", 0, 0, "the sum of nothing is not 0");
    /* Labels of no rows: nothing is divided by nothing. */
    d.reduction = GPULOSS_BATCHMEAN;
    d.flags = GPULOSS_USE_IGNORE_INDEX;
    d.label_type = GPULOSS_I64;
    require_ok(gpuloss_kl_div(harness_context, &d, NULL));
    operand_fetch(&w->loss, r, true);
    if (!isnan(operand_value(&w->loss, GPULOSS_F32, 0, 0)))
        report_failure(r, "kl_div", 0, 0, "the mean of nothing is not NaN");
}

static void kl_div_sparse_of_no_rows(world *w, report *r) {
    sparse_desc d = sparse_correct(w).sparse;
    d.rows = 0;
    d.reduction = GPULOSS_SUM;
    d.logits = d.indices = d.values = d.grad_loss = d.grad_loss_rows = NULL;
    d.loss_rows = d.grad_logits = NULL;
    operand_poison(&w->bad_targets);
    require_ok(gpuloss_kl_div_sparse(harness_context, &d, NULL));
    operand_fetch(&w->loss, r, true);
    operand_fetch(&w->bad_targets, r, true);
    if (!(fabs(operand_value(&w->loss, GPULOSS_F32, 0, 0)) <= 0) || operand_integer(&w->bad_targets, 0) != 0)
        report_failure(r, "kl_div_sparse", 0, 0, "the sum of nothing is not 0, or bad indices were counted");
}

static void empty_arrays_may_be_null(void **state) {
    world w;
    report r;
    (void)state;
    REQUIRE_GPU();
    r = report_on("no rows");
    w = world_new();
    cross_entropy_of_no_rows(&w, &r);
    kl_div_of_no_rows(&w, &r);
    kl_div_sparse_of_no_rows(&w, &r);
    world_free(&w);
    case_done(&r);
    test_done();
}

/* Null where the context, the desc or a result belongs. */
static void nulls_are_refused(void **state) {
    size_t bytes;
    world w;
    ce_desc ce;
    kl_desc kl;
    sparse_desc sparse;
    report r;
    (void)state;
    REQUIRE_GPU();
    r = report_on("null");
    w = world_new();
    ce = ce_correct(&w).ce;
    kl = kl_correct(&w).kl;
    sparse = sparse_correct(&w).sparse;
    expect_refusal(&r, "gpuloss_cross_entropy", "context", "", INVALID, gpuloss_cross_entropy(NULL, &ce, NULL));
    expect_refusal(&r, "gpuloss_cross_entropy", "desc", "", INVALID,
                   gpuloss_cross_entropy(harness_context, NULL, NULL));
    expect_refusal(&r, "gpuloss_kl_div", "context", "", INVALID, gpuloss_kl_div(NULL, &kl, NULL));
    expect_refusal(&r, "gpuloss_kl_div", "desc", "", INVALID, gpuloss_kl_div(harness_context, NULL, NULL));
    expect_refusal(&r, "gpuloss_cross_entropy_workspace", "bytes", "", INVALID,
                   gpuloss_cross_entropy_workspace(harness_context, &ce, NULL));
    expect_refusal(&r, "gpuloss_kl_div_workspace", "context", "", INVALID, gpuloss_kl_div_workspace(NULL, &kl, &bytes));
    expect_refusal(&r, "gpuloss_kl_div_sparse", "context", "", INVALID, gpuloss_kl_div_sparse(NULL, &sparse, NULL));
    expect_refusal(&r, "gpuloss_kl_div_sparse", "desc", "", INVALID,
                   gpuloss_kl_div_sparse(harness_context, NULL, NULL));
    expect_refusal(&r, "gpuloss_kl_div_sparse_workspace", "bytes", "", INVALID,
                   gpuloss_kl_div_sparse_workspace(harness_context, &sparse, NULL));
    expect_refusal(&r, "gpuloss_get_info", "info", "", INVALID, gpuloss_get_info(harness_context, NULL));
    expect_refusal(&r, "gpuloss_alloc", "pointer", "", INVALID, gpuloss_alloc(harness_context, NULL, 4));
    expect_refusal(&r, "gpuloss_create", "context", "", INVALID, gpuloss_create(NULL, NULL));
    world_unchanged(&w, &r);
    world_free(&w);
    case_done(&r);
    test_done();
}

int run_misuse_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cross_entropy_refuses), cmocka_unit_test(combine_refuses),
        cmocka_unit_test(kl_div_refuses),        cmocka_unit_test(kl_div_sparse_refuses),
        cmocka_unit_test(nulls_are_refused),     cmocka_unit_test(empty_arrays_may_be_null),
    };
    return cmocka_run_group_tests_name("misuse", tests, NULL, NULL);
}
