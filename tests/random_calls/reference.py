"""The losses as gpuloss.h defines them, in double, with bounds of the kernels' errors (bounded.py).

`given` has the desc's fields by name: numbers, or arrays of doubles [rows, classes]. A field that is left out is not
there. Each function returns the outputs by the desc's field names."""

import math

import numpy as np
from bounded import Bounded


class OneOf:
    """The classes that the argmax of each row may be."""

    def __init__(self, acceptable):
        self.acceptable = acceptable


def added(output, number):
    """An output of one number that is added to this number: a count exactly, a loss with one more rounding."""
    if number.dtype == np.int64:
        return Bounded(output.value + number, output.error, output.u)
    return output + number


class Softmax:
    """Of x [rows, classes], a Bounded, of which -inf are masked classes."""

    def __init__(self, x):
        masked = x.value == -np.inf
        self.max = x.value.max(axis=1, keepdims=True)
        # Rows of which no number is defined: with +inf or NaN, or all -inf.
        self.undefined = ~np.isfinite(self.max[:, 0])
        shifted = (x - self.max).where(masked, -np.inf)
        powers = shifted.exp().where(masked, 0.0)
        total = powers.sum(axis=1, keepdims=True)
        self.p = powers / total
        self.log_p = (shifted - total.log()).where(masked, -np.inf)
        self.lse = total.log() + self.max


def _column(values):
    return np.asarray(values, dtype=np.float64)[:, None]


def _row_weights(given, rows):
    return np.asarray(given.get("row_weights", np.ones(rows)), dtype=np.float64)


def _upstream(given, arithmetic, rows, divisor):
    """s r of each row, as a column; 0 where the divisor is 0."""
    scale = arithmetic.exact(np.ones((rows, 1)))
    for field in ("grad_scale", "grad_loss"):
        if field in given:
            scale = scale * arithmetic.rounded(given[field])
    for field in ("grad_loss_rows", "row_weights"):
        if field in given:
            scale = scale * arithmetic.exact(_column(given[field]))
    return (scale / arithmetic.rounded(divisor)).where(divisor == 0, 0.0)


def _logits(given, arithmetic):
    """x, and dx / dlogits."""
    logits = given["logits"]
    masked = logits == -np.inf
    x = arithmetic.exact(logits)
    slope = arithmetic.exact(np.ones(logits.shape))
    if "logit_scale" in given:
        scale = arithmetic.rounded(given["logit_scale"])
        x, slope = x * scale, slope * scale
    if "softcap" in given:
        cap = arithmetic.rounded(given["softcap"])
        tanh = (x / cap).tanh()
        x = (tanh * cap).where(masked, -np.inf)
        slope = (slope * (-(tanh * tanh) + 1.0)).where(masked, 0.0)
    return x.where(masked, -np.inf), slope


def _class_weights(given, classes):
    return np.asarray(given.get("class_weights", np.ones(classes)), dtype=np.float64)


def _rows_of_targets(given, rows, classes):
    """The targets, or None, and which rows are ignored, and have a target out of range."""
    targets = given.get("targets")
    ignored, bad = np.zeros((2, rows), dtype=bool)
    if targets is not None:
        if "ignore_index" in given:
            ignored = targets == given["ignore_index"]
        bad = ~ignored & ((targets < 0) | (targets >= classes))
    return targets, ignored, bad


def cross_entropy(given, arithmetic):
    rows, classes = given["logits"].shape
    x, slope = _logits(given, arithmetic)
    soft = Softmax(x)
    lse, p = soft.lse, soft.p
    if "lse_in" in given:
        saved = _column(given["lse_in"])
        with np.errstate(invalid="ignore"):
            off = np.abs(saved - lse.value)
        lse = Bounded(saved, off + arithmetic.u * np.abs(saved), arithmetic.u)
        p = (x - lse).exp().where(x.value == -np.inf, 0.0)
    log_loss = (lse - x).where(x.value == -np.inf, np.inf)  # lse - x

    targets, ignored, bad = _rows_of_targets(given, rows, classes)
    weights = _class_weights(given, classes)
    smoothing = arithmetic.rounded(given.get("label_smoothing", 0.0))
    unsmoothed = arithmetic.rounded(1.0 - given.get("label_smoothing", 0.0))
    share = arithmetic.rounded(given.get("label_smoothing", 0.0) / classes)
    row_weights = _row_weights(given, rows)

    if targets is not None:
        target_weight = np.zeros((rows, classes))  # one-hot targets
        valid = np.flatnonzero((targets >= 0) & (targets < classes))
        target_weight[valid, targets[valid]] = 1.0
        target_weight = arithmetic.exact(target_weight) * unsmoothed
    else:
        target_weight = arithmetic.read(given["target_probabilities"], given["target_type_name"]) * unsmoothed
    if np.any(smoothing.value):
        target_weight = target_weight + share
    target_weight = target_weight * weights  # w u
    target_weight = target_weight.where(np.broadcast_to(weights == 0, target_weight.value.shape), 0.0)
    terms = (target_weight * log_loss).where(target_weight.value == 0, 0.0)
    z = lse * lse * arithmetic.rounded(given.get("lse_square_scale", 0.0))
    has_z = given.get("lse_square_scale", 0.0) > 0
    loss = terms.sum(axis=1, keepdims=True)
    if has_z:
        loss = loss + z
    loss = loss * _column(row_weights)
    nothing = _column(ignored | (row_weights == 0)) != 0
    undefined, bad_column = soft.undefined[:, None], bad[:, None]
    loss = loss.where(undefined | bad_column, np.nan, 0.0)
    loss = loss.where(nothing, 0.0)
    z_rows = z * _column(row_weights)
    # The header says nothing of the z-loss of a row that has no loss.
    z_rows = z_rows.where(undefined | bad_column, 0.0, np.inf).where(nothing, 0.0)

    divisor = _divisor_of_cross_entropy(given, rows, weights, targets, ignored, bad)
    # The lse of a row of all -inf is -inf, that of a row with NaN is NaN. Of +inf the header says nothing.
    of_undefined = np.where(soft.max == -np.inf, -np.inf, np.nan)
    outputs = {
        "loss_rows": loss,
        "z_loss_rows": z_rows,
        "loss": loss.exact_sum() / divisor,
        "z_loss": z_rows.exact_sum() / divisor,
        "lse": lse.where(undefined, of_undefined).where(np.isposinf(soft.max), 0.0, np.inf),
    }
    outputs.update(_counts(x, targets, ignored, bad, arithmetic))

    factor = _upstream(given, arithmetic, rows, divisor)
    total = target_weight.sum(axis=1, keepdims=True)
    gradient = p * total - target_weight
    if has_z:
        gradient = gradient + lse * p * arithmetic.rounded(2 * given["lse_square_scale"])
    gradient = gradient * factor * slope
    # A row without a defined loss has gradient NaN; the header names 0, too, for a divisor or a weight of 0.
    shape = gradient.value.shape
    no_gradient = np.broadcast_to(nothing | bad_column | (~undefined & (divisor == 0)), shape)
    nan = np.broadcast_to(undefined, shape)
    doubt = np.inf if divisor == 0 else 0.0
    outputs["grad_logits"] = gradient.where(nan, 0.0 if doubt else np.nan, doubt).where(no_gradient, 0.0)
    if targets is None:
        none = np.broadcast_to((weights == 0) | (unsmoothed.value == 0), shape)
        of_target = (log_loss * (unsmoothed * weights)).where(none, 0.0) * factor
        of_target = of_target.where(nan, 0.0 if doubt else np.nan, doubt).where(nan & none, 0.0, np.inf)
        outputs["grad_target_probabilities"] = of_target.where(no_gradient, 0.0)
    return outputs


def _divisor_of_cross_entropy(given, rows, weights, targets, ignored, bad):
    if given["reduction"] == "mean":
        if "divisor" in given:
            return np.float64(given["divisor"])
        if targets is None:
            return np.float64(rows)
        valid = ~ignored & ~bad
        of_bad = 0 if "class_weights" in given else bad.sum()
        return np.float64(math.fsum(weights[targets[valid]]) + of_bad)
    return np.float64(rows if given["reduction"] == "batchmean" else 1)


def cross_entropy_divisor(given, rows, classes, arithmetic):
    """D of a mean that has no other divisor: it is exact, and rounded once to the type of results."""
    targets, ignored, bad = _rows_of_targets(given, rows, classes)
    divisor = _divisor_of_cross_entropy(given, rows, _class_weights(given, classes), targets, ignored, bad)
    return arithmetic.exact(divisor)


def _counts(x, targets, ignored, bad, arithmetic):
    """The outputs that are indices and numbers of rows."""
    acceptable = _largest(x)
    counts = {"argmax": OneOf(acceptable)}
    if targets is not None:
        valid = np.flatnonzero(~ignored & ~bad)
        may_be = acceptable[valid, targets[valid]]
        surely = may_be & (acceptable[valid].sum(axis=1) == 1)
        most, least = may_be.sum(), surely.sum()
        counts["correct"] = Bounded((most + least) / np.float64(2), (most - least) / 2, arithmetic.u)
        counts["bad_targets"] = arithmetic.exact(bad.sum())
    return counts


def _largest(x):
    """[rows, classes]: the lowest class of the largest x, or all that may be it where x has errors. A NaN is larger."""
    classes = np.arange(x.value.shape[1])
    if not np.any(x.error):
        return classes == np.argmax(x.value, axis=1)[:, None]
    error = np.where(np.isfinite(x.value), x.error, 0.0)
    is_nan = np.isnan(x.value)
    surely = np.where(is_nan, -np.inf, x.value - error).max(axis=1, keepdims=True)
    first_nan = classes == np.argmax(is_nan, axis=1)[:, None]
    return np.where(is_nan.any(axis=1, keepdims=True), first_nan, x.value + error >= surely)


# ---- divergences


class Side:
    """A distribution of a divergence: its probabilities p, and their logarithms. eps is added before a logarithm."""

    def __init__(self, kind, p, log_p, eps=0.0):
        self.kind, self.p, self.log_p, self.eps = kind, p, log_p, eps


def _side(given, name, arithmetic):
    kind = given[name + "_kind"]
    numbers = arithmetic.read(given[name], given[name + "_type_name"])
    if kind == "probabilities":
        return Side(kind, numbers, _log(numbers), given.get("eps", 0.0))
    if kind == "log_probabilities":
        return Side(kind, numbers.exp().where(numbers.value == -np.inf, 0.0), numbers)
    return _of_logits(given, numbers, arithmetic)


def _of_logits(given, numbers, arithmetic):
    scaled = (numbers / arithmetic.rounded(given.get("temperature", 1.0))).where(numbers.value == -np.inf, -np.inf)
    soft = Softmax(scaled)
    return Side("logits", soft.p, soft.log_p)


def _log(p):
    return p.log().where(p.value == 0, -np.inf)


def _terms(given, q, t, arithmetic):
    """f, and the derivatives by q and by t, each as a pair: df/dq, q df/dq. A probability of 0 adds 0 of its own."""
    divergence, beta = given["divergence"], given.get("beta", 0.0)
    if divergence == "jensen_shannon" and beta in (0.0, 1.0):
        divergence = "forward_kl" if beta == 0.0 else "reverse_kl"
    if divergence == "forward_kl":
        f, by_t, by_q = _kl_terms(t, q, arithmetic, given.get("pytorch_zeros", False))
        return f, by_q, by_t
    if divergence == "reverse_kl":
        return _kl_terms(q, t, arithmetic, False)
    if divergence == "jensen_shannon":
        m = t.p * arithmetic.rounded(beta) + q.p * arithmetic.rounded(1.0 - beta)
        by_t, by_q = (
            ((side.p / m).log() * arithmetic.rounded(share)).where(side.p.value == 0, 0.0)
            for side, share in ((t, beta), (q, 1.0 - beta))
        )
        return t.p * by_t + q.p * by_q, (by_q, q.p * by_q), (by_t, t.p * by_t)
    difference = t.p - q.p
    # Where the sign is unsure, the derivative is any number from -1/2 to 1/2.
    is_unsure = (np.abs(difference.value) <= difference.error) & (difference.error > 0)
    by_t = arithmetic.exact(np.sign(difference.value) / 2).where(is_unsure, 0.0, 0.5)
    f = Bounded(np.abs(difference.value) / 2, difference.error / 2, arithmetic.u)
    return f, (-by_t, -(q.p * by_t)), (by_t, t.p * by_t)


def _kl_terms(a, b, arithmetic, zeros_of_pytorch):
    """f = a (log(a + eps) - log(b + eps)), and its derivatives by a and by b."""
    none = a.p.value == 0
    eps_a, eps_b = arithmetic.rounded(a.eps), arithmetic.rounded(b.eps)
    # A sum with an eps of 0 is exact.
    plus_a = a.p + eps_a if a.eps > 0 else a.p
    plus_b = b.p + eps_b if b.eps > 0 else b.p
    if a.kind == b.kind == "probabilities":
        difference = (plus_a / plus_b).log().where((plus_b.value == 0) & ~none, np.inf)
    else:
        difference = (_log(plus_a) if a.eps > 0 else a.log_p) - (_log(plus_b) if b.eps > 0 else b.log_p)
    one = a.p / plus_a if a.eps > 0 else arithmetic.exact(np.ones(a.p.value.shape))
    by_a = (difference + one).where(none, 0.0)
    by_b = (-(a.p / plus_b)).where(none, 0.0)
    times_b = by_b * b.p if b.eps > 0 else -a.p
    f = (a.p * difference).where(none, 0.0)
    if zeros_of_pytorch:
        # 0 times an infinite logarithm; p log p is 0 where p is given. The header does not define the gradients.
        infinite = none & ((plus_b.value == 0) | (a.kind != "probabilities"))
        # PyTorch has no target of logits.
        f = f.where(infinite, np.nan) if a.kind != "logits" else f.where(none, 0.0, np.inf)
        by_a, by_b = by_a.where(none, 0.0, np.inf), by_b.where(infinite, 0.0, np.inf)
    times_a = (a.p * by_a).where(none, 0.0, np.inf if zeros_of_pytorch else 0.0)
    # A probability that may have been too small for an exponential may have been 0.
    may_be_none = ~none & (a.p.value <= a.p.error) & np.isinf(difference.value)
    f, times_a = f.where(may_be_none, 0.0, np.inf), times_a.where(may_be_none, 0.0, np.inf)
    return f, (by_a, times_a), (by_b, times_b)


def _ignored_labels(given, rows):
    return given["labels"] == given["ignore_index"] if "labels" in given else np.zeros(rows, dtype=bool)


def _divisor_of_divergence(given, rows, classes):
    if given["reduction"] not in ("mean", "batchmean"):
        return np.float64(1)
    if "divisor" in given:
        return np.float64(given["divisor"])
    return np.float64((~_ignored_labels(given, rows)).sum()) * (classes if given["reduction"] == "mean" else 1)


def kl_div_divisor(given, rows, classes, arithmetic):
    """As cross_entropy_divisor, of a divergence."""
    return arithmetic.exact(_divisor_of_divergence(given, rows, classes))


def _divergence_rows(given, rows, arithmetic):
    """r F of each row as a column, and rows that are ignored."""
    ignored = _ignored_labels(given, rows)
    factor = arithmetic.exact(_column(_row_weights(given, rows)))
    if given.get("temperature_squared", False):
        factor = factor * arithmetic.rounded(given["temperature"] ** 2)
    nothing = _column(ignored | (_row_weights(given, rows) == 0)) != 0
    return factor, nothing


def _gradient_scale(given, rows, divisor, arithmetic):
    """s r F of each row."""
    scale = _upstream(given, arithmetic, rows, divisor)
    if given.get("temperature_squared", False):
        scale = scale * arithmetic.rounded(given["temperature"] ** 2)
    return scale


def _through_softmax(given, times, p, total, arithmetic):
    """(u - p sum u) / temperature. The header does not say what follows from an infinite sum."""
    gradient = (times - p * total) / arithmetic.rounded(given.get("temperature", 1.0))
    return gradient.where(np.broadcast_to(~np.isfinite(total.value), gradient.value.shape), 0.0, np.inf)


def kl_div(given, arithmetic):
    rows, classes = given["input"].shape
    q, t = _side(given, "input", arithmetic), _side(given, "target", arithmetic)
    f, by_q, by_t = _terms(given, q, t, arithmetic)
    factor, nothing = _divergence_rows(given, rows, arithmetic)
    divisor = _divisor_of_divergence(given, rows, classes)
    nowhere = np.broadcast_to(nothing, f.value.shape)
    loss_rows = (f.sum(axis=1, keepdims=True) * factor).where(nothing, 0.0)
    outputs = {
        "loss_elements": (f * factor).where(nowhere, 0.0),
        "loss_rows": loss_rows,
        "loss": loss_rows.exact_sum() / divisor,
    }
    scale = _gradient_scale(given, rows, divisor, arithmetic)
    for name, side, (direct, times) in (("grad_input", q, by_q), ("grad_target", t, by_t)):
        if side.kind == "logits":
            derivative = _through_softmax(given, times, side.p, times.sum(axis=1, keepdims=True), arithmetic)
        else:
            derivative = direct if side.kind == "probabilities" else times
        outputs[name] = (derivative * scale).where(nowhere, 0.0)
    return outputs


def kl_div_sparse(given, arithmetic):
    rows, classes = given["logits"].shape
    q = _of_logits(given, arithmetic.exact(given["logits"]), arithmetic)
    indices = given["indices"]
    values = arithmetic.read(given["values"], given["values_type_name"])
    if given["value_kind"] == "log_probabilities":
        values = values.exp().where(values.value == -np.inf, 0.0)
    is_bad = (indices < 0) | (indices >= classes)
    t, inside = _dense(indices, values, ~is_bad, rows, classes)
    total = t.sum(axis=1, keepdims=True)
    if given["residual"] == "renormalize":
        t = (t / total).where(np.broadcast_to(total.value == 0, t.value.shape), 0.0)
    f, (_, times), _ = _terms(given, q, Side("probabilities", t, _log(t)), arithmetic)
    if given["residual"] == "bucket":
        f, times = f.where(~inside, 0.0), times.where(~inside, 0.0)
        f_rows, sum_times = f.sum(axis=1, keepdims=True), times.sum(axis=1, keepdims=True)
        of_bucket, u_bucket, share = _bucket(given, q, inside, total, arithmetic)
        f_rows, sum_times = f_rows + of_bucket, sum_times + u_bucket
        times = times.or_other(~inside, share * u_bucket)
    else:
        f_rows, sum_times = f.sum(axis=1, keepdims=True), times.sum(axis=1, keepdims=True)
    factor, nothing = _divergence_rows(given, rows, arithmetic)
    divisor = _divisor_of_divergence(given, rows, classes)
    bad_rows = is_bad.any(axis=1, keepdims=True)
    loss_rows = (f_rows * factor).where(bad_rows, np.nan).where(nothing, 0.0)
    scale = _gradient_scale(given, rows, divisor, arithmetic)
    gradient = _through_softmax(given, times, q.p, sum_times, arithmetic) * scale
    # A logit of -inf has no part of the bucket.
    masked = (given["logits"] == -np.inf) & ~inside
    gradient = gradient.where(masked | np.broadcast_to(bad_rows | nothing, masked.shape), 0.0)
    return {
        "loss_rows": loss_rows,
        "loss": loss_rows.exact_sum() / divisor,
        "grad_logits": gradient,
        "bad_indices": arithmetic.exact(is_bad.sum()),
    }


def _dense(indices, values, are_valid, rows, classes):
    """The teacher on all classes, and which are among the k. Equal indices are one class."""
    at = np.broadcast_to(np.arange(rows)[:, None], indices.shape)[are_valid], indices[are_valid]
    value, error, magnitude = np.zeros((3, rows, classes))
    inside = np.zeros((rows, classes), dtype=bool)
    inside[at] = True
    np.add.at(value, at, values.value[are_valid])
    np.add.at(error, at, np.broadcast_to(values.error, indices.shape)[are_valid])
    count = np.zeros((rows, classes))
    np.add.at(count, at, 1)
    np.add.at(magnitude, at, np.abs(values.value[are_valid]))
    roundings = np.maximum(count - 1, 0) * values.u * magnitude
    return Bounded(value, error + roundings, values.u), inside


def _bucket(given, q, inside, total, arithmetic):
    """f and q df/dq of the bucket as a class, and the share of each class in it."""
    rest = q.p.where(inside, 0.0)
    q_bucket = rest.sum(axis=1, keepdims=True)
    # 1 - Q, from Q: its roundings have the size of numbers up to 1, not of a small rest.
    roundings = np.sum(q.p.where(~inside, 0.0).error, axis=1, keepdims=True) + arithmetic.u * inside.shape[1]
    q_bucket = Bounded(q_bucket.value, q_bucket.error + roundings, arithmetic.u)
    p_bucket = -total + 1.0
    is_none = p_bucket.value <= 0
    p_bucket = p_bucket.where(is_none, 0.0, np.maximum(p_bucket.error + p_bucket.value, 0.0))
    f, (_, times), _ = _terms(
        given,
        Side("probabilities", q_bucket, _log(q_bucket)),
        Side("probabilities", p_bucket, _log(p_bucket)),
        arithmetic,
    )
    return f, times, rest / q_bucket
