"""The documents: the front page stays short, links lead somewhere, commands exist, and figures
are those of the files in results/."""
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "results"))
import cells

PAGES = sorted(path for path in ROOT.glob("**/*.md")
               if not {"runs", ".venv-ci"} & set(path.relative_to(ROOT).parts))
FIGURE = re.compile(r"\d+(?:[.,]\d+)*")
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIDELITY = (ROOT / "results/fidelity.md").read_text(encoding="utf-8")


def prose(page):
    """The lines of a page that somebody reads as text: no tables, no code, no picture."""
    kept, fenced = [], False
    for line in page.read_text(encoding="utf-8").split("\n"):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith(("|", "    ", "!", "<")):
            kept.append(line)
    return kept


def test_the_front_page_is_short():
    lines = README.rstrip("\n").split("\n")
    assert len(lines) <= 150
    assert len(README.encode()) <= 10_000
    assert len(FIGURE.findall(README)) <= 100
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_fit_on_a_screen(page):
    """At most 100 columns. Tables are as wide as they are, and generated sections are not typed."""
    text = re.sub(r"<!-- made of .*?<!-- end -->", "", page.read_text(encoding="utf-8"), flags=re.S)
    fenced = page.name == "models.md"  # written by a script
    for line in text.split("\n"):
        fenced ^= line.startswith("```")
        assert len(line) <= 100 or line.startswith("|") or fenced, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http", "mailto")):
            continue
        path, _, anchor = target.partition("#")
        where = page if not path else (page.parent / path).resolve()
        assert where.exists(), target
        if anchor and where.suffix == ".md":
            heads = re.findall(r"(?m)^#+ (.*)", where.read_text(encoding="utf-8"))
            made = [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]
            assert anchor in made, target


def commands(page):
    """The commands `python FILE ...` of a page, from its code and from `code` in its text."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(r"(?m)^ {4}(?:\$ )?(python [\w/]+\.py[^\n#|;&]*)", text)
    found += re.findall(r"`(python [\w/]+\.py[^`]*)`", text)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_scripts_of_every_command_exist(page):
    for command in commands(page):
        assert (ROOT / command.split()[1]).is_file(), command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_flags_of_every_command_exist(page):
    shared = (ROOT / "engine/flags.py").read_text(encoding="utf-8")
    for command in commands(page):
        script = command.split()[1]
        if script == "examples/trl_grail.py":  # its flags are TRL's
            continue
        text = (ROOT / script).read_text(encoding="utf-8") + shared
        for flag in re.findall(r"(?<!\S)--[a-z][a-z-]*", command):
            name = re.sub("^--no-", "--", flag)
            assert f'"{name}"' in text, command


# Those that end within seconds and need nothing.
SHORT = ["verify.py", "problems.py"]


@pytest.mark.slow
def test_the_short_commands_run():
    run = set()
    for page in PAGES:
        for command in commands(page):
            argv = shlex.split(command)
            if argv[1] in SHORT and not {"mine.jsonl", "gsm8k"} & set(argv):
                run.add(tuple(argv[1:]))
    assert run
    for argv in sorted(run):
        done = subprocess.run([sys.executable, *argv], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode in (0, 1), (argv, done.stderr[-500:])  # verify.py: 1 is "wrong"


# ------------------------------------------------------------------ figures of the front page


def rows_of(head):
    """The rows of README's table that begins with this cell, lists of cells."""
    lines = README.split("\n")
    at = next(i for i, line in enumerate(lines) if line.startswith(f"| {head}"))
    found = []
    for line in lines[at + 2:]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def test_the_differences_are_those_of_the_lines():
    arms = cells.by_arm(cells.read(ROOT / "results/study_embedded.jsonl"))
    rows = rows_of("method")
    assert len(rows) >= 8
    for name, difference, *_ in rows:
        arm = re.search(r"`([\w-]+)`", name)[1]
        row = cells.compared(arms, arm, "grpo")
        text = f"{100 * row['mean']:+.1f} [{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]"
        assert difference == text, arm


def test_the_card_s_figures_are_those_of_the_bench():
    bench = json.loads((ROOT / "results/h200_bench.json").read_text())
    found = {name: figure for name, figure in rows_of("on the GPU")}
    step = bench["step_grpo_compiled_2560"]["seconds"]
    assert found["a GRPO step, layers compiled"] == f"{step:.2f} s"
    trl = bench["trl"]["best_step_seconds"]
    assert found["the same in TRL: its own sampler, no vLLM"] == f"{trl:.1f} s"
    grail = bench["step_grail_compiled_2560"]
    assert found["a GRAIL step, layers compiled"].startswith(f"{grail['seconds'] / step:.2f} x")


def test_the_verifier_s_table_has_as_many_rows_as_its_page_says():
    rows = (ROOT / "tests/verify_table.jsonl").read_text(encoding="utf-8").splitlines()
    refused = sum("known_miss" in row for row in rows)
    page = (ROOT / "docs/verifier.md").read_text(encoding="utf-8")
    assert f"| {len(rows):,} rows; {refused} are right answers that we refuse" in page


# ------------------------------------------------------------------ figures of results/fidelity.md

SIGNALS = {"gradient x activation (GRAIL)": "gradient x activation",
           "input gradient, 4 draws (OAR-G)": "input gradient, 4 draws",
           "perturbation (OAR-P)": "OAR-P", "DelTA's margin": "DelTA margin",
           "entropy": "entropy", "random numbers": "random"}


def section(head):
    """What the page says below this heading, up to the next, its lines joined."""
    return re.search(rf"## {re.escape(head)}\n(.*?)(?=\n## |\Z)", FIDELITY, re.S)[1]


def interval(estimate):
    return f"{estimate[0]:.2f} [{estimate[1]:.2f}, {estimate[2]:.2f}]"


@pytest.mark.parametrize("head, name", [("On short chains", "fidelity"),
                                        ("On long chains", "fidelity_long")])
def test_the_signals_tables_are_those_of_their_files(head, name):
    found = json.loads((ROOT / f"results/{name}.json").read_text(encoding="utf-8"))
    text = section(head)
    rows = [[cell.strip() for cell in line.strip("|").split("|")]
            for line in text.split("\n") if line.startswith("|")][2:]
    assert [row[0] for row in rows] == list(SIGNALS)
    for label, *cells_of in rows:
        i = found["signals"].index(SIGNALS[label])
        own = "1" if SIGNALS[label] == "OAR-P" else interval(found["OAR-P"][i])
        rest = [interval(found[effect]["corrected"][i]) for effect in ("size", "toward")]
        assert cells_of == [own, *rest], label
    assert f"{found['positions']:,}" in text
    for effect in ("size", "toward"):
        assert f"{found[effect]['reliability']:.2f}" in text
        assert f"{found['of_the_truth'][effect]:.2f}" in text


def test_what_is_said_beside_the_long_table_is_in_its_file():
    found = json.loads((ROOT / "results/fidelity_long.json").read_text(encoding="utf-8"))
    text = " ".join(section("On long chains").split())
    assert f"{found['tokens'] / 1e6:.1f} M tokens sampled in {found['seconds']:.0f} s" in text
    for signal in ("entropy", "gradient x activation"):
        assert interval(found["size"]["raw"][found["signals"].index(signal)]) in text
    flags = {key: str(found["arguments"][key.replace("-", "_")]) for key in
             ("model", "data", "max-new-tokens", "problems", "device", "out")}
    command, = [found for found in commands(ROOT / "results/fidelity.md") if "tiny-long" in found]
    assert shlex.split(command)[2:] == [part for key in flags for part in (f"--{key}", flags[key])]


def test_the_gains_beside_the_scatter_are_those_of_the_lines():
    text = " ".join(section("Do better signals train better?").split())
    for study, arm, column in (("embedded", "oar-p", "sampled"), ("long", "entropy", "curve"),
                               ("long", "grail", "curve"), ("long", "shuffled", "curve"),
                               ("long", "grail", "sampled"), ("long", "shuffled", "sampled")):
        arms = cells.by_arm(cells.read(ROOT / f"results/study_{study}.jsonl"))
        row = cells.compared(arms, arm, "grpo", column)
        mean, low, high = (f"{100 * row[key]:+.1f}" for key in ("mean", "low", "high"))
        assert re.search(rf"{mean} (points )?\[{low}, {re.escape(high)}\]", text), (arm, column)


def test_what_is_said_of_the_signals_order_holds():
    """The bold sentences: who ranks best, who is below GRPO, which intervals overlap."""
    for name, study, column, best in (("fidelity", "embedded", "sampled", "OAR-P"),
                                      ("fidelity_long", "long", "curve", "entropy")):
        found = json.loads((ROOT / f"results/{name}.json").read_text(encoding="utf-8"))
        arms = cells.by_arm(cells.read(ROOT / f"results/study_{study}.jsonl"))
        at = {signal: found["signals"].index(signal) for signal in SIGNALS.values()}
        for effect in ("size", "toward"):
            estimates = {signal: found[effect]["corrected"][i] for signal, i in at.items()}
            assert max(estimates, key=estimates.get) == "entropy"
            if best != "entropy":  # it was not trained
                del estimates["entropy"]
            assert max(estimates, key=estimates.get) == best
        assert estimates["DelTA margin"][2] < 0
        entropy = found["size"]["corrected"][at["entropy"]]
        others = [found["size"]["corrected"][i][2] for s, i in at.items() if s != "entropy"]
        assert (entropy[1] > max(others)) == (name == "fidelity")
        arm = {"OAR-P": "oar-p"}.get(best, best)
        assert cells.compared(arms, arm, "grpo", column)["high"] < 0
        delta = cells.compared(arms, "delta", "grpo", column)
        assert delta["low"] < 0 < delta["high"]
