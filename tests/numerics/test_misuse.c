/* Every misuse is refused with its status and a message "function: field: what (got ...)", by the call and by the query
 * of its workspace, and launches nothing: all outputs keep what they held. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "harness.h"
#include "suites.h"

enum { ROWS = 6, CLASSES = 40, STRIDE = 43, NEEDS_WORKSPACE = 1, ONLY_THE_CALL = 2 };

/* Device memory for one correct call of either loss. */
typedef struct world {
    operand logits, second, targets, row_input, scalar_input, grad, loss, loss_rows, lse, elements, bad_targets,
        workspace;
} world;
enum { WORLD_OPERANDS = 12 };

static void world_each(world *w, operand **all) {
    operand *const list[WORLD_OPERANDS] = {&w->logits,       &w->second,   &w->targets,     &w->row_input,
                                           &w->scalar_input, &w->grad,     &w->loss,        &w->loss_rows,
                                           &w->lse,          &w->elements, &w->bad_targets, &w->workspace};
    memcpy(all, list, sizeof list);
}

static operand filled(const char *name, size_t size, int64_t rows, int64_t columns, int64_t stride) {
    operand o = operand_new(name, size, rows, columns, stride, 0, 256);
    operand_poison(&o);
    return o;
}

/* Inputs hold small probabilities, which do for logits as well; targets are class 1. */
static world world_new(void) {
    double values[ROWS * CLASSES];
    int64_t classes[ROWS];
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
    w.row_input = operand_new("a value a row", 4, 1, ROWS, ROWS, 0, 256);
    operand_put(&w.row_input, GPULOSS_F32, values);
    w.scalar_input = operand_new("a value", 4, 1, 1, 1, 0, 256);
    operand_put(&w.scalar_input, GPULOSS_F32, values);
    w.grad = filled("gradient", 4, ROWS, CLASSES, STRIDE);
    w.loss = filled("loss", 4, 1, 1, 1);
    w.loss_rows = filled("loss_rows", 4, 1, ROWS, ROWS);
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

/* ------------------------------------------------------------------------------------------------------ both losses */

typedef gpuloss_cross_entropy_desc ce_desc;
typedef gpuloss_kl_div_desc kl_desc;
typedef union any_desc {
    ce_desc ce;
    kl_desc kl;
} any_desc;

/* What the loop over the misuses of a loss calls. */
typedef struct loss_calls {
    const char *name;
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

/* A function that makes one field of a loss's correct desc `d` wrong. */
#define SPOIL(name, loss, statement)                                                                                   \
    static void name(any_desc *any, world *w) {                                                                        \
        loss##_desc *d = &any->loss;                                                                                   \
        (void)w;                                                                                                       \
        statement;                                                                                                     \
    }

static void check_misuse(const loss_calls *loss, const misuse *m) {
    char text[128], call[64], query[64];
    world w = world_new();
    any_desc d = loss->correct(&w);
    size_t bytes = 0;
    report r;
    (void)snprintf(text, sizeof text, "%s refuses: %s", loss->name, m->what);
    (void)snprintf(call, sizeof call, "gpuloss_%s", loss->name);
    (void)snprintf(query, sizeof query, "gpuloss_%s_workspace", loss->name);
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

#define SPOIL_CE(name, statement) SPOIL(name, ce, statement)

SPOIL_CE(ce_no_logits, d->logits = NULL)
SPOIL_CE(ce_no_targets, d->targets = NULL)
SPOIL_CE(ce_no_dtype, d->dtype = GPULOSS_DTYPE_UNSET)
SPOIL_CE(ce_wrong_dtype, d->dtype = (gpuloss_dtype)99)
SPOIL_CE(ce_no_index, d->target_type = GPULOSS_INDEX_UNSET)
SPOIL_CE(ce_wrong_index, d->target_type = (gpuloss_index_type)77)
SPOIL_CE(ce_no_reduction, d->reduction = GPULOSS_REDUCTION_UNSET)
SPOIL_CE(ce_wrong_reduction, d->reduction = (gpuloss_reduction)55)
SPOIL_CE(ce_rows, d->rows = -3)
SPOIL_CE(ce_classes_zero, d->classes = 0)
SPOIL_CE(ce_classes, d->classes = -8)
SPOIL_CE(ce_stride, d->logits_stride = CLASSES - 1)
SPOIL_CE(ce_stride_negative, d->logits_stride = -STRIDE)
SPOIL_CE(ce_grad_stride, d->grad_logits_stride = CLASSES - 1)
SPOIL_CE(ce_grad_stride_negative, d->grad_logits_stride = -1)
SPOIL_CE(ce_in_place, d->grad_logits = operand_pointer(&w->logits); d->grad_logits_stride = STRIDE + 1)
SPOIL_CE(ce_flags, d->flags |= 1u << 30)
SPOIL_CE(ce_other_flag, d->flags |= (unsigned)GPULOSS_PYTORCH_ZEROS)
SPOIL_CE(ce_loss_of_none, d->reduction = GPULOSS_NONE)
SPOIL_CE(ce_lse_twice, d->lse_in = operand_pointer(&w->row_input))
SPOIL_CE(ce_logits_odd, d->logits = byte_after(d->logits))
SPOIL_CE(ce_targets_odd, d->targets = byte_after(d->targets))
SPOIL_CE(ce_loss_odd, d->loss = byte_after(d->loss))
SPOIL_CE(ce_loss_rows_odd, d->loss_rows = byte_after(d->loss_rows))
SPOIL_CE(ce_lse_odd, d->lse = byte_after(d->lse))
SPOIL_CE(ce_lse_in_odd, d->lse = NULL; d->lse_in = byte_after(operand_pointer(&w->row_input)))
SPOIL_CE(ce_grad_odd, d->grad_logits = byte_after(d->grad_logits))
SPOIL_CE(ce_bad_odd, d->bad_targets = (int64_t *)((uintptr_t)d->bad_targets + 4))
SPOIL_CE(ce_grad_loss_odd, d->grad_loss = byte_after(d->grad_loss))
SPOIL_CE(ce_grad_loss_rows_odd, d->grad_loss_rows = byte_after(d->grad_loss_rows))
SPOIL_CE(ce_workspace_odd, d->workspace = byte_after(d->workspace))
SPOIL_CE(ce_workspace_8, d->workspace = (void *)((uintptr_t)d->workspace + 8))
SPOIL_CE(ce_workspace_small, d->workspace_bytes -= 1)
SPOIL_CE(ce_too_many, d->rows = INT64_MAX / 4)
SPOIL_CE(ce_no_output, d->loss = d->loss_rows = d->lse = d->grad_logits = NULL; d->bad_targets = NULL;
         d->grad_loss = d->grad_loss_rows = NULL)
SPOIL_CE(ce_no_scale_flag, d->grad_scale = 0.5)
SPOIL_CE(ce_no_ignore_flag, d->flags = 0)
SPOIL_CE(ce_factor_of_none, d->reduction = GPULOSS_NONE; d->loss = NULL)
SPOIL_CE(ce_factor_alone, d->grad_logits = NULL; d->grad_loss_rows = NULL)
SPOIL_CE(ce_row_factor_alone, d->grad_logits = NULL; d->grad_loss = NULL)
SPOIL_CE(ce_overlap, d->grad_logits = (unsigned char *)operand_pointer(&w->logits) + 4)

static const misuse ce_misuses[] = {
    {"no logits", "logits", "", INVALID, 0, ce_no_logits},
    {"no targets", "targets", "", INVALID, 0, ce_no_targets},
    {"dtype unset", "dtype", "", INVALID, 0, ce_no_dtype},
    {"dtype unknown", "dtype", "99", INVALID, 0, ce_wrong_dtype},
    {"target_type unset", "target_type", "", INVALID, 0, ce_no_index},
    {"target_type unknown", "target_type", "77", INVALID, 0, ce_wrong_index},
    {"reduction unset", "reduction", "", INVALID, 0, ce_no_reduction},
    {"reduction unknown", "reduction", "55", INVALID, 0, ce_wrong_reduction},
    {"negative rows", "rows", "-3", INVALID, 0, ce_rows},
    {"no classes", "classes", "0", INVALID, 0, ce_classes_zero},
    {"negative classes", "classes", "-8", INVALID, 0, ce_classes},
    {"short stride", "logits_stride", "39", INVALID, 0, ce_stride},
    {"negative stride", "logits_stride", "-43", INVALID, 0, ce_stride_negative},
    {"short stride of the gradient", "grad_logits_stride", "39", INVALID, 0, ce_grad_stride},
    {"negative stride of the gradient", "grad_logits_stride", "-1", INVALID, 0, ce_grad_stride_negative},
    {"in place with another stride", "grad_logits_stride|grad_logits", "44", INVALID, 0, ce_in_place},
    {"unknown flag", "flags", "", INVALID, 0, ce_flags},
    {"flag of another loss", "flags", "", INVALID, 0, ce_other_flag},
    {"loss with reduction none", "loss|reduction", "", INVALID, 0, ce_loss_of_none},
    {"lse with lse_in", "lse|lse_in", "", INVALID, 0, ce_lse_twice},
    {"more bytes than addresses", "rows|logits_stride|grad_logits_stride", "", INVALID, 0, ce_too_many},
    {"no output", "loss, loss_rows, lse, grad_logits, bad_targets", "", INVALID, 0, ce_no_output},
    {"grad_scale without its flag", "grad_scale", "0.5", INVALID, 0, ce_no_scale_flag},
    {"ignore_index without its flag", "ignore_index", "-100", INVALID, 0, ce_no_ignore_flag},
    {"grad_loss with reduction none", "grad_loss", "0x", INVALID, 0, ce_factor_of_none},
    {"grad_loss without a gradient", "grad_loss", "0x", INVALID, 0, ce_factor_alone},
    {"grad_loss_rows without a gradient", "grad_loss_rows", "0x", INVALID, 0, ce_row_factor_alone},
    {"gradient overlaps the logits", "grad_logits", "0x", INVALID, 0, ce_overlap},
    {"logits", "logits", "0x", MISALIGNED, 0, ce_logits_odd},
    {"targets", "targets", "0x", MISALIGNED, 0, ce_targets_odd},
    {"loss", "loss", "0x", MISALIGNED, 0, ce_loss_odd},
    {"loss_rows", "loss_rows", "0x", MISALIGNED, 0, ce_loss_rows_odd},
    {"lse", "lse", "0x", MISALIGNED, 0, ce_lse_odd},
    {"lse_in", "lse_in", "0x", MISALIGNED, 0, ce_lse_in_odd},
    {"grad_logits", "grad_logits", "0x", MISALIGNED, 0, ce_grad_odd},
    {"bad_targets", "bad_targets", "0x", MISALIGNED, 0, ce_bad_odd},
    {"grad_loss", "grad_loss", "0x", MISALIGNED, 0, ce_grad_loss_odd},
    {"grad_loss_rows", "grad_loss_rows", "0x", MISALIGNED, 0, ce_grad_loss_rows_odd},
    {"workspace", "workspace", "0x", MISALIGNED, NEEDS_WORKSPACE | ONLY_THE_CALL, ce_workspace_odd},
    {"workspace at 8 bytes", "workspace", "0x", MISALIGNED, NEEDS_WORKSPACE | ONLY_THE_CALL, ce_workspace_8},
    {"small workspace", "workspace_bytes", "", GPULOSS_ERROR_WORKSPACE_TOO_SMALL, NEEDS_WORKSPACE | ONLY_THE_CALL,
     ce_workspace_small},
};

static void cross_entropy_refuses(void **state) {
    static const loss_calls cross_entropy = {"cross_entropy", ce_correct, ce_call, ce_query, ce_give_workspace};
    (void)state;
    REQUIRE_GPU();
    check_misuses(&cross_entropy, ce_misuses, sizeof ce_misuses / sizeof ce_misuses[0]);
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

#define SPOIL_KL(name, statement) SPOIL(name, kl, statement)

SPOIL_KL(kl_no_input, d->input = NULL)
SPOIL_KL(kl_no_target, d->target = NULL)
SPOIL_KL(kl_no_dtype, d->dtype = GPULOSS_DTYPE_UNSET)
SPOIL_KL(kl_wrong_dtype, d->dtype = (gpuloss_dtype)99)
SPOIL_KL(kl_no_input_kind, d->input_kind = GPULOSS_KIND_UNSET)
SPOIL_KL(kl_no_target_kind, d->target_kind = GPULOSS_KIND_UNSET)
SPOIL_KL(kl_wrong_kind, d->target_kind = (gpuloss_kind)33)
SPOIL_KL(kl_no_reduction, d->reduction = GPULOSS_REDUCTION_UNSET)
SPOIL_KL(kl_rows, d->rows = -3)
SPOIL_KL(kl_classes, d->classes = 0)
SPOIL_KL(kl_input_stride, d->input_stride = CLASSES - 1)
SPOIL_KL(kl_target_stride, d->target_stride = CLASSES - 1)
SPOIL_KL(kl_elements_stride, d->loss_elements_stride = CLASSES - 1)
SPOIL_KL(kl_grad_stride, d->grad_input_stride = CLASSES - 1)
SPOIL_KL(kl_in_place, d->grad_input = operand_pointer(&w->logits); d->grad_input_stride = STRIDE + 1)
SPOIL_KL(kl_flags, d->flags |= 1u << 30)
SPOIL_KL(kl_other_flag, d->flags |= (unsigned)GPULOSS_USE_IGNORE_INDEX)
SPOIL_KL(kl_loss_of_none, d->reduction = GPULOSS_NONE)
SPOIL_KL(kl_eps_negative, d->eps = -0.5)
SPOIL_KL(kl_eps_nan, d->eps = (double)NAN)
SPOIL_KL(kl_eps_inf, d->eps = (double)INFINITY)
SPOIL_KL(kl_eps_of_logs, d->eps = 0.5; d->input_kind = d->target_kind = GPULOSS_LOG_PROBABILITIES)
SPOIL_KL(kl_input_odd, d->input = byte_after(d->input))
SPOIL_KL(kl_target_odd, d->target = byte_after(d->target))
SPOIL_KL(kl_loss_odd, d->loss = byte_after(d->loss))
SPOIL_KL(kl_loss_rows_odd, d->loss_rows = byte_after(d->loss_rows))
SPOIL_KL(kl_elements_odd, d->loss_elements = byte_after(d->loss_elements))
SPOIL_KL(kl_grad_odd, d->grad_input = byte_after(d->grad_input))
SPOIL_KL(kl_grad_loss_odd, d->grad_loss = byte_after(d->grad_loss))
SPOIL_KL(kl_grad_loss_rows_odd, d->grad_loss_rows = byte_after(d->grad_loss_rows))
SPOIL_KL(kl_workspace_odd, d->workspace = byte_after(d->workspace))
SPOIL_KL(kl_workspace_small, d->workspace_bytes -= 1)
SPOIL_KL(kl_too_many, d->rows = INT64_MAX / 4)
SPOIL_KL(kl_no_output, d->loss = d->loss_rows = d->loss_elements = d->grad_input = NULL;
         d->grad_loss = d->grad_loss_rows = NULL)
SPOIL_KL(kl_no_scale_flag, d->grad_scale = 0.5)
SPOIL_KL(kl_factor_of_none, d->reduction = GPULOSS_NONE; d->loss = NULL)
SPOIL_KL(kl_factor_alone, d->grad_input = NULL; d->grad_loss_rows = NULL)
SPOIL_KL(kl_overlap, d->grad_input = (unsigned char *)operand_pointer(&w->logits) + 4)
SPOIL_KL(kl_overlap_target, d->grad_input = operand_pointer(&w->second))
SPOIL_KL(kl_overlap_elements, d->loss_elements = operand_pointer(&w->logits))

static const misuse kl_misuses[] = {
    {"no input", "input", "", INVALID, 0, kl_no_input},
    {"no target", "target", "", INVALID, 0, kl_no_target},
    {"dtype unset", "dtype", "", INVALID, 0, kl_no_dtype},
    {"dtype unknown", "dtype", "99", INVALID, 0, kl_wrong_dtype},
    {"input_kind unset", "input_kind", "", INVALID, 0, kl_no_input_kind},
    {"target_kind unset", "target_kind", "", INVALID, 0, kl_no_target_kind},
    {"target_kind unknown", "target_kind", "33", INVALID, 0, kl_wrong_kind},
    {"reduction unset", "reduction", "", INVALID, 0, kl_no_reduction},
    {"negative rows", "rows", "-3", INVALID, 0, kl_rows},
    {"no classes", "classes", "0", INVALID, 0, kl_classes},
    {"short stride of the input", "input_stride", "39", INVALID, 0, kl_input_stride},
    {"short stride of the target", "target_stride", "39", INVALID, 0, kl_target_stride},
    {"short stride of the terms", "loss_elements_stride", "39", INVALID, 0, kl_elements_stride},
    {"short stride of the gradient", "grad_input_stride", "39", INVALID, 0, kl_grad_stride},
    {"in place with another stride", "grad_input_stride|grad_input", "44", INVALID, 0, kl_in_place},
    {"unknown flag", "flags", "", INVALID, 0, kl_flags},
    {"flag of another loss", "flags", "", INVALID, 0, kl_other_flag},
    {"loss with reduction none", "loss|reduction", "", INVALID, 0, kl_loss_of_none},
    {"negative eps", "eps", "-0.5", INVALID, 0, kl_eps_negative},
    {"eps is NaN", "eps", "", INVALID, 0, kl_eps_nan},
    {"eps is infinite", "eps", "", INVALID, 0, kl_eps_inf},
    {"eps with logarithms only", "eps", "0.5", INVALID, 0, kl_eps_of_logs},
    {"more bytes than addresses", "rows|input_stride|target_stride|grad_input_stride", "", INVALID, 0, kl_too_many},
    {"no output", "loss, loss_rows, loss_elements, grad_input", "", INVALID, 0, kl_no_output},
    {"grad_scale without its flag", "grad_scale", "0.5", INVALID, 0, kl_no_scale_flag},
    {"grad_loss with reduction none", "grad_loss", "0x", INVALID, 0, kl_factor_of_none},
    {"grad_loss without a gradient", "grad_loss", "0x", INVALID, 0, kl_factor_alone},
    {"gradient overlaps the input", "grad_input", "0x", INVALID, 0, kl_overlap},
    {"gradient over the target", "grad_input", "0x", INVALID, 0, kl_overlap_target},
    {"terms over the input", "loss_elements", "0x", INVALID, 0, kl_overlap_elements},
    {"input", "input", "0x", MISALIGNED, 0, kl_input_odd},
    {"target", "target", "0x", MISALIGNED, 0, kl_target_odd},
    {"loss", "loss", "0x", MISALIGNED, 0, kl_loss_odd},
    {"loss_rows", "loss_rows", "0x", MISALIGNED, 0, kl_loss_rows_odd},
    {"loss_elements", "loss_elements", "0x", MISALIGNED, 0, kl_elements_odd},
    {"grad_input", "grad_input", "0x", MISALIGNED, 0, kl_grad_odd},
    {"grad_loss", "grad_loss", "0x", MISALIGNED, 0, kl_grad_loss_odd},
    {"grad_loss_rows", "grad_loss_rows", "0x", MISALIGNED, 0, kl_grad_loss_rows_odd},
    {"workspace", "workspace", "0x", MISALIGNED, NEEDS_WORKSPACE | ONLY_THE_CALL, kl_workspace_odd},
    {"small workspace", "workspace_bytes", "", GPULOSS_ERROR_WORKSPACE_TOO_SMALL, NEEDS_WORKSPACE | ONLY_THE_CALL,
     kl_workspace_small},
};

static void kl_div_refuses(void **state) {
    static const loss_calls kl_div = {"kl_div", kl_correct, kl_call, kl_query, kl_give_workspace};
    (void)state;
    REQUIRE_GPU();
    check_misuses(&kl_div, kl_misuses, sizeof kl_misuses / sizeof kl_misuses[0]);
}

/* With no rows there may be no arrays. */
static void empty_arrays_may_be_null(void **state) {
    world w;
    ce_desc ce;
    kl_desc kl;
    report r;
    (void)state;
    REQUIRE_GPU();
    r = report_on("no rows");
    w = world_new();
    ce = ce_correct(&w).ce;
    ce.rows = 0;
    ce.logits = ce.targets = ce.grad_loss = ce.grad_loss_rows = NULL;
    ce.loss_rows = ce.lse = ce.grad_logits = NULL;
    require_ok(gpuloss_cross_entropy(harness_context, &ce, NULL));
    operand_fetch(&w.loss, &r, true);
    operand_fetch(&w.bad_targets, &r, true);
    if (!isnan(operand_value(&w.loss, GPULOSS_F32, 0, 0)) || operand_count(&w.bad_targets) != 0)
        report_failure(&r, "cross_entropy", 0, 0, "the mean of nothing is not NaN, or bad targets were counted");
    kl = kl_correct(&w).kl;
    kl.rows = 0;
    kl.reduction = GPULOSS_SUM;
    kl.input = kl.target = kl.grad_loss = kl.grad_loss_rows = NULL;
    kl.loss_rows = kl.loss_elements = kl.grad_input = NULL;
    require_ok(gpuloss_kl_div(harness_context, &kl, NULL));
    operand_fetch(&w.loss, &r, true);
    if (fabs(operand_value(&w.loss, GPULOSS_F32, 0, 0)) > 0)
        report_failure(&r, "kl_div", 0, 0, "the sum of nothing is not 0");
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
    report r;
    (void)state;
    REQUIRE_GPU();
    r = report_on("null");
    w = world_new();
    ce = ce_correct(&w).ce;
    kl = kl_correct(&w).kl;
    expect_refusal(&r, "gpuloss_cross_entropy", "context", "", INVALID, gpuloss_cross_entropy(NULL, &ce, NULL));
    expect_refusal(&r, "gpuloss_cross_entropy", "desc", "", INVALID,
                   gpuloss_cross_entropy(harness_context, NULL, NULL));
    expect_refusal(&r, "gpuloss_kl_div", "context", "", INVALID, gpuloss_kl_div(NULL, &kl, NULL));
    expect_refusal(&r, "gpuloss_kl_div", "desc", "", INVALID, gpuloss_kl_div(harness_context, NULL, NULL));
    expect_refusal(&r, "gpuloss_cross_entropy_workspace", "bytes", "", INVALID,
                   gpuloss_cross_entropy_workspace(harness_context, &ce, NULL));
    expect_refusal(&r, "gpuloss_kl_div_workspace", "context", "", INVALID, gpuloss_kl_div_workspace(NULL, &kl, &bytes));
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
        cmocka_unit_test(cross_entropy_refuses),
        cmocka_unit_test(kl_div_refuses),
        cmocka_unit_test(nulls_are_refused),
        cmocka_unit_test(empty_arrays_may_be_null),
    };
    return cmocka_run_group_tests_name("misuse", tests, NULL, NULL);
}
