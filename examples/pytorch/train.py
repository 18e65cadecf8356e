"""Trains a small language model of bytes twice from one seed, with torch's cross-entropy and with that of gpuloss.

python train.py [TEXT...] [--linear] [--steps N] ...      TEXT: files to learn; default: README.md of the project
"""

import argparse
import pathlib
import sys
import time

import gpuloss
import torch
import torch.nn.functional as F

BYTES = 256
CONTEXT = 128


class Model(torch.nn.Module):
    """A causal transformer up to its last layer, whose weight is `head`."""

    def __init__(self, width, layers):
        super().__init__()
        self.embedding = torch.nn.Embedding(BYTES, width)
        self.position = torch.nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        block = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = torch.nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = torch.nn.Parameter(width**-0.5 * torch.randn(BYTES, width))
        mask = torch.nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        self.register_buffer("mask", mask)

    def forward(self, text):
        return self.blocks(self.embedding(text) + self.position, mask=self.mask, is_causal=True)


def loss_of_torch(hidden, head, targets):
    return F.cross_entropy(F.linear(hidden, head).flatten(0, 1), targets.flatten())


def loss_of_gpuloss(hidden, head, targets):
    return gpuloss.cross_entropy(F.linear(hidden, head).flatten(0, 1), targets.flatten())


def train(loss_of, text, device, steps, batch=32, width=128, layers=2, seed=0):
    """text: bytes as a tensor on the device, at least CONTEXT + 1. Returns the loss of each step, on the device."""
    torch.manual_seed(seed)
    model = Model(width, layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    places = torch.Generator().manual_seed(seed)
    window = torch.arange(CONTEXT + 1, device=device)
    losses = []
    for _ in range(steps):
        starts = torch.randint(0, text.numel() - CONTEXT, (batch, 1), generator=places).to(device)
        chunk = text[starts + window].long()
        optimizer.zero_grad()
        loss = loss_of(model(chunk[:, :-1]), model.head, chunk[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def measured(loss_of, text, device, options):
    """Losses, milliseconds of a step, MiB at most; after a few steps that load what is needed."""
    settings = {"batch": options.batch, "width": options.width, "layers": options.layers, "seed": options.seed}
    train(loss_of, text, device, 3, **settings)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    losses = train(loss_of, text, device, options.steps, **settings)
    torch.cuda.synchronize(device)
    milliseconds = 1e3 * (time.perf_counter() - start) / options.steps
    return losses.cpu(), milliseconds, torch.cuda.max_memory_allocated(device) / 2**20


def text_of(files, device):
    data = b"".join(pathlib.Path(file).read_bytes() for file in files)
    if len(data) <= CONTEXT:
        raise SystemExit(f"TEXT: needs more than {CONTEXT} bytes (got {len(data)})")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="*", default=[pathlib.Path(__file__).resolve().parents[2] / "README.md"])
    parser.add_argument("--linear", action="store_true", help="gpuloss computes the last layer too, a part at a time")
    for name, number in (("steps", 200), ("batch", 32), ("width", 128), ("layers", 2), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(
            "train.py needs a CUDA GPU, and a PyTorch that is built for it: torch.cuda.is_available() is False",
            file=sys.stderr,
        )
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    text = text_of(options.text, device)
    ours = gpuloss.linear_cross_entropy if options.linear else loss_of_gpuloss
    results = [measured(loss_of, text, device, options) for loss_of in (loss_of_torch, ours)]
    print(f"{'step':>8}{'torch':>12}{'gpuloss':>12}{'difference':>12}")
    (theirs, *_), (mine, *_) = results
    for step in sorted({*range(0, options.steps, max(1, options.steps // 10)), options.steps - 1}):
        a, b = theirs[step].item(), mine[step].item()
        print(f"{step:8}{a:12.5f}{b:12.5f}{b - a:12.1e}")
    print(f"{'ms/step':>8}{results[0][1]:12.2f}{results[1][1]:12.2f}")
    print(f"{'MiB':>8}{results[0][2]:12.1f}{results[1][2]:12.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
