"""The divergences of a teacher that is known by a few classes of each row."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from . import library
from .checks import check_constant, check_tensors
from .descs import Divergence, Flags, Kind, KLDivSparseDesc, Reduction, Residual, named
from .divergences import (
    as_rows,
    beta_of,
    check_matrix,
    check_rows,
    flat,
    label_inputs,
    loss_of,
    temperature_of,
    upstream,
)
from .layout import as_results, matrix_of, no_second_derivative
from .library import DTYPES, INDEX_TYPES


def _desc(
    logits,
    indices,
    values,
    row_weights,
    labels,
    value_kind,
    residual,
    divergence,
    reduction,
    flags,
    ignore_index,
    beta,
    temperature,
):
    logits, logits_stride = matrix_of(logits)
    indices, indices_stride = matrix_of(indices)
    values, values_stride = matrix_of(values)
    desc = KLDivSparseDesc(
        logits_stride=logits_stride,
        indices_stride=indices_stride,
        values_stride=values_stride,
        rows=logits.shape[0],
        classes=logits.shape[1],
        k=indices.shape[1],
        dtype=DTYPES[logits.dtype],
        value_dtype=DTYPES[values.dtype],
        index_type=INDEX_TYPES[indices.dtype],
        value_kind=value_kind,
        residual=residual,
        divergence=divergence,
        reduction=reduction,
        flags=flags,
        beta=beta,
        temperature=temperature,
    )
    inputs = {
        "logits": logits,
        "indices": indices,
        "values": values,
        "row_weights": as_results(row_weights, logits.dtype),
    }
    inputs.update(label_inputs(desc, labels, ignore_index))
    return desc, inputs


@torch.library.custom_op("gpuloss::sparse_divergence", mutates_args=())
def _forward(
    logits: Tensor,
    indices: Tensor,
    values: Tensor,
    row_weights: Optional[Tensor],
    labels: Optional[Tensor],
    value_kind: int,
    residual: int,
    divergence: int,
    reduction: int,
    flags: int,
    ignore_index: int,
    beta: float,
    temperature: float,
) -> Tuple[Tensor, Tensor]:
    desc, inputs = _desc(
        logits,
        indices,
        values,
        row_weights,
        labels,
        value_kind,
        residual,
        divergence,
        reduction,
        flags,
        ignore_index,
        beta,
        temperature,
    )
    loss, field = loss_of(logits, reduction, False)
    bad_indices = logits.new_empty((), dtype=torch.int64)
    library.current().launch("gpuloss_kl_div_sparse", desc, inputs, {field: loss, "bad_indices": bad_indices})
    return loss, bad_indices


@_forward.register_fake
def _(
    logits,
    indices,
    values,
    row_weights,
    labels,
    value_kind,
    residual,
    divergence,
    reduction,
    flags,
    ignore_index,
    beta,
    temperature,
):
    return loss_of(logits, reduction, False)[0], logits.new_empty((), dtype=torch.int64)


@torch.library.custom_op("gpuloss::sparse_divergence_backward", mutates_args=())
def _backward(
    grad: Tensor,
    logits: Tensor,
    indices: Tensor,
    values: Tensor,
    row_weights: Optional[Tensor],
    labels: Optional[Tensor],
    value_kind: int,
    residual: int,
    divergence: int,
    reduction: int,
    flags: int,
    ignore_index: int,
    beta: float,
    temperature: float,
) -> Tensor:
    desc, inputs = _desc(
        logits,
        indices,
        values,
        row_weights,
        labels,
        value_kind,
        residual,
        divergence,
        reduction,
        flags,
        ignore_index,
        beta,
        temperature,
    )
    inputs.update(upstream(grad, reduction, logits.dtype))
    gradient = logits.new_empty(logits.shape)
    library.current().launch("gpuloss_kl_div_sparse", desc, inputs, {"grad_logits": gradient})
    return gradient


@_backward.register_fake
def _(grad, logits, *_):
    return logits.new_empty(logits.shape)


def _save(ctx, inputs, output):
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs[:5])
    ctx.options = inputs[5:]


def _differentiate(ctx, grad, _):
    return (_backward(grad, *ctx.saved_tensors, *ctx.options),) + (None,) * (4 + len(ctx.options))


_forward.register_autograd(_differentiate, setup_context=_save)
no_second_derivative(_backward)


def sparse_divergence(
    logits,
    indices,
    values,
    *,
    value_kind,
    residual,
    divergence="forward_kl",
    reduction="batchmean",
    beta=None,
    temperature=None,
    temperature_squared=False,
    row_weights=None,
    labels=None,
    ignore_index=-100,
    return_bad_indices=False,
):
    """A divergence of a teacher, known by k classes of each row, from the logits [..., C] of a student, which get the
    gradient.

    indices, values [..., k]: the classes, and their probabilities or log-probabilities (value_kind)
    residual: "drop", "renormalize" or "bucket": what becomes of 1 minus the sum of the k probabilities
    return_bad_indices: returns (loss, number of indices out of range); the loss of their rows is NaN

    The other arguments are those of divergence(). Reverse KL needs the bucket.
    """
    check_matrix("logits", logits)
    check_matrix("values", values)
    check_constant("values", values)
    check_tensors("sparse_divergence", indices=indices)
    if indices.dtype not in INDEX_TYPES:
        raise TypeError(f"indices: must have an integer type (got {indices.dtype})")
    for name, tensor in (("indices", indices), ("values", values)):
        if tensor.shape[:-1] != logits.shape[:-1] or tensor.shape != values.shape:
            raise ValueError(
                f"{name}: must have k classes for each row of logits, {list(logits.shape[:-1])} (got "
                f"{list(tensor.shape)})"
            )
    kind, reduction = named(Divergence, "divergence", divergence), named(Reduction, "reduction", reduction)
    beta = beta_of(kind, beta)
    temperature = temperature_of(temperature)
    check_rows(logits, row_weights, labels)
    loss, bad_indices = _forward(
        as_rows(logits),
        as_rows(indices),
        as_rows(values),
        flat(row_weights),
        flat(labels),
        named(Kind, "value_kind", value_kind),
        named(Residual, "residual", residual),
        kind,
        reduction,
        Flags.TEMPERATURE_SQUARED if temperature_squared else 0,
        ignore_index,
        beta,
        temperature,
    )
    loss = loss.view(logits.shape[:-1]) if reduction == Reduction.NONE else loss
    return (loss, bad_indices) if return_bad_indices else loss
