"""What a person sees: pages that hostile text cannot break, colours that can be read, curves."""
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import grail
import show
from engine import errors
from rollout import Rollouts

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import plot
import show_credit

HOSTILE = ["</span></p></style><script>alert(1)</script>", '" onmouseover="alert(2)', "&lt;b&gt;",
           "\x1b[31mred\x1b]0;title\x07", "\u202eabc", "<!--", "]]>", "\x00", "\ud800", "`${x}`\n"]


class Reader(HTMLParser):
    """Tags, attributes, and the text within <p class="text">, as a browser would find them."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.tips, self.styles, self.inside = [], set(), [], [], False
        self.texts, self.scripts = [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        attrs = dict(attrs)
        if "data-tip" in attrs:
            self.tips.append(attrs["data-tip"])
            self.styles.append(attrs["style"])
        if attrs.get("class") == "text":
            self.inside, self.texts = True, [*self.texts, ""]

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "p"

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "script" and data.strip():
            self.scripts.append(data)
        if self.inside:
            self.texts[-1] += data


def completion(tokens, methods, box=None, problem="What is 1 + 1?", reward=0.0):
    return {"tokens": tokens, "problem": problem, "reward": reward, "box": box, "methods": methods}


# ------------------------------------------------------------------------------ hostile text


def test_a_page_holds_hostile_text_as_text():
    """One token that closes its own span could run a script on the machine of whoever looks."""
    n = len(HOSTILE)
    page = show.page("".join(HOSTILE), [completion(
        HOSTILE, {"".join(HOSTILE): ([1.0] * n, [0.5] * n)}, problem="".join(HOSTILE))])
    plain = Reader(show.page("x", [completion(["a"] * n, {"y": ([1.0] * n, [0.5] * n)})]))
    found = Reader(page)
    assert found.tags == plain.tags and found.attributes == plain.attributes
    assert found.scripts == plain.scripts == [show.SCRIPT]
    assert found.texts == ["".join(map(errors.printable, HOSTILE)).replace("\n", "\u23ce\n")]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", page)
    page.encode("utf-8")


def test_a_page_needs_nothing_from_elsewhere():
    """A class without a network opens it from disk; and a page that calls home tells who looked."""
    page = show.page("x", [completion(["a", "b"], {"y": ([1.0, 2.0], None)})])
    assert not re.search(r"https?:|src=|href=|url\(|@import|<link|<img|<iframe|fetch\(", page)


def test_a_terminal_is_not_obeyed_and_gets_its_own_colours_back():
    """Model text with an escape sequence could rename the window, or hide what stands above it."""
    for colours in (True, False):
        out = show.coloured(HOSTILE, [4.0] * len(HOSTILE), colours)
        ours = re.findall(r"\x1b\[38;5;16;48;5;(\d+)m([^\x1b\n]+)\x1b\[0m", out)
        rest = re.sub(r"\x1b\[38;5;16;48;5;\d+m|\x1b\[0m", "", out)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", rest)
        # Colours are closed where they were opened, and on the same line.
        assert len(ours) == out.count("\x1b[38") == out.count("\x1b[0m")
        assert rest.replace("\u23ce", "") == "".join(map(errors.printable, HOSTILE))
        assert bool(ours) == colours


# ------------------------------------------------------------------------------ colours


def test_strength_is_symmetric_on_a_log_scale():
    assert [show.strength(w) for w in (0, .25, .5, 2 ** -.5, 1, 2 ** .5, 2, 5)] == pytest.approx(
        [-1, -1, -1, -.5, 0, .5, 1, 1])
    assert show.shade(1) == (255, 255, 255)
    assert show.shade(3) == (255, 100, 100) and show.shade(0.1) == (100, 100, 255)


def luminance(rgb):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in
              (x / 255 for x in rgb)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    """WCAG 2's contrast ratio; 4.5 is asked of text."""
    high, low = sorted([luminance(a), luminance(b)], reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_colour_of_the_page_can_be_read_in_light_and_in_dark():
    """A red that is fine on white swallows white text in dark mode."""
    def hexes(theme, name):
        code = re.search(rf"--{name}:#(\w+)", theme)[1]
        code = code if len(code) == 6 else "".join(c * 2 for c in code)
        return [int(code[i:i + 2], 16) for i in (0, 2, 4)]

    light, dark = re.findall(r":root\{(.*?)\}", show.STYLE, re.S)
    for theme in (light, dark):
        fg, card = hexes(theme, "fg"), hexes(theme, "card")
        assert contrast(hexes(theme, "soft"), card) > 4.5
        for name in ("more", "less"):
            tint = [int(x) for x in re.search(rf"--{name}:([\d ]+)", theme)[1].split()]
            for step in range(13):
                a = 0.6 * step / 12
                assert contrast(fg, [a * t + (1 - a) * c for t, c in zip(tint, card)]) > 4.5


def test_black_on_every_terminal_colour_can_be_read():
    """The 6 x 6 x 6 cube of the 256 colours, as xterm defines it."""
    steps = [0, 95, 135, 175, 215, 255]
    for code in show.RED + show.BLUE:
        rgb = [steps[(code - 16) // n % 6] for n in (36, 6, 1)]
        assert contrast(rgb, (0, 0, 0)) > 6


def test_deeper_colour_for_further_from_one_and_none_at_one():
    weights = [.4, .55, .7, .8, 1.0, 1.25, 1.4, 1.8, 3.0]
    codes = re.findall(r"48;5;(\d+)m|(=)", show.coloured(["="] * 9, weights))
    used = [int(a) for a, _ in codes if a]
    assert used == show.BLUE[::-1] + show.RED
    assert show.coloured(["one"], [1.0]) == show.coloured(["one"], [1.05]) == "one"


def test_no_color_and_pipes_get_plain_text(monkeypatch):
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert show.in_colours()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not show.in_colours()
    monkeypatch.setenv("NO_COLOR", "")  # empty counts as not set, says no-color.org
    assert show.in_colours()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: False))
    assert not show.in_colours()


# ------------------------------------------------------------------------------ numbers


def test_the_numbers_under_the_pointer_and_under_the_column():
    """Weights 1, 1, 1, 5: (sum)^2 / (n sum of squares) = 64 / 112; the heaviest has 5 / 8."""
    s = [0.01, 0.02, 0.04, 0.0]
    page = show.page("x", [completion(["a", "b", "c", "d"], {"M": ([1.0, 1.0, 1.0, 5.0], s)},
                                       box=(3, 3, 4, 4))])
    found = Reader(page)
    assert "ESS ratio 0.57 \u00b7 heaviest 10&nbsp;% hold 62&nbsp;% \u00b7 mean weight 2.00" in page
    # log s in even steps over three tokens: z = -sqrt(3/2), 0, sqrt(3/2).
    assert found.tips[0] == "token 0 \u2039a\u203a   M   saliency 1.00e-02   z -1.22   weight 1.000"
    assert found.tips[2].endswith("saliency 4.00e-02   z +1.22   weight 1.000")
    assert found.tips[3] == "token 3 \u2039d\u203a   M   saliency 0.00e+00   weight 5.000"
    assert found.styles == ["--a:0.00"] * 3 + ["--a:0.60"]


def test_the_box_is_marked():
    page = show.page("x", [completion(list("abcde"), {"M": ([1.0] * 5, None)}, box=(1, 2, 3, 4))])
    kinds = re.findall(r'<span class="l ?(\w*)" style="[^"]*" data-i', page)
    assert kinds == ["", "rim", "content", "rim", ""]


def test_z_is_grail_s_own():
    """One saliency of zero, equal ones, and grail.py's floor: 1 + z / 2 must be its weight."""
    for s in ([0.3, 0.1, 0.0, 0.2, 0.9], [0.2] * 5, [1e-9, 2e-9, 1e-9, 3e-9, 0.0]):
        on, span = torch.ones(1, 7).bool(), (5, 6, 6, 7)
        w = grail.grail_credit(torch.tensor([s + [0.0] * 2]), on, torch.tensor([span]),
                               torch.tensor([-1.0]), w_min=-9)
        z = show.z_scores(s + [0.0] * 2, 5)
        assert [1 + z_t / 2 for z_t in z[:5]] == pytest.approx(w[0, :5].tolist(), abs=1e-4)


# ------------------------------------------------------------------------------ pages of a run


class Letters:
    """A tokenizer of single characters; 0 is padding."""

    def decode(self, ids, **_):
        return "".join(chr(i) for i in ids if i)


def test_a_step_s_page_shows_right_and_wrong_of_different_problems(tmp_path):
    """Three problems of four: what was skipped (weights 0) has nothing to show."""
    texts = [rf"{i}:\boxed{{{i % 10}}}" for i in range(12)]
    ids = torch.tensor([[ord(c) for c in text.ljust(16, "\0")] for text in texts])
    lengths = torch.tensor([len(text) for text in texts])
    rollouts = Rollouts(None, None, ids, lengths, None, None, texts)
    weights = torch.full(ids.shape, 1.5) * (ids > 0)
    weights[:4] = 0  # the first problem's group was all right: no gradient
    rewards = torch.tensor([[1.0] * 4, [0, 0, 1, 0], [1, 0, 0, 1]])
    path = tmp_path / "pages" / "step_00010.html"
    show.of_step(path, "step 10", Letters(), rollouts, rewards, weights,
                  [{"problem": f"problem {n}"} for n in "abc"], "grail")
    page = path.read_text(encoding="utf-8")
    assert re.findall(r"<h2>(\w+) \(reward ([01])\): problem (\w)", page) == [
        ("right", "1", "b"), ("right", "1", "c"), ("wrong", "0", "b"), ("wrong", "0", "c")]
    shown = [text.split(":")[0] for text in Reader(page).texts]
    assert shown == ["6", "6", "8", "8", "4", "4", "9", "9"]  # under GRPO and under GRAIL
    assert re.findall(r"<h3>(\w+)", page) == ["GRPO", "grail"] * 4


def test_grail_shows_its_example_and_says_when_there_is_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(show, "load_tokenizer", lambda *_: Letters())
    show.last_steps({"folder": str(tmp_path), "example": None})
    assert "none to show" in capsys.readouterr().out
    text = r"x=\boxed{7}"
    show.last_steps({"folder": str(tmp_path), "example": {
        "ids": [ord(c) for c in text], "weights": [2.0] * len(text), "problem": "\x1b[2Jx = 7?",
        "reward": 0.0}})
    out, page = capsys.readouterr().out, (tmp_path / "credit.html").read_text(encoding="utf-8")
    assert text in out and "\x1b" not in out
    assert Reader(page).texts == [text] * 2 and "wrong (reward 0): \\x1b[2Jx = 7?" in page


def test_show_credit_puts_five_methods_side_by_side(tmp_path, capsys):
    """A right and a wrong completion; credit beyond 1 in both, else the columns say nothing."""
    out = tmp_path / "credit.html"
    show_credit.main(["--out", str(out), "--samples", "4"])
    text = out.read_text(encoding="utf-8")
    assert "2 of 4" in capsys.readouterr().out
    for article, verdict in zip(text.split("<article>")[1:], ("right", "wrong"), strict=True):
        page, names = Reader(article), re.findall(r"<h3>([\w-]+)", article)
        assert f"<h2>{verdict}" in article and len(set(page.texts)) == 1
        assert names == ["GRPO", "GRAIL", "OAR-G", "OAR-P", "DelTA"]
        n = len(page.tips) // 5
        tips = {name: page.tips[i * n:][:n] for i, name in enumerate(names)}
        weights = {name: [float(tip.rsplit(" ", 1)[1]) for tip in tips[name]] for name in names}
        start = re.findall(r'"[lm] ?(\w*)" style', article)[:n].index("rim")
        assert set(weights["GRPO"]) == {1.0} and max(weights["GRAIL"]) == 5.0
        for name in ("OAR-G", "OAR-P"):  # the box and what follows keep 1, the rest has mean 1
            assert set(weights[name][start:]) == {1.0}
            assert sum(weights[name][:start]) == pytest.approx(start, abs=0.03)
            assert min(weights[name]) < 0.7 and max(weights[name]) > 1.4
        assert len(set(weights["DelTA"])) > 5 and all(0.5 < w < 1.5 for w in weights["DelTA"])
        assert all(name in tip for name in names for tip in tips[name])
        assert all("saliency" in tip for name in names[1:4] for tip in tips[name])


# ------------------------------------------------------------------------------ the command line


def test_saliency_takes_a_completion_from_a_file(tmp_path, monkeypatch, capsys):
    """Escape sequences of a completion are shown and not obeyed, wherever they come from."""
    pieces = show.pieces
    monkeypatch.setattr(show, "pieces", lambda *about: [
        "\x1b[2J" + piece for piece in pieces(*about)])
    path = tmp_path / "answer.txt"
    path.write_text("12*3=36\nThe \x1b[31manswer is \\boxed{36}.", encoding="utf-8")
    show.main(["--problem", "Start with 12, times 3.", "--completion", str(path)])
    out = capsys.readouterr().out
    assert r"boxed{\x1b[2J3\x1b[2J6\x1b[2J}" in out and "\x1b" not in out and "the box" in out
    path.write_text("no box", encoding="utf-8")
    for wrong in (path, tmp_path / "none.txt", tmp_path):
        with pytest.raises(errors.BadInput, match=f"^--completion {wrong}: "):
            show.main(["--completion", str(wrong)])


# ------------------------------------------------------------------------------ curves


def run_of(folder, method, seed, rewards, **settings):
    folder.mkdir()
    config = {"method": method, "seed": seed, "name": str(folder), "lr": 1e-4, **settings}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "metrics.jsonl").write_text("".join(
        json.dumps({"step": i, "reward": r, "seconds": 1.0}) + "\n"
        for i, r in enumerate(rewards, 1)))
    return folder


def test_seeds_of_a_method_are_a_band_and_other_settings_another_line(tmp_path):
    """Two learning rates under one mean would be a curve that no run has drawn."""
    runs = [plot.read(run_of(tmp_path / name, *rest, **more)) for name, rest, more in [
        ("a", ("grpo", 0, [.1, .2, .9]), {}), ("b", ("grpo", 1, [.3, .8]), {}),
        ("c", ("grail", 0, [.5]), {}), ("d", ("grpo", 0, [.6]), {"lr": 1e-3})]]
    groups = plot.by_method(runs)
    assert {k: len(v) for k, v in groups.items()} == {
        "grpo lr=0.0001": 2, "grail lr=0.0001": 1, "grpo lr=0.001": 1}
    steps, mean, low, high = plot.band(groups["grpo lr=0.0001"], "reward", 100)
    assert steps == [1, 2] and mean == pytest.approx([20, 50])  # step 3 has one seed alone
    assert low == pytest.approx([10, 20]) and high == pytest.approx([30, 80])
    assert plot.band(groups["grpo lr=0.0001"], "ess")[0] == []


def test_accuracy_is_read_before_and_after(tmp_path):
    folder = run_of(tmp_path / "a", "grpo", 0, [.1, .2])
    scores = {"before": {"sampled": {"accuracy": .25}}, "after": {"sampled": {"accuracy": .75}}}
    (folder / "summary.json").write_text(json.dumps({"step": 2, **scores}))
    assert plot.read(folder)[1]["accuracy"] == {0: .25, 2: .75}


def test_without_matplotlib_it_says_how_to_get_it(tmp_path, monkeypatch):
    """And what is no run's folder is told from that."""
    folder = run_of(tmp_path / "a", "grpo", 0, [.1])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for target, words in ((folder, "pip install matplotlib"), (tmp_path, "config.json: No such")):
        monkeypatch.setattr(sys, "argv", ["plot.py", str(target)])
        with pytest.raises(errors.BadInput, match=words):
            plot.main()


def test_png_and_svg(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    folder = run_of(tmp_path / "a", "grpo", 0, [.1, .4])
    out = tmp_path / "o" / "v1.5"
    monkeypatch.setattr(sys, "argv", ["plot.py", str(folder), "--out", str(out)])
    plot.main()
    assert (tmp_path / "o" / "v1.5.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "o" / "v1.5.svg").read_text()
