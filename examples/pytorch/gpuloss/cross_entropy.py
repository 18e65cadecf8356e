"""torch.nn.functional.cross_entropy, with more options."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from . import library
from .checks import (
    check_constant,
    check_dtype,
    check_factor,
    check_indices,
    check_row_weights,
    check_tensors,
    reduction_of,
)
from .descs import CrossEntropyDesc, Flags, Reduction
from .layout import as_results, empty_like, loss_dtype, no_second_derivative, nothing, results_of, rows_of
from .library import DTYPES, INDEX_TYPES

REDUCTIONS = {"none": Reduction.NONE, "mean": Reduction.MEAN, "sum": Reduction.SUM}


def _rows_of_both(input, target):
    """The rows of the logits, and of target probabilities in the same order; None of class indices."""
    logits = rows_of(input)
    if not target.is_floating_point():
        return logits, None
    return logits, rows_of(target, logits.is_last if input.dim() > 2 else None)


def _desc(rows, target, weight, row_weights, reduction, ignore_index, label_smoothing, z_loss, softcap, logit_scale):
    """The desc, and the arrays, that the forward and the backward call have in common."""
    logits, targets = rows
    dtype = logits.tensor.dtype
    desc = CrossEntropyDesc(
        logits_stride=logits.stride,
        rows=logits.rows,
        classes=logits.classes,
        inner=logits.inner,
        dtype=DTYPES[dtype],
        reduction=reduction,
        flags=Flags.USE_IGNORE_INDEX,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        lse_square_scale=z_loss,
        logit_scale=logit_scale,
        softcap=softcap,
    )
    inputs = {
        "logits": logits.tensor,
        "class_weights": as_results(weight, dtype),
        "row_weights": as_results(row_weights, dtype),
    }
    if targets is not None:
        inputs["target_probabilities"] = targets.tensor
        desc.target_probabilities_stride = targets.stride
        desc.target_dtype = DTYPES[target.dtype]
    else:
        inputs["targets"] = target.contiguous()
        desc.target_type = INDEX_TYPES[target.dtype]
    return desc, inputs


def _loss_shape(input, reduction):
    return input.shape[:1] + input.shape[2:] if reduction == Reduction.NONE and input.dim() > 1 else ()


def _outputs(input, reduction, lse, argmax, correct):
    results, rows = results_of(input.dtype), input.shape[:1] + input.shape[2:] if input.dim() > 1 else ()
    return (
        input.new_empty(_loss_shape(input, reduction), dtype=results),
        input.new_empty(rows, dtype=results) if lse else nothing(input, results),
        input.new_empty(rows, dtype=torch.int64) if argmax else nothing(input, torch.int64),
        input.new_empty((), dtype=torch.int64) if correct else nothing(input, torch.int64),
    )


@torch.library.custom_op("gpuloss::cross_entropy", mutates_args=())
def _forward(
    input: Tensor,
    target: Tensor,
    weight: Optional[Tensor],
    row_weights: Optional[Tensor],
    reduction: int,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    logit_scale: float,
    wants_lse: bool,
    wants_argmax: bool,
    wants_correct: bool,
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    library.current().check_devices({"input": input, "target": target, "weight": weight, "row_weights": row_weights})
    rows = _rows_of_both(input, target)
    desc, inputs = _desc(
        rows, target, weight, row_weights, reduction, ignore_index, label_smoothing, z_loss, softcap, logit_scale
    )
    outputs = loss, lse, argmax, correct = _outputs(input, reduction, wants_lse, wants_argmax, wants_correct)
    library.current().launch(
        "gpuloss_cross_entropy",
        desc,
        inputs,
        {
            "loss_rows" if reduction == Reduction.NONE else "loss": loss,
            "lse": lse if wants_lse else None,
            "argmax": argmax if wants_argmax else None,
            "correct": correct if wants_correct else None,
        },
    )
    return outputs


@_forward.register_fake
def _(
    input,
    target,
    weight,
    row_weights,
    reduction,
    ignore_index,
    label_smoothing,
    z_loss,
    softcap,
    logit_scale,
    wants_lse,
    wants_argmax,
    wants_correct,
):
    return _outputs(input, reduction, wants_lse, wants_argmax, wants_correct)


def _gradients(rows, input, target, wants_input, wants_target):
    """For each of the two, the rows' array and its view of the tensor's shape; nothing, where it is not wanted."""
    logits, targets = rows
    return (
        empty_like(logits, input.shape) if wants_input else (None, nothing(input)),
        empty_like(targets, target.shape) if wants_target else (None, nothing(target)),
    )


@torch.library.custom_op("gpuloss::cross_entropy_backward", mutates_args=())
def _backward(
    grad: Tensor,
    input: Tensor,
    target: Tensor,
    weight: Optional[Tensor],
    row_weights: Optional[Tensor],
    lse: Tensor,
    reduction: int,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    logit_scale: float,
    wants_input: bool,
    wants_target: bool,
) -> Tuple[Tensor, Tensor]:
    rows = _rows_of_both(input, target)
    desc, inputs = _desc(
        rows, target, weight, row_weights, reduction, ignore_index, label_smoothing, z_loss, softcap, logit_scale
    )
    inputs["grad_loss_rows" if reduction == Reduction.NONE else "grad_loss"] = as_results(grad, input.dtype)
    inputs["lse_in"] = lse
    (grad_logits, grad_input), (grad_probabilities, grad_target) = _gradients(
        rows, input, target, wants_input, wants_target
    )
    library.current().launch(
        "gpuloss_cross_entropy",
        desc,
        inputs,
        {"grad_logits": grad_logits, "grad_target_probabilities": grad_probabilities},
    )
    return grad_input, grad_target


@_backward.register_fake
def _(
    grad,
    input,
    target,
    weight,
    row_weights,
    lse,
    reduction,
    ignore_index,
    label_smoothing,
    z_loss,
    softcap,
    logit_scale,
    wants_input,
    wants_target,
):
    rows = _rows_of_both(input, target)
    (_, grad_input), (_, grad_target) = _gradients(rows, input, target, wants_input, wants_target)
    return grad_input, grad_target


def _save(ctx, inputs, output):
    input, target, weight, row_weights, *ctx.options = inputs
    _, lse, argmax, correct = output
    ctx.mark_non_differentiable(lse, argmax, correct)
    ctx.save_for_backward(input, target, weight, row_weights, lse)


def _differentiate(ctx, grad, *_):
    wants = ctx.needs_input_grad[:2]
    # The last three options choose outputs, and backward does not need them.
    gradients = _backward(grad, *ctx.saved_tensors, *ctx.options[:-3], *wants)
    return tuple(g if wanted else None for g, wanted in zip(gradients, wants)) + (None,) * (2 + len(ctx.options))


_forward.register_autograd(_differentiate, setup_context=_save)
no_second_derivative(_backward)


def _check_target(input, target):
    """The checks of torch for class indices, in its order."""
    if target.dim() == 0 and input.dim() > 1 or input.dim() > 1 and input.shape[0] != target.shape[0]:
        got = target.shape[0] if target.dim() else 0
        raise ValueError(f"Expected input batch_size ({input.shape[0]}) to match target batch_size ({got}).")
    if input.dim() == 1 and target.dim() == 1 and target.shape[0] != 1:
        raise ValueError(f"For 1D input, 1D target must have size 1, but got target size: {target.shape[0]}")
    if input.dim() <= 2 and target.dim() > 1:
        raise RuntimeError(f"0D or 1D target tensor expected, multi-target not supported (got {list(target.shape)})")
    expected = input.shape[:1] + input.shape[2:]
    if input.dim() > 2 and target.shape != expected:
        raise RuntimeError(f"Expected target size {list(expected)}, got {list(target.shape)}")
    check_indices("target", target)


def _check_weight(input, weight, is_probabilities):
    check_tensors("cross_entropy_loss", weight=weight)
    classes = input.shape[0 if input.dim() == 1 else 1]
    if weight.dim() != 1 or weight.numel() != classes:
        raise RuntimeError(
            f"weight tensor should be defined either for all {classes} classes or no classes but got "
            f"weight tensor of shape: {list(weight.shape)}"
        )
    if not is_probabilities and weight.dtype != input.dtype:
        raise RuntimeError(f"weight: expected scalar type {input.dtype} but found {weight.dtype}")
    check_constant("weight", weight)


def _check(input, target, weight, ignore_index, label_smoothing):
    """Raises what torch raises for the same mistake. Returns the type of the loss, before autocast."""
    check_tensors("cross_entropy_loss", input=input, target=target)
    is_probabilities = input.shape == target.shape
    if is_probabilities and input.dim() == 0 and target.is_floating_point():
        raise IndexError("input: must have a dimension of classes (got [])")
    if is_probabilities and not target.is_floating_point():
        raise RuntimeError(f"Expected floating point type for target with class probabilities, got {target.dtype}")
    if is_probabilities and ignore_index >= 0:
        raise RuntimeError(f"ignore_index is not supported for floating point target (got {ignore_index})")
    if label_smoothing > 1.0:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    check_dtype("log_softmax", "input", input)
    if not is_probabilities:
        _check_target(input, target)
    if weight is not None:
        _check_weight(input, weight, is_probabilities)
    if not is_probabilities:
        return input.dtype
    check_dtype("cross_entropy", "target", target)
    dtype = torch.promote_types(input.dtype, target.dtype)
    return dtype if weight is None else torch.promote_types(dtype, weight.dtype)


def cross_entropy(
    input,
    target,
    weight=None,
    size_average=None,
    ignore_index=-100,
    reduce=None,
    reduction="mean",
    label_smoothing=0.0,
    *,
    z_loss=0.0,
    softcap=0.0,
    logit_scale=1.0,
    row_weights=None,
    return_lse=False,
    return_argmax=False,
    return_correct=False,
):
    """torch.nn.functional.cross_entropy, and options. With x the logits:

    z_loss: adds z_loss * logsumexp(x)^2 to the loss of each row that is not ignored
    softcap: x becomes softcap * tanh(x / softcap), after logit_scale; 0: not at all
    logit_scale: x is multiplied by it; a temperature T is 1 / T
    row_weights: factors of the rows' losses, of the shape of the loss without reduction; the mean's divisor stays
    return_lse, return_argmax, return_correct: returns (loss, ...) with what is asked for, in this order: logsumexp(x)
        of each row; the class of its largest x; the number of rows whose target is that class. None has a gradient.
    """
    reduction = reduction_of(reduction, size_average, reduce, REDUCTIONS)
    kind = REDUCTIONS[reduction]
    dtype = loss_dtype(_check(input, target, weight, ignore_index, label_smoothing), input.device)
    shape = input.shape[:1] + input.shape[2:] if input.dim() > 1 else input.shape[:0]
    check_row_weights(row_weights, shape)
    check_factor("logit_scale", logit_scale)
    extras = (return_lse, return_argmax, return_correct)
    if input.numel() == 0 and input.shape[input.dim() > 1] == 0:
        if any(extras):
            raise ValueError(f"input: has no classes (got {list(input.shape)})")
        return torch.nn.functional.cross_entropy(
            input, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )
    saves_lse = torch.is_grad_enabled() and (input.requires_grad or target.requires_grad)
    loss, *others = _forward(
        input,
        target,
        weight,
        row_weights,
        kind,
        ignore_index,
        max(label_smoothing, 0.0),
        z_loss,
        softcap,
        logit_scale,
        return_lse or saves_lse,
        return_argmax,
        return_correct,
    )
    loss = loss.to(dtype)
    return (loss, *(tensor for tensor, wanted in zip(others, extras) if wanted)) if any(extras) else loss
