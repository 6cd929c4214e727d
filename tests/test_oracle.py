"""The step oracle blames the line that an error came in with; the entropy weights have mean 1."""
import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_grpo import gradients, made

import controls
import grpo
import problems
import scrl
import vine
from engine.errors import BadInput

PROBLEM = "Start with 7, add 5, times 3, minus 9."  # 12, 36, 27


def blamed(text, problem=PROBLEM):
    """The text that is blamed, or None."""
    slip = controls.first_slip(problem, text)
    return slip and text[slip[0]:slip[1]]


# ------------------------------------------------------------------ written by hand


@pytest.mark.parametrize("text, line", [
    # A sum that is wrong; a filler changes nothing; what carries it on is right by itself.
    ("7+5=13\n13*3=39\n39-9=30\nSo we get \\boxed{30}.", "7+5=13\n"),
    ("Now 7+5=12\nroughly 12*3=35\n35-9=26\nThe answer is \\boxed{26}.", "roughly 12*3=35\n"),
    ("7+5=12\n12*3=36\nWell, 36-9=28\nTherefore \\boxed{28}.", "Well, 36-9=28\n"),
    # Two slips: the first. A second one that makes up for it would be right, and not asked.
    ("7+5=13\n13*3=38\n38-9=29\n\\boxed{29}.", "7+5=13\n"),
    # An operand that is not what the line before arrived at; a start of its own.
    ("7+5=12\n13*3=39\n39-9=30\n\\boxed{30}.", "13*3=39\n"),
    ("8+5=13\n13*3=39\n39-9=30\n\\boxed{30}.", "8+5=13\n"),
    # Another operation or operand than the problem's; one left out, one too many.
    ("7+5=12\n12+3=15\n15-9=6\n\\boxed{6}.", "12+3=15\n"),
    ("7+5=12\n12*4=48\n48-9=39\n\\boxed{39}.", "12*4=48\n"),
    ("7+5=12\n12-9=3\n\\boxed{3}.", "12-9=3\n"),
    ("7+5=12\n12*3=36\n36-9=27\n27-9=18\n\\boxed{18}.", "27-9=18\n"),
    # All lines right, the box is not, or comes too early.
    ("7+5=12\n12*3=36\n36-9=27\nSo we get \\boxed{72}.", "So we get \\boxed{72}."),
    ("7+5=12\n12*3=36\n36-9=27\n\\boxed{72}", "\\boxed{72}"),
    ("7+5=12\nSo we get \\boxed{12}.", "So we get \\boxed{12}."),
    # Glances.
    ("At a glance, \\boxed{31}.", "At a glance, \\boxed{31}."),
    ("\n\\boxed{31}", "\n\\boxed{31}"),
    ("It is 31.\n\\boxed{31}.", "It is 31.\n\\boxed{31}."),
    # The sum stands in the line of the box.
    ("7+5=12\n12*3=36\n36-9=28, so \\boxed{28}", "36-9=28, so \\boxed{28}"),
    # Only the last box counts, and idle lines are nobody's fault.
    ("\\boxed{1}\n7+5=12\nHmm.\n12*3=37\n\\boxed{28}", "12*3=37\n"),
    # Below 0: the start 7 less 9 would be such a sum.
    ("7+5=12\n12*3=36\n36-9=-27\n\\boxed{-27}", "36-9=-27\n"),
])
def test_the_line_that_an_error_came_in_with(text, line):
    assert blamed(text) == line


def test_sums_below_zero_are_sums():
    problem = "Start with 7, minus 9, add 4."
    assert blamed("7-9=-2\n-2+4=3\n\\boxed{3}", problem) == "-2+4=3\n"
    assert blamed("7-9=2\n2+4=6\n\\boxed{6}", problem) == "7-9=2\n"


@pytest.mark.parametrize("text", ["", "\n\n", "7+5=12\n12*3=3", "7+5=12\n12*3=36\n36-9=27",
                                  "7+5=12\n\\boxed{1", "7+5=12\n12*"])
def test_where_nothing_is_wrong_and_no_box_is_there_nothing_is_blamed(text):
    """A line that was cut off is no wrong sum."""
    assert blamed(text) is None


def test_a_line_that_ended_counts_without_a_box_too():
    assert blamed("7+5=13\n13*3=") == "7+5=13\n" and blamed("7+5=13\n") == "7+5=13\n"


@pytest.mark.parametrize("line", [
    "7+5=12=12", "7+5 = twelve", "=", "===", "7+5=1٢", "٧+٥=12", "7+5=12.0", "7+5=1e1",
    "7++5=12",
    "7+5=" + "9" * 5000, "9" * 5000 + "+5=12", "7+5=0012345678", "7^5=12", "7+5=12;import os",
    "__import__('os')=1", "7+5=12 12*3=36", "a" * 5000 + "=", "7+5=\0", "\ud83d\ude00=7",
    "7+5=--12", "7+-5=2", "$7+5=12$"])
def test_hostile_lines_are_blamed_and_not_obeyed(line):
    """No crash and no long work; what is no plain sum is not taken for a right one."""
    assert blamed(f"{line}\n12*3=36\n36-9=27\n\\boxed{{0}}") == line + "\n"


@pytest.mark.parametrize("problem", ["", "What is 7+5?", "Start with 7.", "Start with ٧, add 5."])
def test_another_problem_is_an_error(problem):
    with pytest.raises(ValueError, match="no chain of operations"):
        controls.first_slip(problem, "7+5=12\n\\boxed{12}")


# ------------------------------------------------------------------ slips put in on purpose


def with_a_slip(rng):
    """(problem, completion, the line with its slip, its number): a random chain with one slip of a
    random kind; all that follows carries it on faithfully."""
    n, start = rng.randint(2, 6), rng.randint(1, 20)
    chain = [(rng.choice("+-*"), rng.randint(2, 9)) for _ in range(n)]
    words = {"+": "add", "-": "minus", "*": "times"}
    problem = f"Start with {start}" + "".join(f", {words[o]} {b}" for o, b in chain) + "."
    at, kind = rng.randrange(n), rng.choice(["sum", "left", "operation", "operand"])
    value, lines = start, []
    for i, (o, b) in enumerate(chain):
        left, result = value, None
        if i == at and kind == "left":
            left += rng.choice([-3, 1, 10])
        if i == at and kind == "operation":
            o = rng.choice([x for x in "+-*" if x != o])
        if i == at and kind == "operand":
            b += 1
        result = {"+": left + b, "-": left - b, "*": left * b}[o]
        if i == at and kind == "sum":
            result += rng.choice([-10, -1, 1, 2])
        if abs(result) > 99_999:
            return with_a_slip(rng)
        word = rng.choice(["", "", "So ", "roughly ", "Well, "])
        lines.append(f"{word}{left}{o}{b}={result}\n")
        value = result
    return problem, "".join(lines) + f"The answer is \\boxed{{{value}}}.", lines[at], at


def test_every_slip_that_is_put_in_is_found():
    rng = random.Random(0)
    for _ in range(2000):
        problem, text, line, place = with_a_slip(rng)
        slip = controls.first_slip(problem, text)
        assert text[slip[0]:slip[1]] == line and text[:slip[0]].count("\n") == place


# ------------------------------------------------------------------ weights


def forward_of(texts, signs):
    """A Forward of the embedded tokenizer's ids, with a stop token each."""
    _, tokenizer = problems.load_policy("tiny")
    text = problems.build_prompt(tokenizer, PROBLEM)
    prompt = tokenizer(text, add_special_tokens=False).input_ids
    sampled = [tokenizer(text, add_special_tokens=False).input_ids + [tokenizer.eos_token_id]
               for text in texts]
    T = max(map(len, sampled))
    mask = torch.tensor([[t < len(ids) for t in range(T)] for ids in sampled])
    ids = torch.tensor([prompt + row + [0] * (T - len(row)) for row in sampled])
    return SimpleNamespace(
        tokenizer=tokenizer, texts=texts, sampled=sampled, signs=signs, ids=ids, metrics={},
        position=(len(prompt) + torch.arange(T)).expand(len(texts), T), completion_mask=mask,
        logprobs=torch.zeros(mask.shape))


def test_the_oracle_s_weights():
    texts = ["7+5=12\nroughly 12*3=35\n35-9=26\nThe answer is \\boxed{26}.",
             "At a glance, \\boxed{31}.",
             "7+5=12\n12*3=36\n36-9=27\n\\boxed{27}.",
             "7+5=12\n12*3=36\n36-9=27\nSo we get \\boxed{72}.",
             "7+5=12\n12*3="]
    forward = forward_of(texts, [-1, -1, 1, -1, -1])
    weights = controls.oracle_credit(forward)
    said = [forward.tokenizer.decode([i for i, w in zip(ids, row) if w == 1])
            for ids, row in zip(forward.sampled, weights.tolist())]
    assert said == ["roughly 12*3=35\n", texts[1] + "<|im_end|>", texts[2] + "<|im_end|>",
                    "So we get \\boxed{72}.<|im_end|>", texts[4] + "<|im_end|>"]
    assert set(weights.flatten().tolist()) == {0., 1.}
    assert not weights[~forward.completion_mask].any()
    found = forward.metrics["fallback"].tolist()
    assert found[:2] == [0, 0] and found[2] != found[2] and found[3:] == [0, 1]


def test_a_completion_without_an_advantage_is_not_looked_at():
    forward = forward_of(["no sum = here\n\\boxed{1}"], [0])
    assert (controls.oracle_credit(forward)[0] == 1).all()


def test_entropy_weights_by_hand():
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]).bool()
    H = torch.tensor([[1., 0, 2, 1], [.5, .5, 9, 9], [0, 0, 0, 5]])
    forward = SimpleNamespace(entropy=H, completion_mask=mask, metrics={})
    found = controls.entropy_credit(forward)
    assert found.tolist() == [[1, 0, 2, 1], [1, 1, 0, 0], [1, 1, 1, 0]]
    assert forward.metrics["fallback"].tolist() == [False, False, True]


def test_entropy_weights_are_the_policy_s_own_entropy():
    """Against -sum p log p of the model's own logits, at the rollouts' temperature."""
    model, out, rewards, config = made(temperature=.8)
    _, _, weights = gradients(model, out, rewards, config, controls.entropy_credit)
    row = int((rewards.flatten() > 0).nonzero()[0, 0])
    prompt = out.prompt_ids[row][out.prompt_mask[row]]
    said = out.completion_ids[row, :out.lengths[row]]
    with torch.no_grad():
        logits = model(torch.cat([prompt, said])[None]).logits[0].double() / .8
    p = logits.softmax(-1)[len(prompt) - 1:-1]
    H = -(p * p.clamp(min=1e-300).log()).sum(-1)
    found = weights[row, :len(said)].double()
    torch.testing.assert_close(found, H / H.mean(), atol=1e-4, rtol=1e-4)
    on = weights[weights.sum(1) > 0]
    lengths = out.lengths[weights.sum(1) > 0]
    torch.testing.assert_close(on.sum(1) / lengths, torch.ones(len(on)))


# ------------------------------------------------------------------ in a run

SHORT = ["--steps", "1", "--prompts", "4", "--group", "4", "--eval-problems", "0",
         "--max-new-tokens", "48", "--warmup", "1"]


@pytest.mark.slow
def test_both_reach_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = {}
    for credit in ("oracle", "entropy"):
        grpo.main([*SHORT, "--credit", credit, "--name", credit])
        lines[credit] = json.loads((tmp_path / credit / "metrics.jsonl").open().readline())
    assert lines["oracle"]["reward"] == lines["entropy"]["reward"]  # the same completions
    assert lines["oracle"]["weight_min"] == 0 and lines["oracle"]["weight_max"] == 1
    assert lines["entropy"]["weight_max"] > 1.5 and lines["entropy"]["fallback"] == 0
    assert lines["oracle"]["grad_norm"] != lines["entropy"]["grad_norm"]


@pytest.mark.parametrize("main, argv, words", [
    (grpo.main, ["--data", "gsm8k"], "not those of --data gsm8k"),
    (grpo.main, ["--data", "mine.jsonl"], "not those of --data mine.jsonl"),
    (scrl.main, [], "scrl.py has its own advantages"),
    (vine.main, [], "vine.py has its own advantages"),
    (grpo.main, ["--reward", "random"], "leave out --reward random")])
def test_an_oracle_without_a_meaning_is_refused(main, argv, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"problem": "Start with 7, add 5.", "answer": "12"},
            {"problem": "What is 7 + 5?", "answer": "12"}]
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(BadInput, match=words):
        main([*SHORT, "--credit", "oracle", *argv])
