"""The models for KernelBench against the formulas of its problems, at a small size."""

import unittest

import torch
import torch.nn.functional as F
from bounds import CrossEntropy, Divergence, Side
from device import DEVICE, gpuloss  # noqa: F401
from support import Case, random


class KernelBench(Case):
    def test_problem_95(self):
        import kernelbench_95

        predictions, targets = random(9, 16, dtype=torch.float32), torch.randint(0, 16, (9,), device=DEVICE)
        got = kernelbench_95.ModelNew()(predictions, targets)
        bound = CrossEntropy(predictions.double(), targets).loss_bound(torch.float32)
        self.assertEqual(got.dtype, torch.float32)
        self.assert_within(got, F.cross_entropy(predictions.double(), targets), bound)

    def test_problem_98(self):
        import kernelbench_98

        model = kernelbench_98.ModelNew()
        predictions, targets = (random(9, 16, dtype=torch.float32).softmax(-1) for _ in range(2))
        got = model(predictions, targets)
        sides = [Side(tensor.double(), "probabilities", 1, 0, torch.float32) for tensor in (predictions, targets)]
        bound = (
            Divergence(*sides, "forward_kl", 0, torch.ones(9, device=DEVICE), 1, torch.float32).loss_bound().sum() / 9
        )
        want = F.kl_div(predictions.double().log(), targets.double(), reduction="batchmean")
        self.assertEqual(got.dtype, torch.float32)
        self.assert_within(got, want, bound)
        for place in ((0, 0), (3, 7)):
            predictions[place] = 0.0
            for value in (0.25, 0.0):
                targets[place] = value
                want = F.kl_div(predictions.log(), targets, reduction="batchmean")
                got = model(predictions, targets)
                self.assertEqual((got.isnan().item(), got.isinf().item()), (want.isnan().item(), want.isinf().item()))
            predictions[place] = 0.5


if __name__ == "__main__":
    unittest.main()
