"""docs/walkthrough.ipynb says what docs/walkthrough.md says, and runs.

The slow test executes it. It needs nbclient, ipykernel and matplotlib, which .ci/run installs for
it alone.
"""
import doctest
import json
import re

import pytest

from docs import notebook


def words(text):
    """Text without its line breaks and spaces: Jupyter breaks long lists into lines."""
    return "".join(text.split())


def said(cell):
    """All text that a code cell printed or returned; warnings and progress go to stderr."""
    texts = [output.get("text") or output["data"].get("text/plain", "")
             for output in cell["outputs"]
             if output.get("name") != "stderr" and output["output_type"] != "display_data"]
    return "".join(texts)


def test_the_file_is_what_the_page_makes_today():
    on_disk = notebook.NOTEBOOK.read_text(encoding="utf-8")
    assert on_disk == notebook.made(), "make it again: python docs/notebook.py"


def test_it_says_all_that_the_page_says_in_that_order():
    """Read apart from the script: every example with what comes back, and every sentence."""
    page = notebook.PAGE.read_text(encoding="utf-8")
    cells = json.loads(notebook.NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    examples = doctest.DocTestParser().get_examples(page)
    lines = words("".join(cell["source"] for cell in codes))
    assert len(examples) > 50
    place = 0
    for example in examples:
        place = lines.index(words(example.source), place)
    assert words("".join(map(said, codes))) == words("".join(x.want for x in examples))
    prose = words("".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown"))
    page = re.sub(r"## How to run.*?(?=\n## )|```pycon.*?```|!\[.*?\)", "\0", page, flags=re.S)
    assert all(words(part) in prose for part in page.split("\0"))


def test_every_cell_is_python():
    for cell in json.loads(notebook.NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            compile(cell["source"], cell["id"], "exec")


@pytest.mark.slow
def test_it_runs_and_every_cell_gives_what_stands_below_it(monkeypatch):
    """From docs/, where Jupyter starts it; two steps of the training in place of forty."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("STEPS", "2")
    asked = nbformat.read(notebook.NOTEBOOK, as_version=4)
    ran = nbformat.read(notebook.NOTEBOOK, as_version=4)
    start = {"metadata": {"path": notebook.HERE}}
    nbclient.NotebookClient(ran, timeout=600, resources=start).execute()
    for wanted, cell in zip(asked.cells, ran.cells):
        if cell.cell_type == "code" and cell.source not in (notebook.FIRST, notebook.CURVE):
            assert words(said(cell)) == words(said(wanted)), cell.source
    pictures = [output for output in ran.cells[-1].outputs if "image/png" in output.get("data", ())]
    assert pictures, "the training draws no curve"
