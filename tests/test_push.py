"""examples/push.py: the push of a kind of token, against identities and a double loop."""
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "results")]
import push

import grpo
import problems
from engine.flags import flags, parse
from rollout import sample


@pytest.fixture(scope="module")
def batch():
    """Rollouts of the embedded model: (tokenizer, rollouts, rewards (N, G), *push.pushes(...))."""
    config = parse(flags("grpo", ""), ["--group", "6"])
    model, tokenizer = problems.load_policy("tiny", "cpu")
    rows = problems.load_problems("arithmetic", "train")[:8]
    prompts = [problems.build_prompt(tokenizer, row["problem"]) for row in rows]
    rollouts = sample(model, tokenizer, prompts, samples=6, max_new_tokens=60, seed=4)
    rewards, _, _ = grpo.outcome_reward(rollouts, rows, config, tokenizer)
    assert 0 < rewards.mean() < 1
    return tokenizer, rollouts, rewards, *push.pushes(model, tokenizer, rollouts, rewards, config)


def test_the_kinds_of_tokens_by_hand():
    tokens = ["So", " 1", "+", "\n", r"\boxed", "{", "42", "}", "."]
    found = [push.kind_of(text, t, (4, 6, 7, 8)) for t, text in enumerate(tokens)]
    assert found == ["words", "digits", "symbols", "spaces", "marks of the box", "marks of the box",
                     "content of the box", "marks of the box", "after the box"]
    assert [push.kind_of(text, t, (-1,) * 4) for t, text in enumerate(tokens)][4:] == [
        "words", "symbols", "digits", "symbols", "symbols"]


def test_pushes_obey_the_sums_they_are_made_of(batch):
    """Under GRPO all pushes together are the sum of A times length. A boost of every box makes the
    push of the content five times GRPO's, no boost leaves it GRPO's, and GRAIL's default adds four
    times the advantages of wrong boxes alone, which is below 0."""
    _, rollouts, rewards, found, counts = batch
    A = grpo.group_advantages(rewards).flatten()
    lengths = rollouts.lengths.double()
    right, wrong = (sum(count[side] for count in counts.values()) for side in (0, 1))
    assert right == lengths[A > 0].sum() and wrong == lengths[A < 0].sum()
    content = found["content of the box"]
    assert content["grail-boost-all"] == pytest.approx(5 * content["grpo"], abs=1e-6)
    assert content["grail-no-boost"] == pytest.approx(content["grpo"], abs=1e-6)
    assert content["grail"] < content["grpo"] - 0.1
    assert all(-1 <= kind["grpo"] <= 1 for kind in found.values())
    for kind in ("marks of the box", "after the box"):  # weight 1 there in every arm
        assert max(found[kind].values()) - min(found[kind].values()) < 1e-6


def test_the_push_of_the_content_by_a_double_loop(batch):
    """GRPO's weights are 1. GRAIL's are 5 on the content of a completion on the reweighted side, if
    two tokens or more stand before its box, and else 1."""
    tokenizer, rollouts, rewards, found, _ = batch
    A = grpo.group_advantages(rewards).flatten().tolist()
    sides = {"grpo": lambda a: False, "grail": lambda a: a < 0, "grail-both": lambda a: a != 0,
             "grail-correct": lambda a: a > 0}
    sums, size = dict.fromkeys(sides, 0.0), 0.0
    for a, ids, text in zip(A, rollouts.sampled, rollouts.texts):
        span = push.saliency.answer_span(tokenizer, ids, text)
        if span is None:
            continue
        start, content, close, _ = span
        for _ in range(content, close):
            size += abs(a)
            for arm, reweighted in sides.items():
                sums[arm] += a * (5 if reweighted(a) and start >= 2 else 1)
    for arm, total in sums.items():
        assert found["content of the box"][arm] == pytest.approx(total / size, abs=1e-6), arm


def test_the_command_prints_a_table_and_refuses_nonsense(capsys):
    push.main(["--prompts", "4", "--group", "4", "--max-new-tokens", "40"])
    text = capsys.readouterr().out
    assert "| content of the box |" in text and "| grail-boost-all |" in text
    for flag, value in (("--group", "1"), ("--prompts", "0"), ("--seed", "-1")):
        with pytest.raises(push.BadInput, match=f"{flag} {value}: "):
            push.main([f"{flag}={value}"])
