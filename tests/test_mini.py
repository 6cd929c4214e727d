"""examples/mini.py, which beginners read first, and docs/in_your_own_trainer.md, which is copied
into other trainers, do what the project's own loop does."""
import copy
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import mini
from test_grpo import CONFIG, Recorder, worst
from test_rollout import scores

import grail
import grpo
import problems
import rollout
import saliency
import verify

SETTINGS = SimpleNamespace(as_released=False, activation="embeddings", reweight="wrong")
CREDIT = {"grpo": grpo.uniform, "grail": grail.credit(SETTINGS)}


@pytest.fixture(scope="module")
def asked():
    """(model, tokenizer, rows, groups): four attempts at each of four problems."""
    torch.manual_seed(0)
    model, tokenizer = problems.load_policy("tiny")
    rows = problems.load_problems("arithmetic", "test")[:4]
    return model, tokenizer, rows, [mini.attempt(model, tokenizer, row, 4) for row in rows]


def as_rollouts(tokenizer, groups):
    """The same prompts and completions as the project's loop wants them: padded, in one batch."""
    tries = [one for group in groups for one in group]
    prompts, masks = rollout.pad([p.tolist() for p, *_ in tries], 0, "left")         # (B, P) each
    ids, on = rollout.pad([ids.tolist() for _, ids, *_ in tries], 0, "right")        # (B, T) each
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for _, ids, *_ in tries]
    lengths = on.sum(1)                                                              # (B,)
    zeros = torch.zeros(ids.shape)                                                   # (B, T)
    return rollout.Rollouts(prompts, masks, ids, lengths, lengths > 0, zeros, texts)


def test_it_asks_what_the_project_asks(asked):
    """A blank too many in a template that is written by hand, and the model answers worse."""
    _, tokenizer, rows, groups = asked
    for row, group in zip(rows, groups):
        text = problems.build_prompt(tokenizer, row["problem"])
        assert all(torch.equal(torch.tensor(tokenizer(text).input_ids), p) for p, *_ in group)


def test_boxes_and_rewards_are_the_verifier_s(asked):
    _, tokenizer, rows, groups = asked
    boxed = 0
    for row, group in zip(rows, groups):
        for _, ids, box, reward in group:
            text = tokenizer.decode(ids, skip_special_tokens=True)
            assert reward == verify.verify(text, row["answer"], strict=True)
            span = saliency.answer_span(tokenizer, ids.tolist(), text)
            assert (span is None) == (box is None)
            if box:
                start, close = box
                assert tuple(span) == (start, start + 1, close, close + 1)
                boxed += 1
    assert boxed > 8


@pytest.mark.parametrize("said, box, reward", [
    (r"\boxed{12}.", (0, 3), 1.0), (r"\boxed{7} \boxed{12}", (4, 7), 1.0),
    (r"\boxed{12} \boxed{7}", (5, 7), 0.0), (r"\boxed{12} \boxed{1", (0, 3), 1.0),
    ("12", None, 0.0), (r"\boxed{}", (0, 1), 0.0), (r"1} \boxed{12", None, 0.0)])
def test_the_last_whole_box_counts(asked, said, box, reward):
    """What a policy says that has not learned when to stop; the model here is a parrot."""
    _, tokenizer, rows, _ = asked
    spoken = torch.tensor(tokenizer(said + "<|im_end|>").input_ids)

    class Parrot:
        def generate(self, prompt, **_):
            return torch.cat([prompt[0], spoken, torch.tensor([0, 0])])[None]

    [(_, ids, *graded)] = mini.attempt(Parrot(), tokenizer, {"problem": "?", "answer": "12"}, 1)
    assert torch.equal(ids, spoken) and graded == [box, reward]


@pytest.mark.parametrize("credit", CREDIT)
def test_one_update_is_the_project_s(asked, credit):
    """The gradient of every parameter, to 1e-5 of the largest: plain loops over one completion at
    a time, and the padded micro-batches of grpo.update."""
    model, tokenizer, _, groups = asked
    tries = [one for group in groups for one in group]
    rewards = torch.tensor([[reward for *_, reward in group] for group in groups])  # (N, G)
    A = grpo.group_advantages(rewards).flatten()                                    # (B,)
    assert any(a < 0 and box and box[0] > 1 for a, (*_, box, _) in zip(A, tries))

    ours, theirs = copy.deepcopy(model), copy.deepcopy(model)
    recorder = Recorder(ours.parameters(), lr=0.0)
    mini.update(ours, recorder, groups, credit)
    other = Recorder(theirs.parameters(), lr=0.0)
    grpo.update(theirs, other, as_rollouts(tokenizer, groups), rewards, CREDIT[credit],
                SimpleNamespace(**CONFIG), tokenizer)
    assert worst(recorder.found, other.found) < 1e-5


def test_the_two_credits_differ(asked):
    """Else the test above would pass with a GRAIL that is GRPO in both."""
    model, _, _, groups = asked
    found = []
    for credit in CREDIT:
        optimizer = Recorder(model.parameters(), lr=0.0)
        mini.update(model, optimizer, groups, credit)
        found.append(optimizer.found)
    assert worst(*found) > 0.05


@pytest.mark.parametrize("start", [0, 1])
def test_a_box_at_the_very_start_is_left_to_grpo(asked, start):
    """The mean of no token and the spread of one are no numbers to weigh with."""
    model, tokenizer, _, groups = asked
    prompt = groups[0][0][0]
    ids = torch.tensor(tokenizer("1" * start + r"\boxed{3}<|im_end|>").input_ids)   # (T,)
    right = torch.tensor(tokenizer(r"2+2=4\boxed{4}<|im_end|>").input_ids)          # (T,)
    group = [(prompt, ids, (start, start + 2), 0.0), (prompt, right, (5, 7), 1.0)]
    found = []
    for credit in CREDIT:
        optimizer = Recorder(model.parameters(), lr=0.0)
        mini.update(model, optimizer, [group], credit)
        found.append(optimizer.found)
    assert worst(*found) == 0


def test_it_stays_short_and_on_its_own():
    """At most 90 lines, and none of the project's modules: one file that can be read alone."""
    source = Path(mini.__file__).read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 90 and max(map(len, source.splitlines())) <= 100
    imported = re.findall(r"^(?:from|import) (\w+)", source, re.M)
    assert set(imported) == {"argparse", "json", "pathlib", "torch", "transformers"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_learns(seed, capsys):
    """From nearly nothing to at least 60 % greedy in 40 steps, with GRAIL's weights."""
    mini.train(steps=0, credit="grail", seed=seed)
    mini.train(steps=40, credit="grail", seed=seed)
    before, after = map(int, re.findall(r"greedy: (\d+) of 100", capsys.readouterr().out))
    assert before <= 10 and after >= 60


# ------------------------------------------------------------------ docs/in_your_own_trainer.md

PAGE = Path(__file__).resolve().parent.parent / "docs" / "in_your_own_trainer.md"


def page_loss(asked, model):
    """The loss of the page's code on these completions, and their groups' rewards (N, G)."""
    code, = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    scope = {}
    exec(code, scope)  # our own page
    _, tokenizer, _, groups = asked
    out = as_rollouts(tokenizer, groups)
    rewards = torch.tensor([[reward for *_, reward in group] for group in groups])  # (N, G)
    ids = torch.cat([out.prompt_ids, out.completion_ids], 1)                        # (B, P + T)
    attention = torch.cat([out.prompt_mask, out.completion_mask], 1).long()         # (B, P + T)
    old = scores(model, out)                                                        # (B, T)
    T, A = old.shape[1], grpo.group_advantages(rewards).flatten()                   # A: (B,)
    return scope["grail_loss"](model, tokenizer, ids, attention, T, old, A), out, rewards


def test_the_page_s_loss_has_the_project_s_gradient(asked):
    """The page is copied into trainers that nobody here will see: it must be right as it stands."""
    model, tokenizer, _, _ = asked
    ours, theirs = copy.deepcopy(model), copy.deepcopy(model)
    loss, out, rewards = page_loss(asked, ours)
    found = torch.autograd.grad(loss, list(ours.parameters()))
    other = Recorder(theirs.parameters(), lr=0.0)
    grpo.update(theirs, other, out, rewards, CREDIT["grail"], SimpleNamespace(**CONFIG), tokenizer)
    assert worst(found, other.found) < 1e-5


def test_the_page_s_loss_works_with_frozen_embeddings(asked):
    """Under LoRA the embeddings have no gradient of their own; the weights must be the same."""
    model = copy.deepcopy(asked[0])
    whole, *_ = page_loss(asked, model)
    names = [name for name, _ in model.named_parameters() if "embed" not in name]
    wanted = torch.autograd.grad(whole, [model.get_parameter(name) for name in names])
    model.get_input_embeddings().requires_grad_(False)
    frozen, *_ = page_loss(asked, model)
    found = torch.autograd.grad(frozen, [model.get_parameter(name) for name in names])
    assert worst(found, wanted) < 1e-6


def test_the_page_s_loss_without_any_box_is_grpo_s(asked):
    model, tokenizer, rows, groups = asked
    cut = [[(p, ids[:box[0]] if box else ids, None, r) for p, ids, box, r in group]
           for group in groups]
    ours, theirs = copy.deepcopy(model), copy.deepcopy(model)
    loss, out, rewards = page_loss((model, tokenizer, rows, cut), ours)
    found = torch.autograd.grad(loss, list(ours.parameters()))
    other = Recorder(theirs.parameters(), lr=0.0)
    grpo.update(theirs, other, out, rewards, grpo.uniform, SimpleNamespace(**CONFIG), tokenizer)
    assert worst(found, other.found) < 1e-5
