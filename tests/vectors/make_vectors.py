"""Writes cross_entropy.txt, cross_entropy_options.txt, kl_div.txt, kl_div_options.txt and kl_div_sparse.txt beside this
file: what PyTorch computes, in double precision on the CPU.

    python tests/vectors/make_vectors.py

Made with PyTorch 2.11. A file is a list of cases:

    case LOSS NAME
    FIELD COUNT VALUE...      one line a field, the values in row-major order
    end

Inputs are multiples of a small power of two, or base-2 logarithms of such. Values print in the shortest form that reads
back to the same double.
"""

import math
import pathlib
import random
import warnings

import torch
import torch.nn.functional as F

REDUCTIONS = {"none": 1, "sum": 2, "mean": 3, "batchmean": 4}
HERE = pathlib.Path(__file__).resolve().parent
INF = float("inf")


def values_of(value):
    if isinstance(value, torch.Tensor):
        value = value.detach().reshape(-1).tolist()
    return value if isinstance(value, list) else [value]


def case(loss, name, fields):
    lines = [f"case {loss} {name}"]
    for field, value in fields.items():
        numbers = values_of(value)
        lines.append(" ".join([field, str(len(numbers))] + [repr(number) for number in numbers]))
    return "\n".join(lines + ["end", ""])


def grid(source, rows, classes, low, high, steps):
    """A [rows, classes] tensor of random multiples of 1/steps in [low, high]."""
    numbers = [[source.randint(low * steps, high * steps) / steps for _ in range(classes)] for _ in range(rows)]
    return torch.tensor(numbers, dtype=torch.float64)


def upstream(source, reduction, rows, shape):
    """The gradient that comes from above, one number or one a row; as PyTorch wants it, and as the field."""
    if reduction == "none":
        weights = grid(source, rows, 1, -2, 2, 64)
        return weights.expand(shape).clone(), {"grad_loss_rows": weights}
    factor = source.randint(1, 192) / 64
    return torch.tensor(factor, dtype=torch.float64), {"grad_scale": factor}


def cross_entropy(source, name, x, targets, reduction, ignore_index=-100):
    rows, classes = x.shape
    x = x.clone().requires_grad_(True)
    loss = F.cross_entropy(x, targets, reduction=reduction, ignore_index=ignore_index)
    factor, factor_field = upstream(source, reduction, rows, (rows, 1))
    loss.backward(factor.reshape(loss.shape))
    fields = {
        "rows": rows,
        "classes": classes,
        "reduction": REDUCTIONS[reduction],
        "ignore_index": ignore_index,
        "x": x,
        "targets": targets,
        **factor_field,
        "loss_rows": F.cross_entropy(x, targets, reduction="none", ignore_index=ignore_index),
        "lse": torch.logsumexp(x, dim=1),
        "grad": x.grad,
    }
    if reduction != "none":
        fields["loss"] = loss
    return case("cross_entropy", name, fields)


def cross_entropy_cases():
    source = random.Random(1)
    for reduction in ("none", "sum", "mean"):
        x = grid(source, 5, 7, -6, 6, 64)
        targets = torch.tensor([source.randrange(7) for _ in range(5)])
        yield cross_entropy(source, f"{reduction}", x, targets, reduction)
        ignored = targets.clone()
        ignored[1] = ignored[4] = -100
        yield cross_entropy(source, f"{reduction}_ignore_index", x, ignored, reduction)
        yield cross_entropy(source, f"{reduction}_ignore_index_inside", x, targets, reduction, int(targets[2]))
        masked = x.clone()
        masked[0, :6] = -INF
        masked[1, ::2] = -INF
        masked[3, 6] = -INF
        allowed = torch.tensor([6, 1, 3, 0, 2])
        yield cross_entropy(source, f"{reduction}_masked", masked, allowed, reduction)
    wide = grid(source, 3, 6, -700, 700, 64)
    yield cross_entropy(source, "wide", wide, torch.tensor([0, 5, 2]), "sum")
    near = grid(source, 3, 6, -1, 1, 1024) / 1024 + 100
    yield cross_entropy(source, "near", near, torch.tensor([1, 2, 3]), "mean")
    yield cross_entropy(source, "one_class", grid(source, 4, 1, -3, 3, 64), torch.tensor([0, 0, 0, 0]), "mean")
    masked_target = grid(source, 2, 5, -2, 2, 64)
    masked_target[0, 3] = -INF
    yield cross_entropy(source, "masked_target", masked_target, torch.tensor([3, 1]), "none")
    yield cross_entropy(source, "all_ignored_sum", grid(source, 2, 3, -2, 2, 64), torch.tensor([-100, -100]), "sum")


def image_grid(source, images, classes, inner, low, high, steps):
    """[images, classes, inner], or [images, classes] where inner is 0."""
    flat = grid(source, images * classes, max(inner, 1), low, high, steps)
    return flat.reshape(images, classes, inner) if inner else flat.reshape(images, classes)


def transformed(x, options):
    x = x * options.get("logit_scale", 1.0)
    cap = options.get("softcap", 0.0)
    return cap * torch.tanh(x / cap) if cap else x


def option_losses(x, target, options):
    """loss_rows, z_loss_rows and lse, [images] or [images, inner]: F.cross_entropy of what the options make of x, plus
    the z-loss, times the row weights."""
    ignore_index = options.get("ignore_index", -100)
    x = transformed(x, options)
    lse = torch.logsumexp(x, dim=1)
    rows = F.cross_entropy(
        x,
        target,
        weight=options.get("class_weights"),
        reduction="none",
        ignore_index=ignore_index,
        label_smoothing=options.get("label_smoothing", 0.0),
    )
    z_rows = options.get("lse_square_scale", 0.0) * lse**2
    if not target.is_floating_point():
        z_rows = torch.where(target == ignore_index, 0.0, z_rows)
    factor = options["row_weights"].reshape(lse.shape) if "row_weights" in options else torch.ones_like(lse)
    return factor * (rows + z_rows), factor * z_rows, lse


def option_divisor(target, options, reduction, rows):
    """What the sum of the rows is divided by."""
    if reduction in ("none", "sum"):
        return 1.0
    if "divisor" in options and reduction == "mean":
        return options["divisor"]
    if reduction == "batchmean" or target.is_floating_point():
        return float(rows)
    kept = target[target != options.get("ignore_index", -100)]
    weights = options.get("class_weights")
    return float(kept.numel()) if weights is None else weights[kept].sum()


def check_against_pytorch(loss, x, target, options, reduction):
    """Where PyTorch has all the options itself, its own reduction must give the same."""
    if reduction not in ("sum", "mean") or {"divisor", "row_weights", "lse_square_scale"} & options.keys():
        return
    own = F.cross_entropy(
        transformed(x, options),
        target,
        weight=options.get("class_weights"),
        reduction=reduction,
        ignore_index=options.get("ignore_index", -100),
        label_smoothing=options.get("label_smoothing", 0.0),
    )
    assert torch.allclose(own, loss, rtol=1e-13, atol=1e-13, equal_nan=True), (own, loss)


def cross_entropy_options(source, name, x, target, reduction, **options):
    images, classes = x.shape[:2]
    inner = x.shape[2] if x.dim() == 3 else 0
    rows = images * max(inner, 1)
    x = x.clone().requires_grad_(True)
    probabilities = target.is_floating_point()
    if probabilities:
        target = target.clone().requires_grad_(True)
    loss_rows, z_rows, lse = option_losses(x, target, options)
    divisor = option_divisor(target, options, reduction, rows)
    factor, factor_field = upstream(source, reduction, rows, (rows, 1))
    if reduction == "none":
        loss_rows.backward(factor.reshape(loss_rows.shape))
    else:
        loss = loss_rows.sum() / divisor
        check_against_pytorch(loss, x, target, options, reduction)
        loss.backward(factor)
    fields = {"rows": rows, "classes": classes, "inner": inner, "reduction": REDUCTIONS[reduction]}
    fields.update(options)
    fields.setdefault("ignore_index", -100)
    fields["x"] = x
    fields["target_probabilities" if probabilities else "targets"] = target
    fields.update(factor_field)
    fields.update(loss_rows=loss_rows, z_loss_rows=z_rows, lse=lse, grad=x.grad)
    if probabilities:
        fields["grad_target_probabilities"] = target.grad
    best = x.argmax(dim=1)
    fields["argmax"] = best
    if not probabilities:
        fields["correct"] = int(((best == target) & (target != fields["ignore_index"])).sum())
    if reduction != "none":
        fields.update(loss=loss, z_loss=z_rows.sum() / divisor)
    return case("cross_entropy", name, fields)


def option_sets(source, rows, classes):
    """Options by name: those of PyTorch alone and together, then those that it has no argument for."""
    weights = (grid(source, 1, classes, 0, 2, 32) + 1 / 32).reshape(-1)
    row_weights = (grid(source, 1, rows, 0, 2, 32) + 1 / 32).reshape(-1)
    yield "weights", {"class_weights": weights}
    yield "smoothing", {"label_smoothing": 0.125}
    yield "weights_smoothing", {"class_weights": weights, "label_smoothing": 0.3}
    yield "all_smoothed", {"label_smoothing": 1.0}
    yield "scale", {"logit_scale": 0.75}
    yield "softcap", {"softcap": 3.0}
    yield "z_loss", {"lse_square_scale": 0.015625}
    yield "row_weights", {"row_weights": row_weights}
    yield "divisor", {"divisor": 5.5}
    yield "every", {
        "class_weights": weights,
        "label_smoothing": 0.2,
        "lse_square_scale": 0.001,
        "logit_scale": 1.25,
        "softcap": 5.0,
        "row_weights": row_weights,
        "divisor": 3.25,
    }


def targets_of(source, images, classes, inner):
    shape = (images, inner) if inner else (images,)
    numbers = [source.randrange(classes) for _ in range(images * max(inner, 1))]
    return torch.tensor(numbers).reshape(shape)


def cross_entropy_option_cases():
    source = random.Random(3)
    reductions = list(REDUCTIONS)
    # The reductions go round, so that in the three layouts each option meets all but one of them.
    turn = 0
    for inner in (0, 2, 3):
        images, classes = 4 if inner == 0 else 2, 5
        rows = images * max(inner, 1)
        layout = f"inner{inner}_" if inner else ""
        for name, options in option_sets(source, rows, classes):
            reduction = "mean" if name == "divisor" else reductions[turn % len(reductions)]
            turn += 1
            x = image_grid(source, images, classes, inner, -4, 4, 64)
            targets = targets_of(source, images, classes, inner)
            targets.reshape(-1)[1] = -100
            yield cross_entropy_options(source, f"{layout}{name}_{reduction}", x, targets, reduction, **options)
            t = image_grid(source, images, classes, inner, 0, 1, 64)
            yield cross_entropy_options(source, f"{layout}{name}_t_{reduction}", x, t, reduction, **options)
    x = grid(source, 4, 5, -4, 4, 64)
    targets = torch.tensor([2, 0, 2, 4])
    weights = torch.tensor([0.5, 0.0, 2.0, 1.5, 0.25], dtype=torch.float64)
    inside = {"class_weights": weights, "label_smoothing": 0.25, "ignore_index": 2}
    yield cross_entropy_options(source, "ignore_index_inside", x, targets, "mean", **inside)
    zero_weight = torch.tensor([1, 1, 0, 3])
    yield cross_entropy_options(source, "target_of_no_weight", x, zero_weight, "mean", class_weights=weights)
    # -inf: of a class without weight is left out here, since PyTorch makes NaN of it.
    masked = x.clone()
    masked[0, 1] = masked[2, 3] = -INF
    yield cross_entropy_options(source, "masked", masked, targets, "none", class_weights=weights + 1)
    yield cross_entropy_options(source, "masked_smoothed", masked, targets, "none", label_smoothing=0.25)
    all_ignored = torch.full((4,), -100)
    every = {"class_weights": weights, "label_smoothing": 0.25, "lse_square_scale": 0.5}
    yield cross_entropy_options(source, "all_ignored", x, all_ignored, "sum", **every)


def kl_div(source, name, input_kind, target_kind, given, target, reduction):
    """given and target hold what their kind says; an input of probabilities goes through torch.log."""
    rows, classes = given.shape
    given = given.clone().requires_grad_(True)
    log_target = target_kind == "log"

    def run(how):
        log_q = given if input_kind == "log" else torch.log(given)
        return F.kl_div(log_q, target, reduction=how, log_target=log_target)

    loss = run(reduction)
    factor, factor_field = upstream(source, reduction, rows, (rows, classes))
    loss.backward(factor)
    fields = {
        "rows": rows,
        "classes": classes,
        "reduction": REDUCTIONS[reduction],
        "input_is_log": int(input_kind == "log"),
        "target_is_log": int(log_target),
        "input": given,
        "target": target,
        **factor_field,
        "terms": run("none"),
        "grad": given.grad,
    }
    if reduction != "none":
        fields["loss"] = loss
    return case("kl_div", name, fields)


def kl_div_cases():
    source = random.Random(2)
    for input_kind in ("probability", "log"):
        for target_kind in ("probability", "log"):
            for reduction in REDUCTIONS:
                given = grid(source, 3, 5, 0, 1, 64) + 1 / 64
                target = grid(source, 3, 5, 0, 1, 64) + 1 / 64
                if input_kind == "log":
                    given = -8 * given
                if target_kind == "log":
                    target = -8 * target
                name = f"{input_kind}_{target_kind}_{reduction}"
                yield kl_div(source, name, input_kind, target_kind, given, target, reduction)
    # Zeros: of the target alone, which every definition takes as 0.
    given = grid(source, 2, 4, 0, 1, 64) + 1 / 64
    target = given.flip(0).clone()
    target[0, 1] = target[1, 3] = 0
    yield kl_div(source, "zeros", "probability", "probability", given, target, "none")
    yield kl_div(source, "zeros", "log", "probability", torch.log2(given), target, "batchmean")
    # t > 0 with q = 0.
    missing = given.clone()
    missing[0, 0] = 0
    yield kl_div(source, "missing", "probability", "probability", missing, target, "none")
    yield kl_div(source, "missing", "log", "probability", torch.log2(missing), target, "sum")
    # PyTorch's results of 0 * inf: t = 0 with q = 0, and log t = -inf.
    missing[0, 1] = missing[1, 3] = 0
    yield kl_div(source, "pytorch_nan", "probability", "probability", missing, target, "none")
    yield kl_div(source, "pytorch_nan", "log", "probability", torch.log2(missing), target, "sum")
    log_target = torch.log2(target)
    yield kl_div(source, "pytorch_nan", "log", "log", -given, log_target, "none")
    yield kl_div(source, "pytorch_nan", "probability", "log", missing, log_target, "none")
    yield kl_div(source, "pytorch_nan", "probability", "log", given, log_target, "mean")
    # Nearly equal distributions.
    close = (given * 1024).round() / 1024 + grid(source, 2, 4, 0, 1, 8) / 1024
    yield kl_div(source, "near", "probability", "probability", close, given, "sum")
    # A negative target is no probability.
    negative = target.clone()
    negative[1, 0] = -0.25
    yield kl_div(source, "negative", "probability", "probability", given, negative, "none")


KINDS = {"p": 1, "log": 2, "logits": 3}
DIVERGENCES = {"forward": 0, "reverse": 1, "js": 2, "tv": 3}


def side(source, kind, rows, classes):
    """Nothing but logits is normalised."""
    if kind == "logits":
        return grid(source, rows, classes, -3, 3, 64)
    x = grid(source, rows, classes, 0, 1, 64) + 1 / 64
    return x if kind == "p" else -4 * x


def logarithm(x, kind, options):
    if kind == "p":
        return torch.log(x + options.get("eps", 0.0))
    return x if kind == "log" else F.log_softmax(x / options.get("temperature", 1.0), dim=1)


def kl(log_q, log_p):
    return F.kl_div(log_q, log_p, reduction="none", log_target=True)


def divergence_terms(input_kind, target_kind, divergence, given, target, options):
    log_q, log_p = logarithm(given, input_kind, options), logarithm(target, target_kind, options)
    q = given if input_kind == "p" else log_q.exp()
    p = target if target_kind == "p" else log_p.exp()
    beta = options.get("beta", 0.0)
    if divergence == "tv":
        return (p - q).abs() / 2
    if divergence == "reverse" or (divergence == "js" and beta == 1):
        return q * (log_q - log_p) if "eps" in options else kl(log_p, log_q)
    if divergence == "forward" or beta == 0:
        return p * (log_p - log_q) if "eps" in options else kl(log_q, log_p)
    log_m = torch.logsumexp(torch.stack([log_p + math.log(beta), log_q + math.log1p(-beta)]), dim=0)
    return beta * kl(log_m, log_p) + (1 - beta) * kl(log_m, log_q)


def row_factors(options, reduction, rows, classes):
    """What the loss of each row is multiplied by, and what their sum is divided by."""
    kept = torch.ones(rows, dtype=torch.float64)
    if "labels" in options:
        kept = (torch.tensor(options["labels"]) != options["ignore_index"]).double()
    factor = kept.clone()
    if options.get("squared"):
        factor *= options["temperature"] ** 2
    if "row_weights" in options:
        factor *= options["row_weights"].reshape(-1)
    divisor = {"none": 1, "sum": 1, "batchmean": kept.sum(), "mean": kept.sum() * classes}[reduction]
    if reduction in ("mean", "batchmean"):
        divisor = options.get("divisor", divisor)
    return factor, divisor


def kl_div_options(source, kinds, divergence, reduction, rows=3, classes=4, **options):
    input_kind, target_kind = kinds
    given = side(source, input_kind, rows, classes).requires_grad_(True)
    target = side(source, target_kind, rows, classes).requires_grad_(True)
    factor, divisor = row_factors(options, reduction, rows, classes)
    terms = factor[:, None] * divergence_terms(input_kind, target_kind, divergence, given, target, options)
    upstream_factor, factor_field = upstream(source, reduction, rows, (rows, 1))
    if reduction == "none":
        terms.sum(dim=1).backward(upstream_factor.reshape(-1))
    else:
        (terms.sum() / divisor).backward(upstream_factor)
    fields = {"rows": rows, "classes": classes, "reduction": REDUCTIONS[reduction]}
    fields.update(input_kind=KINDS[input_kind], target_kind=KINDS[target_kind], divergence=DIVERGENCES[divergence])
    fields.update(options)
    fields.update(input=given, target=target)
    fields.update(factor_field)
    fields.update(terms=terms, loss_rows=terms.sum(dim=1), grad=given.grad, grad_target=target.grad)
    if reduction != "none":
        fields["loss"] = terms.sum() / divisor
    names = [option for option in options if option != "ignore_index"]
    name = "_".join([*kinds, divergence, *(names if len(names) < 4 else ["every"]), reduction])
    return case("kl_div", name, fields)


def kl_div_option_cases():
    source = random.Random(4)
    reductions, betas = list(REDUCTIONS), (0.5, 0.3, 0.0, 1.0, 0.875)
    weights = torch.tensor([[0.5], [-1.25], [3.0]], dtype=torch.float64)
    masked = {"labels": [7, -100, 0], "ignore_index": -100}
    turn = 0
    for input_kind in KINDS:
        for target_kind in KINDS:
            kinds = (input_kind, target_kind)
            logits, plain = "logits" in kinds, "p" in kinds
            for divergence in DIVERGENCES:
                options = {"beta": betas[turn % 5]} if divergence == "js" else {}
                if logits and turn % 3:
                    options["temperature"] = 1.75
                    options["squared"] = turn % 3 - 1
                if turn % 4 == 1:
                    options["row_weights"] = weights
                if turn % 5 == 2:
                    options.update(masked)
                yield kl_div_options(source, kinds, divergence, reductions[turn // 2 % 4], **options)
                turn += 1
            if plain:
                yield kl_div_options(source, kinds, "forward", "batchmean", eps=0.125)
                yield kl_div_options(source, kinds, "reverse", "none", eps=0.03125)
    every = {"temperature": 0.5, "squared": 1, "row_weights": weights, **masked}
    for divergence in DIVERGENCES:
        options = {"beta": 0.3} if divergence == "js" else {}
        yield kl_div_options(source, ("logits", "logits"), divergence, "mean", **options, **every)
    yield kl_div_options(source, ("logits", "logits"), "reverse", "batchmean", divisor=5.5, **every)
    nothing = {"labels": [2, 2, 2], "ignore_index": 2}
    yield kl_div_options(source, ("logits", "p"), "js", "sum", beta=0.5, **nothing)


RESIDUALS = {"drop": 1, "renormalize": 2, "bucket": 3}


def sparse_losses(x, indices, t, residual, temperature):
    """One a row. t holds the probabilities; equal indices are one class."""
    log_q = F.log_softmax(x / temperature, dim=1)
    rest = (1 - t.sum(dim=1)).clamp(min=0)
    if residual == "renormalize":
        t = t / t.sum(dim=1, keepdim=True)
    if all(len(set(row)) == len(row) for row in indices.tolist()):
        losses = F.kl_div(log_q.gather(1, indices), t, reduction="none").sum(dim=1)
    else:
        every = torch.zeros_like(x).scatter_add(1, indices, t)
        losses = F.kl_div(log_q, every, reduction="none").sum(dim=1)
    if residual == "bucket":
        known = torch.zeros(x.shape, dtype=torch.bool).scatter(1, indices, True)
        left = torch.logsumexp(log_q.masked_fill(known, -INF), dim=1)
        losses = losses + torch.xlogy(rest, rest) - rest * left
    return losses


def kl_div_sparse(source, name, residual, kind, reduction, x, indices, t, **options):
    rows, classes = x.shape
    values = torch.log2(t) if kind == "log" else t
    x = x.clone().requires_grad_(True)
    factor, divisor = row_factors(options, reduction, rows, classes)
    t = values.exp() if kind == "log" else values
    losses = factor * sparse_losses(x, indices, t, residual, options.get("temperature", 1.0))
    upstream_factor, factor_field = upstream(source, reduction, rows, (rows, 1))
    if reduction == "none":
        losses.backward(upstream_factor.reshape(-1))
    else:
        (losses.sum() / divisor).backward(upstream_factor)
    fields = {"rows": rows, "classes": classes, "k": indices.shape[1], "reduction": REDUCTIONS[reduction]}
    fields.update(residual=RESIDUALS[residual], value_kind=KINDS[kind])
    fields.update(options)
    fields.update(logits=x, indices=indices, values=values)
    fields.update(factor_field)
    fields.update(loss_rows=losses, grad=x.grad)
    if reduction != "none":
        fields["loss"] = losses.sum() / divisor
    return case("kl_div_sparse", "_".join([residual, kind, name, reduction]), fields)


def entries(source, rows, classes, k):
    """Different classes in each row, and probabilities that add up to at most 15/16."""
    indices = torch.tensor([source.sample(range(classes), k) for _ in range(rows)])
    return indices, grid(source, rows, k, 1, 5, 1) * (3 / (16 * k))


def kl_div_sparse_cases():
    source = random.Random(5)
    reductions = list(REDUCTIONS)
    weights = torch.tensor([[0.5], [-1.25], [3.0]], dtype=torch.float64)
    masked = {"labels": [7, -100, 0], "ignore_index": -100}
    sets = {
        "plain": {},
        "temperature": {"temperature": 1.75},
        "squared": {"temperature": 0.5, "squared": 1},
        "masked": masked,
        "row_weights": {"row_weights": weights},
        "every": {"temperature": 1.5, "squared": 1, "row_weights": weights, **masked},
    }
    turn = 0
    for residual in RESIDUALS:
        for kind in ("p", "log"):
            for name, options in sets.items():
                x = grid(source, 3, 6, -3, 3, 64)
                indices, t = entries(source, 3, 6, 1 + turn % 4)
                reduction = reductions[(turn + turn // 6) % 4]
                yield kl_div_sparse(source, name, residual, kind, reduction, x, indices, t, **options)
                turn += 1
        x = grid(source, 3, 6, -3, 3, 64)
        indices, t = entries(source, 3, 6, 3)
        yield kl_div_sparse(source, "divisor", residual, "p", "mean", x, indices, t, divisor=5.5, **masked)
        zeros = t.clone()
        zeros[0, 1] = zeros[1, 0] = zeros[1, 2] = 0
        yield kl_div_sparse(source, "zeros", residual, "p", "none", x, indices, zeros)
        yield kl_div_sparse(source, "above_one", residual, "p", "sum", x, indices, t * 4, temperature=2.0)
        if residual != "bucket":  # of which nothing is left over
            every, whole = entries(source, 3, 6, 6)
            yield kl_div_sparse(source, "all_classes", residual, "p", "batchmean", x, every, whole)
        equal = indices.clone()
        equal[0, 1] = equal[0, 0]
        equal[1, 2] = equal[1, 1] = equal[1, 0]
        yield kl_div_sparse(source, "equal_indices", residual, "log", "none", x, equal, t)
        infinite = x.clone()
        infinite[0, [c for c in range(6) if c not in indices[0].tolist()][0]] = -INF
        yield kl_div_sparse(source, "masked_class", residual, "p", "sum", infinite, indices, t)


def main():
    warnings.simplefilter("ignore")  # about what kl_div's mean means
    torch.set_num_threads(1)
    (HERE / "cross_entropy.txt").write_text("".join(cross_entropy_cases()))
    (HERE / "cross_entropy_options.txt").write_text("".join(cross_entropy_option_cases()))
    (HERE / "kl_div.txt").write_text("".join(kl_div_cases()))
    (HERE / "kl_div_options.txt").write_text("".join(kl_div_option_cases()))
    (HERE / "kl_div_sparse.txt").write_text("".join(kl_div_sparse_cases()))


if __name__ == "__main__":
    main()
