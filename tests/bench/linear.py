"""Measures the loss of a linear layer by examples/pytorch, forward and backward in bf16, and by peers that are there.

    python3 tests/bench/linear.py [ROWS FEATURES CLASSES MIB...] [--rounds N]      MIB: chunk_bytes

It prints the time of each, and that as a multiple of the time of the layer's three matrix products. Then the MiB at
most beyond inputs and gradients, and those in the forward pass. Then the errors of both gradients against PyTorch eager
in float32: norm over norm, and the largest over the largest. Times are medians between CUDA events, of calls in turns.

A peer is beaten if a run of gpuloss takes neither more time nor more memory. For that gpuloss also runs with the memory
of each peer.
"""

import argparse
import functools
import importlib
import pathlib
import statistics
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "pytorch"))

import gpuloss  # noqa: E402

MIB = 1 << 20
DEVICE = "cuda"
WARM_UP, IN_A_ROW = 5, 2
FEWEST_ROWS = 64  # of a chunk: with fewer, the products take many times as long
USUAL = (8192, 4096, 128256, 256, 1024)
LIGER = "liger_kernel.transformers.functional", "liger_fused_linear_cross_entropy"
APPLE = "cut_cross_entropy", "linear_cross_entropy"
PEERS = (
    ("liger", *LIGER, {}),
    ("liger, float32 sums", *LIGER, {"accum_dtype": torch.float32}),
    ("cut cross entropy", *APPLE, {}),
    ("cut cross entropy, unfiltered", *APPLE, {"filter_eps": None}),
    ("quack", "quack.linear_cross_entropy", "chunked_linear_cross_entropy", {}),
)


def in_turns(calls, rounds):
    """{name: milliseconds}. Nothing waits between the calls, so that the GPU does not wait for Python."""
    events = {name: [] for name in calls}
    for _ in range(WARM_UP):
        for call in calls.values():
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            for _ in range(IN_A_ROW):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                call()
                end.record()
                events[name].append((start, end))
    torch.cuda.synchronize()
    return {name: statistics.median(a.elapsed_time(b) for a, b in pairs) for name, pairs in events.items()}


def eager(hidden, weight, targets):
    return F.cross_entropy(F.linear(hidden, weight), targets)


def peers():
    found = {"eager": eager, "compiled": torch.compile(eager)}
    for name, module, function, options in PEERS:
        try:
            found[name] = functools.partial(getattr(importlib.import_module(module), function), **options)
        except Exception as error:
            print(f"{name} is missing: {error}")
    return found


class Layer:
    """hidden [rows, features], weight [classes, features] and targets; logits of variance 1."""

    def __init__(self, rows, features, classes):
        torch.manual_seed(0)
        self.rows, self.features, self.classes = rows, features, classes
        self.hidden = torch.randn(rows, features, device=DEVICE).bfloat16().requires_grad_()
        self.weight = (torch.randn(classes, features, device=DEVICE) * features**-0.5).bfloat16().requires_grad_()
        self.targets = torch.randint(classes, (rows,), device=DEVICE)
        self.row_bytes = 2 * classes
        self.gradient_bytes = 2 * (self.hidden.numel() + self.weight.numel())

    def step(self, function):
        return torch.autograd.grad(function(self.hidden, self.weight, self.targets), (self.hidden, self.weight))

    def memory(self, function):
        """MiB at most beyond inputs and gradients, in a step and in its forward pass."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() + self.gradient_bytes
        loss = function(self.hidden, self.weight, self.targets)
        forward = torch.cuda.max_memory_allocated() - before
        gradients = torch.autograd.grad(loss, (self.hidden, self.weight))
        step = torch.cuda.max_memory_allocated() - before
        del gradients
        return step / MIB, forward / MIB

    def exact_gradients(self):
        leaves = [leaf.detach().float().requires_grad_() for leaf in (self.hidden, self.weight)]
        return torch.autograd.grad(eager(*leaves, self.targets), leaves)

    def errors(self, function, exact):
        found = []
        for got, want in zip(self.step(function), exact):
            far = got.float() - want
            found += [(far.norm() / want.norm()).item(), (far.abs().max() / want.abs().max()).item()]
        return found

    def products(self):
        """The three products, of these arrays and the gradient of the logits, into arrays that are there."""
        hidden, weight = self.hidden.detach(), self.weight.detach()
        logits = F.linear(hidden, weight).requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(logits, self.targets), logits)
        outputs = [torch.empty_like(tensor) for tensor in (gradient, hidden, weight)]

        def call():
            torch.mm(hidden, weight.t(), out=outputs[0])
            torch.mm(gradient, weight, out=outputs[1])
            torch.mm(gradient.t(), hidden, out=outputs[2])

        return call


def ours(mib, **options):
    return functools.partial(gpuloss.linear_cross_entropy, chunk_bytes=int(mib * MIB), **options)


def tried(layer, functions):
    """{name: MiB in a step and in its forward pass} of those that run. The first call compiles, and does not count."""
    found = {}
    for name, function in functions.items():
        try:
            layer.step(function)
            found[name] = layer.memory(function)
        except Exception as error:
            print(f"{name} failed: {(str(error).splitlines() or [type(error).__name__])[0][:160]}")
    return found


def print_beaten(memory, times, names):
    """memory, times: by name; names: of gpuloss. The rest are peers."""
    for peer in [name for name in memory if name not in names]:
        better = [name for name in names if times[name] <= times[peer] and memory[name][0] <= memory[peer][0]]
        best = min(better, key=times.get, default=None)
        if best is None:
            print(f"{peer}: not beaten")
            continue
        print(
            f"{peer}: beaten by {best}: {times[best] / times[peer]:.3f} of its time, "
            f"{memory[best][0]:.1f} of its {memory[peer][0]:.1f} MiB"
        )


def measure(layer, mibs, rounds):
    runs = {f"gpuloss, {mib:g} MiB": ours(mib) for mib in mibs}
    runs[f"gpuloss, {mibs[0]:g} MiB, float32 sums"] = ours(mibs[0], weight_grad_dtype=torch.float32)
    runs["gpuloss, one chunk"] = ours(layer.rows * layer.row_bytes / MIB)
    others = peers()
    memory = tried(layer, others)
    for peer, (mib, _) in memory.items():
        if FEWEST_ROWS * layer.row_bytes / MIB <= mib < layer.rows * layer.row_bytes / MIB:
            runs[f"gpuloss, as {peer}"] = ours(mib)
    memory = {**tried(layer, runs), **memory}
    functions = {name: function for name, function in {**runs, **others}.items() if name in memory}
    exact = layer.exact_gradients()
    errors = {name: layer.errors(function, exact) for name, function in functions.items()}
    del exact
    torch.cuda.empty_cache()
    calls = {name: functools.partial(layer.step, function) for name, function in functions.items()}
    times = in_turns({"products": layer.products(), **calls}, rounds)
    products = times["products"]
    rate = 6e-9 * layer.rows * layer.features * layer.classes / products
    print(f"{layer.rows} rows, {layer.features} features, {layer.classes} classes; PyTorch {torch.__version__}")
    print(f"three products: {products:.3f} ms, {rate:.0f} TFLOP/s")
    print(f"{'':32}{'ms':>9}{'times':>8}{'MiB':>9}{'forward':>9}{'errors of hidden':>20}{'and weight':>20}")
    for name in functions:
        columns = "".join(f"{error:10.1e}" for error in errors[name])
        print(
            f"{name:32}{times[name]:9.3f}{times[name] / products:8.3f}"
            f"{memory[name][0]:9.1f}{memory[name][1]:9.1f}{columns}"
        )
    print_beaten(memory, times, [name for name in runs if name in memory])


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", type=float, nargs="*", default=USUAL, metavar="ROWS FEATURES CLASSES MIB...")
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    if len(arguments.sizes) < 4 or min(arguments.sizes) <= 0:
        parser.error(f"ROWS FEATURES CLASSES MIB...: at least four numbers above 0 (got {arguments.sizes})")
    if arguments.rounds < 1:
        parser.error(f"--rounds: must be at least 1 (got {arguments.rounds})")
    return arguments


def main():
    arguments = parse()
    if not torch.cuda.is_available():
        print("linear.py needs a CUDA GPU: torch.cuda.is_available() is False", file=sys.stderr)
        return 2
    measure(Layer(*(int(size) for size in arguments.sizes[:3])), arguments.sizes[3:], arguments.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
