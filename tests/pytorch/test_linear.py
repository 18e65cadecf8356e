"""linear_cross_entropy against the linear layer and cross-entropy of torch in double, over all rows at once."""

import unittest

import torch
import torch.nn.functional as F
from bounds import CrossEntropy, unit
from device import DEVICE, gpuloss
from gpuloss.linear import chunk_sizes
from support import Case, doubles, gradients, random, upstream_of

ROWS, FEATURES, CLASSES = 7, 6, 5


def chunk_bytes_of(rows, dtype):
    """For that many rows of a layer without bias."""
    return rows * CLASSES * dtype.itemsize


class Linear(Case):
    def setUp(self):
        super().setUp()
        self.targets = torch.tensor([1, 2, -100, 4, 0, -100, 1], device=DEVICE)

    def layer(self, dtype=torch.float64, bias=True):
        return [
            random(ROWS, FEATURES, dtype=dtype, spread=1.0).requires_grad_(),
            random(CLASSES, FEATURES, dtype=dtype, spread=1.0).requires_grad_(),
            random(CLASSES, dtype=dtype, spread=1.0).requires_grad_() if bias else None,
        ]

    def check(self, hidden, weight, bias, targets, chunk_bytes, weight_grad_dtype=None, **options):
        """A product that sums up n numbers is off by n + 2 roundings of the arithmetic. A sum of chunks has one more
        for each, of the type that it is in. Logits are rounded to their type, and so are their gradients."""
        loss = gpuloss.linear_cross_entropy(
            hidden, weight, targets, bias, chunk_bytes=chunk_bytes, weight_grad_dtype=weight_grad_dtype, **options
        )
        dtype = hidden.dtype
        results = torch.float64 if dtype == torch.float64 else torch.float32
        self.assertEqual(loss.dtype, results)
        h, w = doubles(hidden), doubles(weight)
        b = None if bias is None else doubles(bias)
        logits = F.linear(h, w, b).reshape(-1, CLASSES)
        u, rounding = unit(dtype), torch.finfo(dtype).eps / 2
        magnitudes = F.linear(h.abs(), w.abs(), None if b is None else b.abs()).detach().reshape(-1, CLASSES)
        logit_error = ((FEATURES + 2) * u * magnitudes + rounding * logits.detach().abs()).amax(1, keepdim=True)
        formula = CrossEntropy(logits, targets.reshape(-1), logit_error=logit_error, **options)
        want = formula.loss()
        # The chunks' losses are added up.
        count = targets.numel()
        self.assert_within(loss, want, formula.loss_bound(results) + count * u * formula.losses.detach().abs().sum())
        leaves, exact = [t for t in (hidden, weight, bias) if t is not None], [t for t in (h, w, b) if t is not None]
        upstream = upstream_of(loss)
        (of_logits,) = torch.autograd.grad(want, logits, upstream.double(), retain_graph=True)
        got, wanted = gradients(loss, upstream, *leaves), gradients(want, upstream, *exact)
        error = formula.gradient_bound(results, upstream) + 2 * rounding * of_logits.abs()
        size = of_logits.abs() + error
        added = torch.finfo(weight_grad_dtype or dtype).eps / 2
        rows = h.detach().abs().reshape(-1, FEATURES)
        weights = w.detach().abs()
        bounds = [
            ((error + (CLASSES + 2) * u * size) @ weights).view(h.shape),
            (error + (count * (u + added) + 2 * rounding) * size).t() @ rows,
            (error + (count * (u + added) + 2 * rounding) * size).sum(0),
        ]
        bounds = [bound for bound, leaf in zip(bounds, (hidden, weight, bias)) if leaf is not None]
        for leaf, mine, theirs, bound in zip(leaves, got, wanted, bounds, strict=True):
            if leaf.requires_grad:
                self.assertEqual(mine.dtype, leaf.dtype)
                # It is scaled once more in its own type.
                self.assert_within(mine, theirs, bound + 2 * torch.finfo(leaf.dtype).eps * (theirs.abs() + bound))

    def test_chunks(self):
        for rows in (1, 2, 3, 4, ROWS, 100):
            for bias in (False, True):
                for reduction in ("mean", "sum"):
                    with self.subTest(rows=rows, bias=bias, reduction=reduction):
                        chunk_bytes = chunk_bytes_of(rows, torch.float64) + bias * 16 * CLASSES
                        self.check(*self.layer(bias=bias), self.targets, chunk_bytes, reduction=reduction)

    def test_types(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for added in (None, torch.float32):
                with self.subTest(dtype=dtype, added=added):
                    self.check(*self.layer(dtype), self.targets, 1, added)
                    self.check(*self.layer(dtype), self.targets, 1 << 20, added)

    def test_sums_in_float_are_better(self):
        """512 chunks of 1 row, all alike: in bfloat16 a sum of ones stays at 256."""
        rows = 512
        hidden = torch.ones(rows, 1, dtype=torch.bfloat16, device=DEVICE)
        weight = torch.zeros(2, 1, dtype=torch.bfloat16, device=DEVICE).requires_grad_()
        targets = torch.zeros(rows, dtype=torch.long, device=DEVICE)
        results = {}
        for added in (None, torch.float32):
            loss = gpuloss.linear_cross_entropy(
                hidden, weight, targets, reduction="sum", chunk_bytes=1, weight_grad_dtype=added
            )
            (gradient,) = torch.autograd.grad(loss, weight)
            results[added] = gradient[1].item()
        self.assertEqual(results[torch.float32], rows / 2)
        self.assertLess(results[None], rows / 2)

    def test_options(self):
        for options in (
            {"label_smoothing": 0.2},
            {"z_loss": 0.1},
            {"softcap": 2.0},
            {"logit_scale": 0.5},
            {"ignore_index": 1},
        ):
            with self.subTest(options=options):
                self.check(*self.layer(), self.targets % CLASSES, 100, **options)

    def test_which_gradients(self):
        for needs in ((True, False, False), (False, True, False), (False, False, True), (True, True, False)):
            with self.subTest(needs=needs):
                self.check(*[leaf.requires_grad_(n) for leaf, n in zip(self.layer(), needs)], self.targets, 100)

    def test_shapes(self):
        _, weight, bias = self.layer()
        for shape in ((2, 3), (1,), (2, 2, 2)):
            hidden = random(*shape, FEATURES).requires_grad_()
            self.check(hidden, weight, bias, torch.randint(0, CLASSES, shape, device=DEVICE), 100)
        hidden = random(FEATURES).requires_grad_()
        self.check(hidden, weight, bias, torch.tensor(3, device=DEVICE), 100)
        transposed = random(FEATURES, ROWS).t().requires_grad_()
        self.check(transposed, random(FEATURES, CLASSES).t().requires_grad_(), bias, self.targets, 100)

    def test_all_ignored_and_no_rows(self):
        hidden, weight, bias = self.layer()
        for targets in (torch.full((ROWS,), -100, device=DEVICE), torch.zeros(0, dtype=torch.long, device=DEVICE)):
            for reduction in ("mean", "sum"):
                with self.subTest(rows=len(targets), reduction=reduction):
                    part = hidden[: len(targets)]
                    loss = gpuloss.linear_cross_entropy(
                        part, weight, targets, bias, reduction=reduction, chunk_bytes=100
                    )
                    want = F.cross_entropy(F.linear(part, weight, bias), targets, reduction=reduction)
                    self.assert_within(loss, want, 0)
                    for gradient in torch.autograd.grad(loss, (hidden, weight, bias)):
                        self.assertEqual(gradient.abs().sum().item(), 0)

    def test_retained_graph_and_second_backward(self):
        leaves = self.layer()
        loss = gpuloss.linear_cross_entropy(leaves[0], leaves[1], self.targets, leaves[2], chunk_bytes=100)
        first = torch.autograd.grad(loss, leaves, retain_graph=True)
        tripled = torch.autograd.grad(3 * loss, leaves)
        for a, b in zip(first, tripled):
            self.assertTrue(torch.equal(3 * a, b))

    def test_gradients_are_what_forward_has_saved(self):
        """Another array for each would double the memory. A graph that is kept needs what is saved."""
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            for keeps in (True, False):
                hidden, weight, _ = self.layer(dtype, bias=False)
                loss = gpuloss.linear_cross_entropy(hidden, weight, self.targets)
                saved = loss.grad_fn.saved_tensors[:2]
                for array, got in zip(saved, torch.autograd.grad(loss, (hidden, weight), retain_graph=keeps)):
                    with self.subTest(dtype=dtype, keeps=keeps):
                        self.assertEqual(array.data_ptr() == got.data_ptr(), not keeps)

    def test_upstream_gradient_beyond_float16(self):
        """A gradient scaler begins with 65536."""
        hidden, weight, _ = self.layer(torch.float16, bias=False)
        for keeps_graph in (True, False):
            loss = gpuloss.linear_cross_entropy(hidden, weight, self.targets)
            ones = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
            scaled = torch.autograd.grad(loss, (hidden, weight), loss.new_tensor(65536.0), retain_graph=keeps_graph)
            for one, got in zip(ones, scaled):
                self.assertTrue(torch.equal(got, (one.double() * 65536).half()))

    def test_second_derivatives_are_refused(self):
        hidden, weight, _ = self.layer()
        loss = gpuloss.linear_cross_entropy(hidden, weight, self.targets)
        (gradient,) = torch.autograd.grad(loss * loss, hidden, create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "trying to differentiate twice"):
            gradient.sum().backward()

    def test_autocast(self):
        hidden, weight, bias = self.layer(torch.float32)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = gpuloss.linear_cross_entropy(hidden, weight, self.targets, bias)
        narrow = [leaf.detach().bfloat16() for leaf in (hidden, weight, bias)]
        want = gpuloss.linear_cross_entropy(narrow[0], narrow[1], self.targets, narrow[2])
        self.assertTrue(torch.equal(loss, want))
        self.assertEqual([g.dtype for g in torch.autograd.grad(loss, (hidden, weight, bias))], [torch.float32] * 3)

    def test_sizes_of_a_chunk(self):
        """bf16: 2 bytes for a logit and for an element of a product, which gets half; 6 bytes a class for the bias. There is
        space for 1046, 523, 2097, 1046, 1048, 2097 and 110 rows."""
        mib, bf16, f32 = 1 << 20, torch.bfloat16, torch.float32
        for arguments, rows, at_once in (
            ((8192, 128256, 4096, bf16, bf16, False, True, 256 * mib), 1024, 128256),
            ((8192, 128256, 4096, bf16, f32, False, True, 256 * mib), 512, 128 * mib // (2 * 4096)),
            ((8192, 32000, 1024, bf16, f32, False, True, 256 * mib), 2048, 32000),
            ((8192, 32000, 1024, bf16, bf16, True, True, 64 * mib), 1024, 32000),
            ((8192, 32000, 4096, bf16, f32, True, False, 64 * mib), 1024, 32000),
            ((10000, 32000, 4096, bf16, bf16, False, True, 128 * mib), 2048, 32000),
            ((300, 1000, 4096, bf16, bf16, False, True, 220000), 100, 1000),
            ((10, 32000, 4096, bf16, bf16, False, True, 256 * mib), 10, 32000),
            ((0, 32000, 4096, bf16, bf16, False, True, 256 * mib), 1, 32000),
            ((8192, 32000, 4096, bf16, f32, True, True, 1), 1, 1),
        ):
            with self.subTest(arguments=arguments):
                self.assertEqual(chunk_sizes(*arguments), (rows, at_once))

    def test_products_of_some_classes_at_a_time(self):
        """24 and 36 bytes are 2 and 3 classes of 6 features of 2 bytes; and at least a row."""
        for chunk_bytes in (2, 48, 72, 1000):
            with self.subTest(chunk_bytes=chunk_bytes):
                self.check(*self.layer(torch.bfloat16, bias=False), self.targets, chunk_bytes, torch.float32)

    def test_logits_of_one_chunk_at_a_time(self):
        if DEVICE == "cuda":
            self.skipTest("counts arrays that the interpreter was given")
        hidden, weight, _ = self.layer()
        calls = gpuloss.library.current().calls
        before = len(calls)
        gpuloss.linear_cross_entropy(hidden, weight, self.targets, chunk_bytes=chunk_bytes_of(3, torch.float64))
        shapes = [(fields["logits"], fields["grad_logits"]) for _, fields in calls[before:]]
        self.assertEqual(shapes, [((3, CLASSES),) * 2, ((3, CLASSES),) * 2, ((1, CLASSES),) * 2])

    def test_loss_alone_computes_no_gradient(self):
        if DEVICE == "cuda":
            self.skipTest("counts arrays that the interpreter was given")
        hidden, weight, _ = self.layer()
        with torch.no_grad():
            gpuloss.linear_cross_entropy(hidden, weight, self.targets)
        self.assertNotIn("grad_logits", gpuloss.library.current().calls[-1][1])

    def test_errors(self):
        hidden, weight, bias = self.layer()
        good = {"hidden": hidden, "weight": weight, "targets": self.targets, "bias": bias}
        for change, kind, message in (
            ({"hidden": hidden[:, :4]}, ValueError, r"hidden: must be \[\.\.\., 6\].*\[7, 4\]"),
            ({"weight": weight[0]}, ValueError, r"weight: .*\[6\]"),
            ({"weight": weight[:0]}, ValueError, r"weight: .*\[0, 6\]"),
            ({"targets": self.targets[:3]}, ValueError, r"targets: .*\[7\].*\[3\]"),
            ({"targets": self.targets.double()}, RuntimeError, "targets: .*float64"),
            ({"bias": bias[:2]}, ValueError, r"bias: .*\[5\].*\[2\]"),
            ({"bias": bias.float()}, RuntimeError, "bias: .*float64.*float32"),
            ({"weight": weight.half()}, RuntimeError, "weight: .*float64.*float16"),
            ({"hidden": [1.0]}, TypeError, "hidden.*list"),
            ({"reduction": "none"}, ValueError, "reduction: is one of mean, sum .*'none'"),
            ({"reduction": "x"}, ValueError, "reduction: .*'x'"),
            ({"label_smoothing": -0.5}, ValueError, "label_smoothing: .*-0.5"),
            ({"logit_scale": 0.0}, ValueError, "logit_scale: .*0"),
            ({"softcap": -1.0}, ValueError, "softcap: .*-1"),
            ({"chunk_bytes": 0}, ValueError, "chunk_bytes: .*0"),
            ({"weight_grad_dtype": torch.int32}, TypeError, "weight_grad_dtype: .*int32"),
        ):
            with self.subTest(change=change), self.assertRaisesRegex(kind, message):
                gpuloss.linear_cross_entropy(**{**good, **change})


if __name__ == "__main__":
    unittest.main()
