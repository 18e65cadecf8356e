"""kl_div against torch's in double; the other divergences against their formulas."""

import inspect
import itertools
import unittest
import warnings

import torch
import torch.nn.functional as F
from bounds import Divergence, KLDiv, Side, unit
from device import DEVICE, gpuloss
from support import FLOATS, Case, doubles, gradients, probabilities, random, samples_of_torch, upstream_of
from torch.autograd import gradcheck

REDUCTIONS = ("none", "mean", "sum", "batchmean")


class KLDivCase(Case):
    def check(self, input, target, reduction="mean", log_target=False, dtype_of_loss=None):
        """Loss and both gradients, against torch's for the same numbers in double."""
        loss = gpuloss.kl_div(input, target, reduction=reduction, log_target=log_target)
        self.assertEqual(loss.dtype, dtype_of_loss or input.dtype)
        x, t = doubles(input), doubles(target)
        want = F.kl_div(x, t, reduction=reduction, log_target=log_target)
        upstream = upstream_of(loss)
        arithmetic = torch.float64 if loss.dtype == torch.float64 else torch.float32
        wide = torch.broadcast_tensors(x.detach(), t.detach())
        bounds = KLDiv(*wide, log_target, arithmetic)
        divisor = {"mean": wide[0].numel(), "batchmean": input.shape[0] if input.dim() else 1}.get(reduction, 1)
        if reduction == "none":
            self.assert_within(loss, want, bounds.elements())
        else:
            self.assert_within(loss, want, bounds.sums(divisor, want.detach()))
        factors = (upstream.double() / divisor).expand(wide[0].shape)
        got, wanted = gradients(loss, upstream, input, target), gradients(want, upstream, x, t)
        elementwise = bounds.input_gradient(factors), bounds.target_gradient(factors, log_target)
        for leaf, mine, theirs, bound in zip((input, target), got, wanted, elementwise):
            if leaf.requires_grad:
                self.assertEqual(mine.dtype, leaf.dtype)
                if leaf.shape != bound.shape:
                    # Broadcasting adds up gradients that are rounded to the type of one leaf or the other, one by one.
                    eps = max(torch.finfo(dtype).eps for dtype in (input.dtype, target.dtype))
                    magnitudes = factors.abs() * (bounds.t + 1 if leaf is target else bounds.t) * (bounds.reach + 2)
                    bound = bound + eps * magnitudes.numel() * magnitudes
                self.assert_within(mine, theirs, bound.sum_to_size(leaf.shape))


class KLDivSamples(KLDivCase):
    def test_samples_of_torch(self):
        for dtype in FLOATS:
            for number, sample in enumerate(samples_of_torch("nn.functional.kl_div", dtype)):
                with self.subTest(dtype=dtype, number=number):
                    self.check(sample.input, sample.args[0], **sample.kwargs)
                    self.check(sample.input, sample.args[0].detach().requires_grad_(), **sample.kwargs)

    def test_gradcheck_of_samples(self):
        for number, sample in enumerate(samples_of_torch("nn.functional.kl_div", torch.float64)):
            with self.subTest(number=number):
                target = sample.args[0].detach().requires_grad_()
                gradcheck(lambda x, t: gpuloss.kl_div(x, t, **sample.kwargs), (sample.input, target))


class KLDivArguments(KLDivCase):
    def test_signature_begins_as_that_of_torch(self):
        ours = list(inspect.signature(gpuloss.kl_div).parameters.values())
        theirs = list(inspect.signature(F.kl_div).parameters.values())
        self.assertEqual([(p.name, p.default) for p in ours[: len(theirs)]], [(p.name, p.default) for p in theirs])
        self.assertTrue(all(p.kind == p.KEYWORD_ONLY for p in ours[len(theirs) :]))

    def test_legacy_arguments(self):
        input, target = random(4, 3), probabilities(4, 3)
        for arguments in itertools.product((None, True, False), (None, True, False), REDUCTIONS):
            with self.subTest(arguments=arguments):
                want = F.kl_div(input, target, *arguments)
                self.assert_within(gpuloss.kl_div(input, target, *arguments), want, 1e-13)

    def test_mean_warns(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gpuloss.kl_div(random(2, 3), probabilities(2, 3))
            self.assertEqual([warning.filename for warning in caught], [__file__])
            gpuloss.kl_div(random(2, 3), probabilities(2, 3), reduction="batchmean")
            self.assertEqual(len(caught), 1)

    def test_types_of_both_sides(self):
        for dtype, target_dtype in itertools.product(FLOATS, FLOATS):
            for log_target, reduction in ((False, "batchmean"), (True, "none")):
                with self.subTest(dtype=dtype, target_dtype=target_dtype, log_target=log_target):
                    input = random(3, 4, dtype=dtype).requires_grad_()
                    target = probabilities(3, 4, dtype=target_dtype)
                    target = (target.log() if log_target else target).detach().requires_grad_()
                    dtype_of_loss = F.kl_div(input, target).dtype
                    self.check(input, target, reduction, log_target, dtype_of_loss=dtype_of_loss)

    def test_a_side_without_dimensions_has_no_say_in_the_type(self):
        for dtype, target_dtype in itertools.product(FLOATS, FLOATS):
            for shapes in (((), (2, 3)), ((2, 3), ()), ((), ())):
                with self.subTest(dtype=dtype, target_dtype=target_dtype, shapes=shapes):
                    input = random(*shapes[0], dtype=dtype)
                    target = random(*shapes[1], dtype=target_dtype).abs() + 0.5
                    for reduction in ("none", "batchmean"):
                        want = F.kl_div(input, target, reduction=reduction)
                        got = gpuloss.kl_div(input, target, reduction=reduction)
                        self.assertEqual((got.dtype, got.shape), (want.dtype, want.shape))

    def test_autocast_gives_float(self):
        input = random(3, 4, dtype=torch.bfloat16).requires_grad_()
        target = probabilities(3, 4, dtype=torch.bfloat16)
        with torch.autocast(DEVICE, torch.bfloat16):
            for reduction in ("none", "sum"):
                self.check(input, target, reduction, dtype_of_loss=F.kl_div(input, target).dtype)


class KLDivShapes(KLDivCase):
    def test_broadcasting(self):
        shapes = (
            ((4, 5), (5,)),
            ((4, 5), (1, 5)),
            ((5,), (4, 5)),
            ((4, 1), (1, 5)),
            ((2, 3, 5), (3, 5)),
            ((), (2, 3)),
            ((2, 3), ()),
            ((1,), (3, 1)),
            ((2, 3, 5), (5,)),
            ((2, 1, 3), (4, 1)),
        )
        for dtype in (torch.float64, torch.bfloat16):
            for (shape, target_shape), reduction in itertools.product(shapes, REDUCTIONS):
                for needs in ((True, True), (True, False)):
                    with self.subTest(dtype=dtype, shape=shape, target_shape=target_shape, reduction=reduction):
                        input = random(*shape, dtype=dtype).requires_grad_(needs[0])
                        target = (random(*target_shape, dtype=dtype).abs() + 0.25).requires_grad_(needs[1])
                        self.check(input, target, reduction)

    def test_one_row_for_all_is_not_copied(self):
        if DEVICE == "cuda":
            self.skipTest("counts arrays that the interpreter was given")
        calls = gpuloss.library.current().calls
        gpuloss.kl_div(random(6, 5).requires_grad_(), probabilities(5), reduction="sum").backward()
        self.assertEqual([fields["target"] for _, fields in calls[-2:]], [(5,), (5,)])

    def test_strides(self):
        for reduction in REDUCTIONS:
            whole = random(4, 9).requires_grad_()
            self.check(whole[:, 2:7], probabilities(4, 5), reduction)
            self.check(random(5, 4).t().requires_grad_(), probabilities(4, 5).requires_grad_(), reduction)
            self.check(
                random(1, 5).expand(4, 5).requires_grad_(), probabilities(4, 10)[:, ::2].requires_grad_(), reduction
            )
            last = {"memory_format": torch.channels_last}
            input = random(2, 3, 4, 5).contiguous(**last).requires_grad_()
            self.check(input, probabilities(2, 3, 4, 5).contiguous(**last).requires_grad_(), reduction)
            self.check(input, probabilities(2, 3, 4, 5).requires_grad_(), reduction)

    def test_channels_last_is_not_copied(self):
        last = {"memory_format": torch.channels_last}
        input = random(2, 3, 4, 5).contiguous(**last)
        loss = gpuloss.kl_div(input, probabilities(2, 3, 4, 5).contiguous(**last), reduction="none")
        self.assertEqual(loss.stride(), input.stride())

    def test_empty(self):
        for shape, reduction in itertools.product(((0, 3), (3, 0), (0,), (2, 0, 3)), REDUCTIONS):
            input = random(*shape).requires_grad_()
            want = F.kl_div(input, random(*shape), reduction=reduction)
            self.assert_within(gpuloss.kl_div(input, random(*shape), reduction=reduction), want, 0)


class KLDivCorners(Case):
    def check_exactly(self, input, target, log_target, reduction):
        """Against torch's for the same numbers: no more than a few roundings, and NaN where torch has NaN."""
        ours, theirs = ([doubles(tensor) for tensor in (input, target)] for _ in range(2))
        want = F.kl_div(*theirs, reduction=reduction, log_target=log_target)
        got = gpuloss.kl_div(*ours, reduction=reduction, log_target=log_target)
        self.assert_within(got, want, 1e-15)
        upstream = upstream_of(got)
        for mine, other in zip(gradients(got, upstream, *ours), gradients(want, upstream, *theirs)):
            if other is not None:
                self.assert_within(mine, other, 1e-15)

    def test_zeros_and_infinities_are_those_of_torch(self):
        infinity = float("inf")
        input = torch.tensor([[-infinity, -1.0, -infinity, infinity, 0.5]], dtype=torch.float64, device=DEVICE)
        target = torch.tensor([[0.0, 0.0, 0.5, 0.5, 1.5]], dtype=torch.float64, device=DEVICE)
        for reduction, log_target, needs in itertools.product(("none", "sum"), (False, True), (False, True)):
            with self.subTest(reduction=reduction, log_target=log_target, needs=needs):
                given = target.log() if log_target else target
                self.check_exactly(input.requires_grad_(), given.clone().requires_grad_(needs), log_target, reduction)

    def test_negative_targets(self):
        """Their gradient is NaN, also in torch. If the target needs a gradient, that of the input is NaN too."""
        input = torch.tensor([[0.5, 0.25]], dtype=torch.float64, device=DEVICE).requires_grad_()
        target = torch.tensor([[-0.5, 0.5]], dtype=torch.float64, device=DEVICE)
        for reduction in ("none", "sum"):
            self.check_exactly(input, target, False, reduction)
            both = input, target.clone().requires_grad_()
            for gradient in torch.autograd.grad(gpuloss.kl_div(*both, reduction=reduction).sum(), both):
                self.assertEqual(gradient.isnan().tolist(), [[True, False]])

    def test_zeros_of_the_library(self):
        input = torch.tensor([[float("-inf"), -1.0]], device=DEVICE)
        target = torch.tensor([[0.0, 1.0]], device=DEVICE)
        self.assertTrue(gpuloss.kl_div(input, target, reduction="sum").isnan())
        self.assertEqual(gpuloss.kl_div(input, target, reduction="sum", pytorch_zeros=False).item(), 1.0)

    def test_retained_graph_and_second_backward(self):
        leaves = random(4, 6).requires_grad_(), probabilities(4, 6).requires_grad_()
        for reduction in REDUCTIONS:
            loss = gpuloss.kl_div(*leaves, reduction=reduction)
            first = torch.autograd.grad(loss, leaves, torch.ones_like(loss), retain_graph=True)
            doubled = torch.autograd.grad(loss, leaves, 2 * torch.ones_like(loss))
            for a, b in zip(first, doubled):
                self.assertTrue(torch.equal(2 * a, b))

    def test_second_derivatives_are_refused(self):
        input = random(2, 3).requires_grad_()
        (gradient,) = torch.autograd.grad(gpuloss.kl_div(input, probabilities(2, 3)), input, create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "trying to differentiate twice"):
            gradient.sum().backward()

    def test_the_mistakes_of_torch(self):
        x, p = torch.randn(3, 4), torch.rand(3, 4)
        for arguments in (
            (x, p.long()),
            (x.long(), p),
            (x, p.bool()),
            (x.cfloat(), p),
            (x, p.cfloat()),
            (x, p[:, :3]),
            (x.to(torch.float8_e4m3fn), p.to(torch.float8_e4m3fn)),
            ([1.0], p),
            (x, [1.0]),
            (x, p, None, None, "avg"),
        ):
            with self.subTest(arguments=arguments):
                self.assert_same_mistake(F.kl_div, gpuloss.kl_div, arguments)


KINDS = ("probabilities", "log_probabilities", "logits")
DIVERGENCES = ("forward_kl", "reverse_kl", "jensen_shannon", "total_variation")


def side(kind, *shape, dtype):
    if kind == "logits":
        return random(*shape, dtype=dtype)
    tensor = random(*shape).softmax(-1)
    return (tensor.log() if kind == "log_probabilities" else tensor).to(dtype)


class Divergences(Case):
    def check(
        self,
        input,
        target,
        kinds,
        divergence,
        reduction="batchmean",
        beta=None,
        factors=None,
        labels=None,
        temperature=None,
        temperature_squared=False,
        **options,
    ):
        loss = gpuloss.divergence(
            input,
            target,
            input_kind=kinds[0],
            target_kind=kinds[1],
            divergence=divergence,
            reduction=reduction,
            beta=beta,
            row_weights=factors,
            labels=labels,
            temperature=temperature,
            temperature_squared=temperature_squared,
            **options,
        )
        results = torch.float64 if input.dtype == torch.float64 else torch.float32
        self.assertEqual(loss.dtype, results)
        x, t = doubles(input), doubles(target)
        rows = input.shape[:-1]
        r = torch.ones(rows, dtype=torch.float64, device=DEVICE) if factors is None else factors.double()
        counted = torch.ones_like(r) if labels is None else (labels != options.get("ignore_index", -100)).double()
        cooled = temperature or 1.0
        r = r * counted * (cooled**2 if temperature_squared else 1)
        eps = options.get("eps", 0.0)
        sides = [Side(tensor, kind, cooled, eps, results) for tensor, kind in zip((x, t), kinds)]
        bounds = Divergence(*sides, divergence, 0.5 if beta is None else beta, r, cooled, results)
        count = counted.sum()
        divisor = {"batchmean": count, "mean": count * input.shape[-1]}.get(reduction, 1.0)
        want, bound = bounds.losses, bounds.loss_bound()
        if reduction != "none":
            want, bound = want.sum() / divisor, bound.sum() / divisor
        self.assert_within(loss, want, bound + 8 * bounds.u * want.detach().abs())
        upstream = upstream_of(loss)
        got, wanted = gradients(loss, upstream, input, target), gradients(want, upstream, x, t)
        for number, leaf in enumerate((input, target)):
            if leaf.requires_grad:
                each = bounds.gradient_bound(number, kinds[number], (upstream.double() / divisor).expand(rows))
                # A gradient of a target for all rows is a sum of rounded gradients.
                each = (
                    (each + torch.finfo(leaf.dtype).eps * each.sum()).sum_to_size(leaf.shape)
                    if each.shape != leaf.shape
                    else each
                )
                self.assert_within(got[number], wanted[number], each)

    def test_kinds_and_divergences(self):
        for dtype in (torch.float64, torch.float32):
            for kinds in itertools.product(KINDS, KINDS):
                for divergence in DIVERGENCES:
                    with self.subTest(dtype=dtype, kinds=kinds, divergence=divergence):
                        input = side(kinds[0], 3, 5, dtype=dtype).requires_grad_()
                        target = side(kinds[1], 3, 5, dtype=dtype).requires_grad_()
                        self.check(input, target, kinds, divergence)

    def test_options(self):
        logits = ("logits", "logits")
        for dtype, target_dtype in ((torch.bfloat16, torch.float32), (torch.float16, torch.float16)):
            input = random(2, 3, 6, dtype=dtype).requires_grad_()
            target = random(2, 3, 6, dtype=target_dtype).requires_grad_()
            factors = torch.rand(2, 3, dtype=torch.float64).to(DEVICE)
            labels = torch.tensor([[1, -100, 2], [-7, 0, -100]], device=DEVICE)
            for divergence in DIVERGENCES:
                for reduction in REDUCTIONS:
                    with self.subTest(dtype=dtype, divergence=divergence, reduction=reduction):
                        beta = 0.3 if divergence == "jensen_shannon" else None
                        self.check(input, target, logits, divergence, reduction, beta, factors, labels.int(), 2.5, True)
                        self.check(
                            input, target, logits, divergence, reduction, beta, None, labels, 0.5, ignore_index=-7
                        )

    def test_eps(self):
        kinds = ("probabilities", "probabilities")
        input = side(kinds[0], 4, 5, dtype=torch.float64).requires_grad_()
        target = side(kinds[1], 4, 5, dtype=torch.float64).requires_grad_()
        for divergence in ("forward_kl", "reverse_kl"):
            self.check(input, target, kinds, divergence, eps=1e-3)

    def test_target_for_all_rows(self):
        for needs in (False, True):
            for reduction in ("none", "sum"):
                input = random(2, 3, 5).requires_grad_()
                self.check(input, random(5).requires_grad_(needs), ("logits", "logits"), "forward_kl", reduction)

    def test_default_of_jensen_shannon_is_symmetric(self):
        a, b = random(3, 4), random(3, 4)
        options = {"input_kind": "logits", "target_kind": "logits", "divergence": "jensen_shannon"}
        self.assert_within(gpuloss.divergence(a, b, **options), gpuloss.divergence(b, a, **options), 1e-15)

    def test_zeros(self):
        options = {"input_kind": "probabilities", "target_kind": "probabilities"}
        zero = torch.tensor([[0.0, 1.0]], device=DEVICE)
        self.assertEqual(gpuloss.divergence(zero, zero, **options).item(), 0.0)
        self.assertTrue(gpuloss.divergence(zero, zero, pytorch_zeros=True, **options).isnan())

    def test_errors(self):
        x = random(3, 4)
        options = {"input_kind": "logits", "target_kind": "logits"}
        for arguments, change, kind, message in (
            ((x, x), {"input_kind": "logit"}, ValueError, "input_kind: is one of probabilities, .*'logit'"),
            ((x, x), {"target_kind": None}, ValueError, "target_kind: .*None"),
            ((x, x), {"divergence": "js"}, ValueError, "divergence: is one of forward_kl, .*'js'"),
            ((x, x), {"reduction": "avg"}, ValueError, "reduction: is one of none, .*'avg'"),
            ((x, x), {"beta": 0.5}, ValueError, "beta: is of jensen_shannon .*0.5 with forward_kl"),
            ((x, x), {"beta": 1.5, "divergence": "jensen_shannon"}, ValueError, "beta: .*1.5"),
            ((x, x), {"temperature": 0.0}, ValueError, "temperature: must not be 0"),
            ((x, x), {"temperature": -1.0}, ValueError, "temperature: .*-1"),
            ((x, x), {"eps": 0.1}, ValueError, "eps: "),
            ((x, x), {"row_weights": random(4)}, ValueError, r"row_weights: .*\[3\].*\[4\]"),
            ((x, x), {"labels": torch.zeros(4, dtype=torch.long)}, ValueError, r"labels: .*\[3\].*\[4\]"),
            ((x, x), {"labels": torch.zeros(3)}, TypeError, "labels: .*float32"),
            ((x, x[:2]), {}, ValueError, r"target: .*\[3, 4\].*\[2, 4\]"),
            ((x, x.long()), {}, NotImplementedError, "target .*int64"),
            ((x[:, :0], x[:, :0]), {}, ValueError, r"input: must have classes .*\[3, 0\]"),
            (([1.0], x), {}, TypeError, "input.*list"),
        ):
            with self.subTest(change=change), self.assertRaisesRegex(kind, message):
                gpuloss.divergence(*arguments, **{**options, **change})


class SparseDivergences(Case):
    """Against the formulas for dense distributions."""

    def setUp(self):
        super().setUp()
        self.logits = random(3, 4, 7).requires_grad_()
        self.indices = torch.stack([torch.randperm(7)[:3] for _ in range(12)]).view(3, 4, 3).to(DEVICE)
        self.values = (0.8 * torch.randn(3, 4, 3, dtype=torch.float64).softmax(-1)).to(DEVICE)

    def sides(self, logits, values, residual, temperature, dtype):
        """Both as dense distributions, for the bucket of k + 1 classes. 1 - Q has the absolute error of Q, and 1 - P
        that of k additions."""
        q = Side(logits, "logits", temperature, 0.0, dtype)
        if residual == "bucket":
            left, known = 1 - values.sum(-1, keepdim=True), q.p.gather(-1, self.indices)
            p = torch.cat([values, left], -1)
            rest = 1 - known.sum(-1, keepdim=True)
            lost = q.error.amax(-1, keepdim=True) + 5 * unit(dtype)
            q.error = torch.cat([q.error.gather(-1, self.indices), lost / rest.detach()], -1)
            q.p = torch.cat([known, rest], -1)
            q.log = q.p.log()
            left = 5 / left
        else:
            values = values / values.sum(-1, keepdim=True) if residual == "renormalize" else values
            p = torch.zeros_like(q.p).scatter(-1, self.indices, values)
            left = 5
        t = Side(torch.where(p == 0, 1.0, p), "probabilities", 1.0, 0.0, dtype)
        t.p, t.error = p, t.error + unit(dtype) * left
        return q, t

    def losses(self, q, p, divergence, beta=0.5):
        def log_of(d):
            """p log(p / d), whose derivative is not NaN where p is 0."""
            return p * torch.where(p == 0, 1.0, p / d).log()

        if divergence == "forward_kl":
            f = log_of(q)
        elif divergence == "reverse_kl":
            f = q * (q / p).log()
        elif divergence == "jensen_shannon":
            m = beta * p + (1 - beta) * q
            f = beta * log_of(m) + (1 - beta) * q * (q / m).log()
        else:
            f = (p - q).abs() / 2
        return f.sum(-1)

    def test_residuals_and_divergences(self):
        factors = torch.rand(3, 4, dtype=torch.float64).to(DEVICE)
        for residual, divergence in itertools.product(("drop", "renormalize", "bucket"), DIVERGENCES):
            if divergence == "reverse_kl" and residual != "bucket":
                continue
            for kind, dtype, index_dtype in (
                ("probabilities", torch.float64, torch.int64),
                ("log_probabilities", torch.float64, torch.int32),
                ("probabilities", torch.float32, torch.uint8),
            ):
                for reduction in REDUCTIONS:
                    with self.subTest(residual=residual, divergence=divergence, kind=kind, reduction=reduction):
                        values = self.values.log() if kind == "log_probabilities" else self.values
                        logits = self.logits.detach().to(dtype).requires_grad_()
                        values = values.to(dtype)
                        loss = gpuloss.sparse_divergence(
                            logits,
                            self.indices.to(index_dtype),
                            values,
                            value_kind=kind,
                            residual=residual,
                            divergence=divergence,
                            reduction=reduction,
                            row_weights=factors,
                            temperature=1.5,
                            temperature_squared=True,
                        )
                        x = doubles(logits)
                        exact = values.double().exp() if kind == "log_probabilities" else values.double()
                        q, t = self.sides(x, exact, residual, 1.5, dtype)
                        r = 1.5**2 * factors
                        want = r * self.losses(q.p, t.p, divergence)
                        bounds = Divergence(q, t, divergence, 0.5, r, 1.5, dtype)
                        bound, whole = bounds.loss_bound(), bounds.gradient_bound(0, "logits", torch.ones_like(r))
                        # The bucket's gradient goes to its classes in parts of it.
                        whole = 2 * whole.sum(-1, keepdim=True)
                        divisor = {"batchmean": 12, "mean": 84}.get(reduction, 1)
                        if reduction != "none":
                            want, bound = want.sum() / divisor, bound.sum() / divisor
                        self.assert_within(loss, want, bound)
                        upstream = upstream_of(loss)
                        scale = (upstream.double() / divisor).abs().expand(r.shape)[..., None]
                        self.assert_within(
                            *gradients(loss, upstream, logits), *gradients(want, upstream, x), scale * whole
                        )

    def test_labels(self):
        labels = torch.randint(0, 2, (3, 4), device=DEVICE)
        counted = (labels != 1).double()
        loss = gpuloss.sparse_divergence(
            self.logits,
            self.indices,
            self.values,
            value_kind="probabilities",
            residual="drop",
            labels=labels,
            ignore_index=1,
        )
        q, t = self.sides(self.logits, self.values, "drop", 1.0, torch.float64)
        bound = Divergence(q, t, "forward_kl", 0.0, counted, 1.0, torch.float64).loss_bound().sum() / counted.sum()
        self.assert_within(loss, (counted * self.losses(q.p, t.p, "forward_kl")).sum() / counted.sum(), bound)

    def test_bad_indices(self):
        options = {"value_kind": "probabilities", "residual": "drop", "reduction": "none"}
        self.indices[0, 1, 2], self.indices[2, 3, 0], self.indices[2, 3, 1] = 7, -1, 1 << 40
        loss, bad = gpuloss.sparse_divergence(
            self.logits, self.indices, self.values, return_bad_indices=True, **options
        )
        self.assertEqual(bad.item(), 3)
        self.assertEqual(loss.isnan().nonzero().tolist(), [[0, 1], [2, 3]])
        (gradient,) = torch.autograd.grad(loss.nansum(), self.logits)
        self.assertTrue(gradient.isfinite().all())

    def test_errors(self):
        arguments = {"logits": self.logits, "indices": self.indices, "values": self.values}
        options = {"value_kind": "probabilities", "residual": "drop"}
        for change, kind, message in (
            ({"value_kind": "logits"}, ValueError, "value_kind: "),
            ({"value_kind": "x"}, ValueError, "value_kind: is one of .*'x'"),
            ({"residual": "keep"}, ValueError, "residual: is one of drop, renormalize, bucket .*'keep'"),
            ({"divergence": "reverse_kl"}, ValueError, "residual: "),
            ({"indices": self.indices[:2]}, ValueError, r"indices: .*\[3, 4\].*\[2, 4, 3\]"),
            ({"values": self.values[..., :2]}, ValueError, r"indices: .*\[3, 4, 3\]"),
            ({"indices": self.indices.double()}, TypeError, "indices: .*float64"),
            ({"values": self.values.long()}, NotImplementedError, "values .*int64"),
            ({"values": self.values.clone().requires_grad_()}, RuntimeError, "values: has no derivative"),
            ({"labels": torch.zeros(3, dtype=torch.long)}, ValueError, "labels: "),
        ):
            with self.subTest(change=change), self.assertRaisesRegex(kind, message):
                gpuloss.sparse_divergence(**{**arguments, **options, **change})


if __name__ == "__main__":
    unittest.main()
