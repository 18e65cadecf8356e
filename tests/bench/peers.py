"""Runs the cells of the benchmark through PyTorch as well, on the same buffers in the same process.

    python3 tests/bench/peers.py LIBBENCH CEILINGS_PTX [CSV]

Prints a table; CSV gets the raw numbers. Times are medians between CUDA events. PyTorch's gradients are taken through
autograd, as users take them; torch.compile compiles the same function.
"""

import csv
import ctypes
import statistics
import sys
import warnings

import torch
import torch.nn.functional as F

READ, COPY, BLEND = range(3)
LOSS, BOTH, BACKWARD = 1, 2, 3
PASS_NAMES = {LOSS: "loss", BOTH: "loss + gradient", BACKWARD: "backward"}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}
STORED_AS = {"f32": "<f4", "f64": "<f8", "f16": "<f2", "bf16": "<i2"}
WARM_UP, RUNS = 3, 30


class Cell(ctypes.Structure):
    _fields_ = [
        ("loss", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("rows", ctypes.c_int64),
        ("classes", ctypes.c_int64),
        ("passes", ctypes.c_int),
    ]


class Buffer:
    """A view of device memory that the benchmark owns."""

    def __init__(self, address, shape, typestr):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": shape, "typestr": typestr, "version": 3}


def tensor(bench, which, cell, typestr, dtype):
    shape = (cell.rows, cell.classes) if which == 0 or dtype != torch.int64 else (cell.rows,)
    return torch.as_tensor(Buffer(bench.bench_buffer(which), shape, typestr), device="cuda").view(dtype)


def measure(call):
    times = []
    for run in range(WARM_UP + RUNS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        if run >= WARM_UP:
            times.append(start.elapsed_time(end))
    return statistics.median(times)


def loss_function(cell):
    name = cell.loss.decode()
    if name == "cross_entropy":
        return F.cross_entropy
    if name == "kl_div_pp":
        return lambda q, t: F.kl_div(torch.log(q), t, reduction="batchmean")
    return lambda x, t: F.kl_div(x, t, reduction="batchmean", log_target=True)


def peer_times(bench, cell, compiled):
    dtype = DTYPES[cell.dtype.decode()]
    stored = STORED_AS[cell.dtype.decode()]
    x = tensor(bench, 0, cell, stored, dtype)
    if cell.loss == b"cross_entropy":
        t = tensor(bench, 1, cell, "<i8", torch.int64)
    else:
        t = tensor(bench, 1, cell, stored, dtype)
    function = loss_function(cell)
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function)
    if cell.passes == LOSS:
        with torch.no_grad():
            return measure(lambda: function(x, t))
    x.requires_grad_(True)

    def both():
        x.grad = None
        function(x, t).backward()

    if cell.passes == BOTH:
        return measure(both)
    loss = function(x, t)
    return measure(lambda: torch.autograd.grad(loss, x, retain_graph=True))


def accuracy(bench):
    """Relative errors of the KL divergence against double precision: plain data, and distributions that nearly agree."""
    rows, classes = 16384, 16384
    torch.manual_seed(5)
    z = torch.randn(rows, classes, device="cuda")
    t = torch.softmax(z, dim=1)
    lines = []
    for name, noise in (("independent distributions", None), ("distributions that nearly agree", 1e-3)):
        other = torch.randn(rows, classes, device="cuda")
        q = torch.softmax(other if noise is None else z + noise * other, dim=1)
        exact = 0.0
        for first in range(0, rows, 1024):
            a, b = t[first : first + 1024].double(), q[first : first + 1024].double()
            exact += (a * (a / b).log()).sum().item()
        exact /= rows
        ours = torch.zeros(1, device="cuda")
        if bench.bench_kl(q.data_ptr(), t.data_ptr(), rows, classes, ours.data_ptr()):
            raise SystemExit(1)
        torch.cuda.synchronize()
        eager = F.kl_div(torch.log(q), t, reduction="batchmean").item()
        lines.append(
            f"accuracy, {name}: KL {exact:.3e}, relative error of gpuloss {abs(ours.item() - exact) / exact:.1e}, "
            f"of PyTorch {abs(eager - exact) / exact:.1e}"
        )
        del q, other
    return lines


def main():
    warnings.filterwarnings("ignore")
    torch._functorch.config.donated_buffer = False  # the backward pass alone is run many times
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    bench = ctypes.CDLL(sys.argv[1])
    bench.bench_kl.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint64]
    bench.bench_buffer.restype = ctypes.c_uint64
    bench.bench_bytes.restype = ctypes.c_double
    cells = (Cell * bench.bench_cell_count()).in_dll(bench, "bench_cells")
    if bench.bench_open(sys.argv[2].encode()):
        raise SystemExit(2)
    ceilings = []
    for which, name in enumerate(("read", "copy", "read two, write one")):
        rate = ctypes.c_double()
        if bench.bench_ceiling(which, ctypes.byref(rate)):
            raise SystemExit(1)
        ceilings.append(rate.value)
        print(f"ceiling {name:<20} {rate.value:7.0f} GB/s")
    print(f"PyTorch {torch.__version__}; times in microseconds; % of the ceiling that has the cell's mix of reads and writes")
    print(f"{'loss':<14} {'dtype':<5} {'rows':>8} {'classes':>8}  {'pass':<16} {'gpuloss':>9} {'GB/s':>6} {'ceil%':>6} "
          f"{'eager':>9} {'times':>6} {'compiled':>9} {'times':>6}")
    rows = []
    for i, cell in enumerate(cells):
        milliseconds = ctypes.c_double()
        if bench.bench_prepare(i) or bench.bench_measure(ctypes.byref(milliseconds)):
            raise SystemExit(1)
        ours = milliseconds.value
        eager = peer_times(bench, cell, compiled=False)
        compiled = peer_times(bench, cell, compiled=True)
        torch.cuda.empty_cache()
        rate = bench.bench_bytes(i) / ours / 1e6
        share = 100 * rate / ceilings[bench.bench_ceiling_of(i)]
        name, dtype, passes = cell.loss.decode(), cell.dtype.decode(), PASS_NAMES[cell.passes]
        rows.append([name, dtype, cell.rows, cell.classes, passes, ours, rate, share, eager, compiled])
        print(f"{name:<14} {dtype:<5} {cell.rows:>8} {cell.classes:>8}  {passes:<16} {1000 * ours:9.1f} {rate:6.0f} "
              f"{share:6.1f} {1000 * eager:9.1f} {eager / ours:6.1f} {1000 * compiled:9.1f} {compiled / ours:6.1f}",
              flush=True)
    for line in accuracy(bench):
        print(line)
    if len(sys.argv) > 3:
        with open(sys.argv[3], "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow("loss dtype rows classes pass gpuloss_ms GB/s ceiling% eager_ms compiled_ms".split())
            writer.writerows(rows)


if __name__ == "__main__":
    main()
