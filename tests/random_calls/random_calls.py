"""Random valid calls of libgpuloss.so against reference.py, on the PTX interpreter or a GPU.

python tests/random_calls/random_calls.py [--calls N] [--seed S] [--function NAME] [--gpu] [--jobs N]

Call number i is that of seed S + i. A call that fails prints its seed: --seed X --calls 1 repeats it.
On a GPU nearly every call waits for the driver's compiler. There each processor has a process for some of the calls."""

import argparse
import concurrent.futures
import functools
import multiprocessing
import os
import pathlib
import sys
import traceback

import numpy as np
from bounded import LEAST
from cases import CASES
from draw import Draw
from gpu import Gpu, Refused, desc_text
from reference import OneOf
from storage import INDICES, rounded

BUILD = pathlib.Path(os.environ.get("BUILD", "build"))
LIBRARY = os.environ.get("GPULOSS_LIBRARY", str(BUILD / "libgpuloss.so"))
HAS_WORKSPACE = 0.1  # a share of the calls
# A context has a kernel for each set of options: in the interpreter one takes a megabyte.
CALLS_OF_CONTEXT = 50
PARTS_OF_JOB = 8
SOME_NUMBERS = int(os.environ.get("SOME_NUMBERS", "10000"))
MOST_UNSPECIFIED = 0.05  # a share
U_OF_FLOAT = 2.0**-24
INTERPRETER = str(BUILD / "interpreter" / "libcuda.so.1")


class Wrong(Exception):
    """What a call has done wrong."""


class Counts:
    def __init__(self):
        self.elements = self.unspecified = self.launches = 0

    def add(self, other):
        self.elements += other.elements
        self.unspecified += other.unspecified
        self.launches += other.launches


def _first_outside(array, expected, counts):
    """The first element that is not within its bound, with its place, or None. A stored number lies between the stored
    ends of its interval, since rounding keeps the order."""
    got = array.numbers()
    if isinstance(expected, OneOf):
        is_class = (got >= 0) & (got < expected.acceptable.shape[1])
        good = is_class & expected.acceptable[np.arange(len(got)), np.where(is_class, got, 0)]
        want = [np.flatnonzero(row) for row in expected.acceptable]
        return _first(~good, got, lambda place: f"one of {want[place[0]]}")
    value = expected.value.reshape(got.shape)
    error = np.broadcast_to(expected.error, expected.value.shape).reshape(got.shape)
    # 0 times an infinite error is NaN. The errors of numbers that are not finite have no meaning.
    is_any = np.isposinf(error) | (np.isnan(error) & np.isfinite(value))
    if expected.u < U_OF_FLOAT and array.type_name in ("float16", "bfloat16"):
        error = error + U_OF_FLOAT * np.abs(value)  # a double becomes a float first
    error = np.where(np.isfinite(value) & ~is_any, error, 0.0)
    if array.type_name in INDICES:
        low, high = value - error, value + error
    else:
        least = 0.0 if array.type_name == "float64" else np.where(error > 0, LEAST, 0.0)
        low, high = (rounded(array.type_name, value + sign * (error + least)) for sign in (-1, 1))
    good = is_any | ((low <= got) & (got <= high)) | (np.isnan(value) & np.isnan(got))
    counts.elements += good.size
    counts.unspecified += int(is_any.sum())
    return _first(~good, got, lambda place: f"{value[place]:.9g} +- {error[place]:.3g}")


def _first(is_wrong, got, want):
    if not is_wrong.any():
        return None
    place = tuple(int(i) for i in np.argwhere(is_wrong)[0])
    at = f"[{', '.join(map(str, place))}]" if place else ""
    return f"{at}: got {got[place]:.9g}, want {want(place)} ({int(is_wrong.sum())} of {got.size} are wrong)"


def _check(call, counts):
    for field, array in call.arrays.items():
        place = array.changed_outside()
        if place is not None:
            raise Wrong(f"{field}: element {place} from its base is changed, which the call may not write")
    for field, expected in call.expected.items():
        if field in call.arrays and call.arrays[field].is_output:
            said = _first_outside(call.arrays[field], expected, counts)
            if said:
                raise Wrong(field + said)


def run_seed(gpu, seed, function, counts):
    """The call of that seed. Returns None, or a description of what is wrong."""
    name = function or Draw(seed).choice(list(CASES))
    draw, last = Draw([seed, 1]), []

    def run(call):
        desc = call.desc()
        last[:] = [call.function, desc]
        counts.launches += 1
        gpu.call(call.function, desc, call.arrays, draw.chance(HAS_WORKSPACE) and call.may_have_workspace)
        _check(call, counts)

    try:
        with np.errstate(all="ignore"):
            CASES[name](draw, run)
        return None
    except (Wrong, Refused) as error:
        said = str(error)
    except Exception:
        said = traceback.format_exc()
    desc = f"\n  {last[0]}\n{desc_text(last[1])}" if last else ""
    return f"--function {name} --seed {seed} --calls 1: {said}{desc}"


def _calls_of(seeds, function, driver):
    """The calls of these seeds in a context of their own. Yields what is said of each."""
    gpu = Gpu(LIBRARY, driver)
    try:
        for seed in seeds:
            counts = Counts()
            yield run_seed(gpu, seed, function, counts), counts
    finally:
        gpu.close()


def run_part(seeds, function, driver):
    """In a process of its own."""
    return list(_calls_of(seeds, function, driver))


def _parts(options, seed):
    most = CALLS_OF_CONTEXT if options.jobs == 1 else max(1, options.calls // (options.jobs * PARTS_OF_JOB))
    step, end = min(most, CALLS_OF_CONTEXT), seed + options.calls
    return [range(first, min(first + step, end)) for first in range(seed, end, step)]


def run_all(options, seed):
    """Yields what is said of each call, in their order."""
    driver = None if options.gpu else INTERPRETER
    if options.jobs == 1:
        for part in _parts(options, seed):
            yield from _calls_of(part, options.function, driver)
        return
    run = functools.partial(run_part, function=options.function, driver=driver)
    context = multiprocessing.get_context("spawn")  # a driver does not survive a fork
    with concurrent.futures.ProcessPoolExecutor(options.jobs, context) as executor:
        try:
            for said_of_calls in executor.map(run, _parts(options, seed)):
                yield from said_of_calls
        finally:
            executor.shutdown(cancel_futures=True)


def _number(text):
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number that is not negative (got {text!r})")
    return int(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=_number, default=2000)
    parser.add_argument("--seed", type=_number, help="of the first call; default: a random one")
    parser.add_argument("--function", choices=CASES)
    parser.add_argument("--gpu", action="store_true", help="on the GPU, instead of the interpreter")
    parser.add_argument("--failures", type=_number, default=5, help="the number of failures after which it stops")
    parser.add_argument("--jobs", type=_number, help="processes; default: a processor each with --gpu, else 1")
    options = parser.parse_args()
    if not options.jobs:
        options.jobs = len(os.sched_getaffinity(0)) if options.gpu else 1
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}", flush=True)
    counts, passed, failed = Counts(), 0, 0
    try:
        for said, of_call in run_all(options, seed):
            counts.add(of_call)
            if said is None:
                passed += 1
                continue
            failed += 1
            print(f"  FAILED: {said}", flush=True)
            if failed == options.failures:
                break
    except (OSError, Refused) as error:
        parser.exit(2, f"{LIBRARY}: {error}\n")
    # Where nearly nothing is compared, nothing is tested.
    if counts.elements > SOME_NUMBERS and counts.unspecified > counts.elements * MOST_UNSPECIFIED:
        failed += 1
        print("  FAILED: too many numbers have no bound")
    print(f"{counts.launches} calls, {counts.elements} numbers compared, {counts.unspecified} of them unspecified")
    print(f"random calls: {passed} passed, {failed} failed, 0 skipped")
    return 0 if passed > 0 and failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
