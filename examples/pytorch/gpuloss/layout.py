"""Tensors as the arrays of a desc, and the types of results."""

import math
from typing import NamedTuple

import torch


class Rows(NamedTuple):
    """A tensor [N, C, d1, ..., dk] as the rows of a desc."""

    tensor: torch.Tensor  # has the elements where the desc expects them: the given one, or a contiguous copy
    rows: int
    classes: int
    inner: int
    stride: int

    @property
    def is_last(self):
        """Whether the tensor has its classes last, unlike the one that was given."""
        return self.inner == 0 and self.tensor.dim() > 2


def rows_of(tensor, classes_last=None):
    """Rows of a tensor [C] or [N, C, d1, ..., dk]. A matrix is not copied if its rows are contiguous, and more
    dimensions are not if each image [C, d1, ..., dk] is, or if all is with the classes last (the memory format
    channels_last, a transposed [N, d1, C]). classes_last: asks for that order or the other, if not None."""
    if tensor.dim() <= 2:
        matrix, stride = matrix_of(tensor if tensor.dim() == 2 else tensor.unsqueeze(0))
        return Rows(matrix, matrix.shape[0], matrix.shape[1], 0, stride)
    images, classes = tensor.shape[:2]
    image = math.prod(tensor.shape[1:])
    inner = image // classes
    last = tensor.movedim(1, -1)
    if classes_last is None:
        classes_last = last.is_contiguous()
    if classes_last:
        return Rows(last.contiguous(), images * inner, classes, 0, classes)
    if images == 0 or tensor.stride(0) < image or not tensor[0].is_contiguous():
        tensor = tensor.contiguous()
    return Rows(tensor, images * inner, classes, inner, tensor.stride(0) if images > 1 else image)


def matrix_of(tensor):
    """A tensor [rows, classes] whose rows are contiguous and do not overlap, a copy if the given one has none; and the
    stride of its rows."""
    rows, classes = tensor.shape
    if (classes > 1 and tensor.stride(1) != 1) or (rows > 1 and tensor.stride(0) < classes):
        tensor = tensor.contiguous()
    return tensor, tensor.stride(0) if rows > 1 else classes


def empty_like(rows, shape):
    """An array for the gradient of `rows` and, for autograd, its view of the shape given."""
    array = rows.tensor.new_empty(rows.tensor.shape)
    return array, (array.movedim(-1, 1) if rows.is_last else array.view(shape))


def results_of(dtype):
    """The type of losses, lse, weights and upstream gradients."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def as_results(tensor, dtype):
    """The tensor as a packed array of results."""
    return None if tensor is None else tensor.to(results_of(dtype)).contiguous()


def nothing(tensor, dtype=None):
    """Stands for an output that was not asked for, because operators of torch return no None."""
    return tensor.new_empty(0, dtype=dtype)


def loss_dtype(dtype, device):
    """The type of the loss that torch gives for results of this type: float for 16 bits under autocast."""
    if dtype in (torch.float16, torch.bfloat16) and torch.is_autocast_enabled(device.type):
        return torch.float32
    return dtype


def no_second_derivative(operator):
    """Has a backward operator refuse to be differentiated, as once_differentiable does."""

    def refuse(ctx, *_):
        raise RuntimeError("trying to differentiate twice a function that was marked with @once_differentiable")

    operator.register_autograd(refuse)
