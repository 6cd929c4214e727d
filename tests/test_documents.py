"""The documents: the front page stays short, links lead somewhere, commands exist, and figures
are those of the files in results/."""
import json
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "results"), str(ROOT / "examples")]
import cells
import growth_figure

FOLDERS = ("", "docs", "results", "examples", "exercises")  # a venv has pages of its own
PAGES = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.md"))
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
    step = bench["step_grpo_compiled_2560"]["seconds"]
    trl = bench["trl"]["best_step_seconds"]
    grail = bench["step_grail_compiled_2560"]["seconds"]
    said = section(README, "On a GPU").replace("\n", " ")
    assert (f"a GRPO step, compiled, {step:.2f} s; in TRL with its own sampler {trl:.1f} s; "
            f"a GRAIL step {grail / step:.2f} times GRPO's." in said)


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


def section(page, head):
    """What a page says below this heading, up to the next."""
    return re.search(rf"## {re.escape(head)}\n(.*?)(?=\n## |\Z)", page, re.S)[1]


def interval(estimate):
    return f"{estimate[0]:.2f} [{estimate[1]:.2f}, {estimate[2]:.2f}]"


@pytest.mark.parametrize("head, name", [("On short chains", "fidelity"),
                                        ("On long chains", "fidelity_long")])
def test_the_signals_tables_are_those_of_their_files(head, name):
    found = json.loads((ROOT / f"results/{name}.json").read_text(encoding="utf-8"))
    text = section(FIDELITY, head)
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
    text = " ".join(section(FIDELITY, "On long chains").split())
    assert f"{found['tokens'] / 1e6:.1f} M tokens sampled in {found['seconds']:.0f} s" in text
    for signal in ("entropy", "gradient x activation"):
        assert interval(found["size"]["raw"][found["signals"].index(signal)]) in text
    flags = {key: str(found["arguments"][key.replace("-", "_")]) for key in
             ("model", "data", "max-new-tokens", "problems", "device", "out")}
    command, = [found for found in commands(ROOT / "results/fidelity.md") if "tiny-long" in found]
    assert shlex.split(command)[2:] == [part for key in flags for part in (f"--{key}", flags[key])]


def test_the_gains_beside_the_scatter_are_those_of_the_lines():
    text = " ".join(section(FIDELITY, "Do better signals train better?").split())
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


REAL = (ROOT / "results/real_model.md").read_text(encoding="utf-8")


def points_of(line):
    """{step: (per cent right, per cent cut off)} of a cell of GSM8K, from the digits of each
    problem: how many of its 4 samples are right."""
    return {point["step"]: (25 * sum(map(int, point["right"])) / len(point["right"]),
                            100 * point["truncated"]) for point in [*line["curve"], line["final"]]}


def cells_of(study, **wanted):
    """{seed: line} of the cells that are as wanted."""
    return {line["cell"]["seed"]: line for line in cells.read(ROOT / f"results/{study}.jsonl")
            if wanted.items() <= line["cell"].items()}


def mean_and_interval(numbers):
    """Mean, low and high of the 95 % t interval of five numbers."""
    assert len(numbers) == 5
    mean, half = statistics.mean(numbers), 2.776 * statistics.stdev(numbers) / 5 ** 0.5
    return [mean, mean - half, mean + half]


def test_the_points_of_the_gsm8k_sweeps_are_those_of_the_lines():
    """The tables of the page show these runs at steps 50, 100, 150 and 200, and how many samples
    were cut off."""
    def found(study, arm, rate, seed):
        line = cells_of(study, phase="sweep", arm=arm, rate=float(rate))[int(seed)]
        points = points_of(line)
        assert list(points) == [50, 100, 150, 200]
        right, cut = map(list, zip(*points.values(), strict=True))
        return right, cut, line["final"]["length"]

    row = re.compile(r"^\| (\S+e-\d) \| (\d+) \| (.+) \|$", re.M)
    rows = row.findall(section(REAL, "GSM8K: the rate"))
    assert len(rows) == 9
    for rate, seed, rest in rows:
        right, cut, length = found("study_gsm8k", "grpo", rate, seed)
        *shown, tokens, at_end = rest.removesuffix(" %").split(" | ")
        assert [*map(float, shown), float(at_end)] == pytest.approx([*right, cut[-1]], abs=0.051)
        assert int(tokens) == pytest.approx(length, abs=0.51)
    row = re.compile(r"^\| `(\S+)` \| (\S+) \| (\d+) \| (.+) \|$", re.M)
    rows = row.findall(section(REAL, "GSM8K: each arm at its own rate"))
    assert len(rows) == 10
    for arm, rate, seed, rest in rows:
        right, cut, _ = found("study_gsm8k-rates", arm, rate, seed)
        pairs = [tuple(map(float, pair.split(", "))) for pair in rest.split(" | ")]
        assert pairs == [pytest.approx(pair, abs=0.051) for pair in zip(right, cut, strict=True)]


def test_grail_at_half_the_rate_and_twice_the_steps_as_the_page_has_it():
    fast = cells_of("study_gsm8k", phase="final", arm="grail", rate=1e-6)
    slow = cells_of("study_gsm8k-rates", phase="final", arm="grail", rate=5e-7)
    rows = re.findall(r"^\| step (\d+) and (\d+) \| (.+) \|$", REAL, re.M)
    assert [row[:2] for row in rows] == [("50", "100"), ("100", "200")]
    for early, late, rest in rows:
        early = [points_of(fast[seed])[int(early)] for seed in range(5)]
        late = [points_of(slow[seed])[int(late)] for seed in range(5)]
        expected = [statistics.mean(column) for column in [*zip(*early), *zip(*late)]]
        for of_fast, of_slow in zip(zip(*early), zip(*late), strict=True):
            expected += mean_and_interval([b - a for a, b in zip(of_fast, of_slow, strict=True)])
        shown = [float(number) for number in re.findall(r"[-+]?\d+\.\d+", rest)]
        assert shown == pytest.approx(expected, abs=0.051)


def test_what_is_said_of_grail_at_its_own_rate():
    """The sentences below the table: 5 final runs, against those of others with the same seeds."""
    text = " ".join(section(REAL, "GSM8K: each arm at its own rate").split())
    mine = cells_of("study_gsm8k-rates", phase="final", arm="grail", rate=5e-7)
    mine = [mine[seed] for seed in range(5)]
    start = cells_of("study_gsm8k-rates", phase="start")[0]
    ends = [points_of(line)[200][0] for line in mine]

    def ends_of(study, arm):
        lines = cells_of(study, phase="final", arm=arm, rate=1e-6)
        return [points_of(lines[seed])[200][0] for seed in range(5)]

    def points_more(a, b):
        differences = [x - y for x, y in zip(a, b, strict=True)]
        return "{:.1f} points [{:.1f}, {:.1f}]".format(*mean_and_interval(differences))

    untrained = [points_of(start)[0][0]] * 5
    assert f"GRAIL ends at {statistics.mean(ends):.1f} %" in text
    more = points_more(ends, ends_of("study_gsm8k", "grail"))
    assert f"{more} more than at GRPO's rate" in text
    assert f"{points_more(ends, untrained)} more than the untrained model" in text
    less = points_more(ends_of("study_gsm8k-rates", "shuffled"), ends)
    assert f"{less} less than the shuffled weights" in text
    less = points_more([points_of(line)[100][0] for line in mine], ends)
    assert f"its mean is {less} below that of step 100" in text

    cut = [[share for _, share in points_of(line).values()] for line in mine]
    assert all(shares == sorted(shares) for shares in cut)
    low, *_, high = sorted(shares[-1] for shares in cut)
    assert f"rises at every point, to {low:.0f} to {high:.0f} %" in text

    before, *greedy = (100 * statistics.mean(map(int, line["greedy"]["right"]))
                       for line in (start, *mine))
    assert ("ends at {:.1f} %, where the untrained model has {:.1f} %: "
            "{:+.1f} points [{:+.1f}, {:+.1f}], not").format(
        statistics.mean(greedy), before, *mean_and_interval([one - before for one in greedy])
    ) in text


def test_lines_that_stand_in_two_studies_of_gsm8k_are_copies():
    files = [(ROOT / f"results/study_{name}.jsonl").read_text(encoding="utf-8").splitlines()
             for name in ("gsm8k", "gsm8k-rates")]
    one, two = [{json.dumps(json.loads(line)["cell"]): line for line in lines} for lines in files]
    both = one.keys() & two.keys()
    assert len(both) == 30 and all(one[cell] == two[cell] for cell in both)


# ------------------------------------------------------------------ figures of docs/speed.md

SPEED = (ROOT / "docs/speed.md").read_text(encoding="utf-8")
GROWN = [json.loads(line) for line in (ROOT / "results/h200_growth.jsonl").open()]
OURS = {(row["shape"], row["rows"], row["tokens"]): row for row in GROWN if row["what"] == "ours"}


def ms(row):
    """Milliseconds of a token of all rows: (measured, limit)."""
    return tuple(1e3 * row[f"sampling_{kind}seconds"] / row["tokens"] for kind in ("", "limit_"))


def cache_gb(shape, rows, tokens):
    """Keys and values, 8 heads of 128, 2 bytes each."""
    layers = 36 if shape == "4B" else 28
    return rows * tokens * layers * 2 * 8 * 128 * 2 / 1e9


def test_the_growth_table_is_that_of_its_file():
    """Each line is one of `growth.py --table`, and numbers of the text below are in it, too."""
    made = growth_figure.table(growth_figure.of_one_card(ROOT / "results/h200_growth.jsonl"))
    text = section(SPEED, "How the cost grows")
    flowing = " ".join(text.split())
    page = re.findall(r"(?m)^\| (?:what|ours|generate|trl) .*", text)
    assert len(page) == 14 and set(page) <= set(made.splitlines())
    rates = [f"{GROWN[0][name]:.3g}" for name in (
        "copy_tb_per_second", "matrix_tflops", "matrix_tflops_sustained")]
    assert "copy, {} TB/s. For".format(rates[0]) in flowing
    assert "at {} TFLOP/s, which the card holds for a short time ({} sustained)".format(
        *rates[1:]) in flowing
    below = text.partition("**Rows.**")[2].partition("**Memory.**")[0]
    found = {number for number in FIGURE.findall(below) if len(number) > 1 and "." not in number}
    assert len(found) > 15 and found <= set(FIGURE.findall("\n".join(page)))


def test_where_the_memory_goes():
    text, peaks = section(SPEED, "How the cost grows"), []
    for line in re.findall(r"(?m)^\| (?:0\.6B|4B), .*", text):
        shape, rows, tokens, peak, parts = re.match(
            r"\| (\S+), ([\d,]+) rows of 128 \+ ([\d,]+) \| ([\d.]+) \| (.*) \|", line).groups()
        rows, tokens = (int(number.replace(",", "")) for number in (rows, tokens))
        row = OURS[shape, rows, tokens]
        assert peak == f"{row['peak_gb']:.1f}"
        assert f"{cache_gb(shape, rows, 128 + tokens):.1f} cache" in parts
        held = re.search(r"([\d.]+) weights", parts)
        assert held is None or held[1] == f"{16e-9 * row['parameters']:.1f}"
        peaks.append(row["peak_gb"])
    assert len(peaks) == 5
    shares = [100 * cache_gb("0.6B", n, 640) / OURS["0.6B", n, 512]["peak_gb"] for n in (128, 256)]
    assert "{:.0f} % of the peak at 128 rows of 640 tokens, and {:.0f} % at 256".format(
        *shares) in text
    assert sum(row["peak_gb"] > row["sampling_peak_gb"] for row in OURS.values()) == 1
    assert not any("failed" in row for row in GROWN) and len(GROWN) == 22


def test_what_is_said_about_growth():
    text = " ".join(section(SPEED, "How the cost grows").split())
    few, many, more, most = (ms(OURS["0.6B", n, 512])[0] for n in (8, 64, 256, 1024))
    assert (f"64 rows it takes {many:.2f} ms, with 8 rows {few:.2f} ms: {many / few:.1f} times "
            "as long") in text
    assert f"{most / more:.1f} times as long" in text

    def reached(shape, rows, tokens, stage):
        row = OURS[shape, rows, tokens]
        return f"{100 * row[f'{stage}_limit_seconds'] / row[f'{stage}_seconds']:.0f}"

    more, most, short, long, longest = (reached("0.6B", *size, "sampling") for size in (
        (256, 512), (1024, 512), (64, 512), (64, 8192), (8, 8192)))
    assert f"reaches {more} to {most} %" in text and f"rises from {short} to {long} %" in text
    assert f"8 rows of 8,192 reach {longest} %" in text
    many, most = (reached("0.6B", rows, 512, "update") for rows in (64, 1024))
    assert f"{many} and {most} % of its limit" in text
    assert f"{reached('4B', 64, 512, 'update')} % at 4 B parameters" in text
    row = OURS["0.6B", 64, 8192]
    share = row["sampling_seconds"] / (row["sampling_seconds"] + row["update_seconds"])
    assert f"Then {100 * share:.1f} % of a step is sampling" in text
    other = next(row for row in GROWN if row["what"] == "generate")
    assert f"its {other['peak_gb']:.1f} GB hold" in text
    row, trl = ([json.loads(line) for line in (ROOT / "results/h200_growth_trl.jsonl").open()][i]
                for i in (0, -1))
    step = row["sampling_seconds"] + row["update_seconds"]
    assert (row["what"], row["rows"], trl["what"], trl) == ("ours", 64, "trl", GROWN[-1])
    assert f"ours took {step:.2f} s for the same step" in text
    assert f"takes {trl['step_seconds'] / step:.0f} times" in text.replace("\n", " ")


def test_the_first_steps_of_a_run_in_22_5_gb():
    """A row is one of four runs of the same seven steps."""
    lines = [json.loads(line) for line in (ROOT / "results/h200_first_steps.jsonl").open()]
    text = section(SPEED, "The main job on a 24 GB card")
    pages = []
    for layers, cache in (("before", "empty"), ("before", "filled"), ("now", "empty"),
                          ("now", "filled")):
        run = [x for x in lines if (x["layers"], x["inductor_cache"]) == (layers, cache)]
        first, *rest, sixth, last = (x["seconds"] for x in run)
        sampling = first * run[0]["sampling_share"]
        pages.append(f"{first:.1f} s, {sampling:.1f} of it sampling | {min(*rest, last):.1f} to "
                     f"{max(*rest, last):.1f} s | {sixth:.1f} s | "
                     f"{max(x['peak_gb'] for x in run):.1f} GB")
    assert len(lines) == 28 and re.findall(r"(?m)^\| (?:old|new) \| .*? \| (.*) \|$", text) == pages
    assert f"{lines[0]['reward']}" in text
    assert len({x["reward"] for x in lines if x["step"] == 1}) == 1
    steps = map(json.loads, (ROOT / "results/h200_defaults_uncompiled_3_steps.jsonl").open())
    plain = "took {:.1f} s for its first step and {:.1f} and {:.1f} s for the"
    assert plain.format(*(step["seconds"] for step in steps)) in " ".join(text.split())


def profile():
    """{rows: what bench.py printed of them}."""
    lines = (ROOT / "results/h200_profile.txt").read_text().splitlines()[2:]
    parts = [re.fullmatch(r"profile_(\d+) (.*)", line).groups() for line in lines]
    return {int(rows): json.loads(found) for rows, found in parts}


def sampled():
    """{(commit, rows): what bench.py printed of them}, 512 tokens a row."""
    lines = (ROOT / "results/h200_sampling.txt").read_text().splitlines()[2:]
    parts = [re.fullmatch(r"(\w+) sampling_(\d+) (.*)", line).groups() for line in lines]
    return {(commit, int(rows)): json.loads(found) for commit, rows, found in parts}


def spent(found, wanted):
    """Milliseconds a token of the kernels for which wanted(name, calls a token) is true."""
    return sum(one["ms_a_token"] for one in found["longest"]
               if wanted(one["name"], one["calls_a_token"]))


def is_attention(name, calls):
    return name == "append_and_attend"


def is_product(name, calls):
    return calls in (28, 84) and ("nvjet" in name or "splitK" in name)


def test_where_a_sampled_token_s_time_goes():
    """The tables from the profile, the sampled rates, the growth file's copy rate and the shape: a
    row reads 319 to 446 tokens of cache. The weights are 1024 x 4096, 2048 x 1024, 1024 x 6144 and
    3072 x 1024 numbers in bf16."""
    text, columns = section(SPEED, "Why sampling does not reach the limit"), {}
    times = sampled()
    copy, mean = OURS["0.6B", 64, 512]["copy_tb_per_second"], sum(range(319, 447)) / 128
    assert mean == sum(range(127, 639)) / 512 == 382.5
    weights = [2e-6 * n for n in (1024 * 4096, 2048 * 1024, 1024 * 6144, 3072 * 1024)]  # MB
    for rows, found in profile().items():
        attention, products = spent(found, is_attention), spent(found, is_product)
        small = spent(found, lambda name, _: "rsqrt" in name or "silu" in name)
        rate = cache_gb("0.6B", rows, mean) / attention
        whole = 1e3 * times["9f427dd", rows]["seconds"] / 512
        columns[rows] = [f"{whole:.2f}", f"{attention:.2f}", f"{rate:.1f} TB/s",
                         f"{100 * rate / copy:.0f} %", f"{products:.2f}",
                         f"{28 * sum(weights) / copy / 1e3:.2f}", f"{small:.2f}",
                         f"{whole - attention - products - small:.2f}"]
    page = [line.strip("|").split("|")[1:] for line in text.splitlines() if line.startswith("|")]
    page = [[cell.strip() for cell in line] for line in page]
    assert page[2:-4] == [list(line) for line in zip(*(columns[rows] for rows in (8, 64, 256)))]
    assert page[-2:] == [[f"{times[commit, rows]['tokens_per_second']:,.0f}"
                          for rows in (8, 32, 64, 256)] for commit in ("a9cd193", "9f427dd")]
    most, least = (100 * times["a9cd193", rows]["seconds"] / times["9f427dd", rows]["seconds"] - 100
                   for rows in (64, 256))
    faster = f"sampling has become {least:.0f} to {most:.0f} % faster at 64 and 256 rows"
    assert faster in " ".join(section(SPEED, "How the cost grows").split())

    text, found = " ".join(text.split()), profile()[64]
    each = sorted(k["us_a_call"] for k in found["longest"]
                  if k["calls_a_token"] == 28 and "nvjet" in k["name"])
    assert len(each) == 4 and f"{each[0]:.1f} to {each[3]:.1f} microseconds" in text
    assert "in {:.1f} to {:.1f} microseconds".format(
        min(weights) / copy, max(weights) / copy) in text
    measured, limit = 1e3 * times["9f427dd", 64]["seconds"] / 512, ms(OURS["0.6B", 64, 512])[1]
    assert f"is {limit:.2f} ms for a token of all rows, and it takes {measured:.2f} ms" in text
    asked = 64 / 38_000 * 1e3
    assert f"reach {100 * limit / measured:.0f} % of the limit" in text
    assert f"aimed at {100 * limit / asked:.0f} %, which are 38,000 tokens/s" in text
    assert f"would be {asked:.2f} ms a token, {measured - asked:.2f} less than now" in text
    head = spent(found, lambda name, calls: calls == 1 and "nvjet" in name)
    draw = max(k["ms_a_token"] for k in found["longest"]
               if k["calls_a_token"] == 1 and "triton" in k["name"])
    at_rate = 2e-9 * 151_936 * 1024 / copy
    assert (f"takes {head:.2f} ms ({at_rate:.2f} at the copy rate), and the longest kernel "
            f"of the draw {draw:.2f}") in text
    assert f"112 KiB are {cache_gb('0.6B', 64, mean):.1f} GB" in text
    saved = spent(found, is_product) - 28e-3 * sum(weights) / copy
    assert f"at that rate would save {saved:.2f} ms" in text
    saved = spent(found, is_attention) - cache_gb("0.6B", 64, mean) / copy
    assert f"copy rate would save {saved:.2f} ms" in text
    assert "All {:.0f} kernels of a token take {:.2f} ms".format(
        found["calls_a_token"], found["ms_a_token"]) in text


# ------------------------------------------------------------------ figures of examples/README.md

EXAMPLES = (ROOT / "examples/README.md").read_text(encoding="utf-8")


def test_the_table_of_two_cards_is_that_of_its_files():
    calls = [json.loads((ROOT / f"results/{name}.json").read_text())
             for name in ("h200_two_cards", "h200_two_cards_again")]
    rows = re.findall(r"(?m)^\| (\d) x (\d+).*? \| (.*) \| (.*) \| ([\d.]+) GB \|$", EXAMPLES)
    assert len(rows) == 3
    for cards, completions, *columns, peak in rows:
        name = f"{cards}x{completions}"
        for cell, call in zip(columns, calls):
            seconds = call[name]["step_seconds"][1:] if name in call else []
            assert cell == (f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to "
                            f"{max(seconds):.1f})" if seconds else "-")
            assert not seconds or f"{call[name]['peak_gb']:.1f}" == peak
            assert not seconds or call[name]["same_weights"]


def test_the_table_of_engines_is_that_of_its_file():
    lines = [json.loads(line) for line in (ROOT / "results/h200_engines.jsonl").open()]
    tiny = [line["steps"][0] for line in lines if line["model"] == "tiny"]
    made = [f"{step['loss']} | {step['grad_norm']} | {step['reward']} | {step['credit/mean']:.3f}"
            for step in tiny]
    assert re.findall(r"(?m)^\| .*`(?:grail|delta)` \| (-.*) \|$", EXAMPLES) == made
    assert all(len(line["steps"]) == 3 for line in lines) and len(lines) == 12
