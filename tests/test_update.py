"""A whole update against a naive one: every gradient of every pass, every figure of the log."""
import itertools
import math
import random
import re
from types import SimpleNamespace

import naive
import pytest
import torch

import grail
import grpo
import logprobs

OPTIONS = {
    "loss": ["token", "sequence", "constant"], "mask_truncated": [False, True], "kl": [0.0, 0.3],
    "temperature": [0.7, 1.0, 1.4], "scale_by_std": [False, True], "own": [False, True],
    "tokens_per_microbatch": [8192, 60, 1], "num_iterations": [1, 2, 3], "grad_clip": [1e9, 0.3],
    "tied": [True, False], "whole": [False, True]}


def pairs(case):
    return set(itertools.combinations(sorted(case.items()), 2))


def covering(options):
    """Cases that hold every pair of two options' values: fifteen or so in place of thousands."""
    draw, cases, missing = random.Random(0), [], set()
    pool = [{name: draw.choice(values) for name, values in options.items()} for _ in range(300)]
    for (a, x), (b, y) in itertools.combinations(sorted(options.items()), 2):
        missing |= set(itertools.product(itertools.product([a], x), itertools.product([b], y)))
    while missing:
        cases.append(max(pool, key=lambda case: len(pairs(case) & missing)))
        missing -= pairs(cases[-1])
    return cases


def of_the_whole(credit, rollouts, config, looked):
    """A batch_credit that makes `credit` depend on every row: table times their mean surprise. The
    rows that it was shown are added to `looked`."""
    def look(forwards, advantages, mask):
        assert not torch.is_grad_enabled()
        surprise, tokens = 0.0, 0
        for forward in forwards:
            t = forward.logprobs.shape[1]
            looked.extend(forward.rows.tolist())
            assert torch.equal(forward.logprobs, rollouts.logprobs[forward.rows, :t])
            assert torch.equal(forward.advantages, advantages[forward.rows])
            surprise -= float(forward.logprobs.sum())
            tokens += int(forward.completion_mask.sum())
        trained = rollouts.finished | (not config.mask_truncated)
        assert torch.equal(mask, rollouts.completion_mask & trained[:, None])
        credit.table *= surprise / tokens
        return credit
    return look


@pytest.mark.parametrize("case", covering(OPTIONS), ids=lambda case: "-".join(
    f"{name}={value}" for name, value in case.items()))
def test_an_update_is_the_naive_one(case):
    """1e-5 of the gradient's norm, for every parameter alone as well; fp32 gives some 1e-6."""
    case = dict(case)
    own, tied, whole = (case.pop(name) for name in ("own", "tied", "whole"))
    config = naive.settings(**case)
    model, reference, rollouts, rewards = naive.world(tied, config.temperature)
    credit, before = naive.Credit(rollouts), [p.clone() for p in reference.parameters()]
    token_advantages = naive.token_advantages(rollouts) if own else None
    looked = []
    batch_credit = of_the_whole(credit, rollouts, config, looked) if whole else None

    passes, stats, weights = naive.run_update(
        model, rollouts, rewards, None if whole else credit, config, 0.4,
        reference if config.kl else None, token_advantages, batch_credit)
    start = naive.world(tied, config.temperature)[0]
    right = naive.naive_update(start, [values for values, _ in passes], rollouts, rewards, credit,
                               config, reference, token_advantages)

    assert len(passes) == config.num_iterations
    for number, ((_, found), expected) in enumerate(zip(passes, right.gradients)):
        assert naive.apart(found, expected) < 1e-5
        for a, b in zip(found, expected):
            assert naive.apart([a], [b]) < 1e-5
        # Both sides of the clip were met, or this would prove nothing about it.
        stopped = [right.stopped.get((number, sign), 0) for sign in (1, -1)]
        assert min(stopped) >= 3 if number else stopped == [0, 0]
    assert right.margin > 5e-6
    assert set(stats) == set(right.figures)
    for name, value in right.figures.items():
        assert stats[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
    torch.testing.assert_close(weights, right.weights, rtol=1e-5, atol=1e-6)
    assert sorted(credit.seen) == right.rows  # asked once, in the first pass
    assert sorted(looked) == right.rows * whole
    assert all(p.grad is None for p in (*model.parameters(), *reference.parameters()))
    assert all(torch.equal(p, q) for p, q in zip(before, reference.parameters()))


def test_every_tensor_is_made_where_the_model_is(monkeypatch):
    """Where nothing is said a tensor is made on the meta device here, which has no numbers. A card
    is as far from the CPU. Row numbers alone are made on the CPU first, and then sent."""
    def sent(values, device):
        return torch.as_tensor(values, device=device)

    monkeypatch.setattr(grpo, "to_device", sent)
    monkeypatch.setattr(logprobs, "to_device", sent)
    found = []
    for device in ("cpu", "meta"):
        model, reference, rollouts, rewards = naive.world()
        config = naive.settings(num_iterations=2, kl=0.3, mask_truncated=True, scale_by_std=True,
                                tokens_per_microbatch=60)
        credit, looked = naive.Credit(rollouts), []
        whole = of_the_whole(credit, rollouts, config, looked)
        with torch.device(device):
            passes, stats, weights = naive.run_update(
                model, rollouts, rewards, None, config, 0.4, reference, None, whole)
        found.append((stats, weights, *passes[0][1], *passes[1][1]))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(a, b) for a, b in zip(found[0][1:], found[1][1:], strict=True))


def test_the_cases_hold_every_pair():
    """Three rows of the table that the cases were made from, counted again by hand."""
    cases = covering(OPTIONS)
    for a, b in (("kl", "num_iterations"), ("loss", "mask_truncated"), ("temperature", "whole")):
        found = {(case[a], case[b]) for case in cases}
        assert found == set(itertools.product(OPTIONS[a], OPTIONS[b]))
    assert len(cases) < 25


def test_weights_that_are_all_alike_are_no_error():
    """Every row trained, all of one length: then not even the padding has another weight."""
    model, _, rollouts, _ = naive.world()
    rollouts.lengths[:] = rollouts.completion_ids.shape[1]
    rollouts.logprobs = naive.sampler_logprobs(model, rollouts, 1.0)
    rewards = torch.tensor([[1., 0, 1, 0, 1, 0]] * 3)
    _, stats, weights = naive.run_update(model, rollouts, rewards, grpo.uniform, naive.settings())
    assert (weights == 1).all() and (stats["weight_min"], stats["weight_max"]) == (1, 1)


# ------------------------------------------------------------------ what a credit function may give


@pytest.mark.parametrize("inner", [1, 2])
def test_a_weight_is_a_constant_of_the_loss(inner):
    """w = 1 - p is a natural credit, and with its own gradient let through the step has a cosine of
    0.6 to the right one, without a word."""
    config = naive.settings(num_iterations=inner)
    model, _, rollouts, rewards = naive.world()
    table = {}

    def surprise(forward):
        weights = 1 - forward.logprobs.exp()
        for n, i in enumerate(forward.rows.tolist()):
            table[i] = weights[n].detach()
        return weights

    def constant(forward):
        return torch.stack([table[i] for i in forward.rows.tolist()])

    found, _, _ = naive.run_update(model, rollouts, rewards, surprise, config, 0.4)
    model = naive.world()[0]
    right, _, _ = naive.run_update(model, rollouts, rewards, constant, config, 0.4)
    for (_, a), (_, b) in zip(found, right, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b))


def bad_credit(value):
    def one_bad_token(forward):
        weights = torch.ones_like(forward.logprobs)
        if 16 in forward.rows.tolist():
            weights[forward.rows.tolist().index(16), 0] = value
        return weights
    return one_bad_token


@pytest.mark.parametrize("value", [-1e-3, math.nan, math.inf, -math.inf])
def test_weights_that_are_negative_or_not_finite_are_refused(value):
    """One bad token, in one micro-batch of many. The sentence names the function, and no parameter
    has moved. A negative weight turns the clip round: the minimum of the two branches times w < 0
    is the optimist's."""
    model, _, rollouts, rewards = naive.world()
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(FloatingPointError) as refused:
        naive.run_update(model, rollouts, rewards, bad_credit(value),
                         naive.settings(tokens_per_microbatch=30, num_iterations=2), 0.4)
    said = str(refused.value)
    assert "the credit function test_update.bad_credit.<locals>.one_bad_token gave weights" in said
    assert "finite and at least 0" in said and "\n" not in said
    assert f"{value:g}" in said
    assert all(torch.equal(p, q) for p, q in zip(before, model.parameters()))


@pytest.mark.parametrize("shape", [(1,), (2, 1), (2, 3)])
def test_weights_of_another_shape_are_refused(shape):
    """(b, 1) and (1,) would be stretched over all tokens in silence."""
    model, _, rollouts, rewards = naive.world()
    with pytest.raises(grpo.BadInput) as refused:
        naive.run_update(model, rollouts, rewards, lambda forward: torch.ones(shape),
                         naive.settings(), 0.4)
    said = str(refused.value)
    assert re.search(r"the credit function test_update\.\S*<lambda> gave weights of shape ", said)
    assert str(shape) in said and "\n" not in said


def test_a_policy_that_ran_away_is_not_the_credit_s_fault():
    """Weights made from log-probs that are NaN are NaN, and the cause comes first."""
    model, _, rollouts, rewards = naive.world()
    with torch.no_grad():
        next(model.parameters())[5:] = math.nan
    with pytest.raises(FloatingPointError, match="first of all: log-probabilities"):
        naive.run_update(model, rollouts, rewards, lambda forward: forward.logprobs.exp(),
                         naive.settings())


# ------------------------------------------------------------------ the share that fell back


@pytest.mark.parametrize("side, share", [("wrong", 1 / 2), ("correct", 1 / 3), ("both", 2 / 5)])
def test_the_share_of_fallbacks_is_of_the_method_s_own_rows(side, share):
    """Two wrong rows, one without a box; three right ones, one without. Rows on the other side are
    no failure of the method's, and no success; nor are those without a gradient."""
    boxed, plain = r"4 5 6 7 \boxed{8}", "4 5 6 7 8"
    model, _, rollouts, _ = naive.world()
    rewards = torch.tensor([[0, 0, 1, 1, 1, .6], [0] * 6, [1] * 6])
    rollouts.texts = [boxed, plain, boxed, boxed, plain, plain] + [plain] * 12
    rollouts.finished[:] = True
    rollouts.finished[5] = False
    rollouts.lengths[:] = 9
    method = SimpleNamespace(as_released=False, activation="embeddings", reweight=side)
    tokenizer = SimpleNamespace(decode=lambda ids, **_: boxed[:2 * len(ids)])
    _, stats, _ = naive.run_update(
        model, rollouts, rewards, grail.credit(method), naive.settings(mask_truncated=True),
        tokenizer=tokenizer)
    assert stats["fallback"] == pytest.approx(share)
