"""torch.compile without a compiler, in one graph, and the checks that torch has for operators."""

import unittest
from unittest.mock import patch

import torch
from device import DEVICE, gpuloss
from gpuloss.descs import Divergence, Flags, Kind, Reduction, Residual
from support import Case, gradients, probabilities, random, upstream_of

BACKENDS = ("eager", "aot_eager")
MEAN, NONE = int(Reduction.MEAN), int(Reduction.NONE)


class Compiled(Case):
    def setUp(self):
        super().setUp()
        torch._dynamo.reset()

    def check(self, function, *leaves):
        """The compiled function gives what the function gives, and so do the gradients."""
        want = function(*leaves)
        upstream = upstream_of(want)
        wanted = gradients(want, upstream, *leaves)
        for backend in BACKENDS:
            got = torch.compile(function, backend=backend, fullgraph=True)(*leaves)
            self.assertTrue(torch.equal(got, want))
            self.assertEqual(got.dtype, want.dtype)
            for mine, theirs in zip(gradients(got, upstream, *leaves), wanted):
                self.assertTrue(mine is None and theirs is None or torch.equal(mine, theirs))

    def test_cross_entropy(self):
        input = random(4, 5, dtype=torch.bfloat16).requires_grad_()
        target = torch.tensor([0, 1, -100, 4], device=DEVICE)
        likely = probabilities(4, 5).requires_grad_()
        self.check(lambda x: gpuloss.cross_entropy(x, target, label_smoothing=0.1), input)
        self.check(lambda x: gpuloss.cross_entropy(x, target, None, True), input)
        self.check(lambda x, t: gpuloss.cross_entropy(x, t, reduction="none"), input, likely)
        last = random(2, 5, 3, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
        self.check(lambda x: gpuloss.cross_entropy(x, torch.zeros(2, 3, 4, dtype=torch.long, device=DEVICE)), last)

        def with_outputs(x):
            loss, lse, argmax, correct = gpuloss.cross_entropy(
                x, target, z_loss=0.1, return_lse=True, return_argmax=True, return_correct=True
            )
            return loss + lse.sum() + argmax.sum() + correct

        self.check(with_outputs, input)

    def test_kl_div(self):
        input, target = random(4, 5, dtype=torch.float32).requires_grad_(), probabilities(4, 5).requires_grad_()
        for reduction in ("none", "mean", "batchmean"):
            self.check(lambda x, t: gpuloss.kl_div(x, t, reduction=reduction), input, target)
        self.check(lambda x: gpuloss.kl_div(x, target[0].detach(), None, False), input)

    def test_divergences(self):
        input, target = random(4, 5).requires_grad_(), random(4, 5).requires_grad_()
        kinds = {"input_kind": "logits", "target_kind": "logits"}
        self.check(lambda x, t: gpuloss.divergence(x, t, divergence="jensen_shannon", **kinds), input, target)
        indices = torch.tensor([[0, 1], [2, 3], [4, 0], [1, 2]], device=DEVICE)
        values = torch.full((4, 2), 0.4, device=DEVICE)
        self.check(
            lambda x: gpuloss.sparse_divergence(x, indices, values, value_kind="probabilities", residual="bucket"),
            input,
        )

    def test_linear_cross_entropy(self):
        leaves = [random(*shape).requires_grad_() for shape in ((7, 6), (5, 6), (5,))]
        targets = torch.tensor([1, 2, 3, 4, 0, -100, 1], device=DEVICE)
        self.check(lambda h, w, b: gpuloss.linear_cross_entropy(h, w, targets, b, chunk_bytes=200), *leaves)

    def test_autocast(self):
        input, target = random(4, 5, dtype=torch.bfloat16).requires_grad_(), torch.tensor([0, 1, 2, 4], device=DEVICE)

        def function(x):
            with torch.autocast(DEVICE, torch.bfloat16):
                return gpuloss.cross_entropy(x, target)

        self.check(function, input)

    def test_other_sizes_compile_once_more_at_most(self):
        count = torch._dynamo.testing.CompileCounter()
        compiled = torch.compile(lambda x, t: gpuloss.cross_entropy(x, t), backend=count, dynamic=True, fullgraph=True)
        for rows, classes in ((4, 5), (6, 7), (9, 3), (12, 4)):
            input, target = random(rows, classes), torch.zeros(rows, dtype=torch.long, device=DEVICE)
            self.assertTrue(torch.equal(compiled(input, target), gpuloss.cross_entropy(input, target)))
        self.assertLessEqual(count.frame_count, 2)


class Operators(Case):
    """torch.library.opcheck: the schema, autograd, the shapes that the fake kernels promise."""

    def check(self, name, *arguments):
        torch.library.opcheck(getattr(torch.ops.gpuloss, name).default, arguments)

    def test_cross_entropy(self):
        likely = probabilities(2, 5, 3).requires_grad_()
        indices = torch.tensor([[0, 1, -100], [2, 4, 3]], device=DEVICE)
        weight, factors = torch.rand(5).to(DEVICE), torch.rand(2, 3).to(DEVICE)
        for input in (random(2, 5, 3).requires_grad_(), random(2, 3, 5).transpose(1, 2).detach().requires_grad_()):
            for target in (indices, likely):
                for reduction in (NONE, MEAN):
                    options = (reduction, -100, 0.1, 0.1, 2.0, 0.5)
                    self.check("cross_entropy", input, target, weight, factors, *options, True, True, target is indices)
                    grad = torch.ones((2, 3) if reduction == NONE else (), dtype=torch.float64, device=DEVICE)
                    lse = torch.zeros(2, 3, dtype=torch.float64, device=DEVICE)
                    self.check(
                        "cross_entropy_backward",
                        grad,
                        input.detach(),
                        target.detach(),
                        weight,
                        factors,
                        lse,
                        *options,
                        True,
                        target is likely,
                    )

    def test_divergence(self):
        input, target = random(3, 4).requires_grad_(), probabilities(3, 4).requires_grad_()
        labels, factors = torch.tensor([0, -100, 1], device=DEVICE), torch.rand(3).to(DEVICE)
        kinds = (int(Kind.LOG_PROBABILITIES), int(Kind.PROBABILITIES), int(Divergence.FORWARD_KL))
        for of_target, elements in ((target, True), (target, False), (target[0].detach(), False)):
            options = (*kinds, NONE, int(Flags.PYTORCH_ZEROS), -100, 0.0, 0.0, 0.0, 0.0, elements)
            rows = (None, None) if elements else (factors, labels)
            self.check("divergence", input, of_target, *rows, *options)
            grad = torch.ones((3, 4) if elements else 3, dtype=torch.float64, device=DEVICE)
            self.check(
                "divergence_backward",
                grad,
                input.detach(),
                of_target.detach(),
                *rows,
                *options,
                True,
                of_target.dim() == 2,
            )

    def test_sparse_divergence(self):
        indices, values = torch.tensor([[0, 1], [2, 3]], device=DEVICE), torch.full((2, 2), 0.4, device=DEVICE)
        options = (int(Kind.PROBABILITIES), int(Residual.DROP), int(Divergence.FORWARD_KL), MEAN, 0, 0, 0.0, 0.0)
        self.check("sparse_divergence", random(2, 5).requires_grad_(), indices, values, None, None, *options)
        grad = torch.ones((), dtype=torch.float64, device=DEVICE)
        self.check("sparse_divergence_backward", grad, random(2, 5), indices, values, None, None, *options)

    def test_linear_cross_entropy(self):
        leaves = [random(*shape).requires_grad_() for shape in ((7, 6), (5, 6), (5,))]
        targets = torch.tensor([1, 2, 3, 4, 0, -100, 1], device=DEVICE)
        self.check(
            "linear_cross_entropy",
            leaves[0],
            leaves[1],
            targets,
            leaves[2],
            MEAN,
            -100,
            0.0,
            0.0,
            0.0,
            1.0,
            200,
            torch.float64,
            True,
            True,
            True,
        )
        self.check("linear_cross_entropy_backward", torch.ones((), device=DEVICE), leaves[0].detach(), torch.float32)


class Inference(Case):
    """Without a gradient, the loss alone is computed."""

    def fields(self, function):
        calls = []

        def launch(self, name, desc, inputs, outputs, original=gpuloss.Library.launch):
            calls.append({field for field, tensor in {**inputs, **outputs}.items() if tensor is not None})
            return original(self, name, desc, inputs, outputs)

        with patch.object(gpuloss.Library, "launch", launch):
            function()
        return calls

    def test_only_the_loss(self):
        input, likely = random(4, 5).requires_grad_(), probabilities(4, 5)
        target = torch.tensor([0, 1, 2, 4], device=DEVICE)

        def losses():
            gpuloss.cross_entropy(input, target)
            gpuloss.kl_div(input, likely, reduction="sum")

        with torch.no_grad():
            inside = self.fields(losses)
        self.assertEqual(inside, [{"logits", "targets", "loss"}, {"input", "target", "loss"}])
        training = self.fields(losses)
        self.assertEqual(training[0], {"logits", "targets", "loss", "lse"})

    def test_backward_reads_the_lse_of_forward(self):
        input, target = random(4, 5).requires_grad_(), torch.tensor([0, 1, 2, 4], device=DEVICE)
        loss = gpuloss.cross_entropy(input, target)
        self.assertEqual(self.fields(loss.backward), [{"logits", "targets", "lse_in", "grad_loss", "grad_logits"}])


if __name__ == "__main__":
    unittest.main()
