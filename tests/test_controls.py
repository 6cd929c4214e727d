"""The controls do what they say, draw nothing from a global generator, and resume exactly."""
import copy
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from test_grpo import gradients, made

import controls
import delta
import grail
import grpo
import oar
import scrl
from engine.errors import BadInput

SHORT = ["--prompts", "4", "--group", "4", "--eval-problems", "0", "--max-new-tokens", "48",
         "--warmup", "1"]


def ramp(forward):
    """Weights that name their place: 1, 2, 3, ... in every row."""
    b, t = forward.logprobs.shape
    return torch.arange(1., t + 1).expand(b, t)


def settings(**changes):
    return SimpleNamespace(**{"credit": "method", "reward": "outcome", "method": "grail",
                              "seed": 0, **changes})


# ------------------------------------------------------------------ shuffled weights


def test_a_shuffle_keeps_every_weight_of_every_completion():
    """The multiset is the same to the bit, within each completion, or the control would also change
    the size of the step; and it is another order, or it would control nothing."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(6, 40, generator=generator)
    ids = torch.randint(100, (6, 40), generator=generator)
    mask = torch.arange(40) < torch.tensor([40, 31, 20, 12, 1, 0])[:, None]
    sampled = [row[on].tolist() for row, on in zip(ids, mask)]
    found = controls.shuffled(weights, sampled, seed=0)
    for before, after, on in zip(weights, found, mask):
        assert torch.equal(before[on].sort().values, after[on].sort().values)
        assert torch.equal(before[~on], after[~on])
        if on.sum() > 10:
            assert (before[on] != after[on]).float().mean() > .5
    assert not torch.equal(found, controls.shuffled(weights, sampled, seed=1))
    assert torch.equal(weights, torch.rand(6, 40, generator=torch.Generator().manual_seed(0)))


def test_every_order_is_as_likely():
    """Of three weights, over 6,000 completions: each of 6 orders 1,000 times, within 5 standard
    deviations (29 each): fails once in 200,000 seeds."""
    ids = torch.arange(18_000).view(6000, 3)
    found = controls.shuffled(torch.arange(3.).expand(6000, 3), ids.tolist(), 0)
    counts = torch.bincount((found @ torch.tensor([9., 3., 1.])).long(), minlength=27)
    assert (counts > 0).sum() == 6 and ((counts[counts > 0] - 1000).abs() < 145).all()


def test_a_shuffle_depends_on_neither_micro_batches_nor_the_global_generator():
    """A permutation drawn from torch's own stream changes with everything drawn before it."""
    found = []
    for tokens, seed in ((10**6, 0), (40, 1), (1, 2)):
        model, out, rewards, config = made(tokens_per_microbatch=tokens)
        torch.manual_seed(seed)
        _, _, w = gradients(model, out, rewards, config, controls.shuffled_credit(ramp, 0))
        found.append(w)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    plain = torch.arange(1., found[0].shape[1] + 1)
    assert not torch.equal(found[0][0], plain * (found[0][0] > 0))


def test_a_method_that_sees_the_whole_batch_is_shuffled_too():
    """delta.py hands its weights over in another way, which a control could miss."""
    model, out, rewards, config = made()
    batch = delta.whole_batch(SimpleNamespace(as_released=False, gradient="head-row",
                                               refinements=1))
    weights = []
    for kind in ("method", "shuffled"):
        _, _, whole_batch = controls.apply(settings(method="delta", credit=kind), grpo.uniform,
                                            None, batch)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        _, w = grpo.update(model, optimizer, out, rewards, None, config, None,
                           whole_batch=whole_batch)
        weights.append(w)
    assert not torch.equal(*weights)
    assert torch.equal(weights[0].sort(1).values, weights[1].sort(1).values)


# ------------------------------------------------------------------ uniform weights


@pytest.mark.parametrize("method", ["grail", "delta"])
def test_uniform_is_grpo_bit_for_bit(method):
    model, out, rewards, config = made()
    plain, _, _ = gradients(model, out, rewards, config)
    credit, _, batch = controls.apply(settings(credit="uniform", method=method), ramp, None, ramp)
    assert batch is None
    ones, _, _ = gradients(model, out, rewards, config, credit)
    assert all(torch.equal(a, b) for a, b in zip(plain, ones))


# ------------------------------------------------------------------ coins


def judged(ids, seed=0):
    """Rewards of coins for completions `ids` (B, T) in groups of 4, and the figures."""
    def right(rollouts, rows, config, tokenizer, model):
        return torch.tensor([[1., 0, 0, 0]] * (len(ids) // 4)), None, {"x": 1.0}

    rollouts = SimpleNamespace(completion_ids=ids, lengths=torch.ones(len(ids)))
    _, judge, _ = controls.apply(settings(reward="random", seed=seed), None, right, None)
    return judge(rollouts, None, None, None, None)


def test_coins_are_fair_and_forget_the_verdict_but_log_it():
    """4,000 coins: the share of heads is within 5 standard deviations (.0079) of one half."""
    ids = torch.arange(8000).view(4000, 2)
    rewards, token_advantages, figures = judged(ids)
    assert abs(float(rewards.mean()) - .5) < .04 and token_advantages is None
    assert set(rewards.flatten().tolist()) == {0., 1.} and rewards.shape == (1000, 4)
    first = rewards[:, 0].mean()  # the rows that are right
    assert abs(float(first) - .5) < .08 and figures == {"x": 1.0, "right": .25}


def test_the_same_text_does_not_always_get_the_same_coin():
    """A coin keyed by the text alone would be a verdict that can be learned."""
    rewards, _, _ = judged(torch.ones(400, 3, dtype=torch.int64))
    assert 100 < rewards.sum() < 300


def test_coins_are_the_same_again_whatever_else_was_drawn():
    ids = torch.arange(800).view(400, 2)
    a = judged(ids)[0]
    torch.manual_seed(5)
    torch.rand(7)
    assert torch.equal(judged(ids)[0], a)
    assert not torch.equal(judged(ids, seed=1)[0], a)
    assert not torch.equal(judged(ids + 1)[0], a)  # the next step's completions


# ------------------------------------------------------------------ what is logged


def test_completions_without_a_gradient_are_not_counted():
    """Under a KL penalty those of A = 0 are run too; their weights move nothing and must not enter
    the concentration or the share of fall-backs."""
    model, out, rewards, config = made(kl=.5)
    rewards[2] = 1.0

    def spiky_where_it_does_not_matter(forward):
        idle = forward.advantages == 0  # (b,)
        forward.metrics["fallback"] = idle
        weights = torch.ones_like(forward.logprobs)  # (b, T)
        weights[idle] = 0
        weights[idle, 0] = 9
        return weights

    _, stats, _ = gradients(model, out, rewards, config, spiky_where_it_does_not_matter,
                            copy.deepcopy(model))
    n = out.lengths[:8].double()
    assert stats["fallback"] == 0 and stats["ess"] == pytest.approx(1, abs=1e-6)
    assert stats["top10"] == pytest.approx(float(((n / 10).ceil() / n).mean()), abs=1e-6)
    assert stats["weight_max"] == stats["weight_min"] == 1


# ------------------------------------------------------------------ in a run


@pytest.mark.slow
@pytest.mark.parametrize("main, argv", [
    (oar.main, ["--credit", "shuffled", "--reward", "random", "--draws", "1"]),
    (delta.main, ["--credit", "shuffled"])])
def test_a_resumed_run_draws_the_same(main, argv, tmp_path, monkeypatch):
    """Noise, permutations and coins come from keys, so 1 + 1 steps are 2 steps, bit for bit."""
    monkeypatch.chdir(tmp_path)
    main([*SHORT, *argv, "--steps", "2", "--name", "whole"])
    main([*SHORT, *argv, "--steps", "1", "--name", "half"])
    torch.manual_seed(9)
    main(["--resume", "half", "--steps", "2"])
    a, b = (load_file(Path(name) / "checkpoint" / "model.safetensors") for name in
            ("whole", "half"))
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    x, y = ([json.loads(line) for line in (Path(name) / "metrics.jsonl").open()]
            for name in ("whole", "half"))
    for key in ("reward", "loss", "grad_norm", "ess", "top10", "fallback"):
        assert [line[key] for line in x] == [line[key] for line in y]
    assert x[1]["grad_norm"] > 0 and ("right" in x[0]) == ("random" in argv)


@pytest.mark.parametrize("main, argv, words", [
    (grpo.main, ["--credit", "shuffled"], "grpo.py gives all tokens one weight"),
    (scrl.main, ["--credit", "shuffled"], "scrl.py gives all tokens one weight"),
    (scrl.main, ["--reward", "random"], "SCRL grades")])
def test_a_control_without_a_meaning_is_refused(main, argv, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=words):
        main([*SHORT, *argv])


@pytest.mark.slow
def test_the_controls_reach_every_method(tmp_path, monkeypatch):
    """--credit uniform makes grail.py's run grpo.py's; a coin changes grpo.py's rewards."""
    monkeypatch.chdir(tmp_path)
    grpo.main([*SHORT, "--steps", "2", "--name", "grpo"])
    grail.main([*SHORT, "--steps", "2", "--name", "grail", "--credit", "uniform"])
    grpo.main([*SHORT, "--steps", "2", "--name", "coin", "--reward", "random"])
    lines = {name: [json.loads(line) for line in (Path(name) / "metrics.jsonl").open()]
             for name in ("grpo", "grail", "coin")}
    for key in ("reward", "loss", "grad_norm"):
        assert [x[key] for x in lines["grpo"]] == [x[key] for x in lines["grail"]]
    assert [x["ess"] for x in lines["grpo"]] == [1.0, 1.0]
    assert lines["coin"][0]["right"] == lines["grpo"][0]["reward"]
    assert lines["coin"][0]["reward"] != lines["grpo"][0]["reward"]
