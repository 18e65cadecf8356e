"""A random valid call of each function. `run` makes a call and compares it with what is expected of it."""

import numpy as np
import reference
from bounded import Arithmetic
from call import (
    Call,
    add_to_sums,
    give_ignore_index,
    give_reduction,
    give_results,
    give_row_weights,
    give_upstream,
    want_gradient,
    want_results,
    wanted,
)
from draw import fits
from gpu import DIVISOR, descs
from storage import rounded

OF_ROWS = ["loss", "loss_rows", "z_loss", "z_loss_rows", "lse", "argmax"]
KINDS = ("probabilities", "log_probabilities", "logits")
SHARD_ROW_DOUBLES = 6
DIVERGENCES = ("forward_kl", "reverse_kl", "jensen_shannon", "total_variation")


def _arithmetic(call):
    return Arithmetic(call.dtype == "float64")


# Fields that the divisor of chunks depends on.
SCALARS_OF_DIVISOR = ("dtype", "rows", "classes", "reduction", "target_type", "label_type", "ignore_index")
ARRAYS_OF_DIVISOR = ("targets", "target_probabilities", "class_weights", "labels")


def _give_divisor_of_chunks(draw, call, run, rows, classes):
    """At times an earlier call computes the divisor, as that of a chunk of its rows."""
    is_divergence = call.function.startswith("gpuloss_kl_div")
    reductions = ("mean", "batchmean") if is_divergence else ("mean",)
    if call.given["reduction"] not in reductions or "divisor" in call.given or not draw.chance(0.4):
        return
    earlier = Call("gpuloss_kl_div_divisor" if is_divergence else "gpuloss_cross_entropy_divisor", call.dtype)
    if call.function in ("gpuloss_kl_div", "gpuloss_cross_entropy") and draw.chance(0.5):
        earlier.scalars.update(call.scalars)
        earlier.arrays.update(call.arrays)
        earlier.flags = call.flags
        # An output of the loss, which this call leaves as it is.
        earlier.arrays["loss_rows"] = draw.vector(call.result, rows, np.ones(rows))
    else:
        earlier.scalars.update({name: call.scalars[name] for name in SCALARS_OF_DIVISOR if name in call.scalars})
        earlier.scalars.update(rows=rows, classes=classes)
        if call.function == "gpuloss_cross_entropy_combine" and draw.chance(0.5):
            earlier.scalars.update(classes=draw.integer(1, classes), total_classes=classes)
        earlier.arrays.update({name: call.arrays[name] for name in ARRAYS_OF_DIVISOR if name in call.arrays})
        earlier.flags = call.flags & descs.Flags.USE_IGNORE_INDEX
        earlier.may_have_workspace = False  # without logits its size is not known
    earlier.arrays[DIVISOR] = draw.one(call.result)
    if draw.chance(0.3):
        earlier.arrays["divisor_in"] = earlier.arrays[DIVISOR]
    of_rows = reference.kl_div_divisor if is_divergence else reference.cross_entropy_divisor
    earlier.expected[DIVISOR] = of_rows(call.given, rows, classes, _arithmetic(call))
    run(earlier)
    divisor = earlier.arrays[DIVISOR].numbers()
    give_results(call, draw, "divisor_in", divisor)
    call.given["divisor"] = float(divisor)


def _softmax(x):
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _mask(draw, numbers, value):
    """Some of the classes get the value, at times all but a few."""
    numbers[draw.uniform(0, 1, numbers.shape) < draw.choice((0.1, 0.1, 0.9))] = value


# ---- cross_entropy


def _cross_entropy_problem(draw, call, rows, classes, in_shards):
    """Logits, targets and options, in `given`. The arrays of logits and probabilities are the caller's."""
    given = call.given
    logits = draw.numbers((rows, classes), call.dtype)
    if draw.chance(0.3):
        scale = draw.choice((draw.uniform(0.2, 2.0), draw.uniform(0.2, 2.0), draw.uniform(-2.0, -0.2)))
        call.give("logit_scale", scale)
    if draw.chance(0.2):
        call.give("softcap", draw.uniform(1.0, 50.0))
    if given.get("logit_scale", 1.0) > 0 and draw.chance(0.15):
        _mask(draw, logits, -np.inf)
    given["logits"] = logits
    if draw.chance(0.3):
        call.give("label_smoothing", draw.choice((0.1, 1.0, draw.uniform(0, 1))))
    if draw.chance(0.3):
        call.give("lse_square_scale", draw.choice((1e-4, draw.uniform(0, 0.1))))
    give_reduction(call, draw, ("mean",))
    give_row_weights(call, draw, rows)
    if draw.chance(0.3):
        weights = draw.uniform(0, 2, classes)
        weights[draw.uniform(0, 1, classes) < draw.choice((0.1, 0.1, 1.0))] = 0.0
        give_results(call, draw, "class_weights", weights)
    if in_shards or draw.chance(0.7):
        _give_targets(draw, call, rows, classes)


def _give_targets(draw, call, rows, classes):
    type_name = draw.indices(classes - 1)
    targets = draw.random.integers(0, classes, rows)
    give_ignore_index(call, draw, targets, type_name)
    bad = [index for index in (-1, -7, classes, classes + 40) if fits(type_name, index)]
    if bad and draw.chance(0.15):
        counted = targets != call.given.get("ignore_index", 1 << 40)
        counted &= np.asarray(call.given.get("row_weights", np.ones(rows))) != 0
        targets[counted & (draw.uniform(0, 1, rows) < 0.2)] = draw.choice(bad)
    call.give_array("targets", draw.vector(type_name, rows, targets), targets)
    call.scalars["target_type"] = descs.INDEX_TYPES[type_name]


def _spoil_rows(draw, call, chance=0.06):
    """A row without a defined loss: with +inf or NaN, or all -inf. Its target is a class, of weight 0 more often."""
    given, logits = call.given, call.given["logits"]
    targets = given.get("targets", np.zeros(len(logits), dtype=np.int64))
    rows = np.flatnonzero((targets >= 0) & (targets < logits.shape[1]))
    if given.get("logit_scale", 1.0) < 0 or len(rows) == 0 or not draw.chance(chance):
        return
    if "class_weights" in given and draw.chance(0.7):
        of_no_weight = rows[given["class_weights"][targets[rows]] == 0]
        rows = of_no_weight if len(of_no_weight) > 0 else rows
    row = draw.choice(rows)
    value = draw.choice([np.nan, -np.inf] + ([] if "softcap" in given else [np.inf]))
    if value == -np.inf:
        logits[row] = value
    else:
        logits[row, draw.integer(0, logits.shape[1] - 1)] = value


def cross_entropy(draw, run):
    call = Call("gpuloss_cross_entropy", draw.floats())
    rows, classes, inner = draw.shape()
    _cross_entropy_problem(draw, call, rows, classes, False)
    given = call.given
    is_saved = draw.chance(0.25)
    _spoil_rows(draw, call, 0.3 if is_saved else 0.06)
    call.scalars.update(rows=rows, classes=classes, inner=inner)
    array, stride = draw.matrix(call.dtype, rows, classes, inner, given["logits"])
    call.arrays["logits"], call.scalars["logits_stride"] = array, stride
    if "targets" not in given:
        type_name = draw.floats()
        if type_name != call.dtype or draw.chance(0.5):
            call.scalars["target_dtype"] = descs.DTYPES[type_name]
        probabilities = _softmax(draw.normal((rows, classes))) * draw.choice((1.0, 1.0, 0.5))
        if draw.chance(0.3):
            _mask(draw, probabilities, 0.0)
        given["target_probabilities"] = rounded(type_name, probabilities)
        given["target_type_name"] = type_name
        array, stride = draw.matrix(type_name, rows, classes, inner, given["target_probabilities"])
        call.arrays["target_probabilities"], call.scalars["target_probabilities_stride"] = array, stride
    _give_divisor_of_chunks(draw, call, run, rows, classes)
    if is_saved:
        _save_lse(draw, call, run)
    names = [name for name in OF_ROWS if name != "lse" or not is_saved]
    names += ["correct", "bad_targets", "grad_logits"] if "targets" in given else []
    names += [] if "targets" in given else ["grad_logits", "grad_target_probabilities"]
    names = wanted(call, draw, names, ("grad_logits",) if is_saved else ())
    if {"grad_logits", "grad_target_probabilities"} & set(names):
        give_upstream(call, draw, rows)
    want_results(call, draw, names, rows)
    if "grad_logits" in names:
        type_name = draw.choice((call.dtype, draw.floats()))
        call.scalars["grad_dtype"] = descs.DTYPES[type_name]
        want_gradient(call, draw, "grad_logits", "logits", type_name, inner)
    if "grad_target_probabilities" in names:
        want_gradient(call, draw, "grad_target_probabilities", "target_probabilities", given["target_type_name"], inner)
    call.expected = reference.cross_entropy(given, _arithmetic(call))
    add_to_sums(call, draw)
    run(call)


def _save_lse(draw, call, run):
    """An earlier call computes the lse, on the same logits."""
    earlier = Call(call.function, call.dtype)
    earlier.given, earlier.flags = call.given, call.flags
    earlier.scalars.update(call.scalars)
    earlier.arrays.update(call.arrays)
    want_results(earlier, draw, ["lse"], len(call.given["logits"]))
    earlier.expected = reference.cross_entropy(call.given, _arithmetic(call))
    run(earlier)
    give_results(call, draw, "lse_in", earlier.arrays["lse"].numbers())


def combine(draw, run):
    """The three steps of a vocabulary in shards."""
    whole = Call("gpuloss_cross_entropy_combine", draw.floats())
    rows, classes, _ = draw.shape()
    _cross_entropy_problem(draw, whole, rows, classes, True)
    _spoil_rows(draw, whole)
    _give_divisor_of_chunks(draw, whole, run, rows, classes)
    shards = draw.integer(1, min(4, classes))
    cuts = np.sort(draw.random.choice(np.arange(1, classes), shards - 1, replace=False)) if shards > 1 else []
    bounds = [0, *(int(cut) for cut in cuts), classes]
    options = dict(whole.arrays)
    whole.expected = reference.cross_entropy(whole.given, _arithmetic(whole))
    states = []
    for first, end in zip(bounds, bounds[1:]):
        part = _shard_of(draw, whole, options, first, end)
        part.arrays["shard_rows"] = draw.vector("float64", rows * SHARD_ROW_DOUBLES)
        if draw.chance(0.3):
            want_results(part, draw, ["bad_targets"], rows)
            part.expected["bad_targets"] = whole.expected["bad_targets"]
            add_to_sums(part, draw)
        run(part)
        states.append(part.arrays["shard_rows"].numbers())
    gathered = np.concatenate(states)
    whole.arrays["shard_rows"] = draw.vector("float64", len(gathered), gathered)
    whole.scalars.update(rows=rows, classes=classes, shards=shards)
    want_results(whole, draw, wanted(whole, draw, OF_ROWS + ["correct", "bad_targets"], ("lse",)), rows)
    add_to_sums(whole, draw)
    run(whole)
    for first, end in zip(bounds, bounds[1:]):
        part = _shard_of(draw, whole, options, first, end)
        give_results(part, draw, "lse_in", whole.arrays["lse"].numbers())
        give_upstream(part, draw, rows)
        type_name = draw.choice((part.dtype, draw.floats()))
        part.scalars["grad_dtype"] = descs.DTYPES[type_name]
        want_gradient(part, draw, "grad_logits", "logits", type_name)
        of_whole = reference.cross_entropy({**part.given, "logits": whole.given["logits"]}, _arithmetic(part))
        part.expected["grad_logits"] = of_whole["grad_logits"].take(slice(None), slice(first, end))
        run(part)


def _shard_of(draw, whole, options, first, end):
    """A call on the classes from first to before end. Its targets and options are the arrays of the whole."""
    part = Call("gpuloss_cross_entropy", whole.dtype)
    part.given = {**whole.given, "logits": whole.given["logits"][:, first:end]}
    part.scalars.update({name: number for name, number in whole.scalars.items() if name != "shards"})
    part.flags, part.arrays = whole.flags & ~descs.Flags.ADD_SUMS, dict(options)
    rows, classes = part.given["logits"].shape
    part.scalars.update(rows=rows, classes=classes, total_classes=whole.given["logits"].shape[1], class_offset=first)
    part.arrays["logits"], part.scalars["logits_stride"] = draw.matrix(
        part.dtype, rows, classes, 0, part.given["logits"]
    )
    return part


# ---- kl_div


def _give_divergence(draw, call, divergences=DIVERGENCES):
    call.given["divergence"] = divergence = draw.choice(divergences)
    call.scalars["divergence"] = descs.Divergence[divergence.upper()]
    if divergence == "jensen_shannon":
        call.give("beta", draw.choice((0.5, 0.1, draw.uniform(0, 1), 0.0, 1.0)))


def _give_temperature(draw, call):
    if draw.chance(0.5):
        call.give("temperature", draw.uniform(0.5, 4.0))
        if draw.chance(0.5):
            call.flags |= descs.Flags.TEMPERATURE_SQUARED
            call.given["temperature_squared"] = True


def _give_labels(draw, call, rows):
    type_name = draw.indices(0)
    labels = draw.random.integers(0, 100, rows)
    if give_ignore_index(call, draw, labels, type_name):
        call.give_array("labels", draw.vector(type_name, rows, labels), labels)
        call.scalars["label_type"] = descs.INDEX_TYPES[type_name]


def _numbers_of_kind(kind, logits):
    if kind == "logits":
        return logits
    with np.errstate(divide="ignore"):
        return _softmax(logits) if kind == "probabilities" else np.log(_softmax(logits))


def _give_sides(draw, call, rows, classes, inner):
    given, divergence = call.given, call.given["divergence"]
    logits = draw.normal((rows, classes))
    others = logits + draw.normal((rows, classes), 1e-3) if draw.chance(0.3) else draw.normal((rows, classes))
    target_type = draw.choice((call.dtype, draw.floats()))
    if target_type != call.dtype or draw.chance(0.5):
        call.scalars["target_dtype"] = descs.DTYPES[target_type]
    is_shared = draw.chance(0.2)
    width = max(inner, 1)
    if is_shared:
        call.flags |= descs.Flags.SHARED_TARGET
        others = np.resize(others[:width], others.shape)
    # Probabilities of 0, on the sides where they add 0, and seldom on the other one.
    zeros_of_input = 0.03 if divergence == "forward_kl" else 0.2
    zeros_of_target = 0.03 if divergence == "reverse_kl" else 0.2
    for name, type_name, numbers, zeros in (
        ("input", call.dtype, logits, zeros_of_input),
        ("target", target_type, others, zeros_of_target),
    ):
        kind = draw.choice(KINDS)
        numbers = _numbers_of_kind(kind, numbers)
        if draw.chance(zeros):
            mask = draw.uniform(0, 1, (1 if name == "target" and is_shared else rows, classes)) < 0.1
            mask[:, draw.integer(0, classes - 1)] = False
            numbers = np.where(mask, 0.0 if kind == "probabilities" else -np.inf, numbers)
        given[name] = numbers = rounded(type_name, numbers)
        given[name + "_kind"], given[name + "_type_name"] = kind, type_name
        call.scalars[name + "_kind"] = descs.Kind[kind.upper()]
        if name == "target" and is_shared:
            # One row, or one image of as many rows as it has columns.
            image = numbers[:width] if rows else np.zeros((width, classes))
            array, stride = draw.matrix(type_name, width, classes, inner, image)
            call.arrays[name], call.scalars["target_stride"] = array, 0
        else:
            call.arrays[name], call.scalars[name + "_stride"] = draw.matrix(type_name, rows, classes, inner, numbers)
    return is_shared


def kl_div(draw, run):
    call = Call("gpuloss_kl_div", draw.floats())
    rows, classes, inner = draw.shape()
    call.scalars.update(rows=rows, classes=classes, inner=inner)
    _give_divergence(draw, call)
    is_shared = _give_sides(draw, call, rows, classes, inner)
    kinds = {call.given["input_kind"], call.given["target_kind"]}
    is_kl = call.given["divergence"] in ("forward_kl", "reverse_kl")
    if "logits" in kinds:
        _give_temperature(draw, call)
    if "probabilities" in kinds and is_kl and draw.chance(0.4):
        call.give("eps", draw.choice((1e-8, 1e-3, 1.0)))
    if call.given["divergence"] == "forward_kl" and draw.chance(0.15):
        call.flags |= descs.Flags.PYTORCH_ZEROS
        call.given["pytorch_zeros"] = True
    give_reduction(call, draw, ("mean", "batchmean"))
    give_row_weights(call, draw, rows)
    _give_labels(draw, call, rows)
    _give_divisor_of_chunks(draw, call, run, rows, classes)
    names = ["loss", "loss_rows", "loss_elements", "grad_input"] + ([] if is_shared else ["grad_target"])
    names = wanted(call, draw, names)
    want_results(call, draw, names, rows)
    if "loss_elements" in names:
        call.arrays["loss_elements"], call.scalars["loss_elements_stride"] = draw.matrix(
            call.result, rows, classes, inner
        )
    if {"grad_input", "grad_target"} & set(names):
        give_upstream(call, draw, rows)
    for side in ("input", "target"):
        if "grad_" + side in names:
            want_gradient(call, draw, "grad_" + side, side, call.given[side + "_type_name"], inner)
    call.expected = reference.kl_div(call.given, _arithmetic(call))
    add_to_sums(call, draw)
    run(call)


# ---- kl_div_sparse


def _give_teacher(draw, call, rows, classes):
    """Indices and values. The k probabilities do not add up to about 1, where the bucket would have no digits."""
    given = call.given
    k = draw.size(min(classes, 120 if draw.chance(0.1) else 12))
    index_type, value_type = draw.indices(classes - 1), draw.floats()
    if draw.chance(0.3):
        indices = draw.random.integers(0, classes, (rows, k))
    else:
        indices = np.argsort(draw.uniform(0, 1, (rows, classes)), axis=1)[:, :k]
    bad = [index for index in (-1, classes, classes + 40) if fits(index_type, index)]
    if bad and draw.chance(0.15):
        counted = np.asarray(given.get("row_weights", np.ones(rows))) != 0
        if "labels" in given:
            counted &= given["labels"] != given["ignore_index"]
        indices[counted[:, None] & (draw.uniform(0, 1, (rows, k)) < 0.1)] = draw.choice(bad)
    values = _softmax(draw.normal((rows, k), 2.0)) * draw.choice((0.3, 0.6, 0.9, 1.2))
    if draw.chance(0.2):
        _mask(draw, values, 0.0)
    kind = draw.choice(KINDS[:2])
    with np.errstate(divide="ignore"):
        values = rounded(value_type, values if kind == "probabilities" else np.log(values))
    given.update(value_kind=kind, values_type_name=value_type)
    call.scalars.update(k=k, index_type=descs.INDEX_TYPES[index_type], value_kind=descs.Kind[kind.upper()])
    if value_type != call.dtype or draw.chance(0.5):
        call.scalars["value_dtype"] = descs.DTYPES[value_type]
    for name, type_name, numbers in (("indices", index_type, indices), ("values", value_type, values)):
        array, call.scalars[name + "_stride"] = draw.matrix(type_name, rows, k, 0, numbers)
        call.give_array(name, array, numbers)


def kl_div_sparse(draw, run):
    call = Call("gpuloss_kl_div_sparse", draw.floats())
    given = call.given
    rows, classes, _ = draw.shape()
    call.scalars.update(rows=rows, classes=classes)
    residual = draw.choice(("drop", "renormalize", "bucket"))
    given["residual"], call.scalars["residual"] = residual, descs.Residual[residual.upper()]
    _give_divergence(draw, call, [name for name in DIVERGENCES if residual == "bucket" or name != "reverse_kl"])
    if residual != "bucket" and given.get("beta") == 1.0:
        call.give("beta", 0.75)
    _give_temperature(draw, call)
    give_reduction(call, draw, ("mean", "batchmean"))
    give_row_weights(call, draw, rows)
    _give_labels(draw, call, rows)
    _give_divisor_of_chunks(draw, call, run, rows, classes)
    _give_teacher(draw, call, rows, classes)
    logits = draw.numbers((rows, classes), call.dtype)
    if draw.chance(0.1):
        mask = draw.uniform(0, 1, (rows, classes)) < 0.1
        mask[:, draw.integer(0, classes - 1)] = False
        logits[mask] = -np.inf
    array, call.scalars["logits_stride"] = draw.matrix(call.dtype, rows, classes, 0, logits)
    call.give_array("logits", array, logits)
    names = wanted(call, draw, ["loss", "loss_rows", "grad_logits", "bad_indices"])
    want_results(call, draw, names, rows)
    if "grad_logits" in names:
        give_upstream(call, draw, rows)
        want_gradient(call, draw, "grad_logits", "logits", call.dtype)
    call.expected = reference.kl_div_sparse(given, _arithmetic(call))
    add_to_sums(call, draw)
    run(call)


CASES = {
    "cross_entropy": cross_entropy,
    "combine": combine,
    "kl_div": kl_div,
    "kl_div_sparse": kl_div_sparse,
}
