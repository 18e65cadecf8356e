"""Shared by the tests: comparison within a bound, and gradients of ours and of a reference for the same numbers."""

import unittest
import warnings

import torch
from bounds import store
from device import DEVICE

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Case(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        warnings.simplefilter("ignore", UserWarning)

    def assert_same_mistake(self, theirs, ours, arguments):
        """ours refuses the arguments with the exception of theirs. Older versions of torch raise RuntimeError for types
        that newer ones refuse with NotImplementedError, which is a RuntimeError."""
        with self.assertRaises(Exception) as of_torch:
            theirs(*arguments)
        moved = [a.to(DEVICE) if isinstance(a, torch.Tensor) else a for a in arguments]
        with self.assertRaises(type(of_torch.exception)):
            ours(*moved)

    def assert_within(self, got, want, bound):
        """got, as stored in its type, is within the bound of want; NaN and infinities are at the same positions."""
        self.assertEqual(got.shape, want.shape)
        got_, want = got.detach().double(), want.detach().double()
        bound = torch.as_tensor(bound, dtype=torch.float64, device=got.device)
        finite = want.isfinite()
        same = torch.equal(got_.isnan(), want.isnan()) and torch.equal(got_[want.isinf()], want[want.isinf()])
        self.assertTrue(same, f"not finite at other positions: {got} instead of {want}")
        allowed = bound + store(got.dtype, want.abs() + bound)
        excess = torch.where(finite, (got_ - want).abs() / allowed, 0.0)
        if excess.numel() > 0:
            worst = excess.max().item()
            self.assertTrue(worst <= 1, f"{worst:.3g} times the bound: {got} instead of {want}")


def random(*shape, dtype=torch.float64, spread=2.0):
    """Numbers of the type, spread around 0."""
    return (spread * torch.randn(shape, dtype=torch.float64)).to(dtype).to(DEVICE)


def probabilities(*shape, dtype=torch.float64):
    """Positive numbers of the type, which add up to about 1 in dimension 1 (or 0)."""
    tensor = torch.randn(shape, dtype=torch.float64).softmax(min(1, len(shape) - 1))
    return tensor.to(dtype).to(DEVICE)


def doubles(tensor):
    """A leaf of the same numbers in double."""
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


def upstream_of(loss):
    """A gradient for the loss, of its type: numbers of magnitude 1 and either sign."""
    generator = torch.Generator().manual_seed(3)
    return (torch.rand(loss.shape, dtype=torch.float64, generator=generator) - 1.5).to(loss.dtype).to(loss.device)


def gradients(loss, upstream, *leaves):
    """Of the leaves that require it; each None where it does not."""
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    found = iter(torch.autograd.grad(loss, wanted, upstream.to(loss.dtype)))
    return [next(found) if leaf.requires_grad else None for leaf in leaves]


def samples_of_torch(name, dtype):
    """The samples that torch tests its own operator with."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise unittest.SkipTest(f"torch's samples of {name} need more packages: {error}") from None
    operator = next(op for op in op_db if op.name == name)
    return list(operator.sample_inputs(DEVICE, dtype, requires_grad=True))
