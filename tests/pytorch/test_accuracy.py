"""Errors of divergences in float, beside those of what a user of torch writes in float; both against doubles.

The two sides differ by a normal deviation, for a forward KL of about 1, 1e-3, 1e-6 and 1e-9, and the input's logits are off by an
offset, which changes no probability but for the rounding of the logits themselves. Each kind is made of these logits."""

import itertools
import unittest

import torch
import torch.nn.functional as F
from device import DEVICE, gpuloss
from support import Case

# Short rows are many: a row whose gradients nearly cancel is most of the mean of a few.
SHAPES = [(256, 40), (12, 500), (4, 6000), (2, 40000)]
# KL is half the square of the deviation, to first order.
DEVIATIONS = [(2 * kl) ** 0.5 for kl in (1.0, 1e-3, 1e-6, 1e-9)]
OFFSETS = [0.0, 1e2, 1e4, 1e6]
NO_OFFSET = OFFSETS[:1]
BETA = 0.3
# The last rounding of a loss or gradient, which both have.
ROUNDING = 2.0**-24
# Errors of a few rows are random: a factor of 4 between two ways that are equally good is no rarity.
CHANCE = 4
# A probability is within about 16 units of 2^-24: an exponential has 6, its argument of up to 10 the others.
TIE = 2.0**-20


def log_probabilities(tensor, kind):
    if kind == "logits":
        return F.log_softmax(tensor, -1)
    return tensor if kind == "log_probabilities" else tensor.log()


def losses_of_torch(input, target, kind, divergence):
    """The loss of each row, as it is written with torch."""
    q, t = log_probabilities(input, kind), log_probabilities(target, kind)
    if divergence == "forward_kl":
        return F.kl_div(q, t, reduction="none", log_target=True).sum(-1)
    if divergence == "reverse_kl":
        return F.kl_div(t, q, reduction="none", log_target=True).sum(-1)
    if divergence == "total_variation":
        return (t.exp() - q.exp()).abs().sum(-1) / 2
    m = (BETA * t.exp() + (1 - BETA) * q.exp()).log()
    of_target, of_input = (F.kl_div(m, side, reduction="none", log_target=True).sum(-1) for side in (t, q))
    return BETA * of_target + (1 - BETA) * of_input


def losses_of_gpuloss(input, target, kind, divergence):
    beta = BETA if divergence == "jensen_shannon" else None
    return gpuloss.divergence(
        input, target, input_kind=kind, target_kind=kind, divergence=divergence, beta=beta, reduction="none"
    )


def with_gradient(losses_of, input, target, *arguments):
    leaf = input.detach().requires_grad_()
    losses = losses_of(leaf, target, *arguments)
    losses.sum().backward()
    return losses.detach().double(), leaf.grad.double()


def sides(shape, kind, deviation, offset):
    target = 2 * torch.randn(shape, dtype=torch.float64)
    input = target + deviation * torch.randn(shape, dtype=torch.float64)
    if kind == "logits":
        input = input + offset
    else:
        input, target = input.log_softmax(-1), target.log_softmax(-1)
    if kind == "probabilities":
        input, target = input.exp(), target.exp()
    return input.float().to(DEVICE), target.float().to(DEVICE)


def width_of_ties(input, target, kind, divergence):
    """How far a gradient may be from the exact one where a total variation's sign of t - q is that of a rounding."""
    if divergence != "total_variation":
        return 0.0
    q, t = log_probabilities(input, kind).exp(), log_probabilities(target, kind).exp()
    is_tie = ((t - q).abs() <= TIE * (t + q)).double()
    if kind == "probabilities":
        return is_tie
    of_row = (q * is_tie).sum(-1, keepdim=True) if kind == "logits" else 0.0
    return q * (is_tie + of_row)


def relative_error(got, want, width=0.0):
    """The mean over rows of a row's error beyond the width, by its largest number."""
    error = ((got - want).abs() - width).clamp(min=0.0).reshape(len(got), -1)
    return (error.amax(1) / want.reshape(len(want), -1).abs().amax(1)).mean().item()


class Accuracy(Case):
    def errors(self, shape, kind, divergence, deviation, offset):
        """Those of loss and gradient, of gpuloss and of torch."""
        input, target = sides(shape, kind, deviation, offset)
        exact = with_gradient(losses_of_torch, input.double(), target.double(), kind, divergence)
        ours = with_gradient(losses_of_gpuloss, input, target, kind, divergence)
        theirs = with_gradient(losses_of_torch, input, target, kind, divergence)
        widths = (0.0, width_of_ties(input.double(), target.double(), kind, divergence))
        return [[relative_error(*of) for of in zip(results, exact, widths)] for results in (ours, theirs)]

    def check(self, kind, divergence, offsets):
        for shape, deviation, offset in itertools.product(SHAPES, DEVIATIONS, offsets):
            with self.subTest(shape=shape, deviation=deviation, offset=offset):
                ours, theirs = self.errors(shape, kind, divergence, deviation, offset)
                for name, mine, other in zip(("loss", "gradient"), ours, theirs):
                    self.assertLessEqual(mine, CHANCE * other + ROUNDING, name)


def add_test(kind, divergence, offsets):
    def test(self):
        self.check(kind, divergence, offsets)

    setattr(Accuracy, f"test_{divergence}_of_{kind}", test)


for _divergence in ("forward_kl", "reverse_kl", "jensen_shannon", "total_variation"):
    add_test("log_probabilities", _divergence, NO_OFFSET)
    add_test("probabilities", _divergence, NO_OFFSET)
    add_test("logits", _divergence, OFFSETS)


if __name__ == "__main__":
    unittest.main()
