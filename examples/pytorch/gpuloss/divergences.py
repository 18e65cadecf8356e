"""torch.nn.functional.kl_div, and the other divergences of gpuloss."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from . import library
from .checks import check_dtype, check_factor, check_row_weights, check_tensors, reduction_of
from .descs import Divergence, Flags, Kind, KLDivDesc, Reduction, named
from .layout import as_results, loss_dtype, matrix_of, no_second_derivative, nothing, results_of
from .library import DTYPES, INDEX_TYPES


def loss_of(input, reduction, elements):
    """The array for the loss of an input [rows, classes], and the name of its field."""
    results = results_of(input.dtype)
    if reduction != Reduction.NONE:
        return input.new_empty((), dtype=results), "loss"
    if elements:
        return input.new_empty(input.shape, dtype=results), "loss_elements"
    return input.new_empty(input.shape[:1], dtype=results), "loss_rows"


def label_inputs(desc, labels, ignore_index):
    if labels is None:
        return {}
    desc.flags |= Flags.USE_IGNORE_INDEX
    desc.label_type = INDEX_TYPES[labels.dtype]
    desc.ignore_index = ignore_index
    return {"labels": labels.contiguous()}


def upstream(grad, reduction, dtype):
    return {"grad_loss_rows" if reduction == Reduction.NONE else "grad_loss": as_results(grad.reshape(-1), dtype)}


def _desc(
    input,
    target,
    row_weights,
    labels,
    kinds,
    divergence,
    reduction,
    flags,
    ignore_index,
    beta,
    temperature,
    eps,
    divisor,
):
    input, input_stride = matrix_of(input)
    is_shared = target.dim() == 1
    target, target_stride = (target.contiguous(), 0) if is_shared else matrix_of(target)
    desc = KLDivDesc(
        input_stride=input_stride,
        target_stride=target_stride,
        rows=input.shape[0],
        classes=input.shape[1],
        dtype=DTYPES[input.dtype],
        target_dtype=DTYPES[target.dtype],
        input_kind=kinds[0],
        target_kind=kinds[1],
        divergence=divergence,
        reduction=reduction,
        flags=flags | (Flags.SHARED_TARGET if is_shared else 0),
        beta=beta,
        temperature=temperature,
        eps=eps,
        divisor=divisor,
    )
    inputs = {"input": input, "target": target, "row_weights": as_results(row_weights, input.dtype)}
    inputs.update(label_inputs(desc, labels, ignore_index))
    return desc, inputs


@torch.library.custom_op("gpuloss::divergence", mutates_args=())
def _forward(
    input: Tensor,
    target: Tensor,
    row_weights: Optional[Tensor],
    labels: Optional[Tensor],
    input_kind: int,
    target_kind: int,
    divergence: int,
    reduction: int,
    flags: int,
    ignore_index: int,
    beta: float,
    temperature: float,
    eps: float,
    divisor: float,
    elements: bool,
) -> Tensor:
    """Of input [rows, classes] and target [rows, classes], or [classes] for all rows."""
    desc, inputs = _desc(
        input,
        target,
        row_weights,
        labels,
        (input_kind, target_kind),
        divergence,
        reduction,
        flags,
        ignore_index,
        beta,
        temperature,
        eps,
        divisor,
    )
    loss, field = loss_of(input, reduction, elements)
    library.current().launch("gpuloss_kl_div", desc, inputs, {field: loss})
    return loss


@_forward.register_fake
def _(
    input,
    target,
    row_weights,
    labels,
    input_kind,
    target_kind,
    divergence,
    reduction,
    flags,
    ignore_index,
    beta,
    temperature,
    eps,
    divisor,
    elements,
):
    return loss_of(input, reduction, elements)[0]


def _gradients(input, target, wants_input, wants_target):
    return (
        input.new_empty(input.shape) if wants_input else nothing(input),
        target.new_empty(target.shape) if wants_target else nothing(target),
    )


@torch.library.custom_op("gpuloss::divergence_backward", mutates_args=())
def _backward(
    grad: Tensor,
    input: Tensor,
    target: Tensor,
    row_weights: Optional[Tensor],
    labels: Optional[Tensor],
    input_kind: int,
    target_kind: int,
    divergence: int,
    reduction: int,
    flags: int,
    ignore_index: int,
    beta: float,
    temperature: float,
    eps: float,
    divisor: float,
    elements: bool,
    wants_input: bool,
    wants_target: bool,
) -> Tuple[Tensor, Tensor]:
    grad_input, grad_target = gradients = _gradients(input, target, wants_input, wants_target)
    if elements:
        # Each element is a row of one class, because upstream gradients are numbers of rows.
        input, target = input.reshape(-1, 1), target.reshape(-1, 1)
    desc, inputs = _desc(
        input,
        target,
        row_weights,
        labels,
        (input_kind, target_kind),
        divergence,
        reduction,
        flags,
        ignore_index,
        beta,
        temperature,
        eps,
        divisor,
    )
    inputs.update(upstream(grad, reduction, input.dtype))
    library.current().launch(
        "gpuloss_kl_div",
        desc,
        inputs,
        {"grad_input": grad_input if wants_input else None, "grad_target": grad_target if wants_target else None},
    )
    return gradients


@_backward.register_fake
def _(
    grad,
    input,
    target,
    row_weights,
    labels,
    input_kind,
    target_kind,
    divergence,
    reduction,
    flags,
    ignore_index,
    beta,
    temperature,
    eps,
    divisor,
    elements,
    wants_input,
    wants_target,
):
    return _gradients(input, target, wants_input, wants_target)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:4])
    ctx.options = inputs[4:]


def _differentiate(ctx, grad):
    wants = ctx.needs_input_grad[:2]
    gradients = _backward(grad, *ctx.saved_tensors, *ctx.options, *wants)
    return tuple(g if wanted else None for g, wanted in zip(gradients, wants)) + (None,) * (2 + len(ctx.options))


_forward.register_autograd(_differentiate, setup_context=_save)
no_second_derivative(_backward)


def _needs_gradient(tensor):
    return torch.is_grad_enabled() and tensor.requires_grad


def _check_floats(input, target):
    check_tensors("kl_div", input=input, target=target)
    for tensor in (input, target):
        if tensor.is_complex():
            raise RuntimeError(f"kl_div: Complex inputs not supported (got {tensor.dtype})")
        if not tensor.is_floating_point():
            raise RuntimeError(f"kl_div: Integral inputs not supported (got {tensor.dtype})")
    check_dtype("xlogy", "input", input)
    check_dtype("xlogy", "target", target)


def _promoted(input, target):
    """The two in types that the library takes, and the type of torch's result. A tensor without dimensions
    does not affect that type beside one with dimensions. The library computes in doubles if the input has them. Else the types may
    differ."""
    if (input.dim() == 0) == (target.dim() == 0):
        result = torch.promote_types(input.dtype, target.dtype)
    else:
        result = target.dtype if input.dim() == 0 else input.dtype
    if result == torch.float64:
        return input.to(result), target, result
    input, target = (
        tensor.to(torch.float32) if tensor.dtype == torch.float64 else tensor for tensor in (input, target)
    )
    return input, target, result


def _elements_of(input, target, may_share):
    """The two, broadcast to [rows, classes]. Any rows will do: the elements of kl_div are independent. The target is
    [classes] if it is one row for all, and may_share. Then the shape in the order of memory, and whether it has
    dimension 1 at its end (the memory format channels_last)."""
    shape = torch.broadcast_shapes(input.shape, target.shape)
    input = input.expand(shape)
    if may_share and len(shape) > 1 and target.shape[-1:] == shape[-1:] and target.numel() == shape[-1]:
        return input.reshape(-1, shape[-1]), target.reshape(-1), shape, False
    target = target.expand(shape)
    is_last = len(shape) > 2 and all(tensor.movedim(1, -1).is_contiguous() for tensor in (input, target))
    if is_last:
        input, target = input.movedim(1, -1), target.movedim(1, -1)
    classes = input.shape[-1] if len(shape) > 0 else 1
    return input.reshape(-1, classes), target.reshape(-1, classes), input.shape, is_last


def kl_div(input, target, size_average=None, reduce=None, reduction="mean", log_target=False, *, pytorch_zeros=True):
    """torch.nn.functional.kl_div: input has log-probabilities, and so has target with log_target.

    pytorch_zeros: where the target is 0 and the input -inf, the loss is torch's NaN; False: it is 0
    """
    _check_floats(input, target)
    reduces = reduction_of(
        reduction,
        size_average,
        reduce,
        ("none", "mean", "sum", "batchmean"),
        on_mean="kl_div: 'mean' divides by the number of elements; 'batchmean' gives the divergence of distributions",
    )
    if 0 in torch.broadcast_shapes(input.shape, target.shape):
        return torch.nn.functional.kl_div(input, target, size_average, reduce, reduction, log_target)
    divisor = input.shape[0] if reduction == "batchmean" and input.dim() > 0 else 1
    input, target, dtype = _promoted(input, target)
    elements = reduces == "none"
    input, target, shape, is_last = _elements_of(input, target, not elements and not _needs_gradient(target))
    if reduces == "mean":
        divisor *= input.numel()
    loss = _forward(
        input,
        target,
        None,
        None,
        Kind.LOG_PROBABILITIES,
        Kind.LOG_PROBABILITIES if log_target else Kind.PROBABILITIES,
        Divergence.FORWARD_KL,
        Reduction.NONE if elements else Reduction.MEAN,
        Flags.PYTORCH_ZEROS if pytorch_zeros else 0,
        0,
        0.0,
        0.0,
        0.0,
        0.0 if elements else float(divisor),
        elements,
    )
    if elements:
        loss = loss.view(shape) if divisor == 1 else loss.view(shape) / divisor
        loss = loss.movedim(-1, 1) if is_last else loss
    return loss.to(loss_dtype(dtype, input.device))


def beta_of(divergence, beta):
    """Jensen-Shannon's default is the symmetric one."""
    if divergence == Divergence.JENSEN_SHANNON:
        return 0.5 if beta is None else beta
    if beta is not None:
        raise ValueError(f"beta: is of jensen_shannon (got {beta} with {divergence.name.lower()})")
    return 0.0


def temperature_of(temperature):
    """For a desc, where 0 is none: a temperature without logits is an error."""
    if temperature is None:
        return 0.0
    check_factor("temperature", temperature)
    return temperature


def check_rows(input, row_weights, labels):
    check_row_weights(row_weights, input.shape[:-1])
    if labels is None:
        return
    check_tensors("divergence", labels=labels)
    if labels.shape != input.shape[:-1]:
        raise ValueError(
            f"labels: must have the shape of the rows, {list(input.shape[:-1])} (got {list(labels.shape)})"
        )
    if labels.dtype not in INDEX_TYPES:
        raise TypeError(f"labels: must have an integer type (got {labels.dtype})")


def as_rows(tensor):
    return tensor.reshape(-1, tensor.shape[-1])


def flat(tensor):
    return None if tensor is None else tensor.reshape(-1)


def check_matrix(name, tensor):
    check_tensors("divergence", **{name: tensor})
    check_dtype("divergence", name, tensor)
    if tensor.dim() == 0 or tensor.shape[-1] == 0:
        raise ValueError(f"{name}: must have classes in its last dimension (got {list(tensor.shape)})")


def divergence(
    input,
    target,
    *,
    input_kind,
    target_kind,
    divergence="forward_kl",
    reduction="batchmean",
    beta=None,
    temperature=None,
    temperature_squared=False,
    eps=0.0,
    row_weights=None,
    labels=None,
    ignore_index=-100,
    pytorch_zeros=False,
):
    """A divergence of target [..., C], or [C] for all rows, from input [..., C]. The gradient goes to both.

    input_kind, target_kind: "probabilities", "log_probabilities" or "logits"
    divergence: "forward_kl" (KL(target || input)), "reverse_kl", "jensen_shannon" or "total_variation"
    reduction: "none" (the loss of each row), "sum", "batchmean" (by the rows) or "mean" (by rows times classes)
    beta: of Jensen-Shannon, in [0, 1]; None: 0.5
    temperature: divides logits, if not None; temperature_squared: multiplies the loss by its square
    eps: is added to probabilities before the logarithm
    row_weights, labels [...]: factors of the rows; rows whose label is ignore_index add nothing
    pytorch_zeros: in forward KL, 0 * inf is torch's NaN

    The loss is float32, and float64 if input is.
    """
    check_matrix("input", input)
    check_matrix("target", target)
    kinds = named(Kind, "input_kind", input_kind), named(Kind, "target_kind", target_kind)
    kind, reduction = named(Divergence, "divergence", divergence), named(Reduction, "reduction", reduction)
    beta = beta_of(kind, beta)
    temperature = temperature_of(temperature)
    check_rows(input, row_weights, labels)
    is_shared = target.dim() == 1 and input.dim() > 1
    if target.shape != (input.shape[-1:] if is_shared else input.shape):
        raise ValueError(
            f"target: must have the shape of input, {list(input.shape)}, or of one row of it (got {list(target.shape)})"
        )
    if is_shared and _needs_gradient(target):
        target, is_shared = target.expand(input.shape), False
    flags = (Flags.TEMPERATURE_SQUARED if temperature_squared else 0) | (Flags.PYTORCH_ZEROS if pytorch_zeros else 0)
    loss = _forward(
        as_rows(input),
        target if is_shared else as_rows(target),
        flat(row_weights),
        flat(labels),
        *kinds,
        kind,
        reduction,
        flags,
        ignore_index,
        beta,
        temperature,
        eps,
        0.0,
        False,
    )
    return loss.view(input.shape[:-1]) if reduction == Reduction.NONE else loss
