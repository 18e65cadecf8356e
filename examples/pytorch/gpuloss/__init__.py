"""gpuloss for PyTorch: its losses as functions of CUDA tensors, with autograd. See README.md beside this folder."""

import re

import torch

if tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) < (2, 4):
    raise ImportError(f"gpuloss needs PyTorch 2.4 or newer, for torch.library.custom_op (got {torch.__version__})")

from .cross_entropy import cross_entropy
from .divergences import divergence, kl_div
from .library import Library
from .linear import linear_cross_entropy
from .sparse import sparse_divergence

__all__ = ["Library", "cross_entropy", "divergence", "kl_div", "linear_cross_entropy", "sparse_divergence"]
