"""The functions that people copy into their trainers: they run in an empty file with torch alone,
and what stands on padding changes nothing.

A trainer may keep anything off the mask: NaN from an empty attention row, infinities, -100 for an
id. NaN times 0 is NaN, so a function that multiplies by its mask hands the NaN on.
"""
import inspect
import math
from types import SimpleNamespace

import numpy
import pytest
import torch
from test_grail import SPANS, boxes, close, toy_forward

import delta
import evaluate
import grpo
import released
import saliency
from grail import grail_credit
from logprobs import scores, token_logprobs
from oar import oar_credit

LENGTHS = [9, 6, 4, 1]
MASK = torch.arange(9) < torch.tensor(LENGTHS)[:, None]  # (B, T)
BOXES = boxes((4, 5, 6, 8), (3, 4, 5, 6), None, None)
A = torch.tensor([-1., .5, -.5, 1.])
JUNK = [math.nan, math.inf, -math.inf, 1e30]


def made(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def off(x, junk, mask=MASK):
    """x with this value wherever the mask is False; later dimensions go along."""
    return x.masked_fill(~mask.view(*mask.shape, *[1] * (x.dim() - 2)), junk)


# ------------------------------------------------------------------ credit


def test_grail_by_hand_with_a_large_number_on_padding():
    """Logs of .01 to .08 in even steps: z = -1.3416 ... 1.3416. A floor of 1e-8 of the row's
    largest number, padding included, would add .01 to each saliency: .733, 1.186, 1.708."""
    s = torch.tensor([[.01, .02, .04, .08, .5, .3, 0, 1e6]])
    mask = torch.tensor([[True] * 7 + [False]])
    w = grail_credit(s, mask, boxes((4, 5, 6, 7)), torch.tensor([-.5]))
    close(w, [[.5, .776393, 1.223607, 1.670821, 1, 5, 1, 0]], 1e-4)


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("rows", ["wrong", "correct", "both"])
@pytest.mark.parametrize("credit_fn", [grail_credit, released.grail_credit])
def test_grail(junk, rows, credit_fn):
    s = made(4, 9).abs() * MASK
    w = credit_fn(s, MASK, BOXES, A, rows)
    assert torch.equal(credit_fn(off(s, junk), MASK, BOXES, A, rows), w)
    assert w.isfinite().all() and (w[~MASK] == 0).all()


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("credit_fn", [oar_credit, released.oar_credit])
def test_oar(junk, credit_fn):
    s = made(4, 9).abs() * MASK
    w, fell_back = credit_fn(s, MASK, MASK)
    found = credit_fn(off(s, junk), MASK, MASK)
    assert torch.equal(found[0], w) and torch.equal(found[1], fell_back)
    everywhere = torch.ones_like(MASK)  # what is scored may be said too generously
    assert torch.equal(credit_fn(off(s, junk), everywhere, MASK)[0], w)


def head():
    layer = torch.nn.Linear(5, 7, bias=False, dtype=torch.float64)
    layer.weight.data = made(7, 5, seed=3)
    return layer


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("credit_fn", [delta.delta_weights, released.delta_weights])
def test_delta(junk, exact, credit_fn):
    hidden, logprobs = made(4, 9, 5), -made(4, 9, seed=1).abs()
    ids = torch.arange(36).view(4, 9) % 7

    def weights(hidden, logprobs, ids):
        if exact:
            geometry = delta.lm_head(hidden, head().float(), ids, MASK)
        else:
            geometry = delta.head_row(hidden, logprobs, MASK)
        return credit_fn(*geometry, A, MASK)[0]

    with torch.no_grad():
        w = weights(hidden, logprobs, ids)
        assert torch.equal(weights(off(hidden, junk), off(logprobs, junk), off(ids, -100)), w)
    assert w[MASK].std() > .01 and (w[~MASK] == 0).all()


def test_delta_ignores_what_another_geometry_says_of_padding():
    hidden = made(4, 9, 5)
    centroid, inner = delta.head_row(hidden, -torch.ones(4, 9), MASK)
    w, _ = delta.delta_weights(centroid, inner, A, MASK)
    found, _ = delta.delta_weights(centroid, lambda d: off(inner(d), math.nan), A, MASK)
    assert torch.equal(found, w)


# ------------------------------------------------------------------ signals


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("signal", [saliency.gradient_activation, released.gradient_activation])
def test_gradient_activation(junk, signal):
    """Padding stands to the right of all that J reads, so by causality its gradient is 0."""
    s = signal(toy_forward(), SPANS)
    forward = toy_forward(padding=junk)
    assert not forward.embeddings.isfinite().all() or junk == 1e30
    found = signal(forward, SPANS)
    assert torch.equal(found, s) and (s > 0).any()


@pytest.mark.parametrize("junk", JUNK)
def test_concentration(junk):
    w = made(4, 9)
    for measure in (saliency.effective_sample_size_ratio, saliency.top_mass):
        assert torch.equal(measure(off(w, junk), MASK), measure(w * MASK, MASK))
        assert measure(w, MASK).isfinite().all()


# ------------------------------------------------------------------ the loss, and its gradient


def per_token_gradient(junk):
    """d loss / d hidden (B, T, H) of one step, with this value on the padding of every input."""
    hidden = off(made(4, 9, 5), junk).requires_grad_()
    ids = off(torch.arange(36).view(4, 9) % 7, -100)
    logprobs, entropy = token_logprobs(hidden, head(), ids, MASK, chunk=4)
    old, reference = (logprobs.detach() + .3 * made(4, 9, seed=seed) * MASK for seed in (4, 5))
    surrogate = grpo.clipped_surrogate((logprobs - old).exp(), A[:, None], .2, .28)
    loss = -((surrogate - .1 * grpo.k3(logprobs, reference))
             * grpo.token_scale(MASK, "token", 9)).sum()
    gradient, = torch.autograd.grad(loss, hidden)
    return loss.detach(), entropy, gradient


@pytest.mark.parametrize("junk", JUNK)
def test_token_logprobs_and_the_loss_on_top(junk):
    """Off the mask log-probs are 0 on both sides: the ratio there is 1 and its gradient 0."""
    loss, entropy, gradient = per_token_gradient(0.0)
    found = per_token_gradient(junk)
    for a, b in zip(found, (loss, entropy, gradient)):
        assert torch.equal(a, b) and a.isfinite().all()
    assert (gradient[~MASK] == 0).all() and (gradient[MASK] != 0).all()


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("function", [
    lambda x: grpo.clipped_surrogate(x, A[:, None].double(), .2, .28),
    lambda x: grpo.k3(x, torch.full_like(x, -1.0)), lambda x: grpo.k3(torch.full_like(x, -1.0), x)])
def test_the_parts_of_the_loss_are_elementwise(junk, function):
    """They know no mask: what stands on padding stays there, forward and backward, and one `where`
    takes it out of the sum."""
    found = []
    for value in (0.0, junk):
        x = off(made(4, 9).exp(), value).requires_grad_()
        loss = torch.where(MASK, function(x), 0.0).sum()
        gradient, = torch.autograd.grad(loss, x)
        found.append((loss.detach(), gradient[MASK]))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    assert found[0][0].isfinite()


@pytest.mark.parametrize("loss", ["token", "sequence", "constant"])
def test_token_scale_is_zero_on_padding(loss):
    scale = grpo.token_scale(MASK, loss, 9)
    assert (scale[~MASK] == 0).all() and (scale[MASK] > 0).all()
    assert grpo.token_scale(torch.zeros(2, 3, dtype=torch.bool), loss, 9).isfinite().all()


# ------------------------------------------------------------------ a row's fault is its own


@pytest.mark.parametrize("scale_by_std", [False, True])
def test_a_broken_group_is_nobody_else_s(scale_by_std):
    rewards = torch.tensor([[1., 0, 0, 1], [0, 1, 0, 0], [1, 1, 1, 1]]).requires_grad_()
    broken = rewards.detach().clone()
    broken[1, 2] = math.nan
    broken.requires_grad_()
    found = []
    for x in (rewards, broken):
        out = grpo.group_advantages(x, scale_by_std)
        gradient, = torch.autograd.grad(out[[0, 2]].square().sum(), x)
        found.append((out[[0, 2]].detach(), gradient[[0, 2]]))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])


def test_a_broken_count_is_nobody_else_s():
    found = evaluate.pass_at_k(torch.tensor([2., math.nan, 8.]), 8, 4)
    assert found[0] == pytest.approx(1 - 15 / 70) and found[1].isnan() and found[2] == 1


# ------------------------------------------------------------------ in an empty file


def signal_inputs():
    """J = sum of a's squares, whose gradient is 2 a, and a (b, L, H)."""
    a = made(4, 9, 5).requires_grad_()
    return a.square().sum(), a


def delta_by(helper):
    """delta_weights on top of its helper; a function of the namespace that has both."""
    hidden, ids = made(4, 9, 5).float(), torch.arange(36).view(4, 9) % 7
    arguments = {"head_row": (hidden, -torch.ones(4, 9), MASK),
                 "lm_head": (hidden, head().float(), ids, MASK)}[helper]

    def call(space):
        with torch.no_grad():
            return space["delta_weights"](*space[helper](*arguments), A, MASK)
    return call


CORES = {
    "group_advantages": ([grpo.group_advantages], lambda f: f(made(4, 9), True)),
    "clipped_surrogate": ([grpo.clipped_surrogate], lambda f: f(made(4, 9), A[:, None], .2, .28)),
    "token_scale": ([grpo.token_scale], lambda f: f(MASK, "sequence", 9)),
    "k3": ([grpo.k3], lambda f: f(made(4, 9), made(4, 9, seed=1))),
    "grail_credit": ([grail_credit], lambda f: f(made(4, 9).abs(), MASK, BOXES, A)),
    "oar_credit": ([oar_credit], lambda f: f(made(4, 9).abs(), MASK, MASK)),
    "pass_at_k": ([evaluate.pass_at_k], lambda f: f(torch.tensor([0, 3, 8]), 8, 4)),
    "token_logprobs": ([scores, token_logprobs], lambda f: f(
        made(4, 9, 5), head(), torch.arange(36).view(4, 9) % 7, MASK, .7, chunk=4)),
    "gradient_times_activation": (
        [saliency.gradient_times_activation], lambda f: f(*signal_inputs())),
    "gradient_dot_activation": (
        [saliency.gradient_dot_activation], lambda f: f(*signal_inputs(), made(4, 9, 5, seed=1))),
    "answer_shift": ([saliency.answer_shift], lambda f: f(
        made(3, 2, 7), made(3, 2, 7, seed=1), torch.tensor([1, 5]), "likelihood")),
    "before_answer": ([saliency.before_answer], lambda f: f(BOXES, 9)),
    "effective_sample_size_ratio": (
        [saliency.effective_sample_size_ratio], lambda f: f(made(4, 9), MASK)),
    "top_mass": ([saliency.top_mass], lambda f: f(made(4, 9), MASK)),
}


def bare(functions):
    """These functions, from their source alone, in a namespace that knows torch and nothing else:
    what somebody has who pasted them into an empty file below `import torch`."""
    space = {"torch": torch}
    for function in functions:
        exec(inspect.getsource(function), space)  # our own source
    return space


@pytest.mark.parametrize("name", CORES)
def test_a_core_runs_in_an_empty_file(name):
    """A helper or an import that was forgotten is a NameError, at once or later."""
    functions, call = CORES[name]
    torch.testing.assert_close(call(bare(functions)[name]), call(functions[-1]), rtol=0, atol=0)


@pytest.mark.parametrize("helper", ["head_row", "lm_head"])
def test_delta_runs_in_an_empty_file_with_either_helper(helper):
    call = delta_by(helper)
    found = call(bare([getattr(delta, helper), delta.delta_weights]))
    torch.testing.assert_close(found, call(vars(delta)), rtol=0, atol=0)
    assert found[0][MASK].std() > .01


# ------------------------------------------------------------------ the tensor cores, by hand


def test_the_small_cores_by_hand():
    """J = sum a^2: gradient 2 a, so the Hadamard product is 2 a^2 and the dot product 2 <a, b>."""
    J, a = signal_inputs()
    b = made(4, 9, 5, seed=1)
    expected = (2 * a.detach().square()).norm(dim=-1).float()
    torch.testing.assert_close(saliency.gradient_times_activation(J, a), expected)
    dot = saliency.gradient_dot_activation(J, a, b)  # the graph was kept
    torch.testing.assert_close(dot, (2 * a.detach() * b).sum(-1).abs())
    assert a.grad is None


@pytest.mark.parametrize("scored", [2, 3, 4, 9])
def test_the_quantile_of_oar_is_numpy_s(scored):
    """Interpolated linearly between the scored tokens, in float64 and over them alone."""
    s = made(1, 9).abs()
    on = torch.arange(9)[None] < scored
    z = s[0, :scored].log1p()
    n = (z - z.min()) / (z.max() - z.min())
    for q in (.1, .4, .7):
        tau = float(numpy.quantile(n.numpy(), q))
        w = torch.where(n < tau, (n / (tau + 1e-8)).clamp(min=.1),
                        1 + 2 * (n - tau) / (1 - tau + 1e-8))
        found, _ = oar_credit(s, on, torch.ones(1, 9).bool(), q=q, beta=2.)
        close(found[0, :scored], (w / w.mean()).tolist(), 1e-6)
        assert (found[0, scored:] == 1).all()


# ------------------------------------------------------------------ where the tensors are


def meta(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta")


def delta_on_meta(geometry):
    hidden, ids, mask = meta(4, 9, 5), meta(4, 9, dtype=torch.int64), meta(4, 9, dtype=torch.bool)
    if geometry == "lm_head":
        parts = delta.lm_head(hidden, head().float().to("meta"), ids, mask)
    else:
        parts = delta.head_row(hidden, meta(4, 9), mask)
    return delta.delta_weights(*parts, meta(4), mask)[0]


ON = {
    "grail_credit": lambda: grail_credit(meta(4, 9), meta(4, 9, dtype=torch.bool),
                                         meta(4, 4, dtype=torch.int64), meta(4)),
    "oar_credit": lambda: oar_credit(meta(4, 9), *[meta(4, 9, dtype=torch.bool)] * 2)[0],
    "head_row": lambda: delta_on_meta("head_row"),
    "lm_head": lambda: delta_on_meta("lm_head"),
    "before_answer": lambda: saliency.before_answer(meta(4, 4, dtype=torch.int64), 9),
    "top_mass": lambda: saliency.top_mass(meta(4, 9), meta(4, 9, dtype=torch.bool)),
    "effective_sample_size_ratio": lambda: saliency.effective_sample_size_ratio(
        meta(4, 9), meta(4, 9, dtype=torch.bool)),
    "token_logprobs": lambda: token_logprobs(
        meta(4, 9, 5), head().float().to("meta"), meta(4, 9, dtype=torch.int64),
        meta(4, 9, dtype=torch.bool), count=20)[0],
}


@pytest.mark.parametrize("name", ON)
def test_a_core_stays_where_its_tensors_are(name):
    """On the meta device: a tensor made on the CPU beside them is an error there, as on a card, and
    so is a number that is read, which on a card is to wait."""
    assert ON[name]().device.type == "meta"


def test_perturbation_stays_where_its_forward_is(monkeypatch):
    """The padding token, too, is looked up there: a card takes no index of the CPU's."""
    def table(pad):
        assert pad.device.type == "meta" and pad.dtype == torch.int64
        return meta(3)

    forward = SimpleNamespace(
        logprobs=meta(1, 4), embeddings=meta(1, 6, 3), completion_ids=meta(1, 4, dtype=torch.int64),
        position=torch.arange(1, 5)[None],
        head=torch.nn.Linear(3, 7, device="meta"),
        body=SimpleNamespace(get_input_embeddings=lambda: table),
        tokenizer=SimpleNamespace(pad_token_id=2))
    monkeypatch.setattr(saliency, "layers_again", lambda forward, x: x)
    assert saliency.perturbation(forward, boxes((1, 2, 3, 4))).device.type == "meta"


# ------------------------------------------------------------------ what must not matter


@pytest.mark.parametrize("size", [1e-6, 1e6])
@pytest.mark.parametrize("measure", [saliency.effective_sample_size_ratio, saliency.top_mass])
def test_concentration_has_no_unit_and_a_row_has_no_neighbours(measure, size):
    w = made(4, 9)
    alone = torch.cat([measure(w[i:i + 1, :n], torch.ones(1, n, dtype=torch.bool))
                       for i, n in enumerate(LENGTHS)])
    torch.testing.assert_close(measure(size * w, MASK), alone)


@pytest.mark.parametrize("exact", [False, True])
def test_delta_s_weights_do_not_depend_on_the_advantages_scale(exact):
    """The two means are weighted by |A| over its sum, however small the sum is."""
    hidden, ids = made(4, 9, 5), torch.arange(36).view(4, 9) % 7
    with torch.no_grad():
        if exact:
            geometry = delta.lm_head(hidden, head().float(), ids, MASK)
        else:
            geometry = delta.head_row(hidden, -torch.ones(4, 9), MASK)
        w, _ = delta.delta_weights(*geometry, A, MASK)
        small, _ = delta.delta_weights(*geometry, A / 1000, MASK)
    torch.testing.assert_close(small, w, atol=1e-5, rtol=0)


@pytest.mark.parametrize("exact", [False, True])
def test_delta_s_geometry_holds_no_padding(exact):
    """A sum over all tokens is one over those of the mask, and padding's products are 0."""
    hidden, ids = made(4, 9, 5), torch.arange(36).view(4, 9) % 7
    with torch.no_grad():
        if exact:
            centroid, inner = delta.lm_head(hidden, head().float(), ids, MASK)
        else:
            centroid, inner = delta.head_row(hidden, -torch.ones(4, 9), MASK)
        total = centroid(torch.ones(4, 9).double())
        assert torch.equal(total, centroid(MASK.double()))
        assert (inner(total)[~MASK] == 0).all() and (inner(total)[MASK] != 0).all()
