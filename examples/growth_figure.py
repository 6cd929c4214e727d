"""The limits, the table and the figure of growth.py. Table and figure need only its lines.

    python examples/growth.py --figure results/h200_growth.jsonl --out docs/figures/growth.svg
    python examples/growth.py --table results/h200_growth.jsonl
"""
import json
import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs"), str(ROOT / "results")]
import figures
from tables import table as markdown

from engine import memory
from engine.errors import BadInput

KEY = ("what", "shape", "rows", "prompt", "tokens", "compile")


def read(path):
    """The rows (dicts) of a file; none if there is no file. A killed call can leave half a line,
    which is left out. Raises BadInput for a line that growth.py did not write."""
    try:
        raw = Path(path).read_bytes()
        rows = [json.loads(line) for line in raw[:raw.rfind(b"\n") + 1].splitlines()]
        _ = [[row[k] for k in (*KEY, "card", "torch")] for row in rows]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{path}: it has a line that is no point of growth.py.") from None
    return rows


def of_one_card(path):
    """The rows of a file that a table or a figure can show together."""
    if not Path(path).exists():
        raise BadInput(f"{path}: there is no such file; name one that growth.py --out has made.")
    rows = read(path)
    if not rows:
        raise BadInput(f"{path}: it has no line; growth.py --out adds one for each point.")
    cards = sorted({row["card"] for row in rows})
    if len(cards) != 1:
        raise BadInput(f"{path}: has lines of {len(cards)} cards ({', '.join(cards)}), and a table "
                       "or figure is of one.")
    return rows


def speeds(row, stage):
    """(tokens/s, tokens/s of the limit) of a stage. "sampling" counts new tokens, "update" those
    of the prompts, too."""
    tokens = row["rows"] * (row["tokens"] + row["prompt"] * (stage == "update"))
    return tokens / row[f"{stage}_seconds"], tokens / row[f"{stage}_limit_seconds"]


def limits(config, parameters, point, rates):
    """(seconds of sampling, seconds of the update) that the card's two rates allow.

    These are lower limits: what is written is not counted, and the LM head counts on completion
    tokens only, because nothing else is scored. If the KV cache does not fit, several batches are
    sampled, and the weights are read more often than is counted here.
    """
    rows, P, T = (point[name] for name in ("rows", "prompt", "tokens"))
    slots = T * P + T * (T - 1) // 2  # of a row's KV cache, summed over the token steps
    read = 2 * parameters * T + memory.cache_bytes(config) * rows * slots  # bytes

    head = config.vocab_size * config.hidden_size
    width = config.num_attention_heads * memory.head_width(config)
    # Forward: scores and values take 4 L^2 width FLOPs a layer. The causal mask halves that.
    attention = 2 * config.num_hidden_layers * width * (P + T)**2
    forward = 2 * (parameters - head) * (P + T) + 2 * head * T + attention  # FLOPs of a row
    return (read / (rates["copy_tb_per_second"] * 1e12),
            3 * rows * forward / (rates["matrix_tflops"] * 1e12))


# ------------------------------------------------------------------------------ the table


def cells_of(row):
    """Sampling, update, seconds of a step, peak: four strings."""
    cells = ["-"] * 4
    if "failed" in row:
        return [row["failed"].replace("|", "/"), *cells[1:]]
    if row["what"] == "ours":
        for i, stage in enumerate(("sampling", "update")):
            speed, limit = speeds(row, stage)
            cells[i] = f"{speed:,.0f} ({100 * speed / limit:.0f} %)"
        cells[2] = f"{row['sampling_seconds'] + row['update_seconds']:.2f}"
    else:
        cells[0] = f"{row['tokens_per_second']:,.0f}"
        cells[2] = f"{row['step_seconds']:.2f}" if "step_seconds" in row else "-"
    cells[3] = f"{row['peak_gb']:.1f}"
    return cells


def table(rows):
    """Markdown: the card and its rates, and a line for each point."""
    def span(name):
        ends = sorted({f"{row[name]:.3g}" for row in rows}, key=float)
        return " to ".join(dict.fromkeys((ends[0], ends[-1])))

    ordered = sorted(rows, key=lambda row: (row["what"] != "ours", row["parameters"],
                                            row["tokens"], row["rows"]))
    lines = [[row["what"] + " --compile" * row["compile"], row["shape"], str(row["rows"]),
              f"{row['prompt']} + {row['tokens']:,}", *cells_of(row)] for row in ordered]
    versions = " and ".join(sorted({row["torch"] for row in rows}))
    return (f"{rows[0]['card']}, torch {versions}; it copied at {span('copy_tb_per_second')} TB/s "
            f"and multiplied bf16 matrices at {span('matrix_tflops')} TFLOP/s, "
            f"{span('matrix_tflops_sustained')} sustained. In brackets: share of the limit.\n\n"
            + markdown(["what", "shape", "rows", "tokens", "sampling, tokens/s",
                        "update, tokens/s", "step, s", "peak GB"], lines))


# ------------------------------------------------------------------------------ the figure


def usual(rows, name):
    """The value of this name that most rows have."""
    values = [row[name] for row in rows]
    return max(sorted(set(values)), key=values.count)


def word_of(row):
    """The word below a point: its peak in GB, or that it failed."""
    if "failed" not in row:
        return f"{row['peak_gb']:.0f}"
    return "full" if row["failed"] == "out of memory" else "no"


def panel(left, title, rows, name, thin, span):
    """Tokens/s over `name`, both on log scales. Lines of `thin` rows are thin; 0: no line is.
    span: (least, most) log10 of tokens/s. Dashed: the limits. Below: peaks of the bold lines."""
    values = sorted({row[name] for row in rows})
    least, most = math.log(values[0]), math.log(values[-1]) + 1e-9

    def x_of(value):
        return left + 20 + 220 * (math.log(value) - least) / (most - least)

    def y_of(speed):
        return 330 - 250 * (math.log10(speed) - span[0]) / (span[1] - span[0])

    out = [figures.text(left, 62, title, "head small"),
           figures.text(left - 6, 362, "peak GB", "tiny soft", "end")]
    for power in range(span[0], span[1] + 1):
        out += [figures.path(f"M{left} {y_of(10**power):.1f}H{left + 260}", "rule", 0.8),
                figures.text(left - 6, y_of(10**power) + 4, f"{10**power:,}", "tiny soft", "end")]
    bold = sorted((row for row in rows if row["rows"] != thin), key=lambda row: row[name])
    slim = sorted((row for row in rows if row["rows"] == thin), key=lambda row: row[name])
    for some, width in ((bold, 2.5), (slim, 1.2)):
        good = [row for row in some if "failed" not in row]
        for stage, kind in (("sampling", "blue"), ("update", "red")) if good else ():
            lines = [[(x_of(row[name]), y_of(speeds(row, stage)[i])) for row in good]
                     for i in range(2)]
            d = ["M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in at) for at in lines]
            out += [figures.path(d[0], f"{kind}pen", width),
                    figures.path(d[1], f"{kind}pen", width / 2, 'stroke-dasharray="4 4"')]
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{width + 1:.1f}" class="{kind}"/>'
                    for x, y in lines[0]]
    out += [figures.text(x_of(row[name]), 362, word_of(row), "tiny soft", "middle") for row in bold]
    for value in values:
        word = f"{value / 1e9:.1f} B" if name == "parameters" else f"{value:,}"
        out.append(figures.text(x_of(value), 346, word, "tiny", "middle"))
    return out


def figure(rows):
    """SVG of three panels: over rows, over completion length, over the size of the model."""
    rows = [row for row in rows if row["what"] == "ours"]
    good = [row for row in rows if "failed" not in row]
    if not good:
        raise BadInput("--figure: no point of this file was measured to its end.")
    shape, tokens, size = (usual(good, name) for name in ("shape", "tokens", "rows"))
    alike = [row for row in rows if row["shape"] == shape]
    logs = [math.log10(speed) for row in good for stage in ("sampling", "update")
            for speed in speeds(row, stage)]
    span = math.floor(min(logs)), math.ceil(max(logs))
    thin = 8 if size != 8 else 0
    out = [figures.text(24, 30, f"Tokens a second and their limits, {rows[0]['card']}", "head")]
    out += panel(90, f"over rows; {shape}, {tokens:,} new tokens",
                 [row for row in alike if row["tokens"] == tokens], "rows", 0, span)
    out += panel(440, f"over new tokens; bold: {size} rows" + f", thin: {thin}" * (thin > 0),
                 [row for row in alike if row["rows"] in (thin, size)], "tokens", thin, span)
    out += panel(790, f"over parameters; {size} rows",
                 [row for row in rows if (row["rows"], row["tokens"]) == (size, tokens)],
                 "parameters", 0, span)
    out.append(figures.text(24, 394, "blue: sampling   red: update   dashed: the limit by the "
                            "card's copy rate (blue), by its bf16 products (red)   "
                            "full: out of memory   no: failed", "small soft"))
    return figures.svg(1080, 410, "Growth of sampling and update with rows, length and size", out)
