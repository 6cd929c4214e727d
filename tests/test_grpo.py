"""The loop's numerics against hand values, double loops and enumeration."""
import copy
import math
from types import SimpleNamespace

import pytest
import torch
from test_rollout import CONFIGS, PROMPTS, Numbers, scores, tiny

import grpo
import rollout
from engine import flags, seeds
from engine.errors import BadInput
from grail import credit as grail_credit_of
from logprobs import token_logprobs

CONFIG = {"scale_by_std": False, "mask_truncated": False, "loss": "token", "max_new_tokens": 12,
          "kl": 0.0, "tokens_per_microbatch": 8192, "compile": False, "num_iterations": 1,
          "temperature": 1.0, "clip_low": .2, "clip_high": .28, "grad_clip": 1e9, "lr": 1e-3}


def made(seed=0, samples=4, tied=True, architecture="qwen3", **changes):
    """A random model, rollouts of 3 prompts, rewards with every group mixed, and settings."""
    model = tiny(architecture, tied)
    config = SimpleNamespace(**{**CONFIG, **changes})
    out = rollout.sample(model, Numbers(), PROMPTS, samples=samples, seed=seed,
                         max_new_tokens=config.max_new_tokens, temperature=config.temperature)
    rewards = (torch.arange(3 * samples) % 3 == 0).float().view(3, samples)
    return model, out, rewards, config


class Recorder(torch.optim.SGD):
    """An optimizer that keeps the gradients it is given and moves nothing."""

    def step(self):
        self.found = [p.grad.clone() for group in self.param_groups for p in group["params"]]


def gradients(model, out, rewards, config, credit=grpo.uniform, reference=None):
    """Every parameter's gradient of one update that moves nothing, its statistics, its weights."""
    optimizer = Recorder(model.parameters(), lr=0.0)
    stats, weights = grpo.update(model, optimizer, out, rewards, credit, config, Numbers(),
                                 reference)
    return optimizer.found, stats, weights


def worst(a, b):
    scale = max(float(x.abs().max()) for x in b)
    return max(float((x - y).abs().max()) for x, y in zip(a, b)) / scale


# ------------------------------------------------------------------ advantages


def test_advantages_by_hand():
    """Rewards that name their prompt show repeat-for-tile mistakes; the std is the population's,
    0.433 and not 0.5."""
    r = torch.tensor([[1., 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    torch.testing.assert_close(grpo.group_advantages(r), torch.tensor(
        [[.75, -.25, -.25, -.25], [.25, .25, .25, -.75], [0, 0, 0, 0]]))
    a = grpo.group_advantages(r, scale_by_std=True)
    std = math.sqrt(3) / 4
    torch.testing.assert_close(a[0], torch.tensor([.75, -.25, -.25, -.25]) / (std + 1e-6))
    assert (a[2] == 0).all()
    # The floor under the std, 1e-6, where it is as large as the std itself.
    torch.testing.assert_close(grpo.group_advantages(torch.tensor([[0, 2e-6]]), scale_by_std=True),
                               torch.tensor([[-.5, .5]]))


def test_equal_rewards_give_exactly_zero():
    """The mean of seven 0.1s is not 0.1 in fp32; over a std near 0 that is a large advantage."""
    assert (grpo.group_advantages(torch.full((1, 7), .1), scale_by_std=True) == 0).all()


# ------------------------------------------------------------------ log-probs


def test_logprobs_and_entropy_against_a_double_loop():
    """One function aligns logits with tokens; here it is done again with two for-loops."""
    torch.manual_seed(0)
    B, T, H, V = 3, 5, 4, 3
    hidden, head = torch.randn(B, T, H), torch.nn.Linear(H, V, bias=False)
    ids, mask = torch.randint(V, (B, T)), torch.rand(B, T) < .7
    logprobs, entropy = token_logprobs(hidden, head, ids, mask, temperature=.7, chunk=2)
    logprobs, W = logprobs.detach(), head.weight.detach()
    for b in range(B):
        for t in range(T):
            z = [sum(float(hidden[b, t, k] * W[v, k]) for k in range(H)) / .7 for v in range(V)]
            p = [math.exp(x) / sum(math.exp(y) for y in z) for x in z]
            on = float(mask[b, t])
            assert abs(float(logprobs[b, t]) - on * math.log(p[ids[b, t]])) < 1e-5
            assert abs(float(entropy[b, t]) + on * sum(x * math.log(x) for x in p)) < 1e-5


def test_chunks_change_neither_logprobs_nor_gradients():
    torch.manual_seed(0)
    hidden, head = torch.randn(4, 9, 8, requires_grad=True), torch.nn.Linear(8, 50, bias=False)
    ids, mask = torch.randint(50, (4, 9)), torch.rand(4, 9) < .8
    weight = torch.randn(4, 9)
    results = []
    for chunk in (3, 1000):
        logprobs, _ = token_logprobs(hidden, head, ids, mask, chunk=chunk)
        loss = (logprobs * weight).sum()
        results.append((logprobs, *torch.autograd.grad(loss, [hidden, head.weight])))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_the_gradient_matches_finite_differences():
    """The whole loss, head and body, as a function of single parameters."""
    model, out, rewards, config = made()
    analytic, _, _ = gradients(model, out, rewards, config)
    A = grpo.group_advantages(rewards).flatten()[:, None]
    scale = grpo.token_scale(out.completion_mask, "token", 12)

    @torch.no_grad()
    def loss():
        return -float((scores(model, out).double() * A * scale).sum())

    for p, g in list(zip(model.parameters(), analytic))[:6]:
        i = int(g.abs().argmax())
        flat, before = p.data.view(-1), float(p.data.view(-1)[i])
        values = []
        for step in (1e-3, -1e-3):
            flat[i] = before + step
            values.append(loss())
        flat[i] = before
        slope = (values[0] - values[1]) / 2e-3  # d(ratio A) = A dlogp at ratio 1
        assert abs(slope - float(g.view(-1)[i])) < 0.02 * abs(slope) + 1e-4


# ------------------------------------------------------------------ the loss


@pytest.mark.parametrize("A, ratio, expected", [
    (1., 1.5, 1.28), (1., .5, .5), (-1., 1.5, -1.5), (-1., .5, -.8), (2., 900., 2.56),
    (-5., 900., -4500.), (-5., .5, -4.), (0., 900., 0.)])
def test_clip_sign_table(A, ratio, expected):
    """Both signs take the smaller: a max for negative advantages stops just where it must go on.
    There is no third bound, however large the ratio or the advantage."""
    surrogate = grpo.clipped_surrogate(torch.tensor(ratio), torch.tensor(A), .2, .28)
    assert float(surrogate) == pytest.approx(expected)


def test_three_denominators_by_hand():
    """Lengths 2 and 8, terms 1 everywhere: a token weighs 1/10, 1/(2*2) or 1/(2*8), 1/(2*16)."""
    mask = torch.arange(8) < torch.tensor([[2], [8]])
    for loss, short, long in (("token", 1 / 10, 1 / 10), ("sequence", 1 / 4, 1 / 16),
                              ("constant", 1 / 32, 1 / 32)):
        scale = grpo.token_scale(mask, loss, 16)
        assert float(scale[0, 0]) == pytest.approx(short)
        assert float(scale[1, 7]) == pytest.approx(long)
        assert (scale[0, 2:] == 0).all()


@pytest.mark.parametrize("loss", ["token", "sequence", "constant"])
def test_splitting_the_batch_does_not_change_the_gradient(loss):
    """Dividing by each micro-batch's own token count is the commonest GRPO bug: 12 completions at
    once, by threes or fours or one by one must leave the same gradients behind (fp32, 1e-4)."""
    settings = SimpleNamespace(as_released=False, activation="embeddings", reweight="both")
    for credit in (grpo.uniform, grail_credit_of(settings)):
        whole = None
        for size in (1000, 60, 1):
            model, out, rewards, config = made(loss=loss, tokens_per_microbatch=size)
            out.texts = [rf"\boxed{{{text.split()[-1] if text else 3}}}" for text in out.texts]
            g, _, _ = gradients(model, out, rewards, config, credit)
            whole = whole or g
            assert worst(g, whole) < 1e-4


def test_microbatches_keep_order_and_budget():
    """Padding counts: three rows of 10, 2 and 2 tokens are 30, not 14. No row is lost."""
    tokens = [10, 2, 7, 30, 2]
    assert grpo.microbatches([0, 1, 2], tokens, 30) == [[0, 1, 2]]
    assert grpo.microbatches([0, 1, 2], tokens, 29) == [[0, 1], [2]]
    assert grpo.microbatches([1, 4, 0], tokens, 20) == [[1, 4], [0]]  # the third would widen both
    assert grpo.microbatches([3, 0, 4], tokens, 5) == [[3], [0], [4]]  # over the budget: alone
    assert grpo.microbatches([], tokens, 5) == []


def test_uniform_weights_reproduce_grpo_bit_for_bit():
    model, out, rewards, config = made()
    plain, _, _ = gradients(model, out, rewards, config)
    ones, _, _ = gradients(model, out, rewards, config,
                           lambda forward: torch.ones_like(forward.logprobs))
    assert all(torch.equal(a, b) for a, b in zip(plain, ones))


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_the_first_inner_step_has_ratio_one(temperature):
    """Sampler and scorer agree, so nothing is clipped before the policy has moved."""
    model, out, rewards, config = made(temperature=temperature)
    _, stats, _ = gradients(model, out, rewards, config)
    assert stats["clipped"] == 0 and stats["gap_max"] < 1e-5 and stats["gap_mean"] > 0


def test_one_step_raises_good_completions_and_lowers_bad_ones():
    """A ratio built from a log-prob minus itself has no gradient; the wrong sign is worse."""
    model, out, rewards, config = made()
    before = scores(model, out)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    grpo.update(model, optimizer, out, rewards, grpo.uniform, config, Numbers())
    change = (scores(model, out) - before).sum(1)
    A = grpo.group_advantages(rewards).flatten()
    assert float((change * A).sum()) > 0


def test_the_stop_token_is_trained():
    """Only the stop token of one completion gets credit; the gradient must not vanish."""
    model, out, rewards, config = made()
    row = int((out.finished & (grpo.group_advantages(rewards).flatten() != 0)).nonzero()[0])

    def only_the_stop(forward):
        weights = torch.zeros_like(forward.logprobs)
        for i, ids in enumerate(forward.completion_ids):
            n = int(forward.completion_mask[i].sum())
            if n == out.lengths[row] and torch.equal(ids[:n], out.completion_ids[row, :n]):
                assert ids[n - 1] == 1
                weights[i, n - 1] = 1
        return weights

    g, _, _ = gradients(model, out, rewards, config, only_the_stop)
    assert max(float(x.abs().max()) for x in g) > 1e-6


def test_inner_steps_reuse_weights_and_old_logprobs():
    """Later passes clip against the first one's log-probs and do not ask for credit again."""
    model, out, rewards, config = made(num_iterations=3)
    calls = []

    def credit(forward):
        calls.append(1)
        return torch.ones_like(forward.logprobs)

    before = [p.clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=.5)
    stats, _ = grpo.update(model, optimizer, out, rewards, credit, config, Numbers())
    assert len(calls) == 1 and stats["clipped"] > 0
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters()))


def test_a_credit_gets_its_own_rows():
    """Signs too, which are kept on the CPU: by them whole micro-batches skip a backward."""
    model, out, rewards, config = made(tokens_per_microbatch=40)
    A, seen = grpo.group_advantages(rewards).flatten(), []

    def credit(forward):
        seen.extend(zip(forward.rows.tolist(), forward.signs))
        assert torch.equal(forward.advantages, A[forward.rows])
        assert torch.equal(forward.rewards, rewards.flatten()[forward.rows])
        assert forward.texts == [out.texts[i] for i in forward.rows]
        return torch.ones_like(forward.logprobs)

    gradients(model, out, rewards, config, credit)
    assert dict(seen) == {i: sign for i, sign in enumerate(A.sign().tolist()) if sign}
    assert {sign for _, sign in seen} == {-1, 1} and len(seen) > 4


# ------------------------------------------------------------------ rows that say nothing


def test_equal_groups_contribute_nothing_but_stay_in_the_denominator():
    """Skipping their forward is a saving; dropping their tokens from the denominator would be
    another loss."""
    model, out, rewards, config = made()
    rewards[2] = 1.0
    part, stats, _ = gradients(model, out, rewards, config)
    assert stats["informative"] == 2 and stats["groups"] == 3
    two = rollout.Rollouts(out.prompt_ids[:8], out.prompt_mask[:8], out.completion_ids[:8],
                           out.lengths[:8], out.finished[:8], out.logprobs[:8], out.texts[:8])
    alone, _, _ = gradients(model, two, rewards[:2], config)
    share = float(out.lengths[:8].sum() / out.lengths.sum())
    assert worst(part, [share * g for g in alone]) < 1e-5


def test_a_batch_without_a_signal_is_a_no_op():
    """All rewards equal, or every row truncated and masked: no NaN, and Adam's momentum does not
    move the weights."""
    for changes in ({}, {"mask_truncated": True}):
        model, out, rewards, config = made(**changes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=.1, weight_decay=0.0)
        # The first update fills the momentum.
        grpo.update(model, optimizer, out, rewards, grpo.uniform, config, Numbers())
        before = [p.clone() for p in model.parameters()]
        if changes:
            out.finished[:] = False
        else:
            rewards[:] = 1.0
        stats, _ = grpo.update(model, optimizer, out, rewards, grpo.uniform, config, Numbers())
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
        assert all(math.isfinite(v) for v in stats.values()) and stats["loss"] == 0
        assert stats["informative"] == 0


def test_masked_rows_get_no_gradient():
    """Masking truncated rows is a credit of 0 for them, and a denominator without their tokens."""
    model, out, rewards, config = made(mask_truncated=True)
    assert not out.finished.all()
    masked, _, _ = gradients(model, out, rewards, config)
    config.mask_truncated = False
    kept, _, _ = gradients(model, out, rewards, config)
    assert worst(masked, kept) > 1e-3

    def stopped(forward):
        rows = (forward.completion_ids == 1).any(1, keepdim=True)  # (b, 1)
        return rows.float().expand_as(forward.logprobs)            # (b, T)

    by_credit, _, _ = gradients(model, out, rewards, config, stopped)
    scale = float(out.lengths.sum() / out.lengths[out.finished].sum())
    assert worst(masked, [scale * g for g in by_credit]) < 1e-5


# ------------------------------------------------------------------ the KL penalty


def test_k3_is_an_unbiased_kl():
    """E under the policy of r - 1 - log r, r = ref / policy, is KL(policy || ref) exactly; upside
    down it is not."""
    p, q = torch.tensor([.5, .3, .2]).log(), torch.tensor([.2, .3, .5]).log()
    exact = float((p.exp() * (p - q)).sum())
    assert float((p.exp() * grpo.k3(p, q)).sum()) == pytest.approx(exact, abs=1e-6)
    assert float((p.exp() * grpo.k3(q, p)).sum()) != pytest.approx(exact, abs=1e-3)
    assert (grpo.k3(p, q) >= 0).all()


def test_the_penalty_pulls_on_every_row():
    """Under a KL penalty even rows of advantage 0 have a gradient, once the policy has left the
    reference."""
    model, out, rewards, config = made(kl=.5)
    reference = copy.deepcopy(model)
    for p in model.parameters():
        p.data *= 1.05
    rewards[:] = 1.0
    pull, _, _ = gradients(model, out, rewards, config, reference=reference)
    assert sum(float(g.abs().sum()) for g in pull) > 0
    assert all(p.grad is None for p in reference.parameters())


# ------------------------------------------------------------------ architectures


@pytest.mark.parametrize("architecture", CONFIGS)
@pytest.mark.parametrize("tied", [True, False])
def test_two_steps_on_every_architecture(architecture, tied):
    """R1-distilled and OctoThinker models are Llama- or Qwen2-shaped; Gemma scales embeddings."""
    model, out, rewards, config = made(tied=tied, architecture=architecture,
                                         tokens_per_microbatch=60)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    out.texts = [r"so \boxed{5}"] * len(out.texts)
    before = {name: p.clone() for name, p in model.named_parameters()}
    for _ in range(2):
        stats, _ = grpo.update(model, optimizer, out, rewards, grpo.uniform, config, Numbers())
        assert math.isfinite(stats["loss"]) and stats["grad_norm"] > 0
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == set(before)


# ------------------------------------------------------------------ order of problems


def test_every_epoch_visits_every_problem_once_and_differently():
    first, second = (seeds.problems_of_step(step, 10, 10, seed=3) for step in (0, 1))
    assert sorted(first) == sorted(second) == list(range(10)) and first != second
    assert seeds.problems_of_step(1, 6, 10, seed=3) == first[6:] + second[:2]
    assert seeds.problems_of_step(0, 10, 10, seed=4) != first


def test_a_problem_picked_twice_in_a_step_is_sampled_anew():
    """A file of 10 rows and 16 prompts a step: equal keys make equal groups, counted twice."""
    assert seeds.prompt_keys([3, 5, 3], 1, 10) == [3, 5, 13]
    assert seeds.prompt_keys([3, 3], 2, 10) == [6, 7, 26, 27]


@pytest.mark.parametrize("flag, value", [
    ("--group", "1"), ("--temperature", "0"), ("--tokens-per-microbatch", "0"), ("--steps", "0"),
    ("--resume", "nowhere")])
def test_impossible_settings_are_named(flag, value):
    with pytest.raises(BadInput, match=flag):
        flags.check(flags.parse(flags.flags("grpo", ""), [flag, value]))


def test_the_reward_of_a_completion_that_does_not_stop():
    """0, though each of its boxes is right; 1 if it stops, and behind a single box. The log counts
    those that repeat."""
    texts = [r"\boxed{7} \boxed{7}", r"\boxed{7} \boxed{7}", r"\boxed{7} and", r"\boxed{8}"]
    one = torch.ones(4, 1, dtype=torch.long)
    finished = torch.tensor([False, True, False, True])
    out = rollout.Rollouts(one, one.bool(), one, one[:, 0], finished, torch.zeros(4, 1), texts)
    row = {"problem": "?", "answer": "7"}
    rewards, _, _ = grpo.outcome_reward(out, [row], SimpleNamespace(group=4), Numbers(), None)
    assert rewards.tolist() == [[0, 1, 1, 0]]
    assert grpo.of_rollouts(out, Numbers())["repeats"] == 0.25
