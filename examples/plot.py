"""Curves of runs: reward, accuracy, entropy, length, truncation, concentration, seconds.

    python examples/plot.py runs/grpo-tiny-arithmetic-seed0 runs/grail-tiny-arithmetic-seed0
    python examples/plot.py runs/gr* --out results/curves      # writes curves.png and curves.svg

Runs that differ only in their seed become one line, the mean, with a band from the lowest to the
highest. Only this script needs matplotlib: pip install matplotlib
"""
import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.errors import BadInput, run_cli

PANELS = [("reward", "reward (share of right rollouts)", 1),
          ("accuracy", "held-out accuracy, %", 100), ("entropy", "entropy, nats a token", 1),
          ("length", "length, tokens", 1), ("truncated", "truncated, %", 100),
          ("ess", "ESS ratio of the weights", 1), ("seconds", "seconds a step", 1)]
# Okabe and Ito's palette: told apart by colour-blind readers; dashes for those who print in grey.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
DASHES = ["-", "--", "-.", ":"]
OF_A_RUN = set("seed name resume method device save_every snapshot_every pages_every".split())


def read(folder):
    """(config, {column: {step: value}}) of a run's folder. Raises BadInput if there is none."""
    curves = {}
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        metrics = (folder / "metrics.jsonl").read_text(encoding="utf-8")
        for line in map(json.loads, metrics.splitlines()):
            for column, value in line.items():
                curves.setdefault(column, {})[line["step"]] = value
        if (folder / "summary.json").exists():  # at the end of a run
            summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
            scores = {0: summary.get("before"), summary.get("step"): summary.get("after")}
            curves["accuracy"] = {step: score["sampled"]["accuracy"]
                                  for step, score in scores.items() if score}
    except OSError as error:
        raise BadInput(f"{error.filename}: {error.strerror}; give the folders of runs.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{folder}: no run's files ({error!r}).") from None
    if not curves:
        raise BadInput(f"{folder}: the run has not ended its first step, so there is no curve.")
    return config, curves


def by_method(runs):
    """{label: list of curves}: the seeds of a method together, other settings apart."""
    everything = {key for config, _ in runs for key in config}
    differing = [key for key in sorted(everything - OF_A_RUN)
                 if len({json.dumps(config.get(key)) for config, _ in runs if key in config}) > 1]
    groups = {}
    for config, curves in runs:
        settings = [f"{key}={config[key]}" for key in differing if key in config]
        label = " ".join([config["method"], *settings])
        groups.setdefault(label, []).append(curves)
    return groups


def band(group, column, scale=1):
    """(steps, mean, lowest, highest) over the seeds of a group at the steps that all have."""
    found = [curves[column] for curves in group if curves.get(column)]
    if len(found) < len(group):
        return [], [], [], []
    steps = sorted(set.intersection(*(set(curve) for curve in found)))
    values = [[scale * curve[step] for curve in found] for step in steps]
    return steps, [sum(v) / len(v) for v in values], list(map(min, values)), list(map(max, values))


def draw(groups, plt):
    """One figure of seven panels and a legend."""
    figure, axes = plt.subplots(2, 4, figsize=(15, 6.4), layout="constrained")
    *panels, legend = axes.flat
    for axis, (column, title, scale) in zip(panels, PANELS):
        for i, group in enumerate(groups.values()):
            steps, mean, low, high = band(group, column, scale)
            axis.plot(steps, mean, color=COLOURS[i % 7], linestyle=DASHES[i % 4],
                      marker="o" if len(steps) < 3 else None, markersize=4)
            axis.fill_between(steps, low, high, color=COLOURS[i % 7], alpha=0.18, linewidth=0)
        axis.set_title(title, loc="left", fontsize=11)
        axis.set_xlabel("step")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.xaxis.get_major_locator().set_params(integer=True)
        if not any(band(group, column)[0] for group in groups.values()):
            axis.text(0.5, 0.5, "not logged by all seeds", ha="center", transform=axis.transAxes)
            axis.set(xticks=[], yticks=[])
    for i, (label, group) in enumerate(groups.items()):
        seeds = f" ({len(group)} seed{'s' * (len(group) > 1)})"
        legend.plot([], [], color=COLOURS[i % 7], linestyle=DASHES[i % 4], label=label + seeds)
    legend.axis("off")
    legend.legend(loc="upper left", frameon=False, fontsize=11,
                  title="mean over seeds, band: lowest to highest", alignment="left")
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    parser.add_argument("--out", type=Path, default=Path("curves"), help="without .png and .svg")
    args = parser.parse_args()
    groups = by_method([read(folder) for folder in args.runs])
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise BadInput("plot.py draws with matplotlib, which is not installed; get it with: "
                       "pip install matplotlib") from None
    figure = draw(groups, plt)
    for end in (".png", ".svg"):
        path = args.out.parent / (args.out.name + end)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
        print(path)


if __name__ == "__main__":
    run_cli(main)
