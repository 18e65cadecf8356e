"""Runs the cells of the benchmark through others as well, on the same buffers in the same process.

    python3 tests/bench/peers.py LIBBENCH CEILINGS_PTX [--all] [--bytes N] [CSV]

Prints a table; CSV gets the raw numbers. Times are medians between CUDA events, gradients are taken through autograd, as
users take them. The peers are PyTorch, torch.compile of the same function, and Liger, QuACK and flash-attention where
they are installed and have the loss. Without --all only the published cells run; with it the whole grid, of which each
cell moves about N bytes, without torch.compile, which would take most of the time.
"""

import argparse
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
LOG_2 = 0.6931471805599453


class Cell(ctypes.Structure):
    _fields_ = [
        ("loss", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("rows", ctypes.c_int64),
        ("classes", ctypes.c_int64),
        ("inner", ctypes.c_int64),
        ("passes", ctypes.c_int),
        ("headline", ctypes.c_int),
    ]


class Buffer:
    """A view of device memory that the benchmark owns."""

    def __init__(self, address, shape, typestr):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": shape, "typestr": typestr, "version": 3}


def view(bench, which, shape, dtype, stored):
    return torch.as_tensor(Buffer(bench.bench_buffer(which), shape, stored), device="cuda").view(dtype)


def tensors(bench, cell):
    """Input and target of a cell, as PyTorch lays them out."""
    name, dtype, stored = cell.loss.decode(), DTYPES[cell.dtype.decode()], STORED_AS[cell.dtype.decode()]
    if name == "columns":
        images = cell.rows // cell.inner
        x = view(bench, 0, (images, cell.classes, cell.inner), dtype, stored)
        return x, view(bench, 1, (images, cell.inner), torch.int64, "<i8")
    x = view(bench, 0, (cell.rows, cell.classes), dtype, stored)
    if name.startswith("cross_entropy"):
        return x, view(bench, 1, (cell.rows,), torch.int64, "<i8")
    return x, view(bench, 1, (cell.rows, cell.classes), dtype, stored)


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


def with_options(weight):
    def loss(x, t):
        lse = torch.logsumexp(x.float(), dim=1)
        x.argmax(dim=1)
        return F.cross_entropy(x, t, weight=weight, label_smoothing=0.1) + 1e-4 * (lse * lse).mean()

    return loss


def jensen_shannon(x, t):
    p, q = F.log_softmax(t, dim=1), F.log_softmax(x, dim=1)
    m = torch.logaddexp(p, q) - LOG_2
    return 0.5 * sum(F.kl_div(m, side, reduction="batchmean", log_target=True) for side in (p, q))


def torch_function(bench, cell):
    name = cell.loss.decode()
    if name == "cross_entropy_options":
        return with_options(view(bench, 3, (cell.classes,), torch.float32, "<f4").to(DTYPES[cell.dtype.decode()]))
    return {
        "cross_entropy": F.cross_entropy,
        "columns": F.cross_entropy,
        "kl_div_pp": lambda q, t: F.kl_div(torch.log(q), t, reduction="batchmean"),
        "kl_div_ll": lambda x, t: F.kl_div(x, t, reduction="batchmean", log_target=True),
        "kl_div_logits": lambda x, t: F.kl_div(F.log_softmax(x, dim=1), F.softmax(t, dim=1), reduction="batchmean"),
        "jsd_logits": jensen_shannon,
    }[name]


def libraries():
    """What else is installed: {peer: {loss: function}}."""
    found = {}
    try:
        from liger_kernel.transformers.functional import liger_cross_entropy, liger_jsd, liger_kl_div

        found["liger"] = {
            "cross_entropy": liger_cross_entropy,
            "kl_div_ll": lambda x, t: liger_kl_div(x, t, reduction="batchmean", log_target=True),
            "kl_div_pp": lambda q, t: liger_kl_div(torch.log(q), t, reduction="batchmean"),
            "kl_div_logits": lambda x, t: liger_kl_div(
                F.log_softmax(x, dim=1), F.softmax(t, dim=1), reduction="batchmean"
            ),
            "jsd_logits": lambda x, t: liger_jsd(F.log_softmax(x, dim=1), F.log_softmax(t, dim=1)),
        }
    except ImportError:
        pass
    try:
        from quack.cross_entropy import cross_entropy

        found["quack"] = {"cross_entropy": lambda x, t: cross_entropy(x, t, reduction="mean")}
    except ImportError:
        pass
    try:
        from flash_attn.ops.triton.cross_entropy import cross_entropy_loss

        found["flash"] = {"cross_entropy": lambda x, t: cross_entropy_loss(x, t)[0].mean()}
    except ImportError:
        pass
    return found


def peer_time(cell, function, x, t):
    if cell.passes == LOSS:
        with torch.no_grad():
            return measure(lambda: function(x, t))
    x = x.detach().requires_grad_(True)

    def both():
        x.grad = None
        function(x, t).backward()

    if cell.passes == BOTH:
        return measure(both)
    loss = function(x, t)
    return measure(lambda: torch.autograd.grad(loss, x, retain_graph=True))


def peer_times(bench, cell, peers):
    """Milliseconds by peer; None where it lacks the loss or fails."""
    name = cell.loss.decode()
    x, t = tensors(bench, cell)
    functions = {"eager": torch_function(bench, cell)}
    if cell.headline:
        torch._dynamo.reset()
        functions["compiled"] = torch.compile(torch_function(bench, cell))
    functions.update({peer: table[name] for peer, table in peers.items() if name in table})
    times = {}
    for peer, function in functions.items():
        try:
            # The libraries write gradients over the logits, which the others still need.
            times[peer] = peer_time(cell, function, x.clone() if peer in peers else x, t)
        except Exception as error:
            print(f"  {peer} failed: {str(error).splitlines()[0][:100]}", file=sys.stderr)
        torch.cuda.empty_cache()
    return times


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


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench")
    parser.add_argument("ceilings")
    parser.add_argument("csv", nargs="?")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--bytes", type=int, default=1 << 30)
    return parser.parse_args()


def open_bench(arguments):
    bench = ctypes.CDLL(arguments.bench)
    bench.bench_kl.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint64]
    bench.bench_open.argtypes = [ctypes.c_char_p, ctypes.c_int64]
    bench.bench_buffer.restype = ctypes.c_uint64
    bench.bench_bytes.restype = ctypes.c_double
    if bench.bench_open(arguments.ceilings.encode(), arguments.bytes):
        raise SystemExit(2)
    cells = ctypes.POINTER(Cell).in_dll(bench, "bench_cells")
    return bench, [cells[i] for i in range(bench.bench_cell_count())]


def main():
    arguments = parse()
    warnings.filterwarnings("ignore")
    torch._functorch.config.donated_buffer = False  # the backward pass alone is run many times
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    bench, cells = open_bench(arguments)
    ceilings = []
    for which, name in enumerate(("read", "copy", "read two, write one")):
        rate = ctypes.c_double()
        if bench.bench_ceiling(which, ctypes.byref(rate)):
            raise SystemExit(1)
        ceilings.append(rate.value)
        print(f"ceiling {name:<20} {rate.value:7.0f} GB/s")
    peers = libraries()
    names = ["eager", "compiled", *peers]
    print(f"PyTorch {torch.__version__}; times in microseconds; % of the ceiling that has the cell's mix of reads and writes")
    print(f"{'loss':<21} {'dtype':<5} {'rows':>8} {'classes':>8}  {'pass':<16} {'gpuloss':>9} {'GB/s':>6} {'ceil%':>6}"
          + "".join(f" {name:>9} {'times':>6}" for name in names))
    rows = []
    for i, cell in enumerate(cells):
        if not (cell.headline or arguments.all):
            continue
        milliseconds = ctypes.c_double()
        if bench.bench_prepare(i) or bench.bench_measure(ctypes.byref(milliseconds)):
            raise SystemExit(1)
        ours = milliseconds.value
        times = peer_times(bench, cell, peers)
        rate = bench.bench_bytes(i) / ours / 1e6
        share = 100 * rate / ceilings[bench.bench_ceiling_of(i)]
        loss, dtype, passes = cell.loss.decode(), cell.dtype.decode(), PASS_NAMES[cell.passes]
        rows.append([loss, dtype, cell.rows, cell.classes, passes, ours, rate, share] + [times.get(n) for n in names])
        print(f"{loss:<21} {dtype:<5} {cell.rows:>8} {cell.classes:>8}  {passes:<16} {1000 * ours:9.1f} {rate:6.0f} "
              f"{share:6.1f}"
              + "".join(f" {1000 * times[n]:9.1f} {times[n] / ours:6.1f}" if n in times else f" {'':9} {'':6}"
                        for n in names), flush=True)
    for line in accuracy(bench):
        print(line)
    if arguments.csv:
        with open(arguments.csv, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow("loss dtype rows classes pass gpuloss_ms GB/s ceiling%".split() + [f"{n}_ms" for n in names])
            writer.writerows(rows)


if __name__ == "__main__":
    main()
