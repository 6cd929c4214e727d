"""The README's picture: a completion's credit under GRPO and under a run's method, as an SVG.

    python examples/picture.py runs/NAME OUT.svg

It has the problem, the right answer, the advantage in words and the first false line. The number
under a token is its weight. The file follows the reader's colour scheme and loads nothing.
"""
import argparse
import html
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from plot import parsed, text_of

import problems
import show
from engine.errors import BadInput, printable, run_cli

CHARACTER, LINE, MARGIN = 8.5, 44, 24  # pixels; one character of 14 px monospace
NARROW, WIDE = 320, 460  # the least and most width of a panel
STYLE = """
text{font:14px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
.mono{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace}
.head{font-weight:600}.soft{fill:#59636e}.weight{font-size:10px;fill:#59636e}
.paper{fill:#ffffff}.panel{fill:#f6f8fa;stroke:#d1d9e0}
.red{fill:#d1242f}.blue{fill:#0969da}.slip{fill:none;stroke:#8250df;stroke-width:2}
.cross{fill:#8250df;font-weight:700}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.soft,.weight{fill:#9198a1}
.paper{fill:#0d1117}.panel{fill:#151b23;stroke:#3d444d}.red{fill:#f85149}.blue{fill:#388bfd}
.slip{stroke:#d2a8ff}.cross{fill:#d2a8ff}}
"""


def text(x, y, words, kind="", anchor="start"):
    words = html.escape(printable(words))
    return (f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}" '
            f'xml:space="preserve">{words}</text>')


def shown(token):
    """A token as it is drawn: line breaks and the stop token are signs."""
    return token.replace("\n", "\u23ce").replace("<|im_end|>", "end")


def places(tokens):
    """Where each token is drawn in a panel: (x, line, width) each, wrapped at the widest."""
    found, x, line = [], 0.0, 0
    for token in tokens:
        width = max(20, CHARACTER * len(shown(token)) + 3)
        if x + width > WIDE - 36 and x:
            x, line = 0.0, line + 1
        found.append((x, line, width))
        x += width
        if token.endswith("\n"):
            x, line = 0.0, line + 1
    return found


def panel(left, top, size, it, method):
    """One method: tokens on their tint, weights below them, the first false line underlined."""
    out = [f'<rect x="{left}" y="{top}" width="{size[0]}" height="{size[1]}" rx="6" '
           'class="panel"/>', text(left + 18, top + 28, method["name"], "head")]
    for i, (x, line, width) in enumerate(places(it["tokens"])):
        token, weight = it["tokens"][i], method["weights"][i]
        x, y, width = left + 18 + x, top + 66 + LINE * line, width - 2
        kind, opacity = "red" if weight > 1 else "blue", 0.6 * abs(show.strength(weight))
        out.append(f'<rect x="{x:.1f}" y="{y - 16:.1f}" width="{width:.1f}" height="22" rx="3" '
                   f'class="{kind}" fill-opacity="{opacity:.2f}"/>')
        out.append(text(x + width / 2, y, shown(token), "mono", "middle"))
        if i in it["slip"]:
            out.append(f'<path d="M{x:.1f} {y + 7:.1f}h{width + 2:.1f}" class="slip"/>')
        if it["slip"] and i == it["slip"][0]:
            out.append(text(x - 14, y, "\u2717", "cross"))
        out.append(text(x + width / 2, y + 19, f"{weight:.1f}", "weight", "middle"))
    return out


def picture(it):
    """The SVG of an entry (see show.entry) with two methods."""
    at = places(it["tokens"])
    wide = max(NARROW, 36 + max(x + width for x, _, width in at))
    size = round(wide), 56 + LINE * (1 + max(line for _, line, _ in at))
    top, width = 118, MARGIN + len(it["methods"]) * (size[0] + MARGIN)
    verdict = "right" if it["reward"] > 0 else "wrong"
    word = "praised" if it["A"] > 0 else "blamed"
    out = [text(MARGIN, 34, it["problem"], "mono head"),
           text(MARGIN, 58, f"The right answer is {it['gold']}. This completion is {verdict}, so "
                            f"A = {it['A']:+.3g}:"),
           text(MARGIN, 80, f"red is {word} more than under GRPO, blue less; the number is "
                            "the weight.")]
    if it["slip"]:
        out += [text(MARGIN, 102, "\u2717", "cross"),
                text(MARGIN + 14, 102, "the first false line", "soft"),
                f'<path d="M{MARGIN + 14} 107h126" class="slip"/>']
    for n, method in enumerate(it["methods"]):
        out += panel(MARGIN + n * (size[0] + MARGIN), top, size, it, method)
    total = top + size[1] + MARGIN
    title = html.escape(f"The credit of one {verdict} completion, by "
                        + " and by ".join(method["name"] for method in it["methods"]))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" '
            f'width="{width}" height="{total}" role="img">\n<title>{title}</title>\n'
            f'<style>{STYLE}</style>\n<rect width="{width}" height="{total}" class="paper"/>\n'
            + "\n".join(out) + "\n</svg>\n")


def of_run(folder):
    """(config, example) of a run's folder, see engine.runs.example_of. Raises BadInput, which
    names the file, if one is missing or damaged."""
    path = folder / "config.json"
    config = parsed(path, text_of(path))
    lost = {"method", "credit"} - set(config)
    if config.get("method") == "grail":
        lost |= {"reweight", "as_released"} - set(config)
    if lost:
        raise BadInput(f"{path}: it lacks {min(lost)!r}, so {folder} is no run's folder.")

    path = folder / "summary.json"
    example = parsed(path, text_of(path)).get("example")
    if example is None:
        raise BadInput(f"{path}: it has no example to draw, because the run has not ended or no "
                       "completion had a gradient.")
    kinds = {"problem": str, "gold": str, "reward": (int, float), "A": (int, float), "ids": list,
             "weights": list, "own": (list, type(None)), "p": list, "entropy": list}
    whole = isinstance(example, dict) and all(
        name in example and isinstance(example[name], kind) for name, kind in kinds.items())
    if not whole or not 0 < len(example["ids"]) == len(example["weights"]):
        raise BadInput(f"{path}: its example is damaged.")
    return config, example


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a run's folder")
    parser.add_argument("target", type=Path, help="the SVG to write")
    args = parser.parse_args(argv)
    config, example = of_run(args.folder)
    _, tokenizer = problems.load_policy(args.folder / "checkpoint")
    it = show.beside_grpo(argparse.Namespace(**config), tokenizer, example)
    args.target.write_text(picture(it), encoding="utf-8")


if __name__ == "__main__":
    run_cli(main)
