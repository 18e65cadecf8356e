"""cross_entropy against torch's in double, and its options against the formula."""

import inspect
import unittest

import torch
import torch.nn.functional as F
from bounds import CrossEntropy, LogSoftmax
from bounds import rows_of as matrix_of
from device import DEVICE, gpuloss
from gpuloss.layout import rows_of
from support import FLOATS, Case, doubles, gradients, probabilities, random, samples_of_torch, upstream_of
from torch.autograd import gradcheck


class Checked(Case):
    def check(self, input, target, weight=None, dtype_of_loss=None, **options):
        """Loss and gradients of ours for these numbers, against torch's for the same in double."""
        loss = gpuloss.cross_entropy(input, target, weight, **options)
        self.assertEqual(loss.dtype, dtype_of_loss or input.dtype)
        x = doubles(input)
        t = doubles(target) if target.is_floating_point() else target
        w = None if weight is None else weight.double()
        want = F.cross_entropy(x, t, w, **options)
        upstream = upstream_of(loss)
        bounds = CrossEntropy(x.detach(), t.detach(), w, **options)
        self.assert_within(loss, want, bounds.loss_bound(input.dtype))
        got = gradients(loss, upstream, input, target)
        wanted = gradients(want, upstream, x, t)
        of_bounds = (bounds.gradient_bound, bounds.target_bound)
        for leaf, mine, theirs, bound in zip((input, target), got, wanted, of_bounds):
            if leaf.requires_grad:
                self.assertEqual(mine.dtype, leaf.dtype)
                self.assert_within(mine, theirs, bound(input.dtype, upstream))
        return loss


class Samples(Checked):
    def test_samples_of_torch(self):
        for dtype in FLOATS:
            for number, sample in enumerate(samples_of_torch("nn.functional.cross_entropy", dtype)):
                with self.subTest(dtype=dtype, number=number):
                    target = sample.args[0]
                    self.check(sample.input, target, **sample.kwargs)
                    if target.is_floating_point():
                        self.check(sample.input, target.detach().requires_grad_(), **sample.kwargs)

    def test_gradcheck_of_samples(self):
        for number, sample in enumerate(samples_of_torch("nn.functional.cross_entropy", torch.float64)):
            with self.subTest(number=number):
                gradcheck(lambda x: gpuloss.cross_entropy(x, *sample.args, **sample.kwargs), sample.input)


class Arguments(Checked):
    def test_options_of_torch_in_every_combination(self):
        for dtype in (torch.float64, torch.float16):
            input = random(5, 7, dtype=dtype).requires_grad_()
            weight = torch.rand(7, dtype=torch.float64).to(dtype).to(DEVICE)
            indices = torch.tensor([3, 6, -100, 0, 3], device=DEVICE)
            for target in (indices, probabilities(5, 7, dtype=dtype).requires_grad_()):
                for reduction in ("none", "mean", "sum"):
                    for smoothing in (0.0, 0.3, 1.0):
                        for w in (None, weight):
                            with self.subTest(dtype=dtype, reduction=reduction, smoothing=smoothing, weight=w):
                                self.check(input, target, w, reduction=reduction, label_smoothing=smoothing)

    def test_ignore_index(self):
        input = random(4, 3, 5).requires_grad_()
        target = torch.randint(0, 3, (4, 5), device=DEVICE)
        for ignored in (0, 2, 7, -1):
            for smoothing in (0.0, 0.2):
                with self.subTest(ignored=ignored, smoothing=smoothing):
                    self.check(input, target, ignore_index=ignored, label_smoothing=smoothing)

    def test_legacy_arguments(self):
        input, target = random(4, 3), torch.tensor([0, 2, 1, 1], device=DEVICE)
        for size_average in (None, True, False):
            for reduce in (None, True, False):
                with self.subTest(size_average=size_average, reduce=reduce):
                    arguments = (None, size_average, -100, reduce)
                    want = F.cross_entropy(input, target, *arguments)
                    got = gpuloss.cross_entropy(input, target, *arguments)
                    self.assert_within(got, want, 1e-14)

    def test_negative_smoothing_is_none(self):
        input = random(4, 3)
        for target in (torch.tensor([0, 2, 1, 1], device=DEVICE), probabilities(4, 3)):
            want = F.cross_entropy(input, target, label_smoothing=-0.5)
            self.assert_within(gpuloss.cross_entropy(input, target, label_smoothing=-0.5), want, 1e-14)

    def test_deprecated_arguments_warn(self):
        input, target = random(4, 3), torch.tensor([0, 2, 1, 1], device=DEVICE)
        for arguments in ({"size_average": False}, {"reduce": True}, {"reduction": "elementwise_mean"}):
            with self.assertWarnsRegex(UserWarning, "deprecated: use ") as caught:
                got = gpuloss.cross_entropy(input, target, **arguments)
            self.assertEqual(caught.filename, __file__)
            self.assert_within(got, F.cross_entropy(input, target, **arguments), 1e-14)

    def test_signature_begins_as_that_of_torch(self):
        ours = list(inspect.signature(gpuloss.cross_entropy).parameters.values())
        theirs = list(inspect.signature(F.cross_entropy).parameters.values())
        self.assertEqual([(p.name, p.default) for p in ours[: len(theirs)]], [(p.name, p.default) for p in theirs])
        self.assertTrue(all(p.kind == p.KEYWORD_ONLY for p in ours[len(theirs) :]))

    def test_bytes_as_targets(self):
        input = random(4, 3, dtype=torch.float32).requires_grad_()
        indices = torch.tensor([0, 2, 1, 1], device=DEVICE)
        for options in ({}, {"label_smoothing": 0.1}):
            want = gpuloss.cross_entropy(input, indices, **options)
            self.assertTrue(torch.equal(gpuloss.cross_entropy(input, indices.to(torch.uint8), **options), want))

    def test_types_of_both_sides(self):
        for dtype in FLOATS:
            for target_dtype in FLOATS:
                with self.subTest(dtype=dtype, target_dtype=target_dtype):
                    input = random(3, 4, dtype=dtype).requires_grad_()
                    target = probabilities(3, 4, dtype=target_dtype).requires_grad_()
                    self.check(input, target, dtype_of_loss=F.cross_entropy(input, target).dtype)

    def test_autocast_gives_float(self):
        input, target = random(3, 4, dtype=torch.bfloat16).requires_grad_(), torch.tensor([0, 1, 3], device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            self.check(input, target, dtype_of_loss=F.cross_entropy(input, target).dtype)


class Shapes(Checked):
    def test_shapes_and_strides(self):
        def strided(make):
            return {
                "one row": (make(6), ()),
                "column of one row": (make(1, 6), (1,)),
                "one class": (make(4, 1), (4,)),
                "columns": (make(2, 3, 5), (2, 5)),
                "more dimensions": (make(2, 3, 1, 2, 2), (2, 1, 2, 2)),
                "a part of each row": (make(4, 9)[:, 2:7], (4,)),
                "every other row": (make(8, 5)[::2], (4,)),
                "transposed": (make(5, 4).t(), (4,)),
                "one row for all": (make(1, 5).expand(4, 5), (4,)),
                "channels last": (make(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), (2, 4, 5)),
                "classes last": (make(2, 6, 3).transpose(1, 2), (2, 6)),
                "a part of each image": (make(2, 3, 4, 5)[..., 1:4], (2, 4, 3)),
                "other images": (make(4, 3, 5)[::2], (2, 5)),
            }

        inputs = strided(lambda *shape: random(*shape).requires_grad_())
        likely = strided(lambda *shape: probabilities(*shape).requires_grad_())
        for name, (input, rows) in inputs.items():
            classes = input.shape[min(1, input.dim() - 1)]
            target = torch.randint(0, classes, rows, device=DEVICE)
            for options in ({}, {"reduction": "none", "label_smoothing": 0.1}):
                with self.subTest(name=name, options=options):
                    self.check(input, target, **options)
                    self.check(input, likely[name][0], **options)
                    # One of the two tensors has its classes last.
                    self.check(input, likely[name][0].contiguous(), **options)
                    self.check(input.contiguous(), likely[name][0], **options)

    def test_views_that_are_not_copied(self):
        last = {"memory_format": torch.channels_last}
        views = {
            "a part of each row": random(4, 9)[:, 2:7],
            "every other row": random(8, 5)[::2],
            "one row of many": random(4, 5)[1:2],
            "other images": random(4, 3, 5)[::2],
            "a part of the classes of each image": random(4, 6, 5)[:, 1:4],
            "channels last": random(2, 3, 4, 5).contiguous(**last),
            "classes last": random(2, 6, 3).transpose(1, 2),
        }
        for name, view in views.items():
            with self.subTest(name=name):
                self.assertEqual(rows_of(view).tensor.data_ptr(), view.data_ptr())
                classes = view.shape[1]
                self.check(view.requires_grad_(), torch.randint(0, classes, view[:, 0].shape, device=DEVICE))
                self.check(view, torch.full_like(view, 1 / classes), reduction="sum")

    def test_gradient_has_the_layout_of_the_input(self):
        last = random(2, 3, 4, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
        target = torch.randint(0, 3, (2, 4, 5), device=DEVICE)
        (gradient,) = torch.autograd.grad(gpuloss.cross_entropy(last, target), last)
        self.assertEqual(gradient.stride(), last.stride())

    def test_targets_that_are_not_contiguous(self):
        input = random(4, 3).requires_grad_()
        self.check(input, torch.tensor([0, 9, 2, 9, 1, 9, 0, 9], device=DEVICE)[::2])
        self.check(input, torch.tensor(2, device=DEVICE).expand(4))

    def test_no_rows(self):
        for shape, rows in (((0, 4), (0,)), ((2, 4, 0), (2, 0)), ((0, 4, 2, 3), (0, 2, 3))):
            for reduction in ("none", "mean", "sum"):
                with self.subTest(shape=shape, reduction=reduction):
                    input = random(*shape).requires_grad_()
                    self.check(input, torch.zeros(rows, dtype=torch.long, device=DEVICE), reduction=reduction)
                    self.check(input, random(*shape), reduction=reduction)

    def test_no_classes(self):
        input = random(3, 0).requires_grad_()
        for reduction in ("none", "mean", "sum"):
            for rows in (0, 3):
                got = gpuloss.cross_entropy(input[:rows], input[:rows].detach(), reduction=reduction)
                want = F.cross_entropy(input[:rows], input[:rows].detach(), reduction=reduction)
                self.assert_within(got, want, 0)
                self.assertTrue(got.requires_grad)


class Autograd(Case):
    def setUp(self):
        super().setUp()
        self.input = random(4, 6, dtype=torch.float32).requires_grad_()
        self.target = probabilities(4, 6, dtype=torch.float32).requires_grad_()

    def test_retained_graph_and_second_backward(self):
        for reduction in ("none", "mean"):
            loss = gpuloss.cross_entropy(self.input, self.target, reduction=reduction)
            leaves = (self.input, self.target)
            first = torch.autograd.grad(loss, leaves, torch.ones_like(loss), retain_graph=True)
            second = torch.autograd.grad(loss, leaves, torch.ones_like(loss), retain_graph=True)
            doubled = torch.autograd.grad(loss, leaves, 2 * torch.ones_like(loss))
            for a, b, c in zip(first, second, doubled):
                self.assertTrue(torch.equal(a, b) and torch.equal(2 * a, c))
            with self.assertRaisesRegex(RuntimeError, "second time"):
                torch.autograd.grad(loss, leaves, torch.ones_like(loss))

    def test_gradients_add_up(self):
        gpuloss.cross_entropy(self.input, self.target).backward()
        once = self.input.grad.clone()
        gpuloss.cross_entropy(self.input, self.target).backward()
        self.assertTrue(torch.equal(self.input.grad, 2 * once))

    def test_a_changed_input_is_found(self):
        copy = self.input.clone()
        loss = gpuloss.cross_entropy(copy, self.target)
        with torch.no_grad():
            copy.add_(1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()

    def test_second_derivatives_are_refused(self):
        loss = gpuloss.cross_entropy(self.input, self.target)
        (gradient,) = torch.autograd.grad(loss, self.input, create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "trying to differentiate twice"):
            gradient.sum().backward()

    def test_gradcheck_with_options(self):
        weight = torch.rand(4, dtype=torch.float64).to(DEVICE)
        target = torch.tensor([[1, -100, 0], [3, 2, 2]], device=DEVICE)
        factors = torch.rand(2, 3, dtype=torch.float64).to(DEVICE)
        for reduction in ("none", "mean", "sum"):

            def function(x, t, reduction=reduction):
                return gpuloss.cross_entropy(
                    x,
                    t,
                    weight,
                    reduction=reduction,
                    label_smoothing=0.2,
                    z_loss=0.1,
                    softcap=3.0,
                    logit_scale=0.7,
                    row_weights=factors,
                )

            self.assertTrue(gradcheck(function, (random(2, 4, 3).requires_grad_(), target)))
            likely = probabilities(2, 4, 3).requires_grad_()
            self.assertTrue(gradcheck(function, (random(2, 4, 3).requires_grad_(), likely)))


class Extras(Case):
    def assert_lse_within(self, lse, want, dtype):
        soft, rows = LogSoftmax(want.x.detach(), dtype, want.scalings), want.lse.detach().reshape(lse.shape)
        self.assert_within(lse, rows, soft.lse_error.reshape(lse.shape) + soft.u * rows.abs())

    def check(self, input, target, **options):
        has_indices = not target.is_floating_point()
        loss, lse, argmax, *correct = gpuloss.cross_entropy(
            input, target, return_lse=True, return_argmax=True, return_correct=has_indices, **options
        )
        x, t = doubles(input), target if has_indices else doubles(target)
        double = {name: value.double() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
        want = CrossEntropy(x, t, **double)
        self.assert_within(loss, want.loss(), want.loss_bound(input.dtype))
        upstream = upstream_of(loss)
        got = gradients(loss, upstream, input, target)
        wanted = gradients(want.loss(), upstream, x, t)
        self.assert_within(got[0], wanted[0], want.gradient_bound(input.dtype, upstream))
        if target.requires_grad:
            self.assert_within(got[1], wanted[1], want.target_bound(input.dtype, upstream))
        self.assertFalse(lse.requires_grad)
        self.assert_lse_within(lse, want, input.dtype)
        self.assertTrue(torch.equal(argmax.reshape(-1), matrix_of(input).argmax(1)))
        if has_indices:
            counted = target.reshape(-1) != options.get("ignore_index", -100)
            self.assertEqual(correct[0].item(), (counted & (argmax.reshape(-1) == target.reshape(-1))).sum().item())

    def test_reference_is_that_of_torch(self):
        """The formula that the extras are compared with, where torch has it."""
        input, weight = random(4, 5), torch.rand(5, dtype=torch.float64).to(DEVICE)
        for target in (torch.tensor([1, 4, -100, 2], device=DEVICE), probabilities(4, 5)):
            for reduction in ("none", "mean", "sum"):
                options = {"label_smoothing": 0.3, "reduction": reduction}
                want = F.cross_entropy(input, target, weight, **options)
                self.assert_within(CrossEntropy(input, target, weight, **options).loss(), want, 1e-13)

    def test_each_extra(self):
        weight = torch.rand(5, dtype=torch.float64).to(DEVICE)
        factors = torch.rand(4, 3, dtype=torch.float64).to(DEVICE)
        for dtype in FLOATS:
            input = random(4, 5, 3, dtype=dtype).requires_grad_()
            indices = torch.randint(0, 5, (4, 3), device=DEVICE)
            indices[1, 1] = -100
            for target in (indices, probabilities(4, 5, 3, dtype=dtype).requires_grad_()):
                for extra in (
                    {"z_loss": 0.01},
                    {"softcap": 2.5},
                    {"logit_scale": 0.3},
                    {"row_weights": factors},
                    {
                        "z_loss": 0.1,
                        "softcap": 4.0,
                        "logit_scale": 1.5,
                        "row_weights": factors,
                        "label_smoothing": 0.2,
                        "weight": weight.to(dtype),
                    },
                ):
                    for reduction in ("none", "mean"):
                        with self.subTest(dtype=dtype, extra=extra, reduction=reduction):
                            self.check(input, target, reduction=reduction, **extra)

    def test_only_requested_outputs(self):
        """The schedule depends on the outputs, so that losses and lse differ by rounding."""
        input, target = random(3, 4).requires_grad_(), torch.tensor([0, 1, 3], device=DEVICE)
        want = CrossEntropy(doubles(input), target)
        argmax = input.detach().argmax(1)
        for wanted in range(1, 8):
            names = [
                name for bit, name in enumerate(("return_lse", "return_argmax", "return_correct")) if wanted >> bit & 1
            ]
            loss, *outputs = gpuloss.cross_entropy(input, target, **dict.fromkeys(names, True))
            self.assert_within(loss, want.loss(), want.loss_bound(input.dtype))
            self.assertEqual(len(outputs), len(names))
            again = gpuloss.cross_entropy(input, target, **dict.fromkeys(names, True))
            self.assertTrue(all(torch.equal(one, other) for one, other in zip((loss, *outputs), again)))
            for name, output in zip(names, outputs):
                if name == "return_lse":
                    self.assert_lse_within(output, want, input.dtype)
                elif name == "return_argmax":
                    self.assertTrue(torch.equal(output, argmax))
                else:
                    self.assertEqual(output.item(), (argmax == target).sum().item())

    def test_backward_beside_an_output_that_is_not_used(self):
        input, target = random(3, 4).requires_grad_(), torch.tensor([0, 1, 3], device=DEVICE)
        loss, lse = gpuloss.cross_entropy(input, target, return_lse=True)
        with self.assertRaises(RuntimeError):
            lse.sum().backward()
        (got,) = torch.autograd.grad(loss, input)
        (want,) = torch.autograd.grad(gpuloss.cross_entropy(input, target), input)
        self.assertTrue(torch.equal(got, want))


class Differences(Case):
    """The differences from torch that README.md lists."""

    def test_ignored_rows_may_hold_anything(self):
        input = torch.tensor([[1.0, 2.0], [float("nan"), float("inf")]], device=DEVICE, requires_grad=True)
        target = torch.tensor([1, -100], device=DEVICE)
        loss = gpuloss.cross_entropy(input, target)
        loss.backward()
        self.assertTrue(loss.isfinite())
        self.assertTrue(torch.equal(input.grad[1], torch.zeros(2, device=DEVICE)))
        self.assertTrue(input.grad[0].abs().min() > 0)

    def test_target_out_of_range_is_nan(self):
        for bad in (-1, 3, 1 << 40):
            input = random(2, 3, dtype=torch.float32).requires_grad_()
            loss = gpuloss.cross_entropy(input, torch.tensor([bad, 1], device=DEVICE), reduction="none")
            loss.sum().backward()
            self.assertTrue(loss[0].isnan() and loss[1].isfinite())
            self.assertTrue(torch.equal(input.grad[0], torch.zeros(3, device=DEVICE)))

    def test_zero_times_infinity(self):
        input = torch.tensor([[0.0, float("-inf"), 1.0]], device=DEVICE)
        target = torch.tensor([[0.5, 0.0, 0.5]], device=DEVICE)
        self.assertTrue(F.cross_entropy(input, target).isnan())
        self.assertTrue(gpuloss.cross_entropy(input, target).isfinite())

    def test_weight_has_no_gradient_with_probabilities(self):
        weight = torch.ones(3, device=DEVICE, requires_grad=True)
        with self.assertRaisesRegex(RuntimeError, "weight: has no derivative"):
            gpuloss.cross_entropy(random(2, 3), probabilities(2, 3), weight)
        with torch.no_grad():
            gpuloss.cross_entropy(random(2, 3), probabilities(2, 3), weight)

    def test_one_row_with_a_target_of_one_dimension(self):
        input, target = random(4), torch.tensor([2], device=DEVICE)
        want = F.cross_entropy(input, target[0], label_smoothing=0.1)
        self.assert_within(gpuloss.cross_entropy(input, target, label_smoothing=0.1), want, 1e-14)


class Errors(Case):
    def test_the_mistakes_of_torch(self):
        x, y = torch.randn(3, 4), torch.tensor([0, 1, 2])
        long = torch.long
        mistakes = {
            "types of targets": [(x, y.to(dtype)) for dtype in (torch.int32, torch.int16, torch.bool, torch.float32)],
            "smoothed, 32 bits": [(x, y.int(), None, None, -100, None, "mean", 0.1)],
            "batch": [(x, y[:2]), (x, y[0])],
            "no dimensions": [(torch.tensor(1.0), y[0]), (torch.tensor(1.0), torch.tensor(1.0))],
            "dimensions": [(x, torch.zeros(3, 1, dtype=long)), (x[None], torch.zeros(1, dtype=long))],
            "sizes": [
                (torch.randn(2, 3, 4), torch.zeros(2, 5, dtype=long)),
                (torch.randn(2, 3, 4, 5), torch.zeros(2, 4, 4, dtype=long)),
                (torch.randn(2, 3, 4, 5), torch.zeros(2, 4, dtype=long)),
                (torch.randn(2, 3, 4, 5, 6), torch.zeros(2, 4, 5, 5, dtype=long)),
            ],
            "integers for probabilities": [(x, torch.zeros(3, 4, dtype=long))],
            "ignored probabilities": [(x, x, None, None, 1)],
            "smoothing": [(x, y, None, None, -100, None, "mean", 1.5), (x, x, None, None, -100, None, "mean", 1.5)],
            "weights": [
                (x, y, torch.ones(3)),
                (x, y, torch.ones(1, 4)),
                (x, y, torch.ones(4).double()),
                (x, y, torch.ones(4).long()),
                (x, x, torch.ones(3)),
                (x, x, torch.ones(4, 1)),
                (x, y, torch.ones(4, requires_grad=True)),
            ],
            "types": [(x.to(dtype), y) for dtype in (long, torch.bool, torch.complex64, torch.float8_e4m3fn)],
            "reduction": [(x, y, None, None, -100, None, name) for name in ("avg", "batchmean")],
            "not tensors": [([1], y), (x, [0, 1, 2]), (x, y, [1, 2])],
        }
        for name, calls in mistakes.items():
            for arguments in calls:
                with self.subTest(name=name, arguments=arguments):
                    self.assert_same_mistake(F.cross_entropy, gpuloss.cross_entropy, arguments)

    def test_two_targets_of_one_row(self):
        """Older versions of torch raise a RuntimeError."""
        arguments = random(4), torch.tensor([0, 1], device=DEVICE)
        with self.assertRaises((ValueError, RuntimeError)):
            F.cross_entropy(*arguments)
        with self.assertRaisesRegex(ValueError, "1D target must have size 1, but got target size: 2"):
            gpuloss.cross_entropy(*arguments)

    def test_mistakes_in_the_extras(self):
        x, y = random(3, 4), torch.tensor([0, 1, 2], device=DEVICE)
        for options, message in (
            ({"z_loss": -1.0}, r"lse_square_scale: .*-1"),
            ({"softcap": -2.0}, r"softcap: .*-2"),
            ({"logit_scale": 0.0}, r"logit_scale: .*got 0"),
            ({"label_smoothing": 0.1, "logit_scale": float("nan")}, r"logit_scale: .*nan"),
            ({"row_weights": random(4)}, r"row_weights: .*\[3\].*got \[4\]"),
        ):
            with self.subTest(options=options), self.assertRaisesRegex(ValueError, message):
                gpuloss.cross_entropy(x, y, **options)
        with self.assertRaisesRegex(RuntimeError, "row_weights: has no derivative"):
            gpuloss.cross_entropy(x, y, row_weights=random(3).requires_grad_())
        with self.assertRaisesRegex(TypeError, "row_weights.*list"):
            gpuloss.cross_entropy(x, y, row_weights=[1, 2, 3])
        with self.assertRaisesRegex(ValueError, r"input: has no classes \(got \[0, 0\]\)"):
            gpuloss.cross_entropy(random(0, 0), y[:0], return_lse=True)
        with self.assertRaisesRegex(ValueError, "correct: "):
            gpuloss.cross_entropy(x, x, return_correct=True)


if __name__ == "__main__":
    unittest.main()
