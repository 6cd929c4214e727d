"""What a person sees: pages that hostile text cannot break, colours that can be read, curves."""
import json
import math
import random
import re
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_grail import Pieces

import grail
import released
import saliency
import show
from engine import errors, flags, lines, pages
from engine.runs import Step
from rollout import Rollouts

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import picture
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
        if "data-i" in attrs:
            self.styles.append(attrs["style"])
        if "data-tip" in attrs:
            self.tips.append(attrs["data-tip"])
        if attrs.get("class") == "text":
            self.inside, self.texts = True, [*self.texts, ""]

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "p"

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "script" and data.strip():
            self.scripts.append(data)
        if self.inside:
            self.texts[-1] += data


def completion(tokens, methods, box=None, problem="What is 1 + 1?", reward=0.0, **known):
    """An entry of a page, as show.entry makes it of ids."""
    columns = []
    for name, (weights, s) in methods.items():
        z = show.z_scores(s, box[0]) if s and box else [math.nan] * len(tokens)
        columns.append(dict(name=name, weights=weights, s=s, z=z, figures=show.figures(weights)))
    return dict(tokens=tokens, problem=problem, reward=reward, box=box, methods=columns, **known)


# ------------------------------------------------------------------------------ hostile text


def test_a_page_holds_hostile_text_as_text():
    """One token that closes its own span could run a script on the machine of whoever looks."""
    n = len(HOSTILE)
    page = pages.page("".join(HOSTILE), [completion(
        HOSTILE, {"".join(HOSTILE): ([1.0] * n, [0.5] * n)}, problem="".join(HOSTILE),
        gold="".join(HOSTILE))], "".join(HOSTILE), [("".join(HOSTILE), "".join(HOSTILE))])
    plain = Reader(pages.page("x", [completion(
        ["a"] * n, {"y": ([1.0] * n, [0.5] * n)}, gold="7")], "x", [("y", "z")]))
    found = Reader(page)
    assert found.tags == plain.tags and found.attributes == plain.attributes
    assert found.scripts == plain.scripts == [pages.SCRIPT]
    assert found.texts == ["".join(map(errors.printable, HOSTILE)).replace("\n", "\u23ce\n")]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", page)
    page.encode("utf-8")


def test_a_page_needs_nothing_from_elsewhere():
    """A class without a network opens it from disk; and a page that calls home tells who looked."""
    page = pages.page("x", [completion(["a", "b"], {"y": ([1.0, 2.0], None)})])
    assert not re.search(r"https?:|src=|href=|url\(|@import|<link|<img|<iframe|fetch\(", page)
    listed = pages.contents("x", "y", [dict(href="step_00002.html", step=2, reward=0.5, length=3.0,
                                            informative=1, groups=2)], [("a", "../credit.html")])
    assert re.findall(r'href="([^"]*)"', listed) == ["../credit.html", "step_00002.html"]
    assert not re.search(r"https?:|src=|url\(|@import|<link|<img|<script", listed)


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
    """Full at 5 and at 1/5, half where the logarithm is a quarter of theirs."""
    quarter = 5 ** 0.25
    assert [show.strength(w) for w in (0, .1, .2, 1 / quarter, 1, quarter, 5, 9)] == pytest.approx(
        [-1, -1, -1, -.5, 0, .5, 1, 1])


def luminance(rgb):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in
              (x / 255 for x in rgb)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    """WCAG 2's contrast ratio; 4.5 is asked of text."""
    high, low = sorted([luminance(a), luminance(b)], reverse=True)
    return (high + 0.05) / (low + 0.05)


def themes():
    """{light, dark}: colours of the page as lists of three, 0-255."""
    for theme in re.findall(r":root\{(.*?)\}", pages.STYLE, re.S):
        colours = {}
        for name, code in re.findall(r"--(\w+):#(\w+)", theme):
            code = code if len(code) == 6 else "".join(c * 2 for c in code)
            colours[name] = [int(code[i:i + 2], 16) for i in (0, 2, 4)]
        for name, three in re.findall(r"--(\w+):(\d+ \d+ \d+)", theme):
            colours[name] = [int(x) for x in three.split()]
        yield colours


def drawn(theme, weight):
    """The background of a token of this weight."""
    kind, style = pages.tinted(weight)
    a = float(style.removeprefix("--a:"))
    return [a * t + (1 - a) * c for t, c in zip(theme["more" if kind == "m" else "less"],
                                                theme["card"])]


def test_every_colour_of_the_page_can_be_read_in_light_and_in_dark():
    """A red that is fine on white swallows white text in dark mode."""
    found = list(themes())
    assert len(found) == 2
    for theme in found:
        assert contrast(theme["soft"], theme["card"]) > 4.5
        assert contrast(theme["slip"], theme["card"]) > 4.5
        for weight in (0.0, .2, .3, .5, .7, .8, .9, .95, 1.0, 1.05, 1.1, 1.2, 1.4, 2, 3, 4, 5, 99):
            assert contrast(theme["fg"], drawn(theme, weight)) > 4.5, weight


def lab(rgb):
    """CIE L*a*b* of an sRGB colour under D65: distances in it are what an eye sees."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in
              (x / 255 for x in rgb)]
    rows = ((.4124, .3576, .1805), (.2126, .7152, .0722), (.0193, .1192, .9505))
    xyz = [sum(a * b for a, b in zip(row, linear)) for row in rows]
    f = [t ** (1 / 3) if t > .008856 else 7.787 * t + 16 / 116
         for t in (x / white for x, white in zip(xyz, (.9505, 1.0, 1.089)))]
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


def test_weights_that_matter_can_be_told_apart_in_light_and_in_dark():
    """GRAIL's 5 from 2, DelTA's 0.9 from 1.1 and both from 1. A distance of 2.3 is just seen."""
    for theme in themes():
        for a, b, least in ((5, 2, 15), (.9, 1.1, 12), (1, 1.1, 6), (1, .9, 6), (.5, .2, 12)):
            assert math.dist(lab(drawn(theme, a)), lab(drawn(theme, b))) > least, (a, b)


def test_black_on_every_terminal_colour_can_be_read():
    """The 6 x 6 x 6 cube of the 256 colours, as xterm defines it."""
    steps = [0, 95, 135, 175, 215, 255]
    for code in show.RED + show.BLUE:
        rgb = [steps[(code - 16) // n % 6] for n in (36, 6, 1)]
        assert contrast(rgb, (0, 0, 0)) > 6


def test_deeper_colour_for_further_from_one_and_none_at_one():
    weights = [.2, .4, .7, .9, 1.0, 1.1, 1.4, 2.0, 5.0]
    codes = re.findall(r"48;5;(\d+)m|(=)", show.coloured(["="] * 9, weights))
    used = [int(a) for a, _ in codes if a]
    assert used == show.BLUE[::-1] + show.RED
    assert show.coloured(["one"], [1.0]) == show.coloured(["one"], [1.02]) == "one"


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


def test_the_bar_says_all_of_a_token_and_the_column_how_even_it_is():
    """Weights 1, 1, 1, 5: (sum)^2 / (n sum of squares) = 64 / 112; the heaviest has 5 / 8."""
    s = [0.01, 0.02, 0.04, 0.0]
    page = pages.page("x", [completion(
        ["a", "\n", "c", "d"], {"GRPO": ([1.0] * 4, None), "M": ([1.0, 1.0, 1.5, 5.0], s)},
        box=(3, 3, 4, 4), p=[0.5, 1.0, 0.25, 0.125], entropy=[0.7, 0.0, 1.25, 2.0])])
    found = Reader(page)
    assert "ESS ratio 1.00" in page and "mean weight 2.12" in page
    assert "ESS ratio 0.57 \u00b7 heaviest 10&nbsp;% hold 62&nbsp;% \u00b7 mean weight 2.00" in (
        pages.page("x", [completion(["a"] * 4, {"M": ([1.0, 1.0, 1.0, 5.0], None)})]))
    # log s in even steps over three tokens: z = -sqrt(3/2), 0, sqrt(3/2). Once, not once a column.
    assert [tip.replace("z -0.00", "z +0.00") for tip in found.tips] == [
        "token 0 \u2039a\u203a   probability 0.500   entropy 0.700\n"
        "weight   GRPO 1.00   M 1.00\nM: saliency 1.00e-02, z -1.22",
        "token 1 \u2039\u23ce\u203a   probability 1.000   entropy 0.000\n"
        "weight   GRPO 1.00   M 1.00\nM: saliency 2.00e-02, z +0.00",
        "token 2 \u2039c\u203a   probability 0.250   entropy 1.250\n"
        "weight   GRPO 1.00   M 1.50\nM: saliency 4.00e-02, z +1.22",
        "token 3 \u2039d\u203a   probability 0.125   entropy 2.000\n"
        "weight   GRPO 1.00   M 5.00\nM: saliency 0.00e+00"]
    assert found.styles[:7] == ["--a:0.00"] * 6 + [f"--a:{.75 * show.strength(1.5):.2f}"]
    assert found.styles[7] == "--a:0.75" and 'class="m strong content"' in page


def test_the_box_and_the_first_false_line_are_marked():
    page = pages.page("x", [completion(list("abcdefg"), {"M": ([1.0] * 7, None)}, box=(4, 5, 6, 7),
                                       slip=range(1, 3))])
    kinds = re.findall(r'<span class="l ?([\w ]*)" style="[^"]*" data-i', page)
    assert kinds == ["", "slip cross", "slip", "", "rim", "content", "rim"]


@pytest.mark.parametrize("A, own, words", [
    (-0.25, None, "<b>A = -0.25</b>: red is blamed more"),
    (0.75, None, "<b>A = +0.75</b>: red is praised more"),
    (0.0, None, "<b>A = +0</b>: nothing is learned from it"),
    (0.5, [0.25, -0.5], "each token has its own advantage A")])
def test_the_advantage_is_said_with_its_sign_in_words(A, own, words):
    page = pages.page("x", [completion(["a", "b"], {"M": ([1.0, 2.0], None)}, gold="<7>", A=A,
                                       own=own)])
    assert words in page and "right answer: <b>&lt;7&gt;</b>" in page
    if own:
        assert "its own A -0.500" in Reader(page).tips[1]


def test_what_is_there_twice_is_left_out_with_a_word():
    """Columns of equal weights, completions of the same words, and the group's that are alike."""
    methods = {"GRPO": ([1.0, 1.0], None), "M": ([1.0, 2.0], None), "N": ([1.0, 1.0], None)}
    it = completion(["a", "b"], methods, twins=2)
    it["methods"][2]["note"] = "for a reason"
    page = pages.page("x", [it, it, completion(["a", "b"], methods, problem="another")])
    assert re.findall(r"<h3>(\w)", page) == ["G", "M"] * 2
    assert page.count("N: the same weights as GRPO here, so its column is left out") == 2
    assert "left out (for a reason).</p>" in page and "1 more with the same text" in page
    assert "2 other completions of this group say the same, and are left out" in page
    assert "1 other completion of this group says the same, and is left out" in (
        pages.page("x", [completion(["a"], {"M": ([1.0], None)}, twins=1)]))


def test_every_token_is_reached_by_keyboard_and_one_is_by_tab():
    """A stop at each of 300 tokens would be a trap; arrow keys go on from the first one."""
    methods = {"G": ([1.0] * 3, None), "M": ([2.0] * 3, None)}
    page = pages.page("x", [completion(list("abc"), methods)])
    stops = re.findall(r'data-i="(\d)" tabindex="(-?\d)"', page)
    assert stops == [("0", "0"), ("1", "-1"), ("2", "-1")] * 2
    for key in ("ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"):
        assert key in pages.SCRIPT
    assert re.findall(r'aria-selected="(\w+)" data-method="(\w)"', page) == [
        ("false", "G"), ("true", "M")]
    assert page.count('<section class="on"') == 1


# ------------------------------------------------------------------------------ tokens as text


class ByteFallback(Pieces):
    """As Pieces, but it writes one U+FFFD for each byte that is no character, as Llama's."""

    def decode(self, ids, **_):
        text = b"".join(self.pieces[i] for i in ids).decode("utf-8", "surrogateescape")
        return re.sub("[\udc80-\udcff]", "\ufffd", text)


@pytest.mark.parametrize("kind", [Pieces, ByteFallback])
@pytest.mark.parametrize("tokens, expected", [
    ([b"2", b"\xe2\x88", b"\xb4", b"x"], ["2", "", "\u2234", "x"]),
    ([b"\xf0", b"\x9f", b"\x98", b"\x80!"], ["", "", "", "\U0001f600!"]),
    ([b"a\xc3", b"\xa9\xc3", b"\xa9b"], ["a", "\xe9", "\xe9b"]),
    ([b"a", b"\xc3"], ["a", "\ufffd"]),                   # cut off within a character
    ([b"a", b"\xc3", b"b"], ["a", "\ufffd", "b"]),        # it never became one
    ([b"\xef\xbf\xbd", b"\xff", b"c"], ["\ufffd", "\ufffd", "c"]), ([], [])])
def test_pieces_join_to_the_text_when_tokens_split_characters(tokens, expected, kind):
    tokenizer, ids = kind(*tokens), list(range(len(tokens)))
    assert show.pieces(tokenizer, ids) == expected
    assert "".join(show.pieces(tokenizer, ids)) == tokenizer.decode(ids)


def test_pieces_of_random_bytes_join_to_the_text():
    """Whatever a model writes, and wherever its tokens cut."""
    draw = random.Random(0)
    for _ in range(200):
        data = "".join(draw.choice("a\xe9\u2234\U0001f600\ufffd") for _ in range(8)).encode()
        data += bytes(draw.choices(range(256), k=draw.randrange(3)))
        cuts = sorted(draw.choices(range(len(data)), k=12))
        tokenizer = Pieces(*(data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)])))
        ids = list(range(len(cuts) + 1))
        assert "".join(show.pieces(tokenizer, ids)) == tokenizer.decode(ids)


def test_a_part_of_a_character_is_seen_and_is_no_wrong_one():
    """A sign, in colours and on a page. Plain text is only the text."""
    tokens = show.pieces(Pieces(b"2", b"\xe2\x88", b"\xb4"), [0, 1, 2])
    assert re.sub(r"\x1b\[[\d;]*m", "", show.coloured(tokens, [2.0] * 3)) == "2\u25cc\u2234"
    assert show.coloured(tokens, [2.0] * 3, colours=False) == "2\u2234"
    page = pages.page("t", [completion(tokens, {"G": ([2.0] * 3, None)})])
    assert Reader(page).texts == ["2\u25cc\u2234"] and "\ufffd" not in page
    assert [tip.split("\u203a")[0][-1] for tip in Reader(page).tips] == ["2", "\u25cc", "\u2234"]


@pytest.mark.parametrize("s, weights", [
    ([1.0, 4.0, 0.0, 9.0], [.25, 1.0, 0.0, 2.25]), ([0.0, 0.0], [1.0, 1.0]), ([], [])])
def test_saliencies_of_0_colour_nothing(s, weights):
    """A sure model: J underflows. A median of no number would give all tokens the deepest red."""
    found = show.beside_the_median(torch.tensor(s)).tolist()
    assert found == weights
    if set(weights) == {1.0}:
        assert show.coloured(["a", "b"], found) == "ab"


# ------------------------------------------------------------------------------ the slip


@pytest.mark.parametrize("problem, text, words", [
    ("Start with 10, minus 3, minus 4.", "Now 10-3=7\n7-4=4\nSo \\boxed{4}", "7-4=4"),
    ("Start with 10, minus 3, minus 4.", "Now 10-3=7\n8-4=4\n\\boxed{4}", "8-4=4"),  # goes wrong
    ("Start with 10, minus 3, minus 4.", "10-3=7\n7-4=3\n\\boxed{5}", ""),  # only in the box
    ("Start with 10, minus 3, minus 4.", "At a glance, \\boxed{5}", ""),
    ("Start with 10, minus 3, minus 4.", "10-3=7\n7-4=3\n\\boxed{3}", ""),
    ("Ann has 3 bags.", "So 3*4=13 pears.", "3*4=13"), ("Ann has 3 bags.", "So 3*4=12 pears.", "")])
def test_the_first_false_line_where_it_can_be_known(problem, text, words):
    span = show.first_false_line(problem, text)
    assert (text[slice(*span)] if span else "") == words
    tokens = re.findall(r"\w+|\W", text)
    inside = show.tokens_within(tokens, span)
    assert "".join(tokens[i] for i in inside) == words


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


def step_of(number, folder, config):
    """A run at this step, and the step: three problems of four completions, the first all right."""
    texts = [rf"{i % 11}:\boxed{{{i % 10}}}" for i in range(12)]
    ids = torch.tensor([[ord(c) for c in text.ljust(16, "\0")] for text in texts])
    lengths = torch.tensor([len(text) for text in texts])
    out = Rollouts(None, None, ids, lengths, None, torch.full(ids.shape, -math.log(4)), texts)
    out.entropy = torch.full(ids.shape, 0.5)
    weights = torch.full(ids.shape, 1.5) * (ids > 0)
    weights[:4] = 0
    weights[4, :12] = weights[6, :12] = 1  # seen after those that the method weighs
    rewards = torch.tensor([[1.0] * 4, [0, 0, 1, 0], [1, 0, 0, 1]])
    rows = [{"problem": f"problem {n}", "answer": f"gold {n}"} for n in "abc"]
    run = SimpleNamespace(folder=folder, step=number, config=config)
    return run, Step(rows, out, rewards, rewards - rewards.mean(1, keepdim=True), None, weights)


def run_folder(folder):
    (folder / "summary.json").write_text(json.dumps({
        "before": {"sampled": {"accuracy": .25}, "greedy": {"accuracy": .02}}, "after": None}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(
        {"step": n, "reward": n / 10, "informative": 2, "groups": 3, "length": 9.0}) + "\n"
        for n in range(1, 7)))
    config = flags.parse(flags.flags("grail", ""), ["--pages-every", "2", "--steps", "6"])
    config.reweight, config.as_released = "wrong", False
    return config


def test_a_step_s_page_shows_right_and_wrong_of_different_problems(tmp_path):
    """What was skipped (weights 0) has nothing to show. The method's own weights come first; the
    same text in one group is one completion."""
    config = run_folder(tmp_path)
    config.reweight = "both"
    run, done = step_of(2, tmp_path, config)
    for tensor in (done.rollouts.completion_ids, done.rollouts.lengths):
        tensor[9] = tensor[10]
    show.of_step(run, Letters(), done)
    page = (tmp_path / "pages/step_00002.html").read_text(encoding="utf-8")
    assert re.findall(r"<h2>(\w+) \(reward ([01])\): problem (\w)", page) == [
        ("right", "1", "c"), ("right", "1", "b"), ("wrong", "0", "b"), ("wrong", "0", "c")]
    assert re.findall(r"right answer: <b>gold (\w)", page) == list("cbbc")
    assert re.findall(r"A = ([-+.\d]+)</b>: (red is \w+ more)", page) == [
        ("+0.5", "red is praised more"), ("+0.75", "red is praised more"),
        ("-0.25", "red is blamed more"), ("-0.5", "red is blamed more")]
    shown = [text.split(":")[0] for text in Reader(page).texts]
    assert shown == ["8", "8", "6", "5", "5", "10", "10"]  # under GRPO and under GRAIL
    assert re.findall(r"<h3>(\w+)", page) == ["GRPO", "GRAIL", "GRPO"] + ["GRPO", "GRAIL"] * 2
    assert "1 other completion of this group says the same" in page
    assert "probability 0.250   entropy 0.500" in page and "--reweight both" in page
    assert "GRAIL, step 2 of 6" in page and "reward 0.583 in this step" in page
    assert "before the training 25.0 % sampled, 2.0 % greedy" in page


def test_the_pages_of_a_run_are_linked(tmp_path):
    """Forward too, though the next one did not exist when it was written; a page that is made again
    after --resume is linked once; a step between has none."""
    config = run_folder(tmp_path)

    def links(name):
        text = (tmp_path / "pages" / name).read_text(encoding="utf-8")
        return re.findall(r'<a href="([^"]*)">([\w ]*)', text)

    for number in (2, 3, 4, 4, 6):
        show.of_step(step_of(number, tmp_path, config)[0], Letters(),
                     step_of(number, tmp_path, config)[1])
    assert links("step_00002.html") == [("index.html", "all pages"), ("step_00004.html", "next")]
    assert links("step_00004.html") == [("step_00002.html", "previous"),
                                        ("index.html", "all pages"), ("step_00006.html", "next")]
    listed = (tmp_path / "pages/index.html").read_text(encoding="utf-8")
    assert links("index.html") == [(f"step_0000{n}.html", f"step {n}") for n in (2, 4, 6)]
    assert re.findall(r"<td>(0\.\d+)</td>", listed) == ["0.200", "0.400", "0.600"]
    assert "25.0 % sampled" in listed


def test_the_pages_are_linked_in_the_order_of_their_numbers(tmp_path):
    """step_100000 comes before step_99999 in the alphabet. A page of yours is not one of these."""
    config = run_folder(tmp_path)
    config.pages_every = 1
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "step_by_step.html").write_text("mine")
    for number in (99_998, 99_999, 100_000, 100_001):
        run, done = step_of(number, tmp_path, config)
        show.of_step(run, Letters(), done)
    for number in (99_999, 100_000, 100_001):
        text = (tmp_path / f"pages/step_{number}.html").read_text(encoding="utf-8")
        assert f'href="step_{number - 1}.html">previous<' in text
        assert (f'href="step_{number + 1}.html">next<' in text) == (number < 100_001)


def test_a_method_of_one_s_own_has_pages_under_its_name(tmp_path):
    """CONTRIBUTING.md promises that its file alone is enough."""
    config = run_folder(tmp_path)
    config.method = "mymethod"
    run, done = step_of(2, tmp_path, config)
    show.of_step(run, Letters(), done)
    page = (tmp_path / "pages/step_00002.html").read_text(encoding="utf-8")
    assert "<h1>mymethod, step 2 of 6</h1>" in page and "<h3>mymethod</h3>" in page
    assert "mymethod: pages of" in (tmp_path / "pages/index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("summary", [None, "", "[1]", '{"before": 1', '{"before": null}'])
def test_pages_are_made_without_the_summary(summary, tmp_path):
    """Nobody writes it between --resume and the end of a run, and a page is no reason to stop. Of a
    step that an older version logged, or that lost its line, the list says nothing."""
    config = run_folder(tmp_path)
    (tmp_path / "summary.json").unlink()
    if summary is not None:
        (tmp_path / "summary.json").write_text(summary)
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()]
    logged[1].pop("groups")
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in logged))
    for number in (2, 4):
        run, done = step_of(number, tmp_path, config)
        show.of_step(run, Letters(), done)
    page = (tmp_path / "pages/step_00004.html").read_text(encoding="utf-8")
    assert "reward 0.583 in this step; tiny on arithmetic</p>" in page
    listed = (tmp_path / "pages/index.html").read_text(encoding="utf-8")
    assert re.findall(r'href="(step_\d+)', listed) == ["step_00004"]
    (tmp_path / "metrics.jsonl").unlink()
    show.list_pages(tmp_path, config)
    assert "step_0" not in (tmp_path / "pages/index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("reweight, A, weights, words", [
    ("wrong", 0.5, [1.0, 1.0], "--reweight wrong: right completions stay at weight 1"),
    ("correct", -0.5, [1.0, 1.0], "--reweight correct: wrong completions stay at weight 1"),
    ("wrong", -0.5, [1.0, 1.0], "--reweight wrong: no signal here"),
    ("both", 0.5, [1.0, 2.0], "--reweight both"), ("wrong", -0.5, [2.0, 1.0], "--reweight wrong")])
def test_grail_s_column_says_what_its_run_s_setting_does(reweight, A, weights, words):
    config = flags.parse(flags.flags("grail", ""), [])
    config.reweight, config.as_released = reweight, False
    name, note = show.of_method(config, weights, A)
    assert name == "GRAIL" and note.startswith(words)
    assert note == words or note.startswith("--reweight wrong: no signal")
    config.credit = "shuffled"
    assert show.of_method(config, weights, A) == ("GRAIL, --credit shuffled", note)
    for credit in ("uniform", "entropy", "oracle"):  # GRAIL made no weight of these
        config.credit = credit
        assert show.of_method(config, weights, A) == (f"GRAIL, --credit {credit}", "")


@pytest.mark.parametrize("as_released", [False, True])
@pytest.mark.parametrize("reweight", ["wrong", "correct", "both"])
@pytest.mark.parametrize("A", [0.5, -0.5, 0.0])
@pytest.mark.parametrize("text", ["no box", r"1\boxed{2}", r"12\boxed{3}", r"12\boxed{}"])
def test_a_note_on_weights_of_1_gives_the_reason(text, A, reweight, as_released):
    """By GRAIL's own functions, with a saliency that is the same at all tokens, or none."""
    credit_fn = released.grail_credit if as_released else grail.grail_credit
    ids = [ord(c) for c in text]
    span = saliency.answer_span(Letters(), ids, text)
    spans = torch.tensor([span or saliency.NO_BOX])
    mask = torch.ones(1, len(ids), dtype=torch.bool)
    w = credit_fn(mask.float(), mask, spans, torch.tensor([A]), reweight)[0].tolist()
    config = flags.parse(flags.flags("grail", ""), [])
    config.reweight, config.as_released = reweight, as_released
    _, note = show.of_method(config, w, A)
    on = {"wrong": A <= 0, "correct": A > 0, "both": True}[reweight]
    lost = span is None or span[0] < 2 or span[1] == span[2]  # or flat, and no content
    if as_released:
        assert ("no box, or an empty one" in note) == (span is None or span[1] == span[2])
        assert "stay at weight 1" not in note and "two tokens" not in note
    else:
        assert ("stay at weight 1" in note) == (not on)
        assert ("no signal here" in note) == (on and lost)
    assert A or "right" not in note and "wrong completions" not in note


def test_grail_shows_its_example_and_says_when_there_is_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(show, "load_tokenizer", lambda *_: Letters())
    config = run_folder(tmp_path)
    summary = {"folder": str(tmp_path), "step": 6}
    show.last_steps({**summary, "example": None}, config)
    assert "none to show" in capsys.readouterr().out
    text = "1+1=3\nx=\\boxed{7}"
    n = len(text)
    show.last_steps({**summary, "example": {
        "ids": [ord(c) for c in text], "weights": [2.0] * n, "problem": "\x1b[2Jx = 7?",
        "gold": "\x1b[2J8", "A": -0.25, "own": None, "p": [.5] * n, "entropy": [.5] * n,
        "reward": 0.0}}, config)
    out, page = capsys.readouterr().out, (tmp_path / "credit.html").read_text(encoding="utf-8")
    assert text in out and "\x1b" not in out and "A = -0.25: red is blamed more" in out
    assert r"right answer: \x1b[2J8; first false line: 1+1=3" in out
    shown = text.replace("\n", "\u23ce\n")
    assert Reader(page).texts == [shown] * 2 and "wrong (reward 0): \\x1b[2Jx = 7?" in page


def test_show_credit_puts_five_methods_side_by_side(tmp_path, capsys):
    """A right and a wrong completion; credit beyond 1 in both, else the columns say nothing. By
    default GRAIL leaves the right one alone, and its column gives way to a word."""
    for argv in ([], ["--reweight", "both"]):
        out = tmp_path / "credit.html"
        show_credit.main(["--out", str(out), "--samples", "4", *argv])
        text = out.read_text(encoding="utf-8")
        assert "2 of 4" in capsys.readouterr().out
        names = ["GRPO", "GRAIL", "OAR-G", "OAR-P", "DelTA"]
        for article, verdict in zip(text.split("<article>")[1:], ("right", "wrong"), strict=True):
            page = Reader(article)
            assert f"<h2>{verdict}" in article and len(set(page.texts)) == 1
            left_out = ["GRAIL"] if verdict == "right" and not argv else []
            assert re.findall(r"<h3>([\w-]+)", article) == [n for n in names if n not in left_out]
            told = [re.search(r"weight   (.*)", tip)[1].split("   ") for tip in page.tips]
            weights = {name: [float(line[k].split()[1]) for line in told]
                       for k, name in enumerate(names)}
            start = next(i for i, kinds in enumerate(re.findall(r'class="([ \w]+)" style', article))
                         if "rim" in kinds)
            assert set(weights["GRPO"]) == {1.0}
            assert max(weights["GRAIL"]) == (1.0 if left_out else 5.0)
            assert ("right completions stay at weight 1" in article) == bool(left_out)
            for name in ("OAR-G", "OAR-P"):  # the box and what follows keep 1, the rest has mean 1
                assert set(weights[name][start:]) == {1.0}
                assert sum(weights[name][:start]) == pytest.approx(start, abs=0.1)
                assert min(weights[name]) < 0.7 and max(weights[name]) > 1.4
            assert len(set(weights["DelTA"])) > 5 and all(0.5 < w < 1.5 for w in weights["DelTA"])
            assert all("probability 0." in tip or "probability 1.000" in tip for tip in page.tips)
            assert all(f"{name}: saliency" in tip for name in names[1:4] for tip in page.tips)
            assert ("first false line" in article) == (verdict == "wrong")
            assert "right answer: <b>3</b>" in article


@pytest.mark.parametrize("argv", ["--samples 0", "--samples 1", "--max-new-tokens 0", "--seed -1",
                                  "--seed 99999999999999999999"])
def test_show_credit_refuses_before_it_begins(argv, monkeypatch):
    monkeypatch.setattr(show_credit, "problems", None)
    with pytest.raises(errors.BadInput, match=f"{argv}: (must be at least|take one from 0 to)"):
        show_credit.main(argv.split())


def test_show_credit_follows_the_run_of_the_checkpoint(tmp_path):
    """Its --reweight, --activation and --as-released; a flag wins; other methods have none."""
    def settings(model, reweight=None):
        config = show_credit.grail_settings(str(model), reweight)
        return config.reweight, config.activation, config.as_released

    saved = {"method": "grail", "reweight": "both", "activation": "last", "as_released": True}
    (tmp_path / "config.json").write_text(json.dumps(saved))
    assert settings(tmp_path / "checkpoint") == settings(tmp_path) == ("both", "last", True)
    assert settings(tmp_path, "correct") == ("correct", "last", True)
    assert settings("tiny") == ("wrong", "embeddings", False)
    (tmp_path / "config.json").write_text(json.dumps({"method": "grpo"}))
    assert settings(tmp_path) == ("wrong", "embeddings", False)


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


# ------------------------------------------------------------------------------ the picture


def test_the_picture_stands_alone_and_marks_the_slip():
    """Well formed whatever a token says, in both colour schemes, nothing beyond its edges."""
    tokens = ["2", "+", "2", "=", "5", "\n", *HOSTILE, "<|im_end|>", "word " * 20]
    n = len(tokens)
    it = completion(tokens, {"GRPO": ([1.0] * n, None), "GRAIL": ([0.5] * (n - 1) + [5.0], None)},
                    gold="<4>", A=-0.25, slip=range(0, 5), problem="2 + 2 & more?")
    svg = picture.picture(it)
    root = ElementTree.fromstring(svg)
    assert "prefers-color-scheme:dark" in svg and not re.search(r"<script|@import|url\(|href", svg)
    words = [part.text for part in root.iter() if part.tag.endswith("}text")]
    assert words[0] == "2 + 2 & more?" and "The right answer is <4>." in words[1]
    assert "A = -0.25:" in words[1] and "red is blamed more" in words[2]
    assert words.count("\u2717") == 3  # in the legend, and before the slip in each panel
    assert [words.count(weight) for weight in ("1.0", "0.5", "5.0")] == [n, n - 1, 1]
    width, height = int(root.get("width")), int(root.get("height"))
    for part in root.iter():
        if part.tag.endswith("}rect"):
            assert float(part.get("x", 0)) + float(part.get("width")) <= width
            assert float(part.get("y", 0)) + float(part.get("height")) <= height


EXAMPLE = {"problem": "1+1?", "gold": "2", "reward": 1.0, "A": 0.5, "own": None, "ids": [5, 6],
           "weights": [1.0, 2.0], "p": [0.5, 0.5], "entropy": [0.1, 0.1]}


@pytest.mark.parametrize("name, text, words", [
    ("summary.json", None, "No such file"), ("summary.json", "no", "not JSON"),
    ("summary.json", "[1]", "not '[1]'"), ("summary.json", "{}", "has no example"),
    ("summary.json", '{"example": null}', "has no example"),
    ("summary.json", '{"example": 3}', "damaged"), ("summary.json", '{"example": {}}', "damaged"),
    *[("summary.json", json.dumps({"example": {**EXAMPLE, **change}}), "damaged") for change in [
        {"ids": 3}, {"ids": [5]}, {"ids": [], "weights": []}, {"A": "1"}, {"problem": None}]],
    *[("summary.json", json.dumps({"example": {k: v for k, v in EXAMPLE.items() if k != lost}}),
       "damaged") for lost in EXAMPLE],
    ("config.json", None, "No such file"), ("config.json", "{", "not JSON"),
    ("config.json", "{}", "lacks 'credit'"),
    ("config.json", '{"method": "grail", "credit": "method", "reweight": "wrong"}',
     "lacks 'as_released'")])
def test_a_picture_of_a_damaged_run_is_one_sentence(name, text, words, tmp_path, monkeypatch):
    monkeypatch.setattr(picture, "problems", None)
    files = {"config.json": '{"method": "grpo", "credit": "method"}',
             "summary.json": json.dumps({"example": EXAMPLE}), name: text}
    for file, content in files.items():
        if content is not None:
            (tmp_path / file).write_text(content)
    with pytest.raises(errors.BadInput, match=re.escape(str(tmp_path / name))) as caught:
        picture.main([str(tmp_path), str(tmp_path / "x.svg")])
    assert words in str(caught.value) and str(caught.value).endswith(".")
    assert not (tmp_path / "x.svg").exists()


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


@pytest.mark.parametrize("again", ["a", "a/../a", "link", "copy", "on a card"])
def test_a_seed_is_given_once(again, tmp_path, monkeypatch):
    """The same folder by another path, and a copy of it, are no second seed."""
    a, b = (run_of(tmp_path / name, "grpo", seed, [.1, .2]) for seed, name in enumerate("ab"))
    (tmp_path / "link").symlink_to(a)
    run_of(tmp_path / "copy", "grpo", 0, [.1, .2])
    run_of(tmp_path / "on a card", "grpo", 0, [.1, .2], device="cuda", eval_every=7)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(sys, "argv", ["plot.py", str(a), str(b), str(tmp_path / again)])
    with pytest.raises(errors.BadInput, match="both are seed 0 of grpo; give each seed once"):
        plot.main()
    other = run_of(tmp_path / "other", "grpo", 0, [.1], lr=1e-3)
    monkeypatch.setattr(sys, "argv", ["plot.py", str(a), str(b), str(other)])
    with pytest.raises(errors.BadInput, match="pip install matplotlib"):  # all is well until there
        plot.main()


def log_of(folder, seed, rows):
    """A run's folder whose log has these figures of its steps, from step 1 on."""
    run_of(folder, "grpo", seed, [])
    (folder / "metrics.jsonl").write_text("".join(
        json.dumps({"step": i, "seconds": 1.0, **row}) + "\n" for i, row in enumerate(rows, 1)))
    return plot.read(folder)


TRAINED = {"entropy": .4, "ess": .8, "grad_norm": .1}
NOTHING = {"entropy": 0.0, "ess": 0.0, "grad_norm": 0.0}


def test_a_step_that_trained_nothing_pulls_no_curve_to_0(tmp_path):
    """Its entropy is not 0, it is unknown. A KL term still scores rows: entropy, but no ESS."""
    under_kl = {"entropy": .2, "ess": 0.0, "grad_norm": .1}
    runs = [log_of(tmp_path / "a", 0, [TRAINED, NOTHING, TRAINED, NOTHING, TRAINED, TRAINED]),
            log_of(tmp_path / "b", 1, [TRAINED, TRAINED, TRAINED, under_kl, under_kl, TRAINED])]
    group, = plot.by_method(runs).values()
    assert plot.band(group, "entropy") == (
        [1, 3, 5, 6], pytest.approx([.4, .4, .3, .4]), [.4, .4, .2, .4], [.4] * 4)
    assert plot.band(group, "ess")[:2] == ([1, 3, 6], pytest.approx([.8] * 3))
    assert plot.band(group, "seconds")[0] == [1, 2, 3, 4, 5, 6]  # every step takes time
    steps, mean, low, high = plot.with_gaps(group, "ess")
    assert steps == [1, 2, 3, 4, 5, 6]
    for line in (mean, low, high):
        assert [math.isnan(value) for value in line] == [False, True, False, True, True, False]
    assert plot.stand_alone([1, math.nan, 1, 1, math.nan, math.nan, 1]) == [
        True, False, False, False, False, False, True]
    none, = plot.by_method([log_of(tmp_path / "c", 0, [NOTHING])]).values()
    assert plot.with_gaps(none, "ess") == [[], [], [], []]


def test_a_curve_leaves_out_what_a_printed_line_leaves_out(tmp_path):
    """Each column of engine/lines.py that is a - in such a step, by the fields that it reads."""
    class Reads(dict):
        def __getitem__(self, name):
            self.read.add(name)
            return super().__getitem__(name)

        get = __getitem__

    fields = {"informative", "groups", "reward", "length", "seconds", "truncated", "clipped",
              "tokens_per_second", "peak_gb", *plot.OF_TRAINED, *plot.OF_SCORED}
    metrics = {"step": 1, **dict.fromkeys(fields, 0.0)}
    dashes = set()
    for column in lines.columns_for(250, {}, metrics):
        if column.shown(metrics) == "-":
            used = Reads({**metrics, "ess": .5, "peak_gb": 1.0})
            used.read = set()
            column.shown(used)
            dashes |= used.read
    _, curves = log_of(tmp_path / "a", 0, [metrics])
    assert len(dashes) > 10 and fields - set(curves) == dashes


def test_accuracies_before_and_after_are_joined(tmp_path):
    """They are measured at two steps only, so the steps between are no gap."""
    folder = run_of(tmp_path / "a", "grpo", 0, [.1, .2, .3])
    scores = {"before": {"sampled": {"accuracy": .25}}, "after": {"sampled": {"accuracy": .75}}}
    (folder / "summary.json").write_text(json.dumps({"step": 3, **scores}))
    group, = plot.by_method([plot.read(folder)]).values()
    assert plot.with_gaps(group, "accuracy", 100)[:2] == [[0, 3], [25, 75]]


@pytest.mark.parametrize("name, text", [
    ("config.json", "[]"), ("config.json", "{}"), ("config.json", '{"method": ["grpo"]}'),
    ("config.json", "no"), ("config.json", "[" * 100_000), ("config.json", "\udcff"),
    ("metrics.jsonl", "[1]"), ("metrics.jsonl", "1"), ("metrics.jsonl", '{"step": 1, "rew'),
    ("metrics.jsonl", '{"reward": 1}'), ("metrics.jsonl", '{"step": [1], "reward": 1}'),
    ("metrics.jsonl", '{"step": 1, "reward": "1"}'), ("metrics.jsonl", '{"step": 1, "ess": NaN}'),
    ("metrics.jsonl", '{"step": 1, "reward": 1' + "0" * 400 + "}"),
    ("summary.json", "[1]"), ("summary.json", "null"), ("summary.json", '{"before": [1]}'),
    ("summary.json", '{"before": {"sampled": 3}}'), ("summary.json", '{"after": {"sampled": {}}}'),
    ("summary.json", '{"step": [1], "after": {"sampled": {"accuracy": 0.5}}}'),
    ("summary.json", '{"after": {"sampled": {"accuracy": 0.5}}}'),
    ("summary.json", '{"before": {"sampled": {"accuracy": null}}}')])
def test_a_damaged_file_of_a_run_is_named(name, text, tmp_path):
    folder = run_of(tmp_path / "a", "grpo", 0, [.1])
    (folder / name).write_text(text, errors="surrogateescape")
    with pytest.raises(errors.BadInput, match=re.escape(str(folder / name))) as caught:
        plot.read(folder)
    assert str(caught.value).endswith(".") and len(str(caught.value)) < 400


def test_accuracy_is_read_before_and_after(tmp_path):
    folder = run_of(tmp_path / "a", "grpo", 0, [.1, .2])
    scores = {"before": {"sampled": {"accuracy": .25}}, "after": {"sampled": {"accuracy": .75}}}
    (folder / "summary.json").write_text(json.dumps({"step": 2, **scores}))
    assert plot.read(folder)[1]["accuracy"] == {0: .25, 2: .75}


def test_points_of_the_held_out_curve_join_the_accuracies(tmp_path):
    """Between before and after; of a run that has not ended they stand alone."""
    folder = run_of(tmp_path / "a", "grpo", 0, [.1, .2, .3])
    rows = [json.loads(text) for text in (folder / "metrics.jsonl").open()]
    rows[1] |= {"held_out": .5, "held_out_low": .4, "held_out_high": .6}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert plot.read(folder)[1]["accuracy"] == {2: .5}
    scores = {"before": {"sampled": {"accuracy": .25}}, "after": {"sampled": {"accuracy": .75}}}
    (folder / "summary.json").write_text(json.dumps({"step": 3, **scores}))
    group, = plot.by_method([plot.read(folder)]).values()
    assert plot.with_gaps(group, "accuracy", 100)[:2] == [[0, 2, 3], [25, 50, 75]]


def test_without_matplotlib_it_says_how_to_get_it(tmp_path, monkeypatch):
    """And what is no run's folder is told from that."""
    folder = run_of(tmp_path / "a", "grpo", 0, [.1])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for target, words in ((folder, "pip install matplotlib"), (tmp_path, "config.json: No such")):
        monkeypatch.setattr(sys, "argv", ["plot.py", str(target)])
        with pytest.raises(errors.BadInput, match=words):
            plot.main()


@pytest.mark.slow
def test_png_and_svg(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    folder = run_of(tmp_path / "a", "grpo", 0, [.1, .4])
    out = tmp_path / "o" / "v1.5"
    monkeypatch.setattr(sys, "argv", ["plot.py", str(folder), "--out", str(out)])
    plot.main()
    assert (tmp_path / "o" / "v1.5.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "o" / "v1.5.svg").read_text()
