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
# Torch's sums depend on the processor, and two rows may have next to no error by luck: its error is the mean over several
# orders of the classes. Ours is of one order, and random: a factor of 3 between two ways that are equally good is no rarity.
CHANCE = 3
ORDERS = 4
# A probability is within about 16 units of 2^-24: an exponential has 6, its argument of up to 10 the others.
TIE = 2.0**-20


def log_probabilities(tensor, kind):
    if kind == "logits":
        return F.log_softmax(tensor, -1)
    return tensor if kind == "log_probabilities" else tensor.log()


def losses_of_torch(input, target, kinds, divergence):
    """The loss of each row, as it is written with torch."""
    q, t = (log_probabilities(*side) for side in zip((input, target), kinds))
    if divergence == "forward_kl":
        return F.kl_div(q, t, reduction="none", log_target=True).sum(-1)
    if divergence == "reverse_kl":
        return F.kl_div(t, q, reduction="none", log_target=True).sum(-1)
    if divergence == "total_variation":
        return (t.exp() - q.exp()).abs().sum(-1) / 2
    m = (BETA * t.exp() + (1 - BETA) * q.exp()).log()
    of_target, of_input = (F.kl_div(m, side, reduction="none", log_target=True).sum(-1) for side in (t, q))
    return BETA * of_target + (1 - BETA) * of_input


def losses_of_gpuloss(input, target, kinds, divergence):
    input_kind, target_kind = kinds
    beta = BETA if divergence == "jensen_shannon" else None
    return gpuloss.divergence(
        input,
        target,
        input_kind=input_kind,
        target_kind=target_kind,
        divergence=divergence,
        beta=beta,
        reduction="none",
    )


def with_gradient(losses_of, input, target, *arguments):
    leaf = input.detach().requires_grad_()
    losses = losses_of(leaf, target, *arguments)
    losses.sum().backward()
    return losses.detach().double(), leaf.grad.double()


def of_kind(logits, kind):
    if kind == "logits":
        return logits
    return logits.log_softmax(-1) if kind == "log_probabilities" else logits.softmax(-1)


def sides(shape, kinds, deviation, offset):
    target = 2 * torch.randn(shape, dtype=torch.float64)
    input = target + deviation * torch.randn(shape, dtype=torch.float64) + offset
    return [of_kind(*side).float().to(DEVICE) for side in zip((input, target), kinds)]


def width_of_ties(input, target, kinds, divergence):
    """The bound of a gradient where rounding decides the sign of t - q in a total variation."""
    if divergence != "total_variation":
        return 0.0
    q, t = (log_probabilities(*side).exp() for side in zip((input, target), kinds))
    is_tie = ((t - q).abs() <= TIE * (t + q)).double()
    if kinds[0] == "probabilities":
        return is_tie
    of_row = (q * is_tie).sum(-1, keepdim=True) if kinds[0] == "logits" else 0.0
    return q * (is_tie + of_row)


def relative_error(got, want, width=0.0):
    """The mean over rows of a row's error beyond the width, by its largest number."""
    error = ((got - want).abs() - width).clamp(min=0.0).reshape(len(got), -1)
    return (error.amax(1) / want.reshape(len(want), -1).abs().amax(1)).mean().item()


def in_order(width, order):
    return width[:, order] if torch.is_tensor(width) else width


class Accuracy(Case):
    def errors(self, shape, kinds, divergence, deviation, offset):
        """Those of loss and gradient, of gpuloss and of torch."""
        input, target = sides(shape, kinds, deviation, offset)
        exact = with_gradient(losses_of_torch, input.double(), target.double(), kinds, divergence)
        ours = with_gradient(losses_of_gpuloss, input, target, kinds, divergence)
        width = width_of_ties(input.double(), target.double(), kinds, divergence)
        generator = torch.Generator().manual_seed(2)
        theirs = []
        for _ in range(ORDERS):
            order = torch.randperm(shape[1], generator=generator).to(DEVICE)
            losses, gradient = with_gradient(losses_of_torch, input[:, order], target[:, order], kinds, divergence)
            of_gradient = relative_error(gradient, exact[1][:, order], in_order(width, order))
            theirs.append((relative_error(losses, exact[0]), of_gradient))
        mine = relative_error(ours[0], exact[0]), relative_error(ours[1], exact[1], width)
        return mine, torch.tensor(theirs).mean(0).tolist()

    def check(self, kinds, divergence, offsets):
        for shape, deviation, offset in itertools.product(SHAPES, DEVIATIONS, offsets):
            with self.subTest(shape=shape, deviation=deviation, offset=offset):
                ours, theirs = self.errors(shape, kinds, divergence, deviation, offset)
                for name, mine, other in zip(("loss", "gradient"), ours, theirs):
                    self.assertLessEqual(mine, CHANCE * other + ROUNDING, name)


def add_test(kinds, divergence, offsets):
    def test(self):
        self.check(kinds, divergence, offsets)

    name = "_and_".join(dict.fromkeys(kinds))
    setattr(Accuracy, f"test_{divergence}_of_{name}", test)


for _divergence in ("forward_kl", "reverse_kl", "jensen_shannon", "total_variation"):
    add_test(("log_probabilities", "log_probabilities"), _divergence, NO_OFFSET)
    add_test(("probabilities", "probabilities"), _divergence, NO_OFFSET)
    add_test(("logits", "log_probabilities"), _divergence, OFFSETS)
    add_test(("logits", "probabilities"), _divergence, OFFSETS)
    add_test(("logits", "logits"), _divergence, OFFSETS)


if __name__ == "__main__":
    unittest.main()
