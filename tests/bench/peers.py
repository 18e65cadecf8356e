"""Runs the cells of the benchmark through others as well, on the same buffers in the same process.

    python3 tests/bench/peers.py LIBBENCH CEILINGS_PTX [--all] [--only NAME,...] [--bytes N] [--most N] [--rest MS] [--runs N]
        [--as CC] [--csv FILE] [--peers] [LOSS]

Takes what the program bench takes (main.c). Times are medians between CUDA events, gradients are taken through autograd, as
users take them. The peers are PyTorch, torch.compile of the same function, and Liger, QuACK and flash-attention where
they are installed and have the loss. Without --all only the published cells run; with it the whole grid, without
torch.compile, which would take most of the time. The cells of options and layouts have peers with --peers only: PyTorch,
torch.compile and Liger, where they have the same call.

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

CEILINGS = 5
INPUT, TARGET, WEIGHTS, ROW_WEIGHTS, LABELS, VALUES = 0, 1, 3, 4, 10, 11
IGNORE_INDEX = -100
LOSS, BOTH, BACKWARD = 1, 2, 3
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}
STORED_AS = {"f32": "<f4", "f64": "<f8", "f16": "<f2", "bf16": "<i2"}
WARM_UP, WARM_UP_MILLISECONDS = 3, 30
BATCHES, GRAPH_CALLS = 10, 20
LOG_2 = 0.6931471805599453
SAME_CALLS = ("plain", "smoothing", "weights", "smoothing_weights", "probabilities", "probabilities_f32", "masked_0",
              "masked_50", "masked_85")
SAME_LAYOUTS = ("packed", "odd_rows", "odd_inner", "in_place")
TEXTS = ("bench_failure", "bench_option_name", "bench_layout_name", "bench_ceiling_name", "bench_taken_for",
         "bench_cell_columns", "bench_table_heading", "bench_table_line", "bench_calls_heading", "bench_calls_line")


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
        ("option", ctypes.c_int),
        ("layout", ctypes.c_int),
        ("normal", ctypes.c_int),
        ("pair", ctypes.c_void_p),
    ]


class Calls(ctypes.Structure):
    _fields_ = [("launches", ctypes.c_int)] + [(name, ctypes.c_double) for name in ("issued", "done", "bare", "graph")]


class Failures:
    """Who is missing or failed, and why: said once, when the table is done."""

    def __init__(self):
        self.missing = {}
        self.first = {}
        self.count = {}

    def failed(self, who, columns, reason):
        lines = str(reason).splitlines() or [type(reason).__name__]
        self.first.setdefault(who, f"{' '.join(columns.split())}: {lines[0][:160]}")
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


def entries_of(name):
    """Entries of a row of a sparse teacher; 0: the teacher has an array."""
    kind = name.removeprefix("sparse_")
    return 0 if kind == name else int(kind) if kind.isdigit() else 64


def tensors(bench, i, cell):
    """Input and target of a cell, as PyTorch lays them out."""
    name, option, dtype = cell.loss.decode(), bench.bench_option_name(i).decode(), cell.dtype.decode()
    shape, rows = (cell.rows, cell.classes), (cell.rows,)
    if name == "columns":
        shape, rows = (cell.rows // cell.inner, cell.classes, cell.inner), (cell.rows // cell.inner, cell.inner)
    x = view(bench, INPUT, shape, DTYPES[dtype], STORED_AS[dtype])
    if name in ("cross_entropy", "cross_entropy_options", "columns") and not option.startswith("probabilities"):
        return x, view(bench, TARGET, rows, torch.int64, "<i8")
    if entries_of(name) > 0:
        return x, view(bench, TARGET, (cell.rows, entries_of(name)), torch.int64, "<i8")
    other = "f32" if option == "probabilities_f32" or name in ("logits_f32", "pp_f32") else dtype
    return x, view(bench, TARGET, shape, DTYPES[other], STORED_AS[other])


def measure(call, arguments):
    """The median of runs that are queued before the first is waited for, of calls in a row, after a rest, as bench.c does
    it."""
    for _ in range(WARM_UP):
        call()
    torch.cuda.synchronize()
    time.sleep(1e-3 * arguments.rest)
    end, calls = time.perf_counter() + 1e-3 * WARM_UP_MILLISECONDS, 0
    while time.perf_counter() < end:
        call()
        torch.cuda.synchronize()
        calls += 1
    in_a_row = max(1, calls // WARM_UP_MILLISECONDS)
    runs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(arguments.runs)]
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


def forward_of_logits(x, t):
    return F.kl_div(F.log_softmax(x, dim=1), F.softmax(t, dim=1), reduction="batchmean")


def jensen_shannon(x, t):
    p, q = F.log_softmax(t, dim=1), F.log_softmax(x, dim=1)
    m = torch.logaddexp(p, q) - LOG_2
    return 0.5 * sum(F.kl_div(m, side, reduction="batchmean", log_target=True) for side in (p, q))


def jensen_shannon_of_probabilities(q, t):
    m = torch.log(0.5 * (q + t))
    return 0.5 * sum(F.kl_div(m, side, reduction="batchmean") for side in (t, q))


def total_variation(q, t):
    return 0.5 * (q - t).abs().sum() / len(q)


def with_sparse_teacher(name, values):
    """Of the k classes, and of all others as one."""
    teacher = torch.cat((values, 1 - values.sum(dim=1, keepdim=True)), dim=1)

    def loss(x, indices):
        log_q = F.log_softmax(x.float(), dim=1).gather(1, indices)
        log_q = torch.cat((log_q, torch.log1p(-log_q.exp().sum(dim=1, keepdim=True))), dim=1)
        if name == "sparse_reverse":
            return F.kl_div(teacher.log(), log_q, reduction="batchmean", log_target=True)
        if name == "sparse_jsd":
            return jensen_shannon_of_probabilities(log_q.exp(), teacher)
        if name == "sparse_tv":
            return total_variation(log_q.exp(), teacher)
        return F.kl_div(log_q, teacher, reduction="batchmean")

    return loss


def of_rows(x, t):
    return F.kl_div(x, t, reduction="none", log_target=True).sum(dim=1)


def with_row_weights(weights):
    return lambda x, t: (weights * of_rows(x, t)).mean()


def with_labels(labels):
    def loss(x, t):
        counts = labels != IGNORE_INDEX
        return torch.where(counts, of_rows(x, t), 0).sum() / counts.sum()

    return loss


def is_of_options(cell):
    """Whether a cell is of the grid of options and layouts, whose logits are normal."""
    return cell.normal != 0


def keywords(bench, i, cell):
    """The arguments of cross_entropy of PyTorch and of Liger for the cell's option, or None where PyTorch has no such call."""
    option, layout = bench.bench_option_name(i).decode(), bench.bench_layout_name(i).decode()
    if option not in SAME_CALLS or layout not in SAME_LAYOUTS:
        return None
    found = {"label_smoothing": 0.1} if option.startswith("smoothing") else {}
    if option in ("weights", "smoothing_weights"):
        results = "f64" if cell.dtype == b"f64" else "f32"
        found["weight"] = view(bench, WEIGHTS, (cell.classes,), DTYPES[results], STORED_AS[results])
    return found


def torch_function(bench, i, cell):
    name, dtype = cell.loss.decode(), DTYPES[cell.dtype.decode()]
    if name == "cross_entropy_options":
        return with_options(view(bench, WEIGHTS, (cell.classes,), torch.float32, "<f4").to(dtype))
    if name == "ll_weights":
        return with_row_weights(view(bench, ROW_WEIGHTS, (cell.rows,), torch.float32, "<f4"))
    if name == "ll_labels":
        return with_labels(view(bench, LABELS, (cell.rows,), torch.int64, "<i8"))
    if entries_of(name) > 0:
        return with_sparse_teacher(name, view(bench, VALUES, (cell.rows, entries_of(name)), torch.float32, "<f4"))
    if is_of_options(cell):
        found = {key: value.to(dtype) if key == "weight" else value for key, value in keywords(bench, i, cell).items()}
        return lambda x, t: F.cross_entropy(x, t, **found)
    return {
        "cross_entropy": F.cross_entropy,
        "columns": F.cross_entropy,
        "kl_div_pp": lambda q, t: F.kl_div(torch.log(q), t, reduction="batchmean"),
        "kl_div_ll": lambda x, t: F.kl_div(x, t, reduction="batchmean", log_target=True),
        "kl_div_logits": forward_of_logits,
        "jsd_logits": jensen_shannon,
        "reverse_logits": lambda x, t: forward_of_logits(t, x),
        "tv_logits": lambda x, t: total_variation(F.softmax(x, dim=1), F.softmax(t, dim=1)),
        "logits_p": lambda x, t: F.kl_div(F.log_softmax(x, dim=1), t, reduction="batchmean"),
        "logits_l": lambda x, t: F.kl_div(F.log_softmax(x, dim=1), t, reduction="batchmean", log_target=True),
        "reverse_p": lambda x, t: F.kl_div(torch.log(t), F.log_softmax(x, dim=1), reduction="batchmean", log_target=True),
        "logits_f32": lambda x, t: forward_of_logits(x.float(), t),
        "logits_both": forward_of_logits,
        "reverse_ll": lambda x, t: F.kl_div(t, x, reduction="batchmean", log_target=True),
        "jsd_pp": jensen_shannon_of_probabilities,
        "tv_pp": total_variation,
        "pp_f32": lambda q, t: F.kl_div(torch.log(q.float()), t, reduction="batchmean"),
        "ll_rows": lambda x, t: of_rows(x, t).mean(),
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


def peer_time(cell, function, x, t, arguments):
    if cell.passes == LOSS:
        with torch.no_grad():
            return measure(lambda: function(x, t), arguments)
    x = x.detach().requires_grad_(True)
    if cell.loss == b"logits_both":
        t = t.detach().requires_grad_(True)

    def both():
        x.grad = t.grad = None
        function(x, t).backward()

    if cell.passes == BOTH:
        return measure(both, arguments)
    loss = function(x, t)
    return measure(lambda: torch.autograd.grad(loss, x, retain_graph=True), arguments)


def library_functions(bench, i, cell, peers):
    """By peer. Of the options only Liger has some."""
    name = cell.loss.decode()
    if not is_of_options(cell):
        return {peer: table[name] for peer, table in peers.items() if name in table}
    if "liger" not in peers or name != "cross_entropy" or bench.bench_option_name(i).startswith(b"probabilities"):
        return {}
    found = keywords(bench, i, cell)
    return {"liger": lambda x, t: peers["liger"][name](x, t, **found)}


def peer_times(bench, i, cell, peers, arguments, failures):
    """Milliseconds by peer, of those that have the loss and did not fail."""
    if is_of_options(cell) and (not arguments.peers or keywords(bench, i, cell) is None):
        return {}
    if bench.bench_layout_name(i) == b"in_place" and bench.bench_prepare(i):
        fail(bench)
    x, t = tensors(bench, i, cell)
    functions = {"eager": torch_function(bench, i, cell)}
    if cell.headline or is_of_options(cell):
        torch._dynamo.reset()
        functions["compiled"] = torch.compile(torch_function(bench, i, cell))
    functions.update(library_functions(bench, i, cell, peers))
    times = {}
    for peer, function in functions.items():
        try:
            # The libraries write gradients over the logits, which the others still need.
            times[peer] = peer_time(cell, function, x.clone() if peer in peers else x, t, arguments)
        except Exception as error:
            failures.failed(peer, bench.bench_cell_columns(i).decode(), error)
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


def eager_call(bench, i, cell):
    function = torch_function(bench, i, cell)
    x, t = tensors(bench, i, cell)
    if cell.passes == LOSS:
        return lambda: function(x, t)
    x = x.detach().requires_grad_(True)
    return lambda: torch.autograd.grad(function(x, t), x)


# The kinds of arrays, in the order of gpuloss_kind: an array made of logits, PyTorch's KL divergence of two arrays, and
# its terms.
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
    parser.add_argument("--only")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--most", type=int, default=1 << 62)
    parser.add_argument("--rest", type=int)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--as", dest="compute_capability", type=int)
    parser.add_argument("--calls", type=int, default=0)
    return parser.parse_intermixed_args()


def fail(bench):
    raise SystemExit(f"bench: {bench.bench_failure().decode()}")


def open_bench(arguments):
    bench = ctypes.CDLL(arguments.bench)
    bench.bench_kl.argtypes = [ctypes.c_int] + [ctypes.c_uint64] * 2 + [ctypes.c_int64] * 2 + [ctypes.c_uint64]
    bench.bench_open.argtypes = [ctypes.c_char_p, ctypes.c_int64]
    bench.bench_csv_open.argtypes = [ctypes.c_char_p]
    bench.bench_csv_line.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_double]
    bench.bench_table_line.argtypes = [ctypes.c_int, ctypes.c_double]
    bench.bench_select.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int64]
    bench.bench_buffer.restype = ctypes.c_uint64
    for name in TEXTS:
        getattr(bench, name).restype = ctypes.c_char_p
    if arguments.compute_capability is not None and bench.bench_as(arguments.compute_capability):
        fail(bench)
    if bench.bench_use_runs(arguments.runs) or bench.bench_open(arguments.ceilings.encode(), arguments.bytes):
        fail(bench)
    only, loss = (text.encode() if text is not None else None for text in (arguments.only, arguments.loss))
    if bench.bench_select(only, loss, arguments.all, arguments.most):
        fail(bench)
    if arguments.compute_capability is not None:
        print(bench.bench_taken_for().decode())
    if arguments.rest is None:
        arguments.rest = ctypes.c_int.in_dll(bench, "bench_usual_rest").value
    cells = ctypes.POINTER(Cell).in_dll(bench, "bench_cells")
    return bench, [cells[i] for i in range(bench.bench_cell_count())]


def print_ceilings(bench, rest):
    for which in range(CEILINGS):
        rate = ctypes.c_double()
        if bench.bench_rest(rest) or bench.bench_ceiling(which, ctypes.byref(rate)):
            fail(bench)
        print(f"ceiling {bench.bench_ceiling_name(which).decode():<20} {rate.value:7.0f} GB/s")


def our_time(bench, i, rest, failures):
    milliseconds = ctypes.c_double()
    if bench.bench_rest(rest) == 0 and bench.bench_measure(ctypes.byref(milliseconds)) == 0:
        return {"gpuloss": milliseconds.value}
    failures.failed("gpuloss", bench.bench_cell_columns(i).decode(), bench.bench_failure().decode())
    return {}


def table_line(bench, i, times, names):
    """What the table says of a cell; a time that is not there stays blank."""
    ours = times.get("gpuloss")
    line = bench.bench_table_line(i, ours or 0.0).decode()
    for name in names:
        line += f" {1000 * times[name]:9.1f}" if name in times else f" {'':9}"
        line += f" {times[name] / ours:6.1f}" if name in times and ours is not None else f" {'':6}"
    return line


def print_table(bench, cells, arguments, failures):
    print_ceilings(bench, arguments.rest)
    peers = libraries(failures)
    names = ["eager", "compiled", *peers]
    print(f"PyTorch {torch.__version__}; times in microseconds; % of the ceiling that has the cell's mix of reads and writes")
    print(bench.bench_table_heading().decode() + "".join(f" {name:>9} {'times':>6}" for name in names))
    for i, cell in enumerate(cells):
        if not bench.bench_is_selected(i):
            continue
        if bench.bench_prepare(i):
            failures.failed("gpuloss", bench.bench_cell_columns(i).decode(), bench.bench_failure().decode())
            continue
        times = our_time(bench, i, arguments.rest, failures)
        times |= peer_times(bench, i, cell, peers, arguments, failures)
        print(table_line(bench, i, times, names), flush=True)
        for who, milliseconds in times.items():
            if bench.bench_csv_line(i, who.encode(), milliseconds):
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
        call, batch = eager_call(bench, i, cell), max(1, arguments.calls // BATCHES)
        try:
            line += "".join(f" {microseconds:8.2f}" for microseconds in call_times(call, batch))
            line += f" {graph_time(call, batch):8.2f}"
        except Exception as error:
            failures.failed("eager", bench.bench_cell_columns(i).decode(), error)
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
