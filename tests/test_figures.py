"""docs/figures/*.svg are what docs/figures.py draws today, in both colour schemes."""
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
sys.path.insert(0, str(DOCS))

import figures

RESULTS = DOCS.parent / "results"
NAMES = ["loop.svg", "clip.svg", "backward.svg", "blame.svg", "forest.svg", "signals.svg",
         "rates.svg"]


def words(picture):
    """All that can be read in it, in order."""
    return re.findall(r"<text[^>]*>(.*?)</text>", picture)


@pytest.fixture(scope="module")
def drawn():
    return figures.drawn()


@pytest.mark.parametrize("name", NAMES)
def test_the_file_says_what_is_true_today(drawn, name):
    """A picture whose numbers were true before the last change is worse than none."""
    on_disk = (DOCS / "figures" / name).read_text(encoding="utf-8")
    assert words(on_disk) == words(drawn[name]), "make them again: python docs/figures.py"


@pytest.mark.parametrize("name", NAMES)
def test_it_stands_alone_and_follows_the_colour_scheme(drawn, name):
    """GitHub shows no SVG that loads anything, and black on black is no picture."""
    root = ElementTree.fromstring(drawn[name])
    assert "prefers-color-scheme:dark" in drawn[name]
    assert not re.search(r"<script|@import|url\(|href", drawn[name])
    width, height = int(root.get("width")), int(root.get("height"))
    style = drawn[name].partition("</style>")[0]
    for part in root.iter():
        for kind in (part.get("class") or "").split():
            assert f".{kind}{{" in style
        for side, least in (("x", width), ("y", height)):
            assert 0 <= float(part.get(side, 0)) <= least


def test_the_slip_is_the_first_false_result():
    """By hand: 10-3 is not 17. What follows is right, given that; it is not a second slip."""
    tokens = ["So ", "1", "0", "-", "3", "=", "1", "7", "\n", "1", "7", "*", "2", "=", "3", "5"]
    assert figures.first_slip(tokens) == {6, 7}
    assert figures.first_slip(["2", "*", "3", "=", "6"]) == set()


def test_a_row_of_the_forest_says_its_seeds_where_the_heading_does_not(drawn):
    """Counted in the lines: the runs that an arm shares with GRPO."""
    said = iter(words(drawn["forest.svg"]))
    rows = 0
    for name, title in figures.STUDIES:
        arms = figures.cells.by_arm(figures.cells.read(RESULTS / name))
        heading = next(word for word in said if word.startswith(f"{title}: "))
        of_all = int(re.search(r"(\d+) seeds$", heading)[1])
        for arm, other in figures.cells.families_of(name)[0][1]:
            if arm not in arms:
                continue
            assert next(word for word in said if word in arms) == arm
            note = next(said)
            mine = re.search(r"(\d+) seeds$", note)
            assert (int(mine[1]) if mine else of_all) == len(set(arms[arm]) & set(arms[other]))
            rows += 1
    assert rows > 30


# ------------------------------------------------------------------ the signals, read off

ARMS = {"gradient x activation": "grail", "input gradient, 4 draws": "oar-g", "OAR-P": "oar-p",
        "DelTA margin": "delta", "entropy": "entropy", "random": "shuffled"}


def ruler(ticks):
    """Pixel -> value, the straight line through the first and the last (pixel, value)."""
    (a, low), (b, high) = ticks[0], ticks[-1]
    return lambda pixel: low + (high - low) * (pixel - a) / (b - a)


def read_off(panel):
    """[((mean, low, high) across, (mean, low, high) up)] of a panel's points, by its own ticks."""
    ticks = {"middle": [], "end": []}
    for label in re.findall(r"<text[^>]*>[-+]?[.\d]+</text>", panel):
        x, y, anchor, value = re.search(
            r'x="(.*?)" y="(.*?)".*anchor="(.*?)".*>(.*)<', label).groups()
        pixel = float(x) if anchor == "middle" else float(y) - 4
        ticks[anchor].append((pixel, float(value)))
    across, up = ruler(ticks["middle"]), ruler(ticks["end"])
    assert across(100) > across(0) and up(100) < up(0)  # more is right and above
    dots = re.findall(r'<circle cx="(.*?)" cy="(.*?)"', panel)
    bars = re.findall(r'd="M([-.\d]+) [-.\d]+H([-.\d]+)M[-.\d]+ ([-.\d]+)V([-.\d]+)"', panel)
    assert len(dots) == len(bars)
    return [([across(float(v)) for v in (x, left, right)], [up(float(v)) for v in (y, low, high)])
            for (x, y), (left, right, low, high) in zip(dots, bars)]


@pytest.mark.parametrize("effect", ["size", "toward"])
@pytest.mark.parametrize("task, fidelity, study, column, trained", [
    ("short", "fidelity.json", "study_embedded.jsonl", "sampled", 5),
    ("long", "fidelity_long.json", "study_long.jsonl", "curve", 6)])
def test_the_points_stand_where_the_files_say(task, fidelity, study, column, trained, effect):
    """Every dot and both its bars, measured with the ticks of its panel: within half a pixel."""
    picture = (DOCS / "figures/signals.svg").read_text(encoding="utf-8")
    panel = re.search(rf'<g id="{task}-{effect}">(.*?)</g>', picture, re.S)[1]
    found = json.loads((RESULTS / fidelity).read_text(encoding="utf-8"))
    arms = figures.cells.by_arm(figures.cells.read(RESULTS / study))
    wanted = []
    for signal, arm in ARMS.items():
        if row := figures.cells.compared(arms, arm, "grpo", column):
            correlation = found[effect]["corrected"][found["signals"].index(signal)]
            wanted.append((correlation, [100 * row[k] for k in ("mean", "low", "high")]))
    points = read_off(panel)
    assert len(points) == len(wanted) == trained
    for (x, y), (correlation, gain) in zip(points, wanted):
        assert x == pytest.approx(correlation, abs=0.0015)
        assert y == pytest.approx(gain, abs=0.03)


@pytest.mark.parametrize("name", ["signals.svg", "rates.svg"])
def test_a_file_without_numbers_is_all_that_is_drawn(drawn, name):
    """No numbers stand beside its points, so we compare the whole file, not its words alone."""
    on_disk = (DOCS / "figures" / name).read_text(encoding="utf-8")
    assert on_disk == drawn[name], "make it again: python docs/figures.py"


def test_a_name_stands_where_nothing_else_does():
    """Right above its dot if that place is free, else the first place that is."""
    assert figures.free_place(100, 100, "OAR-P", []) == (108, 93, "start")
    right = (100, 0, 200, 200)
    assert figures.free_place(100, 100, "OAR-P", [right]) == (92, 93, "end")
    taken = []
    first, second = (figures.free_place(100, 100, "OAR-P", taken) for _ in range(2))
    assert first != second and len(taken) == 2


def test_the_runs_of_a_real_model_are_drawn_as_they_were():
    """The corners of every line, read off both panels, are the figures of its run."""
    picture = (DOCS / "figures/rates.svg").read_text(encoding="utf-8")
    lines = re.findall(r'<path d="M([\d .]+(?:L[\d .]+)+)" class="(\w+)"', picture)
    found = {}
    for corners, kind in lines:
        points = [tuple(map(float, corner.split())) for corner in corners.split("L")]
        left = 64 if points[0][0] < 500 else 534
        found.setdefault((left, kind), []).append(
            [((x - left) / 2, (318 - y) / 500) for x, y in points])  # step, share

    wanted = {}
    for text in (RESULTS / "study_gsm8k.jsonl").read_text(encoding="utf-8").splitlines():
        run = json.loads(text)
        if run["cell"]["phase"] == "sweep":
            kind = {1e-6: "bluepen", 3e-6: "pen", 5e-6: "redpen"}[run["cell"]["rate"]]
            means = [(start + 10, sum(run["reward"][start:start + 20]) / 20)
                     for start in range(0, 200, 20)]
            right = [(point["step"], sum(map(int, point["right"])) / 2000)
                     for point in [*run["curve"], run["final"]]]
            wanted.setdefault((64, kind), []).append(means)
            wanted.setdefault((534, kind), []).append(right)
    assert found.keys() == wanted.keys()
    for place, runs in wanted.items():
        assert len(found[place]) == len(runs)
        for drawn_points, points in zip(found[place], runs):
            assert [p for pair in drawn_points for p in pair] == pytest.approx(
                [p for pair in points for p in pair], abs=2e-4)
