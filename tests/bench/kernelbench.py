"""Measures the models of examples/pytorch for problems 95 and 98 of KernelBench, level 1, beside PyTorch eager.

    python3 tests/bench/kernelbench.py [--rounds N]

The inputs are those of the problems. Times are medians between CUDA events: first of calls in turns without waiting,
then one at a time with a cold L2 cache, as KernelBench measures. Then come the errors of the results against double.
"""

import argparse
import statistics
import sys

import torch
import torch.nn.functional as F
from linear import DEVICE, MIB, in_turns  # which puts examples/pytorch in the path

import kernelbench_95
import kernelbench_98

L2_NUMBERS = 32 * MIB


def alone(call, runs):
    """Milliseconds as KernelBench measures them."""
    times = []
    for _ in range(runs):
        torch.cuda.synchronize()
        torch.empty(L2_NUMBERS, dtype=torch.int64, device=DEVICE).fill_(42)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def problem_95(rows=32768, classes=4096):
    inputs = torch.rand(rows, classes, device=DEVICE), torch.randint(classes, (rows,), device=DEVICE)
    return inputs, F.cross_entropy, kernelbench_95.ModelNew()


def problem_98(rows=16384, classes=16384):
    predictions = (torch.rand(rows, classes, device=DEVICE) * torch.rand((), device=DEVICE)).softmax(-1)
    inputs = predictions, torch.rand(rows, classes, device=DEVICE).softmax(-1)
    return inputs, lambda p, t: F.kl_div(torch.log(p), t, reduction="batchmean"), kernelbench_98.ModelNew()


def measure(rounds):
    for problem in (problem_95, problem_98):
        torch.manual_seed(0)
        inputs, theirs, mine = problem()
        calls = {"eager": lambda: theirs(*inputs), "gpuloss": lambda: mine(*inputs)}
        with torch.no_grad():
            results = [call().double() for call in calls.values()]
            exact = theirs(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs))
            times = in_turns(calls, rounds)
            single = {name: alone(call, rounds) for name, call in calls.items()}
        for what, found in (("in turns", times), ("one at a time", single)):
            slow, fast = (1e3 * found[name] for name in calls)
            ratio = f"{slow / fast:.2f} times as fast"
            print(f"{problem.__name__}, {what}: eager {slow:.1f} us, gpuloss {fast:.1f} us, {ratio}")
        theirs_error, our_error = (((result - exact) / exact).abs().item() for result in results)
        apart = ((results[1] - results[0]) / results[0]).abs().item()
        print(f"relative errors: eager {theirs_error:.1e}, gpuloss {our_error:.1e}; from each other {apart:.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds: must be at least 1 (got {arguments.rounds})")
    if not torch.cuda.is_available():
        print("kernelbench.py needs a CUDA GPU: torch.cuda.is_available() is False", file=sys.stderr)
        return 2
    measure(arguments.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
