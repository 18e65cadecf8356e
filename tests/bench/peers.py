"""Runs the cells of the benchmark through others as well, on the same buffers in the same process.

    python3 tests/bench/peers.py LIBBENCH CEILINGS_PTX [--all] [--bytes N] [--most N] [--rest MS] [--csv FILE]
        [LOSS]

Takes what the program bench takes (main.c). Times are medians between CUDA events, gradients are taken through autograd, as
users take them. The peers are PyTorch, torch.compile of the same function, and Liger, QuACK and flash-attention where
they are installed and have the loss. Without --all only the published cells run; with it the whole grid, without
torch.compile, which would take most of the time.

    python3 tests/bench/peers.py LIBBENCH CEILINGS_PTX --calls N

prints what a call costs the host instead, and beside it what PyTorch's costs, by itself and in a CUDA graph.
"""

import argparse
import ctypes
import statistics
import time
import warnings

import torch
import torch._functorch.config
import torch.nn.functional as F

READ, COPY, BLEND = range(3)
LOSS, BOTH, BACKWARD = 1, 2, 3
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}
STORED_AS = {"f32": "<f4", "f64": "<f8", "f16": "<f2", "bf16": "<i2"}
WARM_UP, WARM_UP_MILLISECONDS, RUNS = 3, 30, 30
BATCHES, GRAPH_CALLS = 10, 20
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
        ("tiny", ctypes.c_int),
    ]


class Calls(ctypes.Structure):
    _fields_ = [("launches", ctypes.c_int)] + [(name, ctypes.c_double) for name in ("issued", "done", "bare", "graph")]


class Failures:
    """Who is missing or failed, and why: said once, when the table is done."""

    def __init__(self):
        self.missing = {}
        self.first = {}
        self.count = {}

    def failed(self, who, cell, reason):
        lines = str(reason).splitlines() or [type(reason).__name__]
        self.first.setdefault(who, f"{cell.loss.decode()} {cell.dtype.decode()} {cell.rows} x {cell.classes}: {lines[0][:160]}")
        self.count[who] = self.count.get(who, 0) + 1

    def print(self):
        for who, reason in self.missing.items():
            print(f"{who} is missing: {reason}")
        for who, count in self.count.items():
            print(f"{who} failed on {count} cells, the first {self.first[who]}")


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


def measure(call, rest):
    """The median of runs that are queued before the first is waited for, of calls in a row, after a rest, as bench.c does
    it."""
    for _ in range(WARM_UP):
        call()
    torch.cuda.synchronize()
    time.sleep(1e-3 * rest)
    end, calls = time.perf_counter() + 1e-3 * WARM_UP_MILLISECONDS, 0
    while time.perf_counter() < end:
        call()
        torch.cuda.synchronize()
        calls += 1
    in_a_row = max(1, calls // WARM_UP_MILLISECONDS)
    runs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(RUNS)]
    for start, end in runs:
        start.record()
        for _ in range(in_a_row):
            call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in runs) / in_a_row


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


def libraries(failures):
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
    except ImportError as error:
        failures.missing["liger"] = error
    try:
        from quack.cross_entropy import cross_entropy

        found["quack"] = {"cross_entropy": lambda x, t: cross_entropy(x, t, reduction="mean")}
    except ImportError as error:
        failures.missing["quack"] = error
    try:
        from flash_attn.ops.triton.cross_entropy import cross_entropy_loss

        found["flash"] = {"cross_entropy": lambda x, t: cross_entropy_loss(x, t)[0].mean()}
    except ImportError as error:
        failures.missing["flash"] = error
    return found


def peer_time(cell, function, x, t, rest):
    if cell.passes == LOSS:
        with torch.no_grad():
            return measure(lambda: function(x, t), rest)
    x = x.detach().requires_grad_(True)

    def both():
        x.grad = None
        function(x, t).backward()

    if cell.passes == BOTH:
        return measure(both, rest)
    loss = function(x, t)
    return measure(lambda: torch.autograd.grad(loss, x, retain_graph=True), rest)


def peer_times(bench, cell, peers, rest, failures):
    """Milliseconds by peer, of those that have the loss and did not fail."""
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
            times[peer] = peer_time(cell, function, x.clone() if peer in peers else x, t, rest)
        except Exception as error:
            failures.failed(peer, cell, error)
        torch.cuda.empty_cache()
    return times


def call_times(call, calls):
    """Microseconds a call, of calls in a row without waiting: until it returns, and until the GPU has finished too."""
    issued, done = [], []
    call()
    torch.cuda.synchronize()
    for _ in range(BATCHES):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        issued.append(1e6 * (time.perf_counter() - start) / calls)
        torch.cuda.synchronize()
        done.append(1e6 * (time.perf_counter() - start) / calls)
    return statistics.median(issued), statistics.median(done)


def graph_time(call, calls):
    """Microseconds a call of a graph of many, until the GPU has finished."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_CALLS):
            call()
    return call_times(graph.replay, max(1, calls // GRAPH_CALLS))[1] / GRAPH_CALLS


def eager_call(bench, cell):
    function = torch_function(bench, cell)
    x, t = tensors(bench, cell)
    if cell.passes == LOSS:
        return lambda: function(x, t)
    x = x.detach().requires_grad_(True)
    return lambda: torch.autograd.grad(function(x, t), x)


# What an array holds, in the order of gpuloss_kind, made of logits; PyTorch's KL divergence of two; and the terms of it.
KINDS = (
    (
        "probabilities",
        lambda z: torch.softmax(z, dim=1),
        lambda q, t: F.kl_div(torch.log(q), t, reduction="batchmean"),
        lambda q, t: t * (t / q).log(),
    ),
    (
        "log-probabilities",
        lambda z: torch.log_softmax(z, dim=1),
        lambda q, t: F.kl_div(q, t, reduction="batchmean", log_target=True),
        lambda q, t: t.exp() * (t - q),
    ),
    (
        "logits",
        lambda z: z,
        lambda x, t: F.kl_div(
            F.log_softmax(x, dim=1), F.log_softmax(t, dim=1), reduction="batchmean", log_target=True
        ),
        lambda x, t: torch.softmax(t, dim=1) * (torch.log_softmax(t, dim=1) - torch.log_softmax(x, dim=1)),
    ),
)


def relative_errors(bench, kind, noise, seed):
    """Of gpuloss and of PyTorch, beside the divergence itself."""
    rows, classes = 4096, 16384
    _, of_logits, peer, terms = KINDS[kind - 1]
    torch.manual_seed(seed)
    z = torch.randn(rows, classes, device="cuda")
    other = torch.randn(rows, classes, device="cuda")
    q = of_logits(other if noise is None else other.mul_(noise).add_(z))
    t = of_logits(z)
    exact = terms(q.double(), t.double()).sum().item() / rows
    ours = torch.zeros(1, device="cuda")
    if bench.bench_kl(kind, q.data_ptr(), t.data_ptr(), rows, classes, ours.data_ptr()):
        fail(bench)
    torch.cuda.synchronize()
    return [exact] + [abs((value.item() - exact) / exact) for value in (ours, peer(q, t))]


def accuracy(bench):
    """Relative errors of the KL divergence of floats against double precision: of independent distributions, and of some
    that agree but for so much noise in the logits that it is about 1e-3, 1e-6 and 1e-9; the largest of several."""
    lines = []
    for kind, (name, *_) in enumerate(KINDS, 1):
        for noise in (None, 4.5e-2, 1.4e-3, 4.5e-5):
            tries = [relative_errors(bench, kind, noise, seed) for seed in range(8)]
            exact = statistics.median(found[0] for found in tries)
            ours, peer = (max(found[who] for found in tries) for who in (1, 2))
            lines.append(
                f"accuracy, KL of {name}: {exact:10.3e}, relative error of gpuloss {ours:.1e}, of PyTorch {peer:.1e}"
            )
    return lines


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench")
    parser.add_argument("ceilings")
    parser.add_argument("loss", nargs="?")
    parser.add_argument("--csv")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--most", type=int, default=1 << 62)
    parser.add_argument("--rest", type=int)
    parser.add_argument("--calls", type=int, default=0)
    return parser.parse_intermixed_args()


def fail(bench):
    raise SystemExit(f"bench: {bench.bench_failure().decode()}")


def open_bench(arguments):
    bench = ctypes.CDLL(arguments.bench)
    bench.bench_kl.argtypes = [ctypes.c_int] + [ctypes.c_uint64] * 2 + [ctypes.c_int64] * 2 + [ctypes.c_uint64]
    bench.bench_open.argtypes = [ctypes.c_char_p, ctypes.c_int64]
    bench.bench_csv_open.argtypes = [ctypes.c_char_p]
    bench.bench_csv_line.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_double, ctypes.c_double]
    bench.bench_buffer.restype = ctypes.c_uint64
    bench.bench_bytes.restype = ctypes.c_double
    for name in ("bench_failure", "bench_pass_name", "bench_calls_heading", "bench_calls_line"):
        getattr(bench, name).restype = ctypes.c_char_p
    if bench.bench_open(arguments.ceilings.encode(), arguments.bytes):
        fail(bench)
    if arguments.rest is None:
        arguments.rest = ctypes.c_int.in_dll(bench, "bench_usual_rest").value
    cells = ctypes.POINTER(Cell).in_dll(bench, "bench_cells")
    return bench, [cells[i] for i in range(bench.bench_cell_count())]


def print_ceilings(bench, rest):
    ceilings = []
    for which, name in enumerate(("read", "copy", "read two, write one", "read a quarter")):
        rate = ctypes.c_double()
        if bench.bench_rest(rest) or bench.bench_ceiling(which, ctypes.byref(rate)):
            fail(bench)
        ceilings.append(rate.value)
        print(f"ceiling {name:<20} {rate.value:7.0f} GB/s")
    return ceilings


def is_wanted(arguments, bench, i, cell):
    if bench.bench_bytes(i) > arguments.most:
        return False
    return cell.loss.decode() == arguments.loss if arguments.loss else cell.headline or arguments.all


def our_time(bench, cell, rest, failures):
    milliseconds = ctypes.c_double()
    if bench.bench_rest(rest) == 0 and bench.bench_measure(ctypes.byref(milliseconds)) == 0:
        return {"gpuloss": milliseconds.value}
    failures.failed("gpuloss", cell, bench.bench_failure().decode())
    return {}


def table_line(bench, i, cell, ceiling, times, names):
    """What the table says of a cell; a time that is not there stays blank."""
    line = f"{cell.loss.decode():<21} {cell.dtype.decode():<5} {cell.rows:>8} {cell.classes:>8}  "
    line += f"{bench.bench_pass_name(cell.passes).decode():<16} "
    ours = times.get("gpuloss")
    if ours is None:
        line += f"{'':9} {'':6} {'':6}"
    else:
        rate = bench.bench_bytes(i) / ours / 1e6
        line += f"{1000 * ours:9.1f} {rate:6.0f} {100 * rate / ceiling:6.1f}"
    for name in names:
        line += f" {1000 * times[name]:9.1f}" if name in times else f" {'':9}"
        line += f" {times[name] / ours:6.1f}" if name in times and ours is not None else f" {'':6}"
    return line


def print_table(bench, cells, arguments, failures):
    ceilings = print_ceilings(bench, arguments.rest)
    peers = libraries(failures)
    names = ["eager", "compiled", *peers]
    print(f"PyTorch {torch.__version__}; times in microseconds; % of the ceiling that has the cell's mix of reads and writes")
    print(f"{'loss':<21} {'dtype':<5} {'rows':>8} {'classes':>8}  {'pass':<16} {'gpuloss':>9} {'GB/s':>6} {'ceil%':>6}"
          + "".join(f" {name:>9} {'times':>6}" for name in names))
    for i, cell in enumerate(cells):
        if not is_wanted(arguments, bench, i, cell):
            continue
        if bench.bench_prepare(i):
            failures.failed("gpuloss", cell, bench.bench_failure().decode())
            continue
        ceiling = ceilings[bench.bench_ceiling_of(i)]
        times = our_time(bench, cell, arguments.rest, failures)
        times |= peer_times(bench, cell, peers, arguments.rest, failures)
        print(table_line(bench, i, cell, ceiling, times, names), flush=True)
        for who, milliseconds in times.items():
            if bench.bench_csv_line(i, who.encode(), milliseconds, ceiling):
                fail(bench)
    for line in accuracy(bench):
        print(line)


def print_calls(bench, cells, arguments, failures):
    print("at the right end PyTorch eager: issued, done, and in a graph")
    print(bench.bench_calls_heading(arguments.calls).decode() + "".join(f" {n:>8}" for n in ("eager", "done", "graph")))
    for i, cell in enumerate(cells):
        if not cell.tiny:
            continue
        measured = Calls()
        if bench.bench_prepare(i) or bench.bench_measure_calls(arguments.calls, ctypes.byref(measured)):
            fail(bench)
        line = bench.bench_calls_line(i, ctypes.byref(measured)).decode()
        call, batch = eager_call(bench, cell), max(1, arguments.calls // BATCHES)
        try:
            line += "".join(f" {microseconds:8.2f}" for microseconds in call_times(call, batch))
            line += f" {graph_time(call, batch):8.2f}"
        except Exception as error:
            failures.failed("eager", cell, error)
        print(line, flush=True)


def main():
    arguments = parse()
    warnings.filterwarnings("ignore")
    torch._functorch.config.donated_buffer = False  # the backward pass alone is run many times
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    bench, cells = open_bench(arguments)
    failures = Failures()
    if arguments.csv and bench.bench_csv_open(arguments.csv.encode()):
        fail(bench)
    (print_calls if arguments.calls else print_table)(bench, cells, arguments, failures)
    failures.print()
    raise SystemExit("gpuloss" in failures.count)


if __name__ == "__main__":
    main()
