"""Trains a small language model of words from one seed with torch's cross-entropy, with that of gpuloss, and with
torch's in double. The last shows how far rounding alone drives two trainings apart.

python train.py [TEXT...] [--linear] [--svg FILE] [--steps N] ...
    TEXT: files to learn; default: the modules of Python's standard library
"""

import argparse
import collections
import pathlib
import re
import sys
import sysconfig
import time

import gpuloss
import torch
import torch.nn.functional as F

CONTEXT = 128
WARM_UP = 10
PANEL_WIDTH, PANEL_HEIGHT, MARGIN = 640, 240, 64


class Model(torch.nn.Module):
    """A causal transformer up to its last layer, whose weight is `head`."""

    def __init__(self, classes, width, layers):
        super().__init__()
        self.embedding = torch.nn.Embedding(classes, width)
        self.position = torch.nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        block = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = torch.nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = torch.nn.Parameter(width**-0.5 * torch.randn(classes, width))
        mask = torch.nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        self.register_buffer("mask", mask)

    def forward(self, text):
        return self.blocks(self.embedding(text) + self.position, mask=self.mask, is_causal=True)


def loss_of_torch(hidden, head, targets):
    return F.cross_entropy(F.linear(hidden, head).flatten(0, 1), targets.flatten())


def loss_of_gpuloss(hidden, head, targets):
    return gpuloss.cross_entropy(F.linear(hidden, head).flatten(0, 1), targets.flatten())


def loss_in_double(hidden, head, targets):
    return F.cross_entropy(F.linear(hidden, head).flatten(0, 1).double(), targets.flatten())


def train(loss_of, text, classes, device, batch=32, width=128, layers=2, seed=0):
    """text: numbers of words as a tensor on the device, at least CONTEXT + 1. Yields the loss of each step."""
    torch.manual_seed(seed)
    model = Model(classes, width, layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    places = torch.Generator().manual_seed(seed)
    window = torch.arange(CONTEXT + 1, device=device)
    while True:
        starts = torch.randint(0, text.numel() - CONTEXT, (batch, 1), generator=places).to(device)
        chunk = text[starts + window].long()
        optimizer.zero_grad()
        loss = loss_of(model(chunk[:, :-1]), model.head, chunk[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        yield loss.detach()


def measured(loss_of, text, classes, device, options):
    """Losses, milliseconds of a step, MiB at most, the last two without the first steps, which load what is needed."""
    settings = {"batch": options.batch, "width": options.width, "layers": options.layers, "seed": options.seed}
    training = train(loss_of, text, classes, device, **settings)
    losses = [next(training) for _ in range(WARM_UP)]
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    losses += [next(training) for _ in range(options.steps - WARM_UP)]
    torch.cuda.synchronize(device)
    milliseconds = 1e3 * (time.perf_counter() - start) / (options.steps - WARM_UP)
    return torch.stack(losses).double().cpu(), milliseconds, torch.cuda.max_memory_allocated(device) / 2**20


def words_of(files, most, device):
    """The words as numbers from 1 on, 0 for those that are not frequent enough, and how many numbers there are."""
    text = "".join(pathlib.Path(file).read_text(encoding="utf-8", errors="replace") for file in files)
    words = re.findall(r" ?\w+|\s+|[^\w\s]", text)
    if len(words) <= CONTEXT:
        raise SystemExit(f"TEXT: needs more than {CONTEXT} words (got {len(words)})")
    frequent = collections.Counter(words).most_common(most - 1)
    numbers = {word: number for number, (word, _) in enumerate(frequent, 1)}
    return torch.tensor([numbers.get(word, 0) for word in words], dtype=torch.int32, device=device), len(numbers) + 1


def panel(top, title, lines, label):
    """A drawing of lines, {name: (colour, width, numbers by step)}; label: the text for a number at an axis."""
    numbers = torch.cat([line for *_, line in lines.values()])
    low, high = numbers.min().item(), numbers.max().item()
    left, bottom = MARGIN, top + PANEL_HEIGHT
    yield f'<rect x="{left}" y="{top}" width="{PANEL_WIDTH}" height="{PANEL_HEIGHT}" fill="none" stroke="#bbb"/>'
    yield f'<text x="{left}" y="{top - 8}">{title}</text>'
    for part in (0, 0.5, 1):
        y = bottom - part * PANEL_HEIGHT
        yield f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{label(low + part * (high - low))}</text>'
    for place, (name, (colour, width, line)) in enumerate(lines.items()):
        across = torch.linspace(left, left + PANEL_WIDTH, len(line)).tolist()
        up = (bottom - PANEL_HEIGHT * (line - low) / max(high - low, 1e-9)).tolist()
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, up))
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
        at = f'x="{left + PANEL_WIDTH - 6}" y="{top + 18 + 16 * place}"'
        yield f'<text {at} text-anchor="end" fill="{colour}">{name}</text>'


def draw(path, theirs, mine, exact):
    """The curves, and below them their distances from torch's."""
    width, height = PANEL_WIDTH + 2 * MARGIN, 2 * PANEL_HEIGHT + 3 * MARGIN
    far = [(losses - theirs).abs().clamp(min=1e-7).log10() for losses in (mine, exact)]
    curves = {"torch": ("#f90", 4, theirs), "gpuloss": ("black", 1, mine)}
    distances = {"gpuloss": ("black", 1, far[0]), "torch in double": ("#06c", 1, far[1])}
    font = 'font-family="sans-serif" font-size="12"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {font}>',
        '<rect width="100%" height="100%" fill="white"/>',
        *panel(MARGIN, "loss", curves, "{:.2f}".format),
        *panel(2 * MARGIN + PANEL_HEIGHT, "distance from the loss with torch", distances, lambda x: f"{10**x:.0e}"),
        f'<text x="{width / 2}" y="{height - MARGIN / 2}" text-anchor="middle">{len(theirs)} steps</text>',
        "</svg>",
    ]
    pathlib.Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def report(results):
    """results: of torch, gpuloss and torch in double."""
    theirs, mine, exact = (losses for losses, *_ in results)
    print(f"{'step':>8}{'torch':>12}{'gpuloss':>12}{'difference':>12}{'of double':>12}")
    for step in sorted({*range(0, len(theirs), max(1, len(theirs) // 10)), len(theirs) - 1}):
        a, b, c = (losses[step].item() for losses in (theirs, mine, exact))
        print(f"{step:8}{a:12.5f}{b:12.5f}{b - a:12.1e}{c - a:12.1e}")
    spread = [(losses - theirs).square().mean().sqrt().item() for losses in (mine, exact)]
    print(f"{'rms':>8}{'':24}{spread[0]:12.1e}{spread[1]:12.1e}")
    print(f"{'ms/step':>8}{results[0][1]:12.2f}{results[1][1]:12.2f}{'':12}{results[2][1]:12.2f}")
    print(f"{'MiB':>8}{results[0][2]:12.1f}{results[1][2]:12.1f}{'':12}{results[2][2]:12.1f}")


def at_least(least):
    def number(text):
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least} (got {text})")
        return int(text)

    return number


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="*")
    parser.add_argument("--linear", action="store_true", help="gpuloss computes the last layer too, a part at a time")
    parser.add_argument("--svg", metavar="FILE", help="draws the curves")
    for name, number, least in (
        ("steps", 300, WARM_UP + 1),
        ("classes", 32768, 2),
        ("batch", 32, 1),
        ("width", 128, 4),
        ("layers", 2, 1),
        ("seed", 0, 0),
    ):
        parser.add_argument(f"--{name}", metavar="N", type=at_least(least), default=number, help=f"default: {number}")
    options = parser.parse_args()
    if options.width % 4 != 0:
        parser.error(f"argument --width: must be a multiple of 4, the number of heads (got {options.width})")
    return options


def main():
    options = parse()
    if not torch.cuda.is_available():
        print(
            "train.py needs a CUDA GPU, and a PyTorch that is built for it: torch.cuda.is_available() is False",
            file=sys.stderr,
        )
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    files = options.text or sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text, classes = words_of(files, options.classes, device)
    print(f"{len(files)} files, {text.numel()} words, {classes} classes")
    ours = gpuloss.linear_cross_entropy if options.linear else loss_of_gpuloss
    results = [measured(loss_of, text, classes, device, options) for loss_of in (loss_of_torch, ours, loss_in_double)]
    report(results)
    if options.svg is not None:
        draw(options.svg, *(losses for losses, *_ in results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
