"""examples/bench.py and soak.py: what they refuse, and the profile of a sampled token."""
import json
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))
import bench
import soak

from engine.errors import BadInput, run_cli

CPU = torch.device("cpu")


def test_the_profile_counts_known_work():
    """Twelve products for 4 tokens are three a token, and no part is longer than the whole."""
    a, began = torch.randn(300, 300), time.perf_counter()
    found = bench.kernels(lambda: [torch.mm(a, a) for _ in range(12)], 4, CPU)
    seconds = time.perf_counter() - began
    first = found["longest"][0]
    assert first["name"] == "aten::mm" and first["calls_a_token"] == 3
    assert first["us_a_call"] * 3 == pytest.approx(1e3 * first["ms_a_token"])
    assert 0 < first["ms_a_token"] <= found["ms_a_token"] < 1e3 * seconds / 4


def test_mistakes_are_refused_before_anything_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "Qwen3Config", None)
    with pytest.raises(BadInput, match="--device bogus"):
        bench.main(["--device", "bogus"])
    with pytest.raises(BadInput, match="--out .*no/x.json: cannot write there"):
        bench.main(["--device", "cpu", "--parts", "sampling", "--out",
                    str(tmp_path / "no/x.json")])


@pytest.mark.parametrize("argv, words", [
    ("--every 0", "--every 0: must be at least 1"), ("--every -50", "--every -50"),
    ("--steps 199", "--steps 199: must be at least 4 times --every 50"),
    ("--steps 0 --every 1", "--steps 0"), ("--out .", "--out .: cannot write there"),
    ("--out no/x.jsonl", "--out no/x.jsonl: cannot write there"),
    ("--name .", "--name .: it is there"), ("--method evaluate", "invalid choice: 'evaluate'")])
def test_soak_refuses_mistakes_before_the_training(argv, words, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(soak, "watch", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        run_cli(lambda: soak.main(argv.split()))
    said = capsys.readouterr().err
    assert stop.value.code == 2 and words in said and "Traceback" not in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("argv, words", [
    ("--rows 12", "--rows 12: must be 8 or a multiple"), ("--rows 7", "--rows 7"),
    ("--rows 0", "--rows 0"), ("--rows -8", "--rows -8"),
    ("--parts samplin,updat", "no part 'samplin'"), ("--parts sampling,", "no part ''"),
    ("--parts compiled", "compiled needs --device cuda"),
    ("--tokens 10", "--tokens 10: must be at least 18"), ("--tokens 17", "at least 18"),
    ("--parts update --tokens 7", "--tokens 7: must be at least 8"),
    ("--parts sampling --tokens 0", "--tokens 0: must be at least 1"),
    ("--parts long --long 17", "--long 17: must be at least 18"),
    ("--repeat 0", "--repeat 0"), ("--prompt 0", "--prompt 0"),
    ("--tokens-per-microbatch 0", "--tokens-per-microbatch 0")])
def test_what_cannot_be_measured_is_refused_before_anything_is(argv, words, monkeypatch):
    monkeypatch.setattr(bench, "Qwen3Config", None)
    with pytest.raises(BadInput) as caught:
        bench.main(["--device", "cpu", "--parts", "sampling,methods", *argv.split()])
    assert words in str(caught.value) and str(caught.value).endswith(".")


@pytest.mark.parametrize("tokens, fallen", [(18, 0), (17, 1)])
def test_the_fewest_tokens_with_which_a_method_has_a_signal(tokens, fallen, monkeypatch):
    """At the bound GRAIL gives weights to every row, and one token below it to none."""
    monkeypatch.setattr(bench.saliency, "answer_span", bench.saliency.answer_span)
    monkeypatch.setattr(bench, "check", lambda args: args.parts.split(","))
    shares, update = [], bench.grpo.update

    def noted(*args, **more):
        metrics, weights = update(*args, **more)
        shares.append(metrics["fallback"])
        return metrics, weights

    monkeypatch.setattr(bench.grpo, "update", noted)
    bench.main(["--small", "--device", "cpu", "--parts", "long", "--repeat", "1", "--rows", "8",
                "--prompt", "2", "--tokens", "1", "--long", str(tokens)])
    assert shares == [fallen] * 2


@pytest.mark.slow
def test_the_profile_of_the_small_model(tmp_path, capsys):
    """Each of 2 layers has 7 products a token, the LM head has one; the first token is the
    prompt's. 20 kernels are listed, and the sum is over all."""
    out = tmp_path / "bench.json"
    bench.main(["--small", "--device", "cpu", "--parts", "profile", "--repeat", "1", "--rows", "8",
                "--prompt", "16", "--tokens", "4", "--out", str(out)])
    found = json.loads(out.read_text())["profile_8"]
    calls = {kernel["name"]: kernel["calls_a_token"] for kernel in found["longest"]}
    products = sum(calls.get(name, 0) for name in ("aten::mm", "aten::addmm", "aten::bmm"))
    assert products >= 2 * 7 + 1
    assert len(calls) == 20 and sum(calls.values()) < found["calls_a_token"]
    assert "profile_32" in capsys.readouterr().out
