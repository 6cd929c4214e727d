"""Bad flags, files, folders, models and data, over all scripts: one sentence and exit code 2.

A traceback for a typo teaches people not to read messages; a NaN, a hang or a pickle that runs is
worse. Everything runs in this process by `main(argv)`, a handful as real processes.
"""
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from test_problems import characters
from transformers import (
    BertConfig,
    BertLMHeadModel,
    GPT2Config,
    GPT2LMHeadModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import evaluate
import grail
import grpo
import problems
import relex
import scrl
import show
import verify
from engine import errors, flags, graphs

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = dict(grpo=grpo, grail=grail, scrl=scrl, relex=relex, evaluate=evaluate, verify=verify,
               show=show, problems=problems)
SHORT = "--steps 1 --prompts 2 --group 2 --max-new-tokens 4 --eval-problems 0 --name out".split()
BRIEF = "--samples 1 --limit 2 --max-new-tokens 4 --out out.jsonl".split()


def refused(script, argv, capsys):
    """Run `script.main(argv)` as its __main__ does; the sentence that it ended in, exit code 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        errors.run_cli(lambda: SCRIPTS[script].main(argv))
    said = capsys.readouterr().err
    assert stop.value.code == 2 and "Traceback" not in said, said
    sentence = said.strip().splitlines()[-1]
    start, _, reason = sentence.partition("error: ")  # argparse puts the program's name in front
    assert (start == "" or start.endswith(".py: ") or ": " in start) and len(reason) > 15, said
    assert reason.isprintable() and len(reason) < 700
    return reason


FLAGS = [[part.strip() for part in line.split("|")] for line in r"""
grpo | --group 1 | --group 1
grpo | --group two | --group
grpo | --group -8 | --group -8
grpo | --temperature 0 | --temperature 0
grpo | --temperature nan | --temperature nan
grpo | --temperature inf | --temperature inf
grpo | --lr nan | --lr nan
grpo | --lr -1 | --lr -1
grpo | --lr inf | --lr inf
grpo | --steps 0 | --steps 0
grpo | --steps 2.5 | --steps
grpo | --prompts 0 | --prompts 0
grpo | --prompts 99999999999 | --prompts 99999999999
grpo | --max-new-tokens 0 | --max-new-tokens 0
grpo | --tokens-per-microbatch 0 | --tokens-per-microbatch 0
grpo | --num-iterations 0 | --num-iterations 0
grpo | --warmup -1 | --warmup -1
grpo | --seed -1 | --seed -1
grpo | --seed 2199023255552 | --seed 2199023255552
grpo | --kl -0.1 | --kl -0.1
grpo | --kl nan | --kl nan
grpo | --clip-low -0.1 | --clip-low -0.1
grpo | --clip-high nan | --clip-high nan
grpo | --grad-clip 0 | --grad-clip 0
grpo | --loss mean | --loss
grpo | --save-every -1 | --save-every -1
grpo | --snapshot-every -1 | --snapshot-every -1
grpo | --eval-problems -5 | --eval-problems -5
grpo | --eval-samples 0 | --eval-samples 0
grpo | --no-such-flag 1 | unrecognized arguments
grpo | --steps | --steps
grpo | --device warp | --device warp
grpo | --device meta | --device meta
grpo | --device cuda:99 | --device cuda:99
grpo | --data gsm9k | --data gsm9k
grpo | --data no.jsonl | no such file
grpo | --data folder.jsonl | no such file
grpo | --data math500 | no train split
grpo | --model no/such-model | --model no/such-model
grpo | --model ./nowhere | no such folder
grpo | --model /nowhere/at/all | no such folder
grpo | --model folder.jsonl | no config.json
grpo | --model a-file | --model a-file
grpo | --data plain.jsonl --name a-file/run | cannot write there
grpo | --resume nowhere | no readable config.json
grpo | --resume latest | --resume latest
grpo | --resume a-file | no readable config.json
grpo | --resume unsaved | ended before its first checkpoint
grpo | --resume listed | is damaged
grpo | --resume mistyped | 'group'
grpo | --resume unsaved --lr 3 | lr differs
grail | --resume unsaved | method differs
grail | --reweight all | --reweight
grail | --activation root | --activation
grail | --group 1 | --group 1
scrl | --group 3 | --group 3
scrl | --group 2 | --group 2
scrl | --arm none | --arm
scrl | --make-subproblems arithmetic | --make-subproblems
scrl | --make-subproblems gsm9k out.jsonl | --data gsm9k
scrl | --make-subproblems plain.jsonl out.jsonl | can be split
scrl | --make-subproblems split.jsonl a-file | name a new file
scrl | --make-subproblems split.jsonl no/such/folder/x | name a new file
scrl | --data plain.jsonl --name out | no "subproblems"
relex | --to 5 | --snapshots
relex | --snapshots folder.jsonl --to 5 --out new | no step_NUMBER folder
relex | --snapshots nowhere --to 5 --out new | --snapshots nowhere: no such folder
relex | --snapshots snapshots --to 5 --out new --until 1 | a line needs two
relex | --snapshots snapshots --to 5 --out new --limit -995 | --limit -995
relex | --snapshots snapshots --to 5 --out new --samples 0 | --samples 0
relex | --snapshots nowhere --to 5 --out a-file | --out a-file
relex | --snapshots nowhere --to five --out new | --to
relex | --snapshots snapshots --to 5 --out new --base ./none | --base ./none
relex | --snapshots nowhere --to 5 --out new --data gsm9k | --data gsm9k
evaluate | --samples 2 --k 9 | --k 9
evaluate | --k 1,x | --k 1,x
evaluate | --k 0 | --k 0
evaluate | --samples 0 | --samples 0
evaluate | --limit 0 | --limit 0
evaluate | --limit -1 | --limit -1
evaluate | --batch-size 0 | --batch-size 0
evaluate | --temperature -1 | --temperature -1
evaluate | --temperature nan | --temperature nan
evaluate | --temperature 0 | --temperature 0
evaluate | --top-p 0 | --top-p 0
evaluate | --top-p 1.5 | --top-p 1.5
evaluate | --top-p nan | --top-p nan
evaluate | --top-k -1 | --top-k -1
evaluate | --max-new-tokens 0 | --max-new-tokens 0
evaluate | --seed -1 | --seed -1
evaluate | --seed 99999999999999999999 | --seed 99999999999999999999
evaluate | --data arithmetic,arithmetic | two sets would be called arithmetic
evaluate | --data , | --data
evaluate | --out a-file/x.jsonl | --out a-file/x.jsonl
evaluate | --data plain.jsonl --out one.json | one.json, line 1: not a sample
evaluate | --temperature 1e-40 | --temperature 1e-40
grpo | --temperature 1e-40 | --temperature 1e-40
grpo | --name / | a name of its own
grpo | --name runs/checkpoint | a name of its own
evaluate | --out folder.jsonl | --out folder.jsonl
evaluate | --compare one | --compare
evaluate | --compare no-file a-file | no-file
evaluate | --compare plain.jsonl plain.jsonl | not a sample of evaluate.py
evaluate | --model ./nowhere | no such folder
verify | | give a completion
verify | 5 | give a completion
verify | --table no-file | no-file
verify | --table a-file | a-file
verify | --table text.jsonl | expect is 'true'
verify | --table /dev/null | no row in it
verify | --table plain.jsonl | expect
verify | --table odd.jsonl | odd.jsonl
show | --model ./nowhere | no such folder
problems | gsm9k | --data gsm9k
problems | plain.jsonl --split dev | --split
""".strip().splitlines()]


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with the odd files that the table above speaks of, as the current one."""
    monkeypatch.chdir(tmp_path)
    Path("a-file").write_text("hello\n")
    Path("folder.jsonl").mkdir()
    for step in ("1", "2"):
        Path("snapshots", f"step_{step}").mkdir(parents=True)
        save_file({"w": torch.zeros(1)}, Path("snapshots", f"step_{step}", "model.safetensors"))
    Path("plain.jsonl").write_text('{"problem": "1+1?", "answer": "2"}\n' * 3)
    Path("odd.jsonl").write_text('{"gold": 2, "completion": [3], "expect": true}\n')
    Path("one.json").write_text('{"problem": "1+1?", "answer": "2"}')  # no newline
    Path("text.jsonl").write_text('{"gold": "2", "completion": "2", "expect": "true"}\n')
    Path("split.jsonl").write_text(json.dumps({
        "problem": "Ann has 3 bags of 4 beans and eats 5. How many are left?", "answer": "7",
        "solution": "In all there are 3*4=12 beans. She has 12-5=7 left."}) + "\n")
    config = vars(flags.parse(flags.flags("grpo", ""), []))
    for name, saved in {"unsaved": config, "listed": [1, 2], "mistyped": config | {"group": "8"},
                        }.items():
        Path(name).mkdir()
        Path(name, "config.json").write_text(json.dumps(saved))
    return tmp_path


@pytest.mark.parametrize("script, argv, words", FLAGS, ids=lambda part: part.replace(" ", "_"))
def test_bad_flags_are_one_sentence(script, argv, words, desk, capsys):
    if "cuda" in argv and torch.cuda.is_available():
        pytest.skip("there is a card here")
    before = sorted(desk.iterdir())
    assert words in refused(script, argv.split(), capsys)
    assert sorted(desk.iterdir()) in (before, sorted([*before, desk / "runs"]))


def test_a_name_that_is_not_utf_8_is_refused_at_the_start(desk, capsys):
    """It ended the first save, after fifty steps."""
    assert "not UTF-8" in refused("grpo", ["--name", "a/\udcff"], capsys)


# ------------------------------------------------------------------ data

ROW = {"problem": "1+1?", "answer": "2"}
DATA = {
    "no lines": ("", "the file is empty"),
    "blank lines": ("\n \n", "the file is empty"),
    "no JSON": ("{'problem': 1}", "line 1: not JSON"),
    "half a line": (json.dumps(ROW) + '\n{"problem": "1+', "line 2: not JSON"),
    "a list": ("[1]", "line 1: a list"),
    "another column": ('{"question": "?", "answer": "2"}', "no column 'problem'"),
    "no answer": ('{"problem": "?"}', "no column 'answer'"),
    "an empty problem": (json.dumps({**ROW, "problem": ""}), "the problem is ''"),
    "a blank problem": (json.dumps({**ROW, "problem": " \n"}), "the problem is"),
    "a problem of no text": (json.dumps({**ROW, "problem": 7}), "the problem is 7"),
    "no gold": (json.dumps({**ROW, "answer": ""}), "no problem is left"),
    "a gold of no text": (json.dumps({**ROW, "answer": [2]}), "the answer is [2]"),
    "an id twice": (json.dumps({**ROW, "id": 1}) + "\n" + json.dumps({**ROW, "id": "1"}),
                    "line 2: id '1' was used in line 1"),
    "half a character": ('{"problem": "\\ud800", "answer": "2"}', "line 1: not JSON in UTF-8"),
    "a number of 5,000 digits": ('{"problem": "?", "answer": ' + "9" * 5000 + "}", "line 1: "),
    "brackets 100,000 deep": ('{"problem": "?", "answer": ' + "[" * 100_000, "line 1: not JSON"),
    "an escape sequence": ('{"problem": "?", "answer": "2", "id": "\\u001b[2J"}\n' * 2, "\\x1b[2J"),
    "a megabyte": (json.dumps({**ROW, "problem": "add one, " * 120_000}), "leaves no room"),
    "longer than the context": (json.dumps({**ROW, "problem": "x" * 1200}), "leaves no room"),
}


# A megabyte takes seconds, and evaluate.py asks the same function whether a prompt fits.
BOTH = [(name, script) for name in DATA for script in ("grpo", "evaluate")]
BOTH.remove(("a megabyte", "evaluate"))


@pytest.mark.parametrize("name, script", BOTH)
def test_bad_data_is_one_sentence(name, script, desk, capsys):
    text, words = DATA[name]
    Path("bad.jsonl").write_text(text)
    rest = SHORT if script == "grpo" else BRIEF
    assert words in refused(script, ["--data", "bad.jsonl", *rest], capsys)
    assert not Path("out").exists()


def test_data_that_is_not_text_is_one_sentence(desk, capsys):
    Path("bad.jsonl").write_bytes(b'{"problem": "caf\xe9", "answer": "1"}')
    assert "not UTF-8" in refused("grpo", ["--data", "bad.jsonl"], capsys)


# ------------------------------------------------------------------ models


def policy(folder, vocabulary=99, tokenizer=None, **settings):
    """A random Qwen3 of one layer in a folder, with one token a character."""
    sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                 num_key_value_heads=1, head_dim=8, max_position_embeddings=512)
    config = Qwen3Config(vocab_size=vocabulary, **{**sizes, "eos_token_id": 1, **settings})
    Qwen3ForCausalLM(config).save_pretrained(folder)
    (tokenizer or characters()).save_pretrained(folder)
    return folder


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def no_stop(folder):
    policy(folder, eos_token_id=None)
    for name in ("tokenizer_config.json", "generation_config.json"):
        edit(folder / name, eos_token=None, eos_token_id=None)


def lost_tensor(folder):
    from safetensors.torch import load_file, save_file
    policy(folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def not_finite(folder):
    model = Qwen3ForCausalLM.from_pretrained(policy(folder))
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    model.save_pretrained(folder)


class Armed:
    def __reduce__(self):
        return os.mkdir, ("pwned",)


def pickled(folder):
    (policy(folder) / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Armed()))


def remote_code(folder):
    policy(folder)
    (folder / "mine.py").write_text("import os\nos.mkdir('pwned')\n")
    edit(folder / "config.json", model_type="mine", architectures=["Mine"],
         auto_map={"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Mine"})


def other_kind(config, model):
    def make(folder):
        characters().save_pretrained(folder)
        model(config).save_pretrained(folder)
    return make


def changed(name, content=None, **changes):
    def make(folder):
        path = policy(folder) / name
        if changes:
            return edit(path, **changes)
        path.unlink()
        if content is not None:
            path.write_bytes(content)
    return make


SIZES = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
MODELS = {
    "no stop token at all": (no_stop, "stop token"),
    "fewer embeddings than tokens": (lambda f: policy(f, vocabulary=50), "has only 50 embeddings"),
    "a tensor is missing": (lost_tensor, "up_proj.weight, which would be random"),
    "weights that are NaN": (not_finite, "logits are not finite"),
    "weights in a pickle": (pickled, "a pickle, which can run code"),
    "code of its own": (remote_code, "no causal language model loads"),
    "GPT-2": (other_kind(GPT2Config(vocab_size=99, n_embd=16, n_layer=1, n_head=2),
                         GPT2LMHeadModel), "cannot be run apart from its LM head"),
    "BERT": (other_kind(BertConfig(vocab_size=99, is_decoder=True, **SIZES), BertLMHeadModel),
             "cannot be run apart from its LM head"),
    "half a weight file": (changed("model.safetensors", b"\x20" + b"\0" * 7 + b"{}"), "--model"),
    "an empty weight file": (changed("model.safetensors", b""), "--model"),
    "no weight file": (changed("model.safetensors"), "--model"),
    "no config": (changed("config.json"), "no config.json"),
    "a config that is no JSON": (changed("config.json", b"hello"), "--model"),
    "a config that is a list": (changed("config.json", b"[]"), "--model"),
    "a config of words": (changed("config.json", hidden_size="many"), "--model"),
    "a config of other sizes": (changed("config.json", hidden_size=32), "--model"),
    "an unknown kind": (changed("config.json", model_type="x", architectures=["X"]), "--model"),
    "no tokenizer": (changed("tokenizer.json"), "--model"),
    "a tokenizer that is no JSON": (changed("tokenizer.json", b"{"), "--model"),
    "a template that refuses": (
        changed("chat_template.jinja", b"{{ raise_exception('system first') }}"), "system first"),
    "a template with a typo": (changed("chat_template.jinja", b"{% if %}"), "chat template"),
}


@pytest.mark.parametrize("name", MODELS)
def test_bad_models_are_one_sentence_and_none_runs_code(name, desk, capsys):
    make, words = MODELS[name]
    folder = Path("model")
    folder.mkdir()
    if "template" in name:
        policy(folder, tokenizer=characters(template="x"))
    make(folder)
    if "template" in name:
        policy(folder, tokenizer=characters(template="x"))
        (folder / "chat_template.jinja").write_bytes(
            b"{% if %}" if "typo" in name else b"{{ raise_exception('system first') }}")
    argv = ["--model", "./model", "--data", "plain.jsonl"]
    Path("plain.jsonl").write_text(json.dumps(ROW) + "\n")
    assert words in refused("grpo", [*argv, *SHORT], capsys)
    assert words in refused("evaluate", [*argv, *BRIEF], capsys)
    assert not Path("pwned").exists()


ODD = {
    "no template, no pad token": lambda f: policy(f),
    "several stop tokens": lambda f: policy(f, eos_token_id=[1, 30, 40]),
    "a stop token in the config alone": lambda f: edit(
        policy(f) / "tokenizer_config.json", eos_token=None),
    "more embeddings than tokens": lambda f: policy(f, vocabulary=160),
    "a stop token that no tokenizer knows": lambda f: policy(f, 160, eos_token_id=[1, 150]),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_models_work(name, desk):
    ODD[name](Path("model"))
    Path("plain.jsonl").write_text(json.dumps(ROW) + "\n")
    grpo.main(["--model", "./model", "--data", "plain.jsonl", "--device", "cpu", *SHORT])
    evaluate.main(["--model", "out/checkpoint", "--data", "plain.jsonl", *BRIEF])
    record = json.loads(Path("out.jsonl").read_text().splitlines()[1])
    assert 1 <= record["length"] <= 4
    assert sorted(p.name for p in desk.iterdir()) == sorted([
        "a-file", "folder.jsonl", "one.json", "text.jsonl", "plain.jsonl", "odd.jsonl",
        "split.jsonl", "unsaved", "listed", "mistyped", "model", "out", "out.jsonl",
        "out.jsonl.lock", "snapshots"])


# ------------------------------------------------------------------ what is printed, and processes


def test_control_characters_are_shown_and_not_obeyed(desk, capsys):
    """A problem, an id or a completion that clears the screen, sets the title or turns the text
    around (U+202E) would do so in the terminal of whoever trains on it."""
    hostile = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m\r5"
    shown = errors.printable(hostile + "\n\tfine é")
    assert shown.isascii() is False and all(c.isprintable() or c in "\n\t" for c in shown)
    assert shown.endswith("5\n\tfine é") and "\\x1b]0;owned\\x07" in shown

    Path("bad.jsonl").write_text(json.dumps({**ROW, "problem": hostile, "id": hostile}) + "\n"
                                 + json.dumps({**ROW, "answer": " ", "id": hostile + "2"}))
    grail.main(["--data", "bad.jsonl", *SHORT])
    for printed in capsys.readouterr():
        printed = re.sub(r"\x1b\[[0-9;]*m", "", printed)  # our own colours
        assert not set(printed) & set("\x1b\x07\x9b\u202e\r")
    example = {"ids": [5, 6], "weights": [1.0, 2.0], "problem": hostile, "reward": 0.0}
    example |= {"gold": hostile, "A": -0.5, "own": None, "p": [0.5] * 2, "entropy": [0.5] * 2}
    config = flags.parse(flags.flags("grail", ""), [])
    config.reweight, config.as_released = "wrong", False
    show.last_steps({"folder": "out", "step": 1, "example": example}, config)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "owned" in shown and not set(shown) & set("\x1b\x07\x9b\u202e\r")
    problems.main(["bad.jsonl"])
    assert not set(capsys.readouterr().out) & set("\x1b\x07\x9b\u202e\r")


def test_nothing_turns_foreign_code_on():
    """Left unset, trust_remote_code asks on a terminal; set, it runs what the hub sends."""
    for path in [*ROOT.glob("*.py"), *ROOT.glob("*/*.py")]:
        text = path.read_text(encoding="utf-8")
        if path.parent.name != "tests":
            assert "trust_remote_code=True" not in text and "weights_only=False" not in text, path
            assert "pickle.load" not in text, path


@pytest.mark.slow
def test_real_processes_end_alike(desk):
    """The same through __main__: exit code 2, one sentence on stderr, nothing on stdout."""
    commands = [["grail.py", "--group", "1"], ["verify.py", "5"], ["verify.py", "--table", "x"],
                ["relex.py", "--snapshots", "nowhere", "--to", "5", "--out", "a-file"]]
    started = [subprocess.Popen([sys.executable, ROOT / name, *argv], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True) for name, *argv in commands]
    for command, process in zip(commands, started):
        out, err = process.communicate(timeout=200)
        assert process.returncode == 2 and not out and "Traceback" not in err, (command, err)
        assert "error: " in err.strip().splitlines()[-1], (command, err)


def test_compile_is_refused_where_its_recordings_would_be_wrong(tmp_path, monkeypatch):
    """Before anything is loaded, and no folder is left: what is recomputed cannot be recorded, and
    a model that is not on a card has no recordings."""
    monkeypatch.chdir(tmp_path)
    flags = ["--device", "cuda", "--compile"]
    for main, argv, reason in ((grpo.main, ["--checkpointing"], "--checkpointing: recordings"),
                               (grail.main, ["--activation", "first"],
                                "--activation first: compiled layers")):
        with pytest.raises(errors.BadInput, match=reason):
            main([*flags, *argv])
    with pytest.raises(errors.BadInput, match="--compile: made for Llama, Qwen2 and Qwen3"):
        graphs.Graphs(problems.load_policy("tiny")[0], 2560)
    assert not list(tmp_path.iterdir())
