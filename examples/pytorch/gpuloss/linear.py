"""The loss of a linear layer whose logits never exist all at once."""

import math
from typing import Optional, Tuple

import torch
from torch import Tensor

from . import library
from .checks import check_dtype, check_factor, check_indices, check_tensors
from .descs import CrossEntropyDesc, Flags, Reduction, named
from .layout import no_second_derivative, nothing, results_of
from .library import DTYPES, INDEX_TYPES

MIB = 1 << 20
TILE_ROWS = 128  # of a matrix product


def chunk_sizes(rows, classes, features, dtype, weight_grad_dtype, has_bias, wants_gradients, chunk_bytes):
    """The rows of a chunk, and the classes of a product for the gradient of the weight. Temporary memory is

        rows of a chunk * classes * bytes of dtype                     logits, which become their gradient
        classes of a product * features * bytes of dtype               a product, to be added to another type
        classes * (bytes of dtype + bytes of weight_grad_dtype)        the sum over a chunk's rows, for the bias

    The second is needed if weight_grad_dtype is not dtype; it gets as much as the first. The third is needed if there
    is a bias. Both are for gradients only. The sum is at most chunk_bytes, unless a row or a class alone takes more.
    Chunks have about the same rows, in whole tiles if these fit."""
    row_bytes, class_bytes = classes * dtype.itemsize, features * dtype.itemsize
    if wants_gradients and has_bias:
        chunk_bytes -= classes * (dtype.itemsize + weight_grad_dtype.itemsize)
    at_once = classes
    if wants_gradients and weight_grad_dtype != dtype:
        chunk_bytes //= 2
        at_once = min(classes, max(1, chunk_bytes // class_bytes))
    rows, most = max(rows, 1), max(1, chunk_bytes // row_bytes)
    step = math.ceil(rows / math.ceil(rows / most))
    whole_tiles = math.ceil(step / TILE_ROWS) * TILE_ROWS
    return min(rows, whole_tiles if whole_tiles <= most else step), at_once


def _outputs(hidden, weight, bias, weight_grad_dtype, wants_hidden, wants_weight, wants_bias):
    """The loss; then the gradients, of which weight and bias have the type that they are added up in."""
    return (
        hidden.new_empty((), dtype=results_of(hidden.dtype)),
        hidden.new_empty(hidden.shape) if wants_hidden else nothing(hidden),
        weight.new_empty(weight.shape, dtype=weight_grad_dtype) if wants_weight else nothing(weight),
        bias.new_empty(bias.shape, dtype=weight_grad_dtype) if wants_bias else nothing(weight),
    )


def _divisor(targets, reduction, ignore_index, dtype):
    """The mean's divisor is that of all rows, and stays on the device."""
    if reduction == Reduction.SUM:
        return None
    return (targets != ignore_index).sum().to(results_of(dtype))


def _add_products(grad_weight, gradient, hidden, at_once, is_first):
    """grad_weight += gradient^T hidden, or = for the first; if it is of another type, some classes at a time."""
    if grad_weight.dtype == hidden.dtype and is_first:
        torch.mm(gradient.t(), hidden, out=grad_weight)
        return
    if grad_weight.dtype == hidden.dtype:
        grad_weight.addmm_(gradient.t(), hidden)
        return
    for part, columns in zip(grad_weight.split(at_once), gradient.split(at_once, 1)):
        product = torch.mm(columns.t(), hidden)
        part.copy_(product) if is_first else part.add_(product)


@torch.library.custom_op("gpuloss::linear_cross_entropy", mutates_args=())
def _forward(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Optional[Tensor],
    reduction: int,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    logit_scale: float,
    chunk_bytes: int,
    weight_grad_dtype: torch.dtype,
    wants_hidden: bool,
    wants_weight: bool,
    wants_bias: bool,
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    library.current().check_devices({"hidden": hidden, "weight": weight, "targets": targets, "bias": bias})
    outputs = loss, grad_hidden, grad_weight, grad_bias = _outputs(
        hidden, weight, bias, weight_grad_dtype, wants_hidden, wants_weight, wants_bias
    )
    wants_gradients = wants_hidden or wants_weight or wants_bias
    (rows, features), classes = hidden.shape, weight.shape[0]
    step, at_once = chunk_sizes(
        rows, classes, features, hidden.dtype, weight_grad_dtype, bias is not None, wants_gradients, chunk_bytes
    )
    starts = range(0, rows, step)
    targets = targets.contiguous()
    divisor = _divisor(targets, reduction, ignore_index, hidden.dtype)
    if wants_weight and rows == 0:
        grad_weight.zero_()
    if wants_bias:
        grad_bias.zero_()
    buffer = hidden.new_empty((step, classes))
    losses = loss.new_empty(len(starts))
    for number, start in enumerate(starts):
        chunk = slice(start, start + step)
        part = hidden[chunk]
        logits = buffer[: part.shape[0]]
        if bias is None:
            torch.mm(part, weight.t(), out=logits)
        else:
            torch.addmm(bias, part, weight.t(), out=logits)
        desc = CrossEntropyDesc(
            rows=part.shape[0],
            classes=classes,
            dtype=DTYPES[hidden.dtype],
            target_type=INDEX_TYPES[targets.dtype],
            reduction=reduction,
            flags=Flags.USE_IGNORE_INDEX,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            lse_square_scale=z_loss,
            logit_scale=logit_scale,
            softcap=softcap,
        )
        library.current().launch(
            "gpuloss_cross_entropy",
            desc,
            {"logits": logits, "targets": targets[chunk], "divisor_in": divisor},
            {"loss": losses[number], "grad_logits": logits if wants_gradients else None},
        )
        if wants_hidden:
            torch.mm(logits, weight, out=grad_hidden[chunk])
        if wants_weight:
            _add_products(grad_weight, logits, part, at_once, number == 0)
        if wants_bias:
            grad_bias.add_(logits.sum(0, dtype=weight_grad_dtype))
    torch.sum(losses, 0, out=loss)
    if rows == 0 and reduction == Reduction.MEAN:
        loss.fill_(float("nan"))
    return outputs


@_forward.register_fake
def _(
    hidden,
    weight,
    targets,
    bias,
    reduction,
    ignore_index,
    label_smoothing,
    z_loss,
    softcap,
    logit_scale,
    chunk_bytes,
    weight_grad_dtype,
    wants_hidden,
    wants_weight,
    wants_bias,
):
    return _outputs(hidden, weight, bias, weight_grad_dtype, wants_hidden, wants_weight, wants_bias)


def _multiply(gradient, factor):
    """In place. gradient.mul_(factor) rounds the factor as well, and takes 2.5 times as long for bfloat16. It is not
    rounded for float16, which has no number 65536, where gradient scalers begin."""
    if gradient.dtype == torch.float16:
        torch.mul(gradient, factor.reshape(1), out=gradient)
    else:
        torch._foreach_mul_([gradient], factor.to(gradient.dtype))
    return gradient


@torch.library.custom_op("gpuloss::linear_cross_entropy_backward", mutates_args=())
def _scale(grad: Tensor, gradient: Tensor, dtype: torch.dtype) -> Tensor:
    return _multiply(gradient.clone(), grad).to(dtype)


@_scale.register_fake
def _(grad, gradient, dtype):
    return torch.empty_like(gradient, dtype=dtype)


def _save(ctx, inputs, output):
    hidden, weight, _, bias = inputs[:4]
    ctx.dtypes = (hidden.dtype, weight.dtype, None if bias is None else bias.dtype)
    ctx.options = len(inputs) - 4
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # zeros as large as the gradients
    ctx.save_for_backward(*output[1:])


def _may_overwrite(gradient):
    """Whether no one can ask again for what backward has saved. PyTorch says so from 2.5 on, and not while it traces."""
    keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
    return type(gradient) is Tensor and not torch.is_grad_enabled() and not keeps_graph()


def _scaled(grad, gradient, dtype):
    if _may_overwrite(gradient):
        return _multiply(gradient, grad).to(dtype)
    return _scale(grad, gradient, dtype)


def _differentiate(ctx, grad, *_):
    if grad is None:
        return (None,) * (4 + ctx.options)
    wants = ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.needs_input_grad[3]
    of_hidden, of_weight, of_bias = (
        _scaled(grad, gradient, dtype) if wanted else None
        for gradient, dtype, wanted in zip(ctx.saved_tensors, ctx.dtypes, wants)
    )
    return (of_hidden, of_weight, None, of_bias) + (None,) * ctx.options


_forward.register_autograd(_differentiate, setup_context=_save)
no_second_derivative(_scale)


def _check(hidden, weight, targets, bias, label_smoothing, chunk_bytes):
    check_tensors("linear_cross_entropy", hidden=hidden, weight=weight, targets=targets)
    if weight.dim() != 2 or 0 in weight.shape:
        raise ValueError(f"weight: must be [classes, features] (got {list(weight.shape)})")
    if hidden.dim() < 1 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(f"hidden: must be [..., {weight.shape[1]}], the features of weight (got {list(hidden.shape)})")
    if targets.shape != hidden.shape[:-1]:
        raise ValueError(
            f"targets: must have the shape of the rows, {list(hidden.shape[:-1])} (got {list(targets.shape)})"
        )
    check_indices("targets", targets)
    if bias is not None:
        check_tensors("linear_cross_entropy", bias=bias)
        if bias.shape != weight.shape[:1]:
            raise ValueError(f"bias: must be [{weight.shape[0]}], the classes of weight (got {list(bias.shape)})")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing: must be between 0 and 1 (got {label_smoothing})")
    if chunk_bytes <= 0:
        raise ValueError(f"chunk_bytes: must be positive (got {chunk_bytes})")


def linear_cross_entropy(
    hidden,
    weight,
    targets,
    bias=None,
    *,
    ignore_index=-100,
    reduction="mean",
    label_smoothing=0.0,
    z_loss=0.0,
    softcap=0.0,
    logit_scale=1.0,
    chunk_bytes=256 * MIB,
    weight_grad_dtype=None,
):
    """cross_entropy(linear(hidden, weight, bias), targets), with the logits of a few rows at a time.

    hidden [..., features], weight [classes, features], targets [...], bias [classes]; reduction: "mean" or "sum"
    label_smoothing, z_loss, softcap, logit_scale: as for cross_entropy()
    chunk_bytes: bounds the temporary memory, of which chunk_sizes() has the formula
    weight_grad_dtype: in which the chunks' gradients of weight and bias are added up; None: that of weight

    The gradients are computed with the loss. backward() only multiplies them by the upstream gradient, rounded to their
    type, but for float16. The loss is float32, or float64 if hidden is.
    """
    _check(hidden, weight, targets, bias, label_smoothing, chunk_bytes)
    kind = named(Reduction, "reduction", reduction)
    if kind not in (Reduction.MEAN, Reduction.SUM):
        raise ValueError(f"reduction: is one of mean, sum (got {reduction!r})")
    check_factor("logit_scale", logit_scale)
    wants = [
        torch.is_grad_enabled() and tensor is not None and tensor.requires_grad for tensor in (hidden, weight, bias)
    ]
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight, bias = (tensor if tensor is None else tensor.to(dtype) for tensor in (hidden, weight, bias))
    check_dtype("linear_cross_entropy", "hidden", hidden)
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype != hidden.dtype:
            raise RuntimeError(f"{name}: must have the dtype of hidden, {hidden.dtype} (got {tensor.dtype})")
    weight_grad_dtype = weight_grad_dtype or weight.dtype
    if weight_grad_dtype not in DTYPES:
        raise TypeError(f"weight_grad_dtype: must be a floating point type (got {weight_grad_dtype})")
    with torch.autocast(hidden.device.type, enabled=False):
        return _forward(
            hidden.reshape(-1, hidden.shape[-1]),
            weight,
            targets.reshape(-1),
            bias,
            kind,
            ignore_index,
            label_smoothing,
            z_loss,
            softcap,
            logit_scale,
            chunk_bytes,
            weight_grad_dtype,
            *wants,
        )[0]
