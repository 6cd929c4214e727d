"""docs/figures/*.svg are what docs/figures.py draws today, in both colour schemes."""
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
sys.path.insert(0, str(DOCS))

import figures

NAMES = ["loop.svg", "clip.svg", "backward.svg", "blame.svg", "forest.svg"]


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
