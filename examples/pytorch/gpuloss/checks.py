"""Checks of arguments that several functions make."""

import warnings

import torch
from torch import Tensor

from .library import DTYPES


def check_tensors(function, **tensors):
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{function}(): argument '{name}' must be Tensor, not {type(tensor).__name__}")


def check_dtype(function, name, tensor):
    if tensor.dtype not in DTYPES:
        raise NotImplementedError(f'"{function}" not implemented for the dtype of {name} (got {tensor.dtype})')


def check_constant(name, tensor):
    """Refuses a tensor that would need a derivative that gpuloss does not have."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(f"{name}: has no derivative: this argument cannot have requires_grad True")


def check_indices(name, target):
    if target.dtype not in (torch.int64, torch.uint8):
        raise RuntimeError(f"{name}: expected scalar type Long or Byte but found {target.dtype}")


def check_row_weights(row_weights, shape):
    if row_weights is None:
        return
    check_tensors("gpuloss", row_weights=row_weights)
    if row_weights.shape != shape:
        raise ValueError(f"row_weights: must have the shape of the rows, {list(shape)} (got {list(row_weights.shape)})")
    check_constant("row_weights", row_weights)


def check_factor(name, factor):
    """Of an option that the library leaves out when it is 0."""
    if factor == 0:
        raise ValueError(f"{name}: must not be 0 (got {factor})")


def reduction_of(reduction, size_average, reduce, names, on_mean=None):
    """One of the names, also from the two older arguments of torch, by its rules. on_mean: what to warn of "mean".
    Warnings are for the caller of the caller; torch.compile, which has none, gets none."""
    message = None
    if size_average is not None or reduce is not None:
        reduces, averages = reduce is None or reduce, size_average is None or size_average
        reduction = ("mean" if averages else "sum") if reduces else "none"
        message = f"size_average and reduce are deprecated: use reduction={reduction!r}"
    elif reduction == "elementwise_mean":
        reduction, message = "mean", "reduction='elementwise_mean' is deprecated: use 'mean'"
    elif reduction == "mean":
        message = on_mean
    if message is not None and not torch.compiler.is_compiling():
        warnings.warn(message, stacklevel=3)
    if reduction not in names:
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return reduction
