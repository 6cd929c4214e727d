"""Slides, handout and docs/slips.py: the class shows numbers that were measured.

Each number on a slide or on the handout stands in the walkthrough, which its own tests run.
"""
import html
import re
from html.parser import HTMLParser

import pytest
import torch

from docs import slips

DOCS = slips.Path(slips.__file__).resolve().parent
SLIDES = (DOCS / "slides.html").read_text(encoding="utf-8")
HANDOUT = (DOCS / "handout.md").read_text(encoding="utf-8")
WALKTHROUGH = (DOCS / "walkthrough.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"(?<![\w.])[0-9]+\.[0-9]+(?![\w.])")


def decimals(text):
    return {float(number) for number in NUMBER.findall(text)}


def test_twelve_slides_with_the_five_figures_and_nothing_from_elsewhere():
    assert SLIDES.count("<section ") == SLIDES.count("</section>") == 12
    assert 'content:counter(slide) " / 12"' in SLIDES
    figures = {f"figures/{path.name}" for path in (DOCS / "figures").glob("*.svg")}
    figures -= {f"figures/{name}.svg" for name in ("signals", "growth", "rates")}  # of other pages
    assert len(figures) == 5 and set(re.findall(r'src="([^"]*)"', SLIDES)) == figures
    assert not re.search(r"https?:|<script|@import|url\(|<link", SLIDES)
    assert "@media print" in SLIDES and "break-after:page" in SLIDES


def test_the_minutes_of_the_slides_are_those_of_the_plan():
    """Slide by slide without a gap, from 0 to 90; every edge of it is one of the plan's."""
    spans = [(int(a), int(b)) for a, b in re.findall(r'minutes="minute (\d+) to (\d+)', SLIDES)]
    assert len(spans) == 12 and spans[0][0] == 0 and spans[-1][1] == 90
    assert all(before[1] == after[0] for before, after in zip(spans, spans[1:]))
    plan = (DOCS.parent / "exercises" / "TEACHING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (\d+) \| .* \| ([\d, ]+) \|", plan, flags=re.M)
    by_slide = {}
    for start, end, numbers in rows:
        for number in map(int, numbers.split(",")):
            by_slide.setdefault(number, []).append((int(start), int(end)))
    assert sorted(by_slide) == list(range(1, 13))
    for number, (start, end) in enumerate(spans, 1):
        first, last = by_slide[number][0][0], by_slide[number][-1][1]
        assert first <= start and end <= last, number


def test_its_tags_close():
    class Open(HTMLParser):
        stack = []

        def handle_starttag(self, tag, attrs):
            if tag not in ("meta", "img"):
                self.stack.append(tag)

        def handle_endtag(self, tag):
            assert self.stack.pop() == tag, self.getpos()

    parser = Open()
    parser.feed(SLIDES)
    assert parser.stack == []


@pytest.mark.parametrize("page", [SLIDES.partition("<body>")[2], HANDOUT])
def test_each_number_stands_in_the_walkthrough(page):
    settings = {0.8, 1.28, 5.0}  # the ends of the clip, 1 - 0.2 and 1 + 0.28; a weight
    shown = html.unescape(re.sub(r'style="[^"]*"', "", page))
    assert len(decimals(shown)) > 10
    assert decimals(shown) - settings - decimals(WALKTHROUGH) == set()


def test_a_row_of_the_four_steps_is_a_row_of_the_walkthrough():
    """All numbers of a row at once: two that were exchanged are both in the walkthrough, too."""
    rows = {}
    for line in WALKTHROUGH.split("\n"):
        if " -> " in line:
            name = line.split("  ")[0]
            before, after, right, guess, slip, other = re.findall(r"[+-]?\d\.\d+", line)
            rows[name] = [before, after, right, slip, guess, other]
    slides = {"GRAIL": "GRAIL", "GRPO": "GRPO", "GRAIL, mean 1": "GRAIL, mean weight 1",
              "the slip alone": "the slip's two tokens alone"}
    assert set(rows) == set(slides)
    for name, title in slides.items():
        row, = re.findall(rf"<tr><td>{title}</td>(.*?)</tr>", SLIDES)
        assert re.findall(r"[+-]?\d\.\d+", row) == rows[name]
        row, = re.findall(rf"^\| {title} \|(.*)", HANDOUT, flags=re.M)
        assert re.findall(r"[+-]?\d\.\d+", row) == rows[name][1:]


def test_the_handout_is_one_page():
    """62 lines of 100 characters fit on a sheet of A4 in 10 points."""
    assert sum(1 + len(line) // 100 for line in HANDOUT.split("\n")) <= 62


# ------------------------------------------------------------------------------ docs/slips.py


def test_an_early_slip_is_found_by_hand():
    text = "roughly 10-3=17\nroughly 17-4=13\nTherefore \\boxed{13}."
    first, last = slips.early_slip(text)
    assert (text[slice(*first)], text[slice(*last)]) == ("17", "13")
    assert (first[0], last[0]) == (text.index("17"), text.index("13"))
    assert slips.early_slip("10-3=7\n7-4=13\n\\boxed{13}") is None  # the last one is the false one
    assert slips.early_slip("10-3=7\n7-4=3\n\\boxed{13}") is None   # none is false
    assert slips.early_slip("At a glance, \\boxed{80}.") is None
    first, last = slips.early_slip("2*3=7, 7+1=9, 9-1=8, 8-9=-1")   # two are false: the first one
    assert (first, last) == ((4, 5), (25, 27))
    assert slips.early_slip("2*3=7, 7+1=9") == ((4, 5), (11, 12))   # the last one is false as well


def test_the_four_choices_by_hand():
    mask = torch.ones(4, 9).bool()
    mask[1, 4:] = False
    w = torch.full((4, 9), 2.0) * mask
    w[2, 6] = 20
    four = slips.choices(w, mask)
    assert four["GRAIL"] is w and torch.equal(four["GRPO"], mask.float())
    assert torch.equal(four["GRAIL, mean 1"][:2], mask[:2].float())
    assert four["GRAIL, mean 1"][2].mean().item() == pytest.approx(1)
    alone = four["the slip alone"]
    assert torch.equal(alone[0], torch.ones(9)) and alone[[1, 3]].sum() == 0
    assert alone[2].nonzero().flatten().tolist() == [6, 7]


def test_completions_of_one_problem_count_once_in_the_interval():
    """The same completion a hundred times over says no more than once: the interval stays wide."""
    few = torch.tensor([0.4, 0.6, 0.8, 1.0])
    problem = torch.arange(4)
    wide = slips.interval(few, problem)
    assert slips.interval(few.repeat(100), problem.repeat(100)) == pytest.approx(wide)
    low, high = slips.interval(few.repeat(100), torch.arange(400))
    assert high - low < 0.2 * (wide[1] - wide[0])


@pytest.mark.slow
def test_the_survey_says_what_the_page_says(capsys):
    """On 60 of its 200 problems: another draw, so within some hundredths."""
    found = slips.survey(60, 8)
    slips.say(found)
    assert "wrong completions" in capsys.readouterr().out
    false, last, mean, _ = found.T
    assert len(found) > 40
    assert false.mean().item() == pytest.approx(0.71, abs=0.05)
    assert last.mean().item() == pytest.approx(2.22, abs=0.08)
    assert (false / mean).mean().item() == pytest.approx(0.58, abs=0.05)
    assert (false < 1).float().mean().item() == pytest.approx(0.92, abs=0.06)
