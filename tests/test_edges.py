"""Edges: consoles, signals, locks, odd paths, damaged logs. Each one has lost somebody a run."""
import argparse
import errno
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_problems import characters
from tokenizers import Tokenizer
from transformers import Qwen3Config

import evaluate
import models
import problems
from engine import checkpoints, errors, files, flags, runs
from engine.errors import BadInput
from intervals import asked_differently, print_comparison, read_samples

ROOT = Path(__file__).resolve().parent.parent
HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m"


# ------------------------------------------------------------------ the console


class Torn(io.StringIO):
    """A stream whose reader has left; `fileno` is a file's that the test may lose."""

    def __init__(self, number, handle):
        super().__init__()
        self.number, self.handle = number, handle

    def write(self, text):
        raise OSError(self.number, os.strerror(self.number))

    def fileno(self):
        return self.handle


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO])
def test_a_reader_who_has_left_ends_nothing(number, tmp_path):
    with open(tmp_path / "pipe", "w") as pipe:
        stream = errors.Console(Torn(number, pipe.fileno()), "\n")
        assert stream.write("step 1\n") == 7
        assert os.path.samestat(os.fstat(pipe.fileno()), os.stat(os.devnull))


def test_a_full_disk_under_the_console_is_no_closed_pipe(tmp_path):
    with pytest.raises(OSError):
        errors.Console(Torn(errno.ENOSPC, 0), "\n").write("step 1\n")


def test_no_control_character_gets_through_but_our_own(monkeypatch):
    """The colours of show.py and tqdm's lines are ours, a cleared screen is not."""
    raw = io.BytesIO()
    stream = errors.Console(io.TextIOWrapper(raw, encoding="ascii"), "\n\t\r")
    ours = "\x1b[38;5;16;48;5;9mred\x1b[0m \x1b[A\r"
    stream.write(ours + HOSTILE + "caf\u00e9 \ud800\n")
    stream.flush()
    shown = raw.getvalue().decode("ascii")
    assert shown.startswith(ours) and shown.endswith("caf\\xe9 \\ud800\n")
    assert not set(shown[len(ours):]) & set("\x1b\x07\x9b\u202e\r") and "owned" in shown


def test_what_libraries_log_goes_through_the_console(capsys):
    """transformers quotes foreign configs in its warnings, by a stream that it took at import."""
    import logging

    logger = logging.getLogger("transformers")
    handler = logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    try:
        errors.run_cli(lambda: logger.error("unknown key %s", HOSTILE))
    finally:
        logger.removeHandler(handler)
    said = capsys.readouterr().err
    assert "unknown key" in said and not set(said) & set("\x1b\x07\x9b\u202e")
    assert handler.stream is not None and not isinstance(handler.stream, errors.Console)


def test_the_reason_of_an_error_is_the_one_that_it_came_from():
    try:
        try:
            raise ImportError("no socksio")
        except ImportError as cause:
            raise OSError("Can't load the configuration.\nMore") from cause
    except OSError as error:
        assert errors.reason(error) == "Can't load the configuration: no socksio"
    assert errors.reason(OSError(28, "No space left", "x")) == "No space left"
    assert errors.reason(KeyError()) == "KeyError"


# ------------------------------------------------------------------ signals


@pytest.fixture
def hangup():
    """SIGHUP as a shell leaves it, also where nohup runs the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield signal.SIGHUP
    signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_stops_a_command_as_sigterm_does(hangup, capsys):
    with pytest.raises(SystemExit) as stop:
        errors.run_cli(lambda: os.kill(os.getpid(), hangup))
    assert stop.value.code == 129 and "stopped by SIGHUP" in capsys.readouterr().err
    assert signal.getsignal(hangup) is signal.SIG_DFL


def test_a_run_finishes_its_step_however_often_the_terminal_hangs_up(hangup, tmp_path):
    """A terminal sends SIGHUP more than once; only a second Ctrl-C or SIGTERM leaves at once."""
    run = SimpleNamespace(folder=tmp_path, step=3, signal=None, evaluating=False)
    with checkpoints.graceful_stop(run, None):
        os.kill(os.getpid(), hangup)
        os.kill(os.getpid(), hangup)
        assert run.signal == hangup
        with pytest.raises(SystemExit) as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.sigtimedwait([], 0)
    assert stop.value.code == 143


def test_nohup_stays_nohup(hangup):
    signal.signal(hangup, signal.SIG_IGN)
    assert errors.stops() == [signal.SIGTERM]


# ------------------------------------------------------------------ files of a run


def test_one_process_at_a_time_trains_a_run(tmp_path):
    """Two would write the log out of order and move the checkpoint under each other."""
    code = ("import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.lockf(file, fcntl.LOCK_EX); "
            "print(1, flush=True); sys.stdin.read()")
    other = subprocess.Popen([sys.executable, "-c", code, tmp_path / "lock"], text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    other.stdout.readline()
    for refused in (files.hold, lambda folder: checkpoints.find(folder, held=True)):
        with pytest.raises(BadInput, match="another process is training this run"):
            refused(tmp_path)
    other.communicate("")
    files.hold(tmp_path)
    files.hold(tmp_path)  # it is ours already
    files.release(tmp_path)
    assert str(tmp_path) not in files.HELD


def test_a_run_is_locked_where_python_has_no_fcntl(tmp_path, monkeypatch):
    """As on Windows: SQLite's lock keeps other processes off, and goes with a kill."""
    monkeypatch.setattr(files, "fcntl", None)
    code = ("import sqlite3, sys; base = sqlite3.connect(sys.argv[1], isolation_level=None); "
            "base.execute('BEGIN EXCLUSIVE'); print(1, flush=True); sys.stdin.read()")
    other = subprocess.Popen([sys.executable, "-c", code, tmp_path / "lock"], text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    other.stdout.readline()
    with pytest.raises(BadInput, match="another process is training this run"):
        files.hold(tmp_path)
    other.kill()
    other.communicate()
    files.hold(tmp_path)
    files.hold(tmp_path)  # it is ours already
    asks = code.replace("sqlite3.connect(", "sqlite3.connect(timeout=0, database=")
    refused = subprocess.run([sys.executable, "-c", asks, tmp_path / "lock"], text=True,
                             stdin=subprocess.DEVNULL, capture_output=True)
    assert "database is locked" in refused.stderr
    files.release(tmp_path)
    assert subprocess.run([sys.executable, "-c", asks, tmp_path / "lock"],
                          stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
    assert str(tmp_path) not in files.HELD and (tmp_path / "lock").stat().st_size == 0
    (tmp_path / "folder").mkdir()
    assert files.lock(tmp_path / "folder") is None  # no lock can be made there


def test_a_damaged_summary_costs_no_run(tmp_path, capsys):
    run = runs.Run(tmp_path, 3, {}, None)
    (tmp_path / "summary.json").write_text('{"before": 1')
    assert run.summarise(step=3)["step"] == 3 and "damaged" in capsys.readouterr().err
    assert run.summarise(before=2) == {**json.loads((tmp_path / "summary.json").read_text())}
    assert run.summarise()["step"] == 3 and capsys.readouterr().err == ""


def test_a_system_that_cannot_flush_folders_keeps_its_runs(tmp_path, monkeypatch):
    """Windows opens no folder and flushes no file that was opened to be read."""
    import fcntl

    really_open, really_flush = os.open, os.fsync

    def no_folders(path, *args, **more):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return really_open(path, *args, **more)

    def no_readers(handle):
        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        return really_flush(handle)

    monkeypatch.setattr(os, "open", no_folders)
    monkeypatch.setattr(os, "fsync", no_readers)
    (tmp_path / "file").write_text("x")
    files.sync(tmp_path)
    files.sync(tmp_path / "file")
    monkeypatch.setattr(os, "open", really_open)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "I/O")))
    for path in (tmp_path, tmp_path / "file"):  # a disk that fails is another thing
        with pytest.raises(OSError):
            files.sync(path)


def test_a_log_that_was_cut_or_lost_is_said_on_resume(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    files.append(path, [{"step": step} for step in (1, 2, 3, 4)])
    files.drop_steps_after(path, 3)
    assert capsys.readouterr().err == "" and len(path.read_text().splitlines()) == 3
    path.write_text('{"step": 3}\n')
    files.drop_steps_after(path, 3)
    assert "2 of the 3 steps before have no line any more" in capsys.readouterr().err
    path.unlink()
    files.drop_steps_after(path, 3)
    assert "3 of the 3 steps" in capsys.readouterr().err


@pytest.mark.parametrize("change, words", [
    (lambda state: state | {"step": 3}, "it is of step 3, and manifest.json of step 2"),
    (lambda state: state | {"step": "2"}, "it is of step '2'"),
    (lambda state: state | {"optimizer": {"state": {
        0: {"step": torch.tensor(2.0), "exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(2)}}}},
     "exp_avg of tensor 0 is .3., the model's tensor .2."),
    (lambda state: state | {"optimizer": {"state": {7: {}}}}, "the model has 1"),
    (lambda state: state | {"optimizer": {"state": {0: 5}}}, "no state of ours"),
    (lambda state: [state], "no state of ours"),
])
def test_adam_s_state_of_another_shape_or_step_is_refused(change, words, tmp_path):
    """Adam takes any shape without a word, and the first step ends in a traceback."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    optimizer.step()
    state = {"optimizer": optimizer.state_dict(), "step": 2, "settings": {"seed": 1}}
    (tmp_path / "manifest.json").write_text('{"step": 2}')
    torch.save(change(state), tmp_path / "trainer.pt")
    with pytest.raises(BadInput, match=words):
        checkpoints.restore(tmp_path, optimizer, {"seed": 1})


def test_a_reference_that_moved_is_another_run(tmp_path):
    """Its weights are an input of the loss: one number moved is another fingerprint."""
    model = torch.nn.Linear(2, 2)
    before = checkpoints.fingerprint(model)
    with torch.no_grad():
        model.bias[1] += 1e-6
    now = checkpoints.fingerprint(model)
    assert now != before
    wide = torch.nn.Embedding(1001, 77)  # 77,077 numbers, of which one in 19 is hashed
    table, places = wide.weight.data.view(-1), [0, 1, 1000, 77_075, 77_076]
    known = {checkpoints.fingerprint(wide)}
    for place in places:
        table[place] += 1e-3
        known.add(checkpoints.fingerprint(wide))
    assert len(known) == 1 + len(places)
    assert checkpoints.fingerprint(wide.requires_grad_(False)) in known
    said = checkpoints.differing({"kl_reference": before}, {"kl_reference": now})
    assert "reference of --kl" in said and before in said
    assert not checkpoints.differing({"seed": 1}, {"seed": 1, "kl_reference": now})


def test_a_reference_of_another_config_is_another_run(tmp_path):
    """Another RoPE base, and the same weights are another model."""
    found = []
    for theta in (1e4, 1e4, 1e6):
        model = torch.nn.Linear(2, 2)
        model.config = Qwen3Config(rope_parameters=dict(rope_type="default", rope_theta=theta))
        config = argparse.Namespace(name=str(tmp_path / "run"), steps=1, save_every=0,
                                    snapshot_every=0, kl=.1)
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
        run = runs.open_run(config, optimizer, [], reference=model)
        files.release(run.folder)
        found.append(run.settings["kl_reference_config"])
    assert found[0] == found[1] != found[2]
    assert "config.json of the reference" in checkpoints.differing(
        {"kl_reference_config": found[0]}, {"kl_reference_config": found[2]})


def test_recomputing_activations_leaves_dropout_off():
    """Hugging Face's switch acts in train mode alone, where dropout would be on in the loss only.
    Each layer runs twice a backward, and the gradients are those without."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(
        vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=2, head_dim=4,
        num_attention_heads=2, num_key_value_heads=1, attention_dropout=0.5)).eval()
    ids, calls = torch.tensor([[1, 2, 3, 4]]), []

    def gradients():
        model.zero_grad()
        model(input_ids=ids, use_cache=False).logits.square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    model.model.layers[0].input_layernorm.register_forward_hook(lambda *_: calls.append(1))
    plain, once = gradients(), len(calls)
    runs.enable_checkpointing(model)
    again = gradients()
    assert all(torch.equal(a, b) for a, b in zip(plain, again))
    assert (once, len(calls) - once) == (1, 2) and not any(m.training for m in model.modules())
    with torch.no_grad():
        assert model.generate(ids, max_new_tokens=3, do_sample=False).shape[1] > 4


# ------------------------------------------------------------------ paths


def test_a_second_run_with_a_slash_at_its_end_lies_beside_the_first(tmp_path):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
    row = [{"id": "0", "problem": "1+1?", "answer": "2"}]
    for name in ("x", "x-2", "x-3"):
        config = argparse.Namespace(name=f"{tmp_path}/x/", steps=1, save_every=0, snapshot_every=0)
        run = runs.open_run(config, optimizer, row)
        files.release(run.folder)
        assert run.folder == tmp_path / name
    config.name = str(tmp_path / ("y" * 256))
    with pytest.raises(BadInput, match="File name too long"):
        runs.open_run(config, optimizer, row)


def test_two_runs_of_one_name_that_start_at_once_get_two_folders(tmp_path, monkeypatch):
    """Both find the name free. The one that comes second to make the folder takes the next."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
    row = [{"id": "0", "problem": "1+1?", "answer": "2"}]
    config = argparse.Namespace(name=str(tmp_path / "x"), steps=1, save_every=0, snapshot_every=0)
    (tmp_path / "x-2").symlink_to(tmp_path / "nowhere")

    def meanwhile(folder, *_):
        folder.mkdir()
        (tmp_path / "x-3").mkdir()

    monkeypatch.setattr(runs, "check_room", meanwhile)
    run = runs.open_run(config, optimizer, row)
    files.release(run.folder)
    assert run.folder == tmp_path / "x-4" and not list((tmp_path / "x").iterdir())
    monkeypatch.setattr(runs, "check_room", lambda *_: None)
    for name in ("x-2/y", "x-4/config.json/y"):  # no folder can be there, whatever its number
        config.name = str(tmp_path / name)
        with pytest.raises(BadInput, match="cannot write there"):
            runs.open_run(config, optimizer, row)


def test_a_tilde_is_the_home_folder_after_an_equals_sign_too(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    config = flags.parse(flags.flags("grpo", ""), ["--name=~/x", "--data=~/d.jsonl", "--model=~/m"])
    assert (config.name, config.data, config.model) == ("/home/me/x", "/home/me/d.jsonl",
                                                        "/home/me/m")


def test_a_model_s_name_of_any_length_names_a_file():
    assert errors.at_most("model", 20) == "model"
    long, other = (errors.at_most("\u00e9" * 200 + end, 150) for end in "ab")
    assert len(long.encode()) <= 150 and long != other and long.startswith("\u00e9" * 60)
    config = flags.parse(flags.flags("grpo", ""), ["--model", "m" * 255])
    assert len(Path(config.name).name) < 200


def test_commas_stand_between_sets_and_in_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my data, v2").mkdir()
    for name in ("my data, v2/a.jsonl", "b.jsonl", "gsm8k,b.jsonl"):
        Path(name).write_text("")
    split = {"my data, v2/a.jsonl": 1, "b.jsonl,my data, v2/a.jsonl": 2, "gsm8k,math500": 2,
             "gsm8k,b.jsonl": 1, "b.jsonl,gsm8k": 2, "my data, v2/nosuch.jsonl": 1, "gsm9k": 1}
    split |= {f"{a},{b}": 2 for a in (*problems.SETS, *problems.HUB) for b in problems.SETS}
    for text, n in split.items():
        assert len(evaluate.several(text)) == n and ",".join(evaluate.several(text)) == text


def test_a_run_s_folder_that_is_gone_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    for name in ("runs/nosuch", "gone/checkpoint", "./x", "~/x", "a/b/c", "/x"):
        with pytest.raises(BadInput, match="there is no such folder"):
            problems.load_policy(name)
    assert not models.never_on_the_hub("Qwen/Qwen3-0.6B")
    assert not models.never_on_the_hub("gpt2")
    with pytest.raises(BadInput, match="there is no such file"):
        problems.load_problems("x" * 300 + ".jsonl")


# ------------------------------------------------------------------ an evaluation's file


def header(tokenizer, prompts):
    return evaluate.describe_prompts(tokenizer, prompts)


def test_what_was_asked_differently_is_named():
    one = header(characters(), ["Start with 7.", "Add 5."])
    assert asked_differently(one, header(characters(), ["Start with 7.", "Add 5."])) == ""
    template = asked_differently(one, header(characters(), ["Start with 7.assistant", "Add 5."]))
    assert "'Start with 7.'" in template and "assistant" in template
    assert "not the first" in asked_differently(one, header(characters(), ["Start with 7.", "5"]))
    tokens = {**one, "tokens_sha256": "other", "first_ids": [1, 2]}
    assert "another tokenizer" in asked_differently(one, tokens)
    assert "reads" in asked_differently(one, {**one, "reading_sha256": "other"})
    older = {k: v for k, v in one.items() if k != "reading_sha256"}
    assert asked_differently(older, one) == asked_differently({}, {}) == ""
    assert "older" in asked_differently({}, one)


def test_another_decoder_or_vocabulary_makes_samples_stale():
    """The prompts' ids are the same, and what the model's ids say is not."""
    plain, swapped = characters(), characters()
    one = header(plain, ["Start with 7."])
    content = json.loads(swapped.backend_tokenizer.to_str())
    words = content["model"]["vocab"]
    a, b = [word for word in words if word not in "Start with 7."][-2:]
    words[a], words[b] = words[b], words[a]
    swapped = type(plain)(tokenizer_object=Tokenizer.from_str(json.dumps(content)))
    two = header(swapped, ["Start with 7."])
    assert one["tokens_sha256"] == two["tokens_sha256"]
    assert "other text" in asked_differently(one, two)


def test_foreign_result_files_are_refused_or_shown_and_not_obeyed(tmp_path, capsys):
    head = {"data": HOSTILE, "samples": 1, "first_prompt": HOSTILE, "prompts_sha256": "1"}
    record = {"data": HOSTILE, "sample": 0, "strict": True}

    def file(name, head, *records):
        path = tmp_path / name
        path.write_text("".join(json.dumps(x) + "\n" for x in ({"header": head}, *records)))
        return str(path)

    rows = [{**record, "id": i} for i in "ab"]
    a = file("a", head, *rows)
    b = file("b", {**head, "first_prompt": "x" + HOSTILE}, *rows)
    print_comparison([a, b])
    said = capsys.readouterr().out
    assert "asked differently" in said and not set(said) & set("\x1b\x07\x9b\u202e")
    for bad in (file("c", {"data": "x"}), file("d", {"data": "x", "samples": None}),
                file("e", head, {**rows[0], "strict": "yes"}), file("f", head, {"data": HOSTILE})):
        with pytest.raises(BadInput, match="not a sample of evaluate.py"):
            read_samples(bad)


# ------------------------------------------------------------------ golds, ids and splits


@pytest.mark.parametrize("column, gold", [
    ("He sold 48/2 = <<48/2=24>>24.\nIn all 72.\n#### 72", "72"), ("#### 1,072", "1,072"),
    ("#### (1, 2)", "(1, 2)"), ("#### 72\nThat is all.", "72"), (r"#### \boxed{7}", "7"),
    (r"So $x = \boxed{\frac{1}{2}}$.", r"\frac{1}{2}"), (r"\fbox{3}", "3"), (r"\boxed 7.", "7"),
    ("<think>2, no</think><answer> 5 </answer>", "5"), ("The answer is 7.", "7"),
    ("**72**", "72"), ("`7`", "7"), ("3 hours and 15 minutes", "3 hours and 15 minutes"),
    ("90\\text{ square\nunits}", "90\\text{ square\nunits}"), ("undefined", "undefined"),
    (r"x=2k\pi, \text{ where } k \text{ is an integer}",
     r"x=2k\pi, \text{ where } k \text{ is an integer}"),
    ("none", "none"), ("Paris", "Paris"), (0, "0"), (0.5, "0.5"), (r"\infty", r"\infty"),
])
def test_a_gold_is_taken_out_of_a_whole_solution(column, gold):
    assert problems.short_gold(column) == (gold, "")


@pytest.mark.parametrize("column", [
    None, float("nan"), float("inf"), "", " ", "N/A", "n/a", "nan", "None", "null", "-inf", "####",
    "#### ", r"\boxed{N/A}", "<answer></answer>", "First add 2.\nThen 3 is left.", "#DIV/0!",
    "There are 12 ways to do it", "The result is 72", "5 + 7 = 12, so she has 12 apples", "?"])
def test_a_gold_that_no_box_can_reach_is_dropped(column, tmp_path, capsys):
    assert problems.short_gold(column)[1]
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"problem": "1?", "answer": 1}) + "\n"
                    + json.dumps({"problem": "2?", "answer": column}))
    assert [row["answer"] for row in problems.load_problems(str(path))] == ["1"]
    assert "1 problems, 1 dropped: 1 because" in capsys.readouterr().err


def load(tmp_path, rows, wanted=200):
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return problems.load_split(SimpleNamespace(data=str(path), eval_problems=wanted))


def test_no_problem_is_in_both_parts_of_a_split(tmp_path, capsys):
    """Twenty problems, each twice, once with other blanks: two are held out with both of theirs."""
    rows = [{"problem": f"Add {i}{blank}to 1.", "answer": i + 1} for blank in (" ", "  ")
            for i in range(20)]
    train, held_out = load(tmp_path, rows)
    asked = [{" ".join(row["problem"].split()) for row in part} for part in (train, held_out)]
    assert (len(train), len(held_out)) == (36, 2) and not asked[0] & asked[1]
    said = capsys.readouterr().err
    assert "20 rows repeat a problem" in said and "2 rows that repeat a held-out problem" in said
    assert "contradict" not in said


def test_contradicting_golds_and_small_files_are_said(tmp_path, capsys):
    rows = [{"problem": "1+1?", "answer": answer} for answer in ("2", "2.0", "3")]
    train, held_out = load(tmp_path, rows)
    said = capsys.readouterr().err
    assert len(train) == 3 and not held_out and "1 of them contradict it" in said
    assert "d-2: '3', where d-0 says '2'" in said and "fewer than ten different problems" in said
    load(tmp_path, rows, wanted=0)
    assert "fewer than ten" not in capsys.readouterr().err


def test_ids_that_are_null_are_none(tmp_path):
    path = tmp_path / "d.jsonl"
    ids = [None, float("nan"), "", "d-0", 7]
    path.write_text("".join(json.dumps({"problem": f"{i}?", "answer": 1, "id": value}) + "\n"
                            for i, value in enumerate(ids)))
    assert [row["id"] for row in problems.read_jsonl(path)] == ["d-0'", "d-1", "d-2", "d-0", "7"]


@pytest.mark.parametrize("error", [ImportError("Using SOCKS proxy, but no 'socksio'"),
                                   RuntimeError("Dataset scripts are no longer supported"),
                                   KeyError("train"), OSError(111, "Connection refused"),
                                   TypeError])
def test_any_error_of_the_hub_is_one_sentence(error, monkeypatch):
    datasets = pytest.importorskip("datasets")

    def load_dataset(*_, **__):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(BadInput, match="openai/gsm8k could not be loaded .+; check the network"):
        problems.fetch("gsm8k", "test")


# ------------------------------------------------------------------ whole processes


@pytest.mark.slow
def test_a_pipe_that_closes_does_not_end_a_training(tmp_path):
    command = (f"{sys.executable} {ROOT}/grpo.py --steps 2 --prompts 2 --group 2 --device cpu "
               "--max-new-tokens 8 --eval-problems 0 --name run 2> err | head -1 > /dev/null; "
               "echo ${PIPESTATUS[0]}")
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True,
                          env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.stdout.strip() == "0", (tmp_path / "err").read_text()
    assert checkpoints.step_of(tmp_path / "run/checkpoint") == 2
    assert "Traceback" not in (tmp_path / "err").read_text()
