"""Writes cross_entropy.txt and kl_div.txt beside this file: what PyTorch computes, in double precision on the CPU.

    python tests/vectors/make_vectors.py

Made with PyTorch 2.11. A file is a list of cases:

    case LOSS NAME
    FIELD COUNT VALUE...      one line a field, the values in row-major order
    end

Inputs are multiples of a small power of two, or base-2 logarithms of such. Values print in the shortest form that reads
back to the same double.
"""

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
    # What PyTorch makes of 0 * inf: t = 0 with q = 0, and log t = -inf.
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


def main():
    warnings.simplefilter("ignore")  # about what kl_div's mean means
    torch.set_num_threads(1)
    (HERE / "cross_entropy.txt").write_text("".join(cross_entropy_cases()))
    (HERE / "kl_div.txt").write_text("".join(kl_div_cases()))


if __name__ == "__main__":
    main()
