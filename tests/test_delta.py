"""DelTA against cases worked in float64 from its released arithmetic, distances and autograd."""
import json
from types import SimpleNamespace

import pytest
import torch
from test_grail import close, known_qwen3, known_rollouts
from test_grpo import gradients, made

import delta
import grpo
import released
from delta import delta_weights, head_row, lm_head
from engine.errors import BadInput
from logprobs import ScaledHead, forward_pass

H = torch.tensor([[[2., 0], [1, 1], [0, 2]], [[2, 0], [1, 3], [9, 9]],
                  [[2, 0], [1, -1], [0, -2]], [[4, 4], [1, 0], [9, 9]]]).double()  # (B, T, H)
P = torch.tensor([[.9, .5, .2], [.9, .5, .5], [.9, .6, .2], [.5, .5, .5]]).double()
A = torch.tensor([1., .5, -1, 0])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 0]]).bool()
D1 = [[.967766, 1.051798, 1.144490], [.967766, 1.141393, 0], [.977958, 1.043725, 1.148625],
      [.778239, .778239, 0]]


def weights(hidden=H, advantages=A, mask=MASK, credit_fn=released.delta_weights, **options):
    return credit_fn(*head_row(hidden, P.log(), mask), advantages, mask, **options)


# ------------------------------------------------------------------ by hand


def test_released_weights_of_case_d1():
    w, fell_back = weights()
    close(w, D1, 1e-6)
    close(A[:, None] * w, [[.967766, 1.051798, 1.144490], [.483883, .570697, 0],
                           [-.977958, -1.043725, -1.148625], [0, 0, 0]], 1e-6)
    assert not fell_back


@pytest.mark.parametrize("options, row, factor", [
    (dict(fresh=True), [.975753, 1.044908, 1.137469], .979815),
    (dict(refinements=0), [.976334, 1.045329, 1.137624], .979727),
    (dict(refinements=2), [.974998, 1.044759, 1.137709], None),
    (dict(credit_fn=delta_weights), [.916931, .996549, 1.084372], None),
    (dict(zero="one"), [.931519, 1.012404, 1.101624], .936363)])
def test_variants_of_case_d1(options, row, factor):
    """gamma lags by one refinement, and what completions of A = 0 do to the mean moves everyone."""
    w, _ = weights(**options)
    close(w[0], row, 1e-6)
    if factor and "zero" not in options:
        close(w[3, :2], [.8 * factor] * 2, 1e-6)
    if "zero" in options:
        close(w[3, :2], [factor] * 2, 1e-6)
    if "credit_fn" in options:
        close(w[3], [1, 1, 0], 0)  # no gradient, so no matter; and the others keep mean 1
        assert abs(float(w[:3][MASK[:3]].mean()) - 1) < 1e-6
    else:
        assert abs(float(w[MASK].mean()) - 1) < 1e-6


def test_one_side_alone_falls_back_to_ones():
    """D2: the released arithmetic takes the zero vector for the missing mean and reweights all the
    same, by up to 26 %."""
    for advantages in (torch.tensor([1., .5, 0, 0]), torch.tensor([-1., -.5, 0, 0])):
        w, fell_back = weights(advantages=advantages, credit_fn=delta_weights)
        assert fell_back and torch.equal(w, MASK.float())
    w, fell_back = weights(advantages=torch.tensor([1., .5, 0, 0]))
    close(w[0], [1.003401, 1.116576, 1.257574], 1e-6)
    close(w[3, :2], [.871699] * 2, 1e-6)
    assert not fell_back


def test_identical_sides_get_one():
    """D3: all margins are 0 and gamma sits on its floor: alpha = .5, no division by nothing."""
    hidden = H[:1].expand(2, 3, 2)
    mask = torch.ones(2, 3, dtype=torch.bool)
    w, _ = delta_weights(*head_row(hidden, P[:1].expand(2, 3).log(), mask),
                         torch.tensor([1., -1.]), mask)
    close(w, [[1.] * 3] * 2, 1e-6)


def test_the_loss_of_case_d4():
    """Weighting the surrogate is the same as weighting the advantage, for weights are positive."""
    ratio = torch.tensor([[1.5, 1, 1], [1, .9, 1], [.5, 1, 1.3], [1, 1, 1]]).double()
    w, _ = weights()
    scale = grpo.token_scale(MASK, "token", 3)

    def loss(w):
        surrogate = grpo.clipped_surrogate(ratio, A[:, None].double(), .2, .28)
        return -float((w * surrogate * scale).sum())

    assert loss(w) == pytest.approx(-.111324, abs=1e-6)
    assert loss(torch.ones(4, 3)) == pytest.approx(-.113, abs=1e-6)
    other = grpo.clipped_surrogate(ratio, A[:, None] * w.double(), .2, .28)
    assert loss(w) == pytest.approx(-float((other * scale).sum()), abs=1e-7)


def test_the_stand_in_forgets_which_token_it_was():
    """D5: two tokens at one fork, which the exact gradient sets against each other and the stand-in
    takes for allies."""
    U = torch.tensor([[1., 0], [0, 1], [-1, 1]])
    head = torch.nn.Linear(2, 3, bias=False)
    head.weight.data = U
    hidden = torch.tensor([[[1., .5], [1., .5]]])
    ids, mask = torch.tensor([[0, 1]]), torch.ones(1, 2, dtype=torch.bool)
    pi = (hidden[0, 0] @ U.T).softmax(-1)
    close(pi, [.546549, .331499, .121952], 1e-6)
    for (centroid, inner), product, norms in (
            (lm_head(hidden, head, ids, mask), -.568210, (.412977, .950603)),
            (head_row(hidden, pi[:2][None].log(), mask), .378915, (.257022, .558617))):
        alone = [centroid(torch.eye(2).double()[[i]]) for i in (0, 1)]
        close([inner(alone[0])[0, 1], inner(alone[1])[0, 0]], [product] * 2, 1e-6)
        close([inner(alone[i])[0, i] for i in (0, 1)], norms, 1e-6)


# ------------------------------------------------------------------ against the definition


def by_distances(v, A, mask, K):
    """DelTA as written: squared distances of every vector v (B, T, D) to both means, in loops."""
    tokens = [(i, t) for i in range(len(A)) for t in range(v.shape[1]) if mask[i, t] and A[i] != 0]
    sides = {s: [x for x in tokens if A[x[0]] * s > 0] for s in (1, -1)}

    def means(alpha):
        out = {}
        for s, side in sides.items():
            total = sum(abs(float(A[i])) * alpha[i, t] for i, t in side)
            out[s] = sum(abs(float(A[i])) * alpha[i, t] * v[i, t] for i, t in side) / total
        return out

    def margins(mu):
        return {(i, t): float((v[i, t] - mu[-s]).square().sum() - (v[i, t] - mu[s]).square().sum())
                for s, side in sides.items() for i, t in side}

    def spreads(m):
        return {s: max(1e-8, torch.tensor([m[x] for x in side]).double().var(unbiased=False).item())
                ** .5 for s, side in sides.items()}

    m = margins(means(dict.fromkeys(tokens, 1.0)))
    gamma = spreads(m)
    for _ in range(K):
        alpha = {x: 1 / (1 + torch.tensor(-m[x] / gamma[s]).exp().item())
                 for s, side in sides.items() for x in side}
        gamma, m = spreads(m), margins(means(alpha))
    w = {x: .8 + .4 / (1 + torch.tensor(-m[x] / gamma[s]).exp().item())
         for s, side in sides.items() for x in side}
    mean = sum(w.values()) / len(w)
    out = torch.zeros(mask.shape)
    for x in w:
        out[x] = w[x] / mean
    return out


@pytest.mark.parametrize("K", [0, 1, 3])
def test_one_product_a_token_replaces_all_distances(K):
    """m = 2 (<W, v> + b): no (B, T, H) of differences is ever made, and none is missed."""
    torch.manual_seed(0)
    hidden = torch.randn(6, 5, 7).double()
    logprobs = -torch.rand(6, 5).double() * 3
    advantages = torch.tensor([.75, -.25, 0., .5, -.5, -.25])
    mask = torch.arange(5) < torch.tensor([5, 3, 4, 1, 5, 2])[:, None]
    v = (1 - logprobs.exp())[..., None] * hidden
    expected = by_distances(v, advantages, mask, K)
    found, _ = delta_weights(*head_row(hidden, logprobs, mask), advantages, mask, K)
    counted = mask & (advantages != 0)[:, None]
    torch.testing.assert_close(found * counted, expected, atol=1e-6, rtol=0)
    thrice, _ = delta_weights(*head_row(3 * hidden, logprobs, mask), advantages, mask, K)
    torch.testing.assert_close(thrice, found)  # a factor such as 1 / temperature cancels
    # Margins so small that gamma sits on its floor of 1e-4.
    found, _ = delta_weights(*head_row(hidden / 1000, logprobs, mask), advantages, mask, K)
    torch.testing.assert_close(found * counted, by_distances(v / 1000, advantages, mask, K),
                               atol=1e-6, rtol=0)


@pytest.mark.parametrize("temperature", [1.0, .6])
def test_the_exact_variant_is_the_gradient_of_the_head(temperature):
    """Every token's gradient by autograd, all distances by loops; the hidden state must be the one
    that PREDICTS the token, or nothing agrees."""
    model, rollouts = known_qwen3(), known_rollouts()
    forward = forward_pass(model, rollouts, torch.arange(2), temperature, texts=[],
                                rewards=None, advantages=None, tokenizer=None)
    W, mask = model.lm_head.weight, forward.completion_mask
    v = torch.zeros(2, 10, W.numel()).double()
    for i, t in mask.nonzero().tolist():
        g, = torch.autograd.grad(forward.logprobs[i, t], W, retain_graph=True)
        v[i, t] = g.flatten() * temperature  # the constant 1 / temperature cancels in any case
    advantages = torch.tensor([.5, -.25])
    expected = by_distances(v, advantages, mask, 1)
    with torch.no_grad():
        geometry = lm_head(forward.hidden, forward.head, forward.completion_ids, mask, temperature)
        found, _ = delta_weights(*geometry, advantages, mask)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)
    assert found[mask].std() > .01


@pytest.mark.parametrize("scale, cap", [(.25, None), (1.0, 3.0), (4.0, 2.0)])
def test_a_scale_and_a_cap_of_the_logits_are_part_of_the_gradient(scale, cap):
    """Granite and Cohere scale their logits, Gemma 2 caps them: the gradient in the LM head's
    matrix by autograd, of log-probs that the head's own outcome comes to."""
    torch.manual_seed(0)
    plain = torch.nn.Linear(8, 11, bias=False)
    head = ScaledHead(plain, scale, cap)
    hidden, ids = torch.randn(3, 5, 8) * 2, torch.randint(11, (3, 5))
    mask = torch.ones(3, 5, dtype=torch.bool)
    advantages = torch.tensor([.5, -.25, -.25])
    v = torch.zeros(3, 5, plain.weight.numel()).double()
    for i in range(3):
        for t in range(5):
            logprob = head(hidden[i, t]).log_softmax(-1)[ids[i, t]]
            v[i, t] = torch.autograd.grad(logprob, plain.weight)[0].flatten()
    expected = by_distances(v, advantages, mask, 1)
    with torch.no_grad():
        geometry = lm_head(hidden, head, ids, mask)
        found, _ = delta_weights(*geometry, advantages, mask)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)
    with torch.no_grad():
        geometry = lm_head(hidden, lambda h: head(h), ids, mask)
        uncapped, _ = delta_weights(*geometry, advantages, mask)
    assert ((uncapped - found).abs().max() > .01) == bool(cap)  # a scale alone cancels


# ------------------------------------------------------------------ in the loop


def settings(**changes):
    return SimpleNamespace(**{"as_released": False, "gradient": "head-row", "refinements": 1,
                              **changes})


def updated(credit_settings, **changes):
    """(gradients, stats, weights) of one update of a random model under DelTA, and its parts."""
    model, out, rewards, config = made(**changes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batch = delta.whole_batch(credit_settings) if credit_settings else None
    stats, w = grpo.update(model, optimizer, out, rewards, grpo.uniform, config, None,
                           whole_batch=batch)
    return stats, w, model, out, rewards


@pytest.mark.parametrize("gradient", ["head-row", "lm-head"])
def test_the_loop_uses_the_weights_of_the_whole_batch(gradient):
    """Means a micro-batch are other means; a row out of place gets another's weights."""
    found = None
    for tokens in (10**6, 60, 1):
        stats, w, model, out, rewards = updated(settings(gradient=gradient),
                                                tokens_per_microbatch=tokens, max_new_tokens=12)
        found = w if found is None else found
        torch.testing.assert_close(w, found, atol=1e-4, rtol=0)
    with torch.no_grad():
        forward = forward_pass(model, out, torch.arange(12), 1.0, texts=[], rewards=None,
                                    advantages=None, tokenizer=None)
        mask = out.completion_mask
        geometry = (head_row(forward.hidden, forward.logprobs, mask) if gradient == "head-row" else
                    lm_head(forward.hidden, forward.head, forward.completion_ids, mask))
        expected, _ = delta_weights(*geometry, grpo.group_advantages(rewards).flatten(),
                                    out.completion_mask)
    torch.testing.assert_close(w, expected, atol=1e-4, rtol=0)
    assert stats["weight_max"] - stats["weight_min"] > .05 and stats["fallback"] == 0
    good = out.completion_mask & (rewards.flatten() > rewards.mean(1).repeat_interleave(
        rewards.shape[1]))[:, None]
    assert stats["weight_good"] == pytest.approx(float(w[good].mean()), abs=1e-5)
    assert stats["weight_mean"] == pytest.approx(1, abs=1e-5) and stats["ess"] < 1


@pytest.mark.parametrize("as_released", [False, True])
@pytest.mark.parametrize("gradient", ["head-row", "lm-head"])
@pytest.mark.parametrize("K", [0, 2])
def test_batch_credit_wires_what_its_settings_promise(as_released, gradient, K):
    """A swapped wire still gives plausible weights. Advantages below 1, two Forwards of one row."""
    model, rollouts, T = known_qwen3(), known_rollouts(), .6
    advantages, mask = torch.tensor([.5, -.25]), known_rollouts().completion_mask
    with torch.no_grad():
        parts = [forward_pass(model, rollouts, [i], T) for i in (1, 0)]
        both = forward_pass(model, rollouts, [0, 1], T)
        hidden, ids = both.hidden, both.completion_ids
        geometry = head_row(hidden, both.logprobs, mask)
        if gradient == "lm-head":
            geometry = lm_head(hidden, both.head, ids, mask, T)
        credit_fn = released.delta_weights if as_released else delta_weights
        expected, _ = credit_fn(*geometry, advantages, mask, K)
        look = delta.whole_batch(settings(as_released=as_released, gradient=gradient,
                                           refinements=K))
        credit = look(iter(parts), advantages, mask)
    torch.testing.assert_close(credit(both), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(credit(parts[0])[0], expected[1, :8], atol=1e-4, rtol=0)
    assert both.metrics["fallback"].tolist() == [False, False]
    with torch.no_grad():  # where one side has no token, the release reweights all the same
        expected_one, _ = credit_fn(*geometry, advantages.abs(), mask, K)
        one_sided = look(iter(parts), advantages.abs(), mask)
    torch.testing.assert_close(one_sided(both), expected_one, atol=1e-4, rtol=0)
    assert (expected_one[mask].std() > .01) == as_released
    mean = float(expected[0].mean())  # all ten tokens of row 0 are good ones
    credit(both)
    assert both.metrics["weight_good"].tolist() == pytest.approx([mean] * 2, abs=1e-4)


def test_a_batch_without_a_good_completion_has_good_weights_of_one():
    model, rollouts = known_qwen3(), known_rollouts()
    with torch.no_grad():
        forward = forward_pass(model, rollouts, [0, 1])
        credit = delta.whole_batch(settings())([forward], -torch.ones(2), forward.completion_mask)
    assert torch.equal(credit(forward), forward.completion_mask.float())
    assert forward.metrics["weight_good"].tolist() == [1, 1]
    assert forward.metrics["fallback"].tolist() == [True, True]


def test_a_batch_s_hidden_states_keep_their_precision_and_take_half_on_a_card():
    """B T H numbers are held: bf16 on a card, where the forward ran in bf16; else as they are."""
    forward = SimpleNamespace(rows=torch.tensor([1]), hidden=torch.rand(1, 3, 2).double(),
                              logprobs=torch.rand(1, 3), completion_ids=torch.tensor([[7, 8, 9]]))
    for on_card, kind in ((False, torch.float64), (True, torch.bfloat16)):
        mask = SimpleNamespace(shape=(2, 4), device="cpu", is_cuda=on_card)
        hidden, logprobs, ids, last = delta.collect([forward], mask)
        assert hidden.dtype == kind and last is forward
        assert torch.equal(hidden[1, :3], forward.hidden[0].to(kind))
        assert torch.equal(logprobs[1, :3], forward.logprobs[0])
        assert ids.tolist() == [[0] * 4, [7, 8, 9, 0]] and ids.dtype == torch.int64
        assert (hidden[0] == 0).all() and (logprobs[0] == 0).all() and logprobs[1, 3] == 0
    mask = torch.ones(2, 4, dtype=torch.bool, device="meta")
    forward = SimpleNamespace(**{k: v.to("meta") for k, v in vars(forward).items()})
    assert {x.device.type for x in delta.collect([forward], mask)[:3]} == {"meta"}


def test_rows_without_a_gradient_and_one_sided_batches():
    """Completions of A = 0 are not run; a batch without a signal is a no-op, not a crash."""
    model, out, rewards, config = made()
    rewards[1] = 1.0
    seen = []

    def counting(forwards, advantages, mask):
        parts = list(forwards)
        seen.extend(parts)
        return delta.whole_batch(settings())(iter(parts), advantages, mask)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    stats, w = grpo.update(model, optimizer, out, rewards, None, config, None,
                           whole_batch=counting)
    rows = torch.cat([part.rows for part in seen])
    assert sorted(rows.tolist()) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert not any(part.logprobs.requires_grad for part in seen)
    rewards[:] = 0.0
    stats, _ = grpo.update(model, optimizer, out, rewards, None, config, None,
                           whole_batch=counting)
    assert stats["loss"] == 0 and stats["grad_norm"] == 0


def test_an_empty_range_is_grpo():
    """low = high leaves weights of 1: the gradient is GRPO's (fp32, relative 1e-5)."""
    model, out, rewards, config = made()
    plain, _, _ = gradients(model, out, rewards, config)

    def flat(forwards, advantages, mask):
        list(forwards)
        w, _ = delta_weights(*head_row(torch.randn(*mask.shape, 4), -torch.ones(mask.shape), mask),
                             advantages, mask, low=1.0, high=1.0)
        return lambda forward: w[forward.rows, :forward.logprobs.shape[1]]

    for p in model.parameters():
        p.grad = None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer.zero_grad = lambda **_: None
    grpo.update(model, optimizer, out, rewards, None, config, None, whole_batch=flat)
    for p, g in zip(model.parameters(), plain):
        torch.testing.assert_close(p.grad, g, rtol=1e-5, atol=1e-7 * float(g.abs().max()) + 1e-12)


def test_the_released_weights_are_not_made_of_another_gradient(monkeypatch):
    """The name would promise the code's own weights."""
    trained = []
    monkeypatch.setattr(delta, "train", lambda config, **_: trained.append(config.gradient))
    with pytest.raises(BadInput, match="--gradient lm-head: the released code's weights"):
        delta.main(["--as-released", "--gradient", "lm-head"])
    delta.main(["--as-released"])
    delta.main(["--gradient", "lm-head"])
    assert trained == ["head-row", "lm-head"]


@pytest.mark.slow
def test_delta_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    delta.main(["--steps", "2", "--prompts", "4", "--group", "4", "--eval-problems", "0",
                "--max-new-tokens", "48"])
    folder = tmp_path / "runs/delta-tiny-arithmetic-seed0"
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    assert len(steps) == 2 and all(one["fallback"] == 0 and 0 < one["ess"] <= 1 for one in steps)
    assert capsys.readouterr().out.count("\nstep ") == 2
    with pytest.raises(BadInput, match="--refinements -1"):
        delta.main(["--refinements", "-1"])
