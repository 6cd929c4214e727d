"""One completion coloured by its weights: python examples/picture.py runs/NAME OUT.svg"""
import html
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import problems
import show
from engine.errors import BadInput, run_cli

WIDTH, HEIGHT, LEFT = 9.6, 40, 12  # pixels a character, a line, and of margin


def main():
    if len(sys.argv) != 3:
        raise BadInput("two arguments are wanted: a run's folder and the SVG to write.")
    folder, target = map(Path, sys.argv[1:])
    example = json.loads((folder / "summary.json").read_text())["example"]
    _, tokenizer = problems.load_policy(folder / "checkpoint")
    x, y, widest, out = LEFT, 26, 0, []
    for text, weight in zip(show.pieces(tokenizer, example["ids"]), example["weights"]):
        shown = text.replace("\n", "\u23ce")
        width = WIDTH * len(shown) + 4
        out.append(
            f'<rect x="{x}" y="{y - 17}" width="{width - 2}" height="22" rx="3" '
            f'fill="rgb{show.shade(weight)}"/><text x="{x + 1}" y="{y}">{html.escape(shown)}'
            f'</text><text x="{x + 1}" y="{y + 14}" class="w">{weight:.1f}</text>')
        x += max(width, 20)
        widest = max(widest, x)
        if text.endswith("\n"):
            x, y = LEFT, y + HEIGHT
    style = "text{font:16px monospace} .w{font-size:8px;fill:#666}"
    target.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{widest + LEFT:.0f}" height="{y + 24}">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="white"/>'
        + "".join(out) + "</svg>\n", encoding="utf-8")


if __name__ == "__main__":
    run_cli(main)
