"""Draws the raw results of the benchmark: % of the ceiling against the number of classes.

    python3 tests/bench/plot.py CSV SVG

CSV is what `make bench` writes (its columns: bench.h). A panel for each loss and pass, for f32 and bf16, of calls without
options. Where cells of as many classes have several numbers of rows, that which moves the most bytes is drawn. The same CSV
gives the same SVG.
"""

import csv
import math
import sys

LOSSES = ("cross_entropy", "kl_div_pp", "kl_div_ll", "kl_div_logits")
PASSES = ("loss", "loss + gradient")
DTYPES = ("f32", "bf16")
TEXTS = ("loss", "dtype", "pass", "who")
NUMBERS = ("classes", "microseconds", "bytes", "ceiling_gb_per_s")
OURS = "gpuloss"


def fail(message):
    raise SystemExit(f"plot.py: {message}")


def number(path, line, name, text):
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        fail(f"{path}: line {line}: {name} must be a number above 0 (got {text!r})")
    return value


def read(path):
    """{(loss, pass): {(who, dtype): {classes: (bytes, %)}}} of what is drawn."""
    panels = {}
    try:
        with open(path, newline="") as file:
            reader = csv.DictReader(file)
            for name in TEXTS + NUMBERS:
                if name not in (reader.fieldnames or ()):
                    fail(f"{path}: there is no column {name}")
            for row in reader:
                classes, microseconds, size, ceiling = (number(path, reader.line_num, n, row[n]) for n in NUMBERS)
                if row["loss"] not in LOSSES or row["pass"] not in PASSES or row["dtype"] not in DTYPES:
                    continue
                # Older files lack these columns, and the cells that have options.
                if row.get("option", "plain") != "plain" or row.get("layout", "packed") != "packed":
                    continue
                lines = panels.setdefault((row["loss"], row["pass"]), {})
                line = lines.setdefault((row["who"], row["dtype"]), {})
                share = 100 * size / microseconds / 1e3 / ceiling
                line[classes] = max(line.get(classes, (0, 0)), (size, share))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        fail(f"{path}: {error}")
    if not panels:
        fail(f"{path}: it has no cell that is drawn ({', '.join(LOSSES)}; {', '.join(PASSES)}; {', '.join(DTYPES)})")
    return panels


def draw_panel(axes, lines, colours):
    for (who, dtype), line in sorted(lines.items()):
        ours, wide = who == OURS, dtype == "f32"
        classes = sorted(line)
        axes.plot(
            classes,
            [line[c][1] for c in classes],
            color=colours[who],
            linewidth=2.2 if ours else 0.8,
            linestyle="-" if ours or wide else "--",
            marker="o" if wide else "s",
            markersize=4.5 if ours else 2.5,
            markerfacecolor=colours[who] if wide else "white",
            zorder=3 if ours else 2,
            label=f"{who} {dtype}",
        )
    axes.set_xscale("log")
    axes.grid(True, linewidth=0.3)


def legend(figure, panels):
    named = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            named.setdefault(label, handle)
    labels = sorted(named, key=lambda label: (not label.startswith(OURS), label))
    figure.legend([named[label] for label in labels], labels, loc="lower center", ncol=6, frameon=False, fontsize=8)


def draw(panels, path):
    try:
        import matplotlib
    except ImportError:
        fail("matplotlib is not installed (Debian's python3-matplotlib has it)")
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": OURS, "svg.fonttype": "none", "font.size": 9})
    import matplotlib.pyplot as plt

    peers = sorted({who for lines in panels.values() for who, _ in lines} - {OURS})
    colours = {OURS: "black", **{who: f"C{i}" for i, who in enumerate(peers)}}
    losses = [loss for loss in LOSSES if any((loss, p) in panels for p in PASSES)]
    figure, grid = plt.subplots(len(losses), 2, figsize=(10, 2.5 * len(losses) + 1.1), sharex=True, squeeze=False)
    for loss, row in zip(losses, grid):
        for passes, axes in zip(PASSES, row):
            draw_panel(axes, panels.get((loss, passes), {}), colours)
            axes.set_title(f"{loss}, {passes}", fontsize=9)
            axes.set_ylim(bottom=0, top=max(105, axes.get_ylim()[1]))
        row[0].set_ylabel("% of ceiling")
    for axes in grid[-1]:
        axes.set_xlabel("classes")
    figure.tight_layout(rect=(0, 0.75 / figure.get_figheight(), 1, 1))
    legend(figure, grid.flat)
    try:
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    except OSError as error:
        fail(f"{path}: {error}")


def main():
    if len(sys.argv) != 3:
        fail("CSV and SVG are required")
    draw(read(sys.argv[1]), sys.argv[2])


if __name__ == "__main__":
    main()
