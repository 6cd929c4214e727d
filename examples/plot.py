"""Curves of runs: reward, accuracy, entropy, length, truncation, concentration, seconds.

    python examples/plot.py runs/grpo-tiny-arithmetic-seed0 runs/grail-tiny-arithmetic-seed0
    python examples/plot.py runs/gr* --out results/curves      # writes curves.png and curves.svg

Runs that differ only in their seed become one line, the mean, with a band from the lowest to the
highest. A step without a trained token has no entropy and no ESS, and the line has a gap there.
Only this script needs matplotlib: pip install matplotlib
"""
import argparse
import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.errors import BadInput, run_cli
from engine.lines import ran, trained

PANELS = [("reward", "reward (share of right rollouts)", 1),
          ("accuracy", "held-out accuracy, %", 100), ("entropy", "entropy, nats a token", 1),
          ("length", "length, tokens", 1), ("truncated", "truncated, %", 100),
          ("ess", "ESS ratio of the weights", 1), ("seconds", "seconds a step", 1)]
# Okabe and Ito's palette, which colour-blind readers can tell apart; dashes help in grey print.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
DASHES = ["-", "--", "-.", ":"]
# Figures of the tokens with an advantage, and of the rows that were scored; see engine/lines.py.
OF_TRAINED = {"ess", "top10", "fallback", "weight_mean", "weight_min", "weight_max"}
OF_SCORED = {"entropy", "grad_norm", "clipped", "gap_mean", "gap_max"}
OF_A_RUN = set("seed name resume method device save_every snapshot_every pages_every "
               "eval_every".split())


def read(folder):
    """(config, {column: {step: value}}) of a run's folder. A step has no value of a column if it
    could not measure it. Raises BadInput, which names the file, if it is damaged."""
    path = folder / "config.json"
    config = parsed(path, text_of(path))
    if not isinstance(config.get("method"), str):
        raise BadInput(f"{path}: it names no method, so {folder} is no run's folder.")

    path, curves = folder / "metrics.jsonl", {}
    for n, line in enumerate(text_of(path).splitlines(), 1):
        metrics = parsed(f"{path}, line {n}", line)
        if type(metrics.get("step")) is not int:
            raise BadInput(f"{path}, line {n}: it names no step.")
        for column, value in metrics.items():
            value = number(f"{path}, line {n}", column, value)
            if measured(metrics, column):
                curves.setdefault(column, {})[metrics["step"]] = value
    if not curves:
        raise BadInput(f"{folder}: the run has not ended its first step, so there is no curve.")

    path = folder / "summary.json"  # first and last point; those between: --eval-every
    ends = accuracies(path, parsed(path, text_of(path))) if path.exists() else {}
    curves["accuracy"] = curves.pop("held_out", {}) | ends
    return config, curves


def text_of(path):
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; give the folders of runs.") from None
    except ValueError as error:
        raise BadInput(f"{path}: not UTF-8 ({error}).") from None


def parsed(where, text):
    """The dict of a JSON object. Raises BadInput for any other text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: not JSON ({error}).") from None
    if not isinstance(found, dict):
        raise BadInput(f"{where}: a run writes a JSON object there, not {text.strip()[:40]!r}.")
    return found


def number(where, name, value):
    """The value, if it is a number that can be drawn. Raises BadInput for any other."""
    if type(value) not in (int, float) or not abs(value) < 1e300:
        raise BadInput(f"{where}: {name} is {str(value)[:40]!r}, not a number that can be drawn.")
    return value


def measured(metrics, column):
    """Whether this step measured the column. If it did not, the printed line shows "-", but the log
    holds a 0, or a weight of 1."""
    known = {"ess": 1, "entropy": 1, "grad_norm": 1, **metrics}  # a log may lack them
    if column in OF_TRAINED:
        return trained(known)
    if column in OF_SCORED:
        return ran(known)
    return column != "peak_gb" or metrics[column] != 0  # 0 on a CPU


def accuracies(path, summary):
    """{step: sampled accuracy} on the held-out problems, before and after the training."""
    found = {}
    for when, step in (("before", 0), ("after", summary.get("step"))):
        if not summary.get(when):  # not evaluated
            continue
        try:
            accuracy = summary[when]["sampled"]["accuracy"]
        except (KeyError, TypeError):
            raise BadInput(f"{path}: no sampled accuracy under {when!r}.") from None
        step = number(path, "step", step)
        found[step] = number(path, "accuracy", accuracy)
    return found


def by_method(runs):
    """{label: list of curves}. Runs that differ only in their seed share a label. Raises BadInput
    for a seed that is there twice, because the mean would count it twice."""
    everything = {key for config, _ in runs for key in config}
    differing = [key for key in sorted(everything - OF_A_RUN)
                 if len({json.dumps(config.get(key)) for config, _ in runs if key in config}) > 1]
    groups, names = {}, {}
    for config, curves in runs:
        settings = [f"{key}={config[key]}" for key in differing if key in config]
        label = " ".join([config["method"], *settings])
        seed, name = str(config.get("seed")), config.get("name")
        if (label, seed) in names:
            raise BadInput(f"{names[label, seed]} and {name}: both are seed {seed} of {label}; "
                           "give each seed once.")
        names[label, seed] = name
        groups.setdefault(label, []).append(curves)
    return groups


def band(group, column, scale=1):
    """(steps, mean, lowest, highest) over the seeds of a group.

    A step at which some seed has no value is left out: there the mean would be over fewer seeds.
    """
    found = [curves[column] for curves in group if curves.get(column)]
    if len(found) < len(group):
        return [], [], [], []
    steps = sorted(set.intersection(*(set(curve) for curve in found)))
    values = [[scale * curve[step] for curve in found] for step in steps]
    return steps, [sum(v) / len(v) for v in values], list(map(min, values)), list(map(max, values))


def with_gaps(group, column, scale=1):
    """`band`, with NaN at the steps that it left out, so that no line is drawn across them."""
    steps, *lines = band(group, column, scale)
    known = {step: values for step, *values in zip(steps, *lines)}
    logged = set(steps)
    if column != "accuracy":  # it is measured at few steps, and lines join those
        logged |= {step for curves in group for step in curves["step"]
                   if steps and steps[0] < step < steps[-1]}
    rows = [(step, *known.get(step, [math.nan] * 3)) for step in sorted(logged)]
    return [list(values) for values in zip(*rows)] or [[], [], [], []]


def stand_alone(mean):
    """Which values have NaN, or nothing, on both sides. No line reaches them: draw a dot."""
    padded = [math.nan, *mean, math.nan]
    return [math.isnan(a) and math.isnan(b) for a, b in zip(padded, padded[2:])]


def draw(groups, plt):
    """One figure of seven panels and a legend."""
    figure, axes = plt.subplots(2, 4, figsize=(15, 6.4), layout="constrained")
    *panels, legend = axes.flat
    for axis, (column, title, scale) in zip(panels, PANELS):
        for i, group in enumerate(groups.values()):
            steps, mean, low, high = with_gaps(group, column, scale)
            alone = [len(steps) < 3 or single for single in stand_alone(mean)]
            axis.plot(steps, mean, color=COLOURS[i % 7], linestyle=DASHES[i % 4],
                      marker="o", markersize=4, markevery=alone)
            axis.fill_between(steps, low, high, color=COLOURS[i % 7], alpha=0.18, linewidth=0)
        axis.set_title(title, loc="left", fontsize=11)
        axis.set_xlabel("step")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.xaxis.get_major_locator().set_params(integer=True)
        if not any(band(group, column)[0] for group in groups.values()):
            axis.text(0.5, 0.5, "at no step measured in all seeds", ha="center",
                      transform=axis.transAxes)
            axis.set(xticks=[], yticks=[])
    for i, (label, group) in enumerate(groups.items()):
        seeds = f" ({len(group)} seed{'s' * (len(group) > 1)})"
        legend.plot([], [], color=COLOURS[i % 7], linestyle=DASHES[i % 4], label=label + seeds)
    legend.axis("off")
    legend.legend(loc="upper left", frameon=False, fontsize=11,
                  title="mean over seeds, band: lowest to highest\n"
                        "gap: not measured in all seeds", alignment="left")
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
