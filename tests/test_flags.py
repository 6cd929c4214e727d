"""The command line of each method: what every flag is by default, what it takes and refuses, and
that the training and the credit function get just that.

`train` and the credit functions are stubs, so nothing is loaded and nothing is trained.
"""
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import delta
import evaluate
import grail
import grpo
import oar
import scrl
from engine import flags, graphs
from engine.errors import BadInput

ROOT = Path(__file__).resolve().parent.parent

# method: (its module, its own flags and their defaults)
METHODS = {
    "grpo": (grpo, {}),
    "grail": (grail, dict(reweight="wrong", activation="embeddings", as_released=False)),
    "oar": (oar, dict(signal="gradient", outcome="mean", draws=4, replace="pad", chunk=0,
                      as_released="no")),
    "delta": (delta, dict(gradient="head-row", refinements=1, as_released=False)),
    "scrl": (scrl, dict(arm="scrl", scale_by_std=True)),
}
# method, command line, the settings that it changes
TAKEN = [
    ("grail", "--reweight wrong", dict(reweight="wrong")),
    ("grail", "--reweight correct", dict(reweight="correct")),
    ("grail", "--reweight both", dict(reweight="both")),
    ("grail", "--activation embeddings", dict(activation="embeddings")),
    ("grail", "--activation first", dict(activation="first")),
    ("grail", "--activation middle", dict(activation="middle")),
    ("grail", "--activation last", dict(activation="last")),
    ("grail", "--as-released", dict(as_released=True)),
    ("grail", "--device cuda --compile", dict(device="cuda", compile=True)),
    ("oar", "--signal gradient", dict(signal="gradient")),
    ("oar", "--signal perturbation", dict(signal="perturbation")),
    ("oar", "--outcome mean", dict(outcome="mean")),
    ("oar", "--outcome each", dict(outcome="each")),
    ("oar", "--outcome first", dict(outcome="first")),
    ("oar", "--outcome likelihood", dict(outcome="likelihood")),
    ("oar", "--draws 1", dict(draws=1)),
    ("oar", "--draws 16", dict(draws=16)),
    ("oar", "--replace pad", dict(replace="pad")),
    ("oar", "--replace mean", dict(replace="mean")),
    ("oar", "--chunk 2", dict(chunk=2)),
    ("oar", "--chunk 0", dict(chunk=0)),
    ("oar", "--as-released no", dict(as_released="no")),
    ("oar", "--as-released authors", dict(as_released="authors")),
    ("oar", "--as-released reproduction", dict(as_released="reproduction")),
    ("delta", "--gradient head-row", dict(gradient="head-row")),
    ("delta", "--gradient lm-head", dict(gradient="lm-head")),
    ("delta", "--refinements 0", dict(refinements=0)),
    ("delta", "--refinements 3", dict(refinements=3)),
    ("delta", "--as-released", dict(as_released=True)),
    ("scrl", "--arm scrl", dict(arm="scrl")),
    ("scrl", "--arm both-grpo", dict(arm="both-grpo")),
    ("scrl", "--arm no-cut", dict(arm="no-cut")),
    ("scrl", "--group 4", dict(group=4)),
    ("scrl", "--group 6", dict(group=6)),
]
# method, command line, what refuses it, what the sentence says
REFUSED = [
    ("grail", "--reweight all", SystemExit, None),
    ("grail", "--activation root", SystemExit, None),
    ("grail", "--device cuda --compile --activation last", BadInput, "--activation last: compiled"),
    ("oar", "--signal none", SystemExit, None),
    ("oar", "--outcome last", SystemExit, None),
    ("oar", "--draws 1.5", SystemExit, None),
    ("oar", "--draws 0", BadInput, "--draws 0: must be at least 1"),
    ("oar", "--draws -1", BadInput, "--draws -1: must be at least 1"),
    ("oar", "--replace zero", SystemExit, None),
    ("oar", "--chunk two", SystemExit, None),
    ("oar", "--chunk 1", BadInput, "--chunk 1: 0, or at least 2"),
    ("oar", "--chunk -1", BadInput, "--chunk -1: 0, or at least 2"),
    ("oar", "--as-released yes", SystemExit, None),
    ("delta", "--gradient both", SystemExit, None),
    ("delta", "--refinements one", SystemExit, None),
    ("delta", "--refinements -1", BadInput, "--refinements -1: must be at least 0"),
    ("scrl", "--arm none", SystemExit, None),
    ("scrl", "--make-subproblems gsm8k", SystemExit, None),
    ("scrl", "--group 2", BadInput, "--group 2: each half"),
    ("scrl", "--group 5", BadInput, "--group 5: each half"),
]


def run(method, argv, monkeypatch):
    """(what `train` was called with, the settings that the credit function was made from)."""
    module, trained, credited = METHODS[method][0], [], []

    def train(*args, **options):
        trained.append((args, options))
        return "the summary"

    def made(config):
        credited.append(config)
        return "the credit"

    monkeypatch.setattr(module, "train", train)
    # What a parser reads by mistake would show.
    monkeypatch.setattr(sys, "argv", [f"{method}.py", "--seed", "999"])
    shown = []
    monkeypatch.setattr(grail.show, "last_steps", lambda *about: shown.append(about))
    if method == "grail":
        grail.main(argv, made)
        (summary, config), = shown  # its pages are opened on what the training returns
        assert summary == "the summary" and config.method == "grail"
    else:
        for name in ("credit", "whole_batch"):
            monkeypatch.setattr(module, name, made, raising=False)
        module.main(argv)
    (args, options), = trained
    return args, options, credited


@pytest.mark.parametrize("method", METHODS)
def test_the_defaults_are_those_of_every_method_and_its_own(method, monkeypatch):
    args, options, credited = run(method, [], monkeypatch)
    common = vars(flags.parse(flags.flags(method, ""), []))
    assert vars(args[0]) == common | METHODS[method][1]
    assert args[0].method == method and args[0].name == f"runs/{method}-tiny-arithmetic-seed0"
    made = {"grail": (["the credit"], {}), "oar": (["the credit"], {}),
            "delta": ([], {"whole_batch": "the credit"}), "grpo": ([], {}),
            "scrl": ([], {"make_prompts": scrl.make_prompts, "reward_fn": scrl.subproblem_reward})}
    assert (list(args[1:]), options) == made[method]
    assert all(config is args[0] for config in credited)
    assert len(credited) == (method in ("grail", "oar", "delta"))


@pytest.mark.parametrize("method, line, changed", TAKEN)
def test_a_flag_reaches_the_training_and_changes_nothing_else(method, line, changed, monkeypatch):
    args, _, credited = run(method, line.split(), monkeypatch)
    common = vars(flags.parse(flags.flags(method, ""), []))
    assert vars(args[0]) == common | METHODS[method][1] | changed
    for name, value in changed.items():
        assert type(getattr(args[0], name)) is type(value)
    assert all(config is args[0] for config in credited)


@pytest.mark.parametrize("method, line, error, words", REFUSED)
def test_other_values_are_refused_before_the_training(method, line, error, words, monkeypatch):
    with pytest.raises(error, match=words) as stop:
        run(method, line.split(), monkeypatch)
    assert error is BadInput or stop.value.code == 2  # argparse's own end the process


@pytest.mark.parametrize("method", [*METHODS, "evaluate"])
def test_help_is_the_first_line_of_the_file_and_names_every_flag(method, monkeypatch, capsys):
    """Through __main__, so a script that does nothing when it is called is seen too."""
    monkeypatch.setattr(sys, "argv", [f"{method}.py", "--help"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / f"{method}.py"), run_name="__main__")
    said = " ".join(capsys.readouterr().out.split())
    module = METHODS[method][0] if method in METHODS else evaluate
    first = module.__doc__.strip().partition("\n")[0]
    if method == "grpo":
        first = "GRPO: every token of a completion gets the same credit."
    assert stop.value.code == 0 and said.count(first) == 1
    assert f"{first} python {method}.py" not in said  # the second line is left out
    own = METHODS[method][1] if method in METHODS else {}
    assert all(f"--{name.replace('_', '-')} " in said for name in own)
    if method == "scrl":
        assert "--make-subproblems SOURCE OUT" in said


# ------------------------------------------------------------------ evaluate.py

EVALUATED = dict(samples=8, temperature=1.0, top_p=1.0, top_k=0, seed=0, max_new_tokens=512,
                 batch_size=256, thinking=False)
PAPER = dict(samples=3, temperature=.6, top_p=.95, top_k=20, max_new_tokens=8192)


def evaluated(argv, monkeypatch):
    """What `evaluate` was called with for each set, what was loaded, and what was printed of it."""
    calls, loaded, printed = [], [], []

    def one(model, tokenizer, rows, **options):
        calls.append((model, tokenizer, len(rows), options))
        return {"tokens_per_second": 7.0}

    def problem_set(data, split, limit):
        loaded.append((data, split, limit))
        return [{"id": str(i), "problem": "?"} for i in range(300)]

    def policy(*asked):
        loaded.append(asked)
        return "model", "tokenizer"

    monkeypatch.setattr(evaluate, "evaluate", one)
    monkeypatch.setattr(evaluate, "load_policy", policy)
    monkeypatch.setattr(evaluate, "load_problems", problem_set)
    monkeypatch.setattr(evaluate, "print_results", lambda *shown: printed.append(shown))
    monkeypatch.setattr(evaluate.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "--seed", "999"])
    evaluate.main(argv)
    assert [list(shown[0]) for shown in printed] == [[call[3]["name"] for call in calls]]
    return calls, loaded, printed[0][1:]


def test_the_defaults_of_evaluate(monkeypatch, capsys):
    calls, loaded, (ks, majority) = evaluated([], monkeypatch)
    assert calls == [("model", "tokenizer", 300, EVALUATED | dict(
        ks=[8], path="runs/evaluate/tiny-allx8-seed0.jsonl", name="arithmetic"))]
    assert loaded == [("arithmetic", "test", None), ("tiny", "cpu")]
    assert ks == [8] and majority is False
    said = capsys.readouterr().out
    assert "tokens/s on cpu: arithmetic 7 (0" in said
    assert "every sample: runs/evaluate/tiny-allx8-seed0.jsonl\n" in said


@pytest.mark.parametrize("line, changed", [
    ("--k 2,1,2", dict(ks=[1, 2])), ("--temperature 0.5", dict(temperature=.5)),
    ("--top-p 0.9", dict(top_p=.9)), ("--top-k 5", dict(top_k=5)),
    ("--max-new-tokens 9", dict(max_new_tokens=9)), ("--batch-size 1", dict(batch_size=1)),
    ("--thinking", dict(thinking=True)), ("--out o.jsonl", dict(path="o.jsonl")),
    ("--samples 1", dict(samples=1, ks=[1], path="runs/evaluate/tiny-allx1-seed0.jsonl")),
    ("--limit 1", dict(path="runs/evaluate/tiny-1x8-seed0.jsonl")),
    ("--seed 3", dict(seed=3, path="runs/evaluate/tiny-allx8-seed3.jsonl")),
    ("--model a/b/", dict(path="runs/evaluate/a-b-allx8-seed0.jsonl")),
    ("--data gsm8k", dict(name="gsm8k")), ("--data x/mine.jsonl", dict(name="mine"))])
def test_a_flag_of_evaluate_reaches_it_and_changes_nothing_else(line, changed, monkeypatch):
    (call,), loaded, _ = evaluated(line.split(), monkeypatch)
    path = "runs/evaluate/tiny-allx8-seed0.jsonl"
    assert call[3] == EVALUATED | dict(ks=[8], path=path, name="arithmetic") | changed
    flag, _, value = line.partition(" ")
    data = value if flag == "--data" else "arithmetic"
    model = value if flag == "--model" else "tiny"
    assert loaded == [(data, "test", 1 if flag == "--limit" else None), (model, "cpu")]


@pytest.mark.parametrize("there, device", [(True, "cuda"), (False, "cpu")])
def test_evaluate_takes_a_card_where_there_is_one(there, device, monkeypatch):
    monkeypatch.setattr(evaluate.torch.cuda, "is_available", lambda: there)
    assert evaluate.flags().parse_args([]).device == device


def test_other_flags_of_evaluate(monkeypatch):
    _, loaded, (_, majority) = evaluated(["--majority", "--device", "cuda:1"], monkeypatch)
    assert majority is True and loaded[-1] == ("tiny", "cuda:1")
    asked = []
    monkeypatch.setattr(evaluate, "print_comparison", asked.append)
    evaluate.main(["--compare", "a", "vs", "b", "c"])
    assert asked == [["a", "vs", "b", "c"]]


def test_the_paper_s_protocol_and_what_overrides_it(monkeypatch):
    """Its six sets, two of them cut to 200; a flag beside it still counts."""
    names = "math500 amc23 aime24 college_math olympiadbench minerva".split()
    calls, loaded, (ks, _) = evaluated(["--paper-protocol", "--top-k", "7"], monkeypatch)
    assert [call[3]["name"] for call in calls] == names and ks == [1, 3]
    assert [call[2] for call in calls] == [300, 300, 300, 200, 200, 300]
    path = "runs/evaluate/tiny-allx3-seed0.jsonl"
    for name, call in zip(names, calls):
        assert call[3] == EVALUATED | PAPER | dict(ks=[1, 3], path=path, name=name, top_k=7)


@pytest.mark.parametrize("line, words", [
    ("--limit 0", "--limit 0"), ("--samples 0", "--samples 0"), ("--batch-size 0", "--batch-size"),
    ("--k one", "--k one"), ("--data arithmetic,arithmetic", "two sets would be called")])
def test_other_values_of_evaluate_are_refused_before_a_model_is_loaded(line, words, monkeypatch):
    with pytest.raises(BadInput, match=words):
        evaluated(line.split(), monkeypatch)


# ------------------------------------------------------------------ what a card does by itself


class OnACard:
    """As much of a model as the decision looks at: where it is, and its size."""
    device = SimpleNamespace(type="cuda")

    def __init__(self, parameters=600_000_000):
        self.parameters = parameters

    def num_parameters(self):
        return self.parameters


@pytest.mark.parametrize("argv, parameters, fits, wanted, said", [
    ("", 600_000_000, True, True, "half a minute"),
    ("--no-compile", 600_000_000, True, False, ""),
    ("--compile", 800_000, True, True, ""),
    ("", 800_000, True, False, "the model is small"),
    ("--steps 29", 600_000_000, True, False, "fewer than 30 steps"),
    ("--steps 30", 600_000_000, True, True, "half a minute"),
    ("--checkpointing", 600_000_000, True, False, "not with --checkpointing"),
    ("--activation last", 600_000_000, True, False, "not with --activation"),
    ("", 600_000_000, False, False, "made for Llama, Qwen2 and Qwen3")])
def test_layers_are_compiled_where_it_pays(argv, parameters, fits, wanted, said, monkeypatch,
                                           capsys):
    """On a card, without a flag: a long run of a large enough model that the recordings are made
    for. With a flag as it says, and silent."""
    monkeypatch.setattr(graphs, "possible", lambda model: fits)
    parser = flags.flags("grail", "")
    parser.add_argument("--activation", default="embeddings")
    config = flags.parse(parser, ["--model", "folder", "--device", "cuda", *argv.split()])
    assert graphs.wanted(OnACard(parameters), config) is wanted
    assert said in capsys.readouterr().out


def test_a_cpu_compiles_nothing_and_says_nothing(capsys):
    model = OnACard()
    model.device = SimpleNamespace(type="cpu")
    config = flags.parse(flags.flags("grpo", ""), ["--model", "folder", "--device", "cpu"])
    assert graphs.wanted(model, config) is False and capsys.readouterr().out == ""
