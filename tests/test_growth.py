"""examples/growth.py: limits by hand, failures as lines, table and figure of made-up lines."""
import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))
import growth
import growth_figure

from engine import memory
from engine.errors import BadInput

RATES = {"card": "a card", "torch": "x", "copy_tb_per_second": 4.0, "matrix_tflops": 700.0,
         "matrix_tflops_sustained": 600.0}


def point(rows=64, tokens=512, shape="0.6B", what="ours"):
    return dict(what=what, shape=shape, rows=rows, prompt=128, tokens=tokens, compile=True)


def line(**asked):
    """A made-up line: sampling runs at a half of its limit, the update at a quarter."""
    full = growth.with_limits(point(**asked), RATES)
    return {**full, **RATES, "sampling_seconds": 2 * full["sampling_limit_seconds"],
            "update_seconds": 4 * full["update_limit_seconds"], "peak_gb": 21.4}


def file_of(tmp_path, lines):
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


@pytest.fixture(scope="module")
def lines():
    made = [line(rows=rows) for rows in (8, 64, 512)]
    made += [line(rows=rows, tokens=2048) for rows in (8, 64)] + [line(shape="4B")]
    full = growth.with_limits(point(rows=1024), RATES)
    return [*made, {**full, **RATES, "failed": "out of memory"},
            {**point(what="trl"), "parameters": 1, **RATES, "failed": "not run: no module"}]


def test_limits_by_a_loop():
    """Each token step and each pair of tokens that attention joins, one by one, for the small
    shape: 2 layers, 4 heads of 16, 2 of keys, width 64, vocabulary 500."""
    asked = dict(rows=8, prompt=3, tokens=5)
    config = growth.config_of("tiny")
    model = growth.Qwen3ForCausalLM(config)
    read = 0
    for t in range(5):
        keys_and_values = 2 * 2 * 2 * 16 * (3 + t)  # numbers: layers, both, heads, width
        read += 2 * model.num_parameters() + 8 * 2 * keys_and_values  # 2 bytes each

    head, flops = model.lm_head.weight.numel(), 0
    body = sum(p.numel() for p in model.model.parameters()) - head  # tied
    assert head == 500 * 64
    for i in range(8):
        flops += 2 * body + 2 * head * (i >= 3)
        flops += 2 * (4 * 4 * 16) * (i + 0.5)  # layers, score and value; of the token itself a half
    sampling, update = growth_figure.limits(config, model.num_parameters(), asked, RATES)
    assert sampling == pytest.approx(read / 4e12)
    assert update == pytest.approx(3 * 8 * flops / 700e12)


@pytest.mark.parametrize("shape, billions", [("0.6B", 0.596), ("1.7B", 1.721), ("4B", 4.022)])
def test_shapes_have_the_published_sizes(shape, billions):
    """Of the model cards: 0.6, 1.7 and 4.0 B parameters, 0.44, 1.4 and 3.6 B without embeddings."""
    parameters = growth.with_limits(point(shape=shape), RATES)["parameters"]
    assert parameters / 1e9 == pytest.approx(billions, abs=0.001)


def test_every_panel_has_its_points():
    asked = growth.points(False, True)
    small = [p for p in asked if (p["what"], p["shape"]) == ("ours", "0.6B")]
    assert {p["rows"] for p in small if p["tokens"] == 512} == {2**n for n in range(3, 11)}
    for rows in (8, 64):
        assert {p["tokens"] for p in small if p["rows"] == rows} == {2**n for n in range(8, 14)}
    assert {p["shape"] for p in asked if p["what"] == "ours"} == {"0.6B", "1.7B", "4B"}
    assert {p["what"] for p in asked} == {"ours", "generate", "trl"}
    assert len({tuple(p.values()) for p in asked}) == len(asked)


@pytest.mark.parametrize("error, said", [
    (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
    (RuntimeError("a kernel failed\nmore"), "RuntimeError: a kernel failed")])
def test_a_point_that_fails_is_a_result(monkeypatch, error, said):
    def fails(*_):
        raise error
    monkeypatch.setattr(growth, "ours", fails)
    assert growth.measured(point(), [], torch.device("cpu")) == {"failed": said}


class Scripted:
    """In place of a process: replies by the number of rows; counts how many were started."""
    started = ended = 0

    def __init__(self, device):
        Scripted.started += 1

    def ask(self, asked, seconds):
        if asked == "rates":
            return RATES
        good = {"sampling_seconds": 1.0, "update_seconds": 1.0, "peak_gb": 1.0,
                "tokens_per_second": 9.0}
        return {1024: {"failed": "out of memory"}, 256: None}.get(asked["rows"], good)

    def end(self):
        Scripted.ended += 1


@pytest.mark.slow
def test_a_full_memory_and_a_slow_point_do_not_end_the_call(monkeypatch, tmp_path, capsys):
    """Both become lines, the points after them run, each in a new process, and none is measured
    again by the next call. A point that the end of the call cuts has no line, and runs next."""
    monkeypatch.setattr(growth, "Worker", Scripted)
    monkeypatch.setattr(growth.models, "check_device", lambda device: None)  # there is no card here
    out = tmp_path / "out.jsonl"
    argv = ["--device", "cuda", "--out", str(out)]
    growth.main([*argv, "--limit", "600"])
    assert [row["rows"] for row in growth_figure.read(out)] == [64, 8]  # 256 is too slow
    assert f"{len(growth.points(False, True)) - 2} points wait" in capsys.readouterr().out
    growth.main([*argv, "--limit", "7"])
    rows = growth_figure.read(out)
    assert [{k: row[k] for k in growth_figure.KEY} for row in rows] == growth.points(False, True)
    failed = {row["rows"]: row["failed"] for row in rows if "failed" in row}
    assert failed == {1024: "out of memory", 256: "longer than 7 s"}
    assert Scripted.started == Scripted.ended > 6
    growth.main(argv)
    assert len(growth_figure.read(out)) == len(rows)


def test_the_table(tmp_path, lines, capsys):
    growth.main(["--table", str(file_of(tmp_path, lines))])
    said = capsys.readouterr().out
    assert said.startswith("a card, torch x; it copied at 4 TB/s") and said.count("(50 %)") == 6
    assert said.count("(25 %)") == 6 and "| out of memory |" in said and "| 21.4 |" in said
    head, _, *rows = [text for text in said.splitlines() if text.startswith("|")]
    assert len(rows) == len(lines) and len({text.count("|") for text in (head, *rows)}) == 1
    speed = 64 * 512 / lines[1]["sampling_seconds"]
    assert f"{speed:,.0f} (50 %)" in said


def test_the_figure(tmp_path, lines):
    """Stands alone, follows the colour scheme, has three panels, and marks the full memory."""
    picture = tmp_path / "growth.svg"
    growth.main(["--figure", str(file_of(tmp_path, lines)), "--out", str(picture)])
    text = picture.read_text()
    root = ElementTree.fromstring(text)
    assert "prefers-color-scheme:dark" in text and text.count("peak GB") == 3
    assert ">full<" in text and "nan" not in text and text.count("stroke-dasharray") == 8
    width, height = int(root.get("width")), int(root.get("height"))
    for part in root.iter():
        for side, most in (("x", width), ("cx", width), ("y", height), ("cy", height)):
            assert 0 <= float(part.get(side, 0)) <= most
        for kind in (part.get("class") or "").split():
            assert f".{kind}{{" in text


def test_the_figure_on_disk_is_that_of_its_file():
    rows = growth_figure.of_one_card(ROOT / "results/h200_growth.jsonl")
    picture = (ROOT / "docs/figures/growth.svg").read_text(encoding="utf-8")
    assert growth_figure.figure(rows) == picture, "make it again: examples/growth.py --figure"


@pytest.mark.slow
def test_how_far_the_estimate_is_below_the_measured_peaks():
    short = []
    for row in growth_figure.of_one_card(ROOT / "results/h200_growth.jsonl"):
        if row["what"] == "ours":
            with torch.device("meta"):
                model = growth.Qwen3ForCausalLM(growth.config_of(row["shape"]))
            asked = SimpleNamespace(kl=0, checkpointing=False, compile=True, group=8,
                                    prompts=row["rows"] // 8, max_new_tokens=row["tokens"],
                                    tokens_per_microbatch=2560)
            said = memory.memory_estimate(model, asked, row["prompt"])
            short.append(1 - float(said.split("peak ")[1].split()[0]) / row["peak_gb"])
    text = " ".join((ROOT / "docs/speed.md").read_text(encoding="utf-8").split())
    assert f"is {100 * min(short):.0f} to {100 * max(short):.0f} % below these peaks" in text


def test_lines_of_two_cards_or_of_another_file_are_refused(tmp_path, lines):
    with pytest.raises(BadInput, match="lines of 2 cards"):
        growth.main(["--table", str(file_of(tmp_path, [*lines, lines[0] | {"card": "other"}]))])
    lines_of, empty = file_of(tmp_path, lines), tmp_path / "empty.jsonl"
    for text in ("", '{"what": "half a li'):
        empty.write_text(text)
        for argv in (["--table"], ["--out", str(tmp_path / "x.svg"), "--figure"]):
            with pytest.raises(BadInput, match="nothing.jsonl: there is no such file"):
                growth.main([*argv, str(tmp_path / "nothing.jsonl")])
            with pytest.raises(BadInput, match="empty.jsonl: it has no line"):
                growth.main([*argv, str(empty)])
    with pytest.raises(BadInput, match="would overwrite its own lines"):
        growth.main(["--figure", str(lines_of), "--out", str(lines_of)])
    assert len(growth_figure.read(lines_of)) == len(lines)
    with pytest.raises(BadInput, match="no point of growth.py"):
        growth.main(["--table", str(ROOT / "results/study_real.jsonl")])
    with pytest.raises(BadInput, match="--tiny is for a CPU"):
        growth.main(["--device", "cpu", "--out", str(tmp_path / "x")])


def test_mistakes_are_refused_before_a_process_is_started(monkeypatch, tmp_path):
    """A device that is none, a card that is not there, a folder that is not there."""
    monkeypatch.setattr(growth, "Worker", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    out = tmp_path / "out.jsonl"
    for device, said in (("bogus", "no device of PyTorch"), ("cuda", "sees no CUDA card")):
        with pytest.raises(BadInput, match=f"--device {device}: .*{said}"):
            growth.main(["--device", device, "--out", str(out)])
    assert not out.exists()
    with pytest.raises(BadInput, match="--out .*no/x.jsonl: cannot write there .No such file"):
        growth.main(["--tiny", "--out", str(tmp_path / "no/x.jsonl")])


@pytest.mark.slow
def test_the_small_version_end_to_end(tmp_path):
    """A line for every point, in real processes; the same call again adds none."""
    command = [sys.executable, ROOT / "examples/growth.py", "--tiny", "--out", "out.jsonl"]
    for _ in range(2):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    rows = growth_figure.read(tmp_path / "out.jsonl")
    assert [{k: row[k] for k in growth_figure.KEY} for row in rows] == growth.points(True, False)
    ours = [row for row in rows if row["what"] == "ours"]
    assert not any("failed" in row for row in ours)
    growth_figure.figure(rows)
    growth_figure.table(rows)
    command[2:3] = ["--tiny", "--limit", "0.001"]  # every point takes longer
    subprocess.run([*command[:-1], "late.jsonl"], cwd=tmp_path, check=True, capture_output=True)
    late = growth_figure.read(tmp_path / "late.jsonl")
    assert {row["failed"] for row in late} == {"longer than 0.001 s"} and len(late) == len(rows)
