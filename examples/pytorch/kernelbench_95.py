"""KernelBench, level 1, problem 95: cross-entropy of predictions and class indices, the mean."""

import torch
from gpuloss import cross_entropy


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        return cross_entropy(predictions, targets)
