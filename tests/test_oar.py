"""OAR's signals and its two tiers against hand-derived cases, brute force and a known Hessian.

The cases R, B, M, K, P and G were computed by hand or in NumPy from the published formulas; the
cases O by running the functions of declare-lab/grail (commit 749aa4c).
"""
import contextlib
import dataclasses
import functools
import io
import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_grail import Pieces, boxes, close, known_forward, known_qwen3, known_rollouts
from test_rollout import CONFIGS, tiny

import oar
import problems
import released
import saliency
from engine import perturb, seeds
from engine.errors import BadInput
from logprobs import forward_pass
from oar import oar_credit
from saliency import answer_shift, effective_sample_size_ratio, input_gradient, top_mass

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import fidelity


def perturbation(forward, spans, outcome="mean", replace="pad", chunk=0):
    """OAR-P as oar.py runs it."""
    shift = functools.partial(answer_shift, outcome=outcome)
    return perturb.perturbation(forward, spans, shift, replace, chunk)


def reshape(s, q=.25, beta=1., reproduced=False, scored=None, log=False):
    """Weights of one row; log: s is given as z = log(1 + s)."""
    s = torch.tensor([s], dtype=torch.float64)
    s = s.expm1() if log else s
    mask = torch.ones(s.shape, dtype=torch.bool)
    scored = mask if scored is None else torch.tensor([scored])
    credit_fn = released.oar_credit if reproduced else oar_credit
    w, fell_back = credit_fn(s, scored, mask, q=q, beta=beta)
    return w[0].double(), bool(fell_back)


def measured(w):
    mask = torch.ones(1, len(w), dtype=torch.bool)
    return [float(f(w[None], mask)) for f in (effective_sample_size_ratio, top_mass)]


# ------------------------------------------------------------------ two tiers

FIVE, TEN = [0., 1, 2, 3, 4], [k / 3 for k in range(10)]


@pytest.mark.parametrize("z, q, beta, weights, ess, top", [
    (FIVE, .25, 1., [.081967, .819672, 1.092896, 1.366120, 1.639344], .778000, .327869),
    (FIVE, .4, 2., [.069204, .432526, .922722, 1.499423, 2.076125], .657735, .415225),
    (TEN, .4, 2., [.070367, .195465, .390930, .586396, .807923, 1.068543, 1.329163, 1.589784,
                   1.850404, 2.111024], .689233, .211102),
    (TEN, .25, 1., {0: .081154, 9: 1.623084}, .818509, .162308)])
def test_two_tiers_by_hand(z, q, beta, weights, ess, top):
    """R1, R2, R3, R3c: the quantile interpolates, and the threshold is the quantile's VALUE."""
    w, fell_back = reshape(z, q, beta, log=True)
    places = weights if isinstance(weights, dict) else dict(enumerate(weights))
    close(w[list(places)], list(places.values()), 1e-6)
    close(measured(w), [ess, top], 1e-6)
    assert not fell_back and abs(float(w.mean()) - 1) < 1e-6


@pytest.mark.parametrize("z, q, beta, weights, ess, top", [
    (FIVE, .25, 1., [.081967, .819672, 1.092896, 1.366120, 1.639344], .778000, .327869),
    (FIVE, .4, 2., [.075758, .378788, .757576, 1.515152, 2.272727], .610940, .454545),
    (TEN, .4, 2., [.073529, .183824, .367647, .551471, .735294, 1.029412, 1.323529, 1.617647,
                   1.911765, 2.205882], .668087, .220588),
    (TEN, .25, 1., {0: .079365, 9: 1.587302}, .830459, .158730)])
def test_the_reproduction_takes_an_order_statistic(z, q, beta, weights, ess, top):
    """R1, R2b, R3b, R3d: index floor(q n), no interpolation."""
    w, _ = reshape(z, q, beta, reproduced=True, log=True)
    places = weights if isinstance(weights, dict) else dict(enumerate(weights))
    close(w[list(places)], list(places.values()), 1e-6)
    close(measured(w), [ess, top], 1e-6)


HEAVY = [0, .01, .02, .05, .1, .2, .5, 1, 5, 50]


@pytest.mark.parametrize("s, q, beta, reproduced, weights, ess", [
    ([0, 0, 0, 1], .25, 1., False, [.8, .8, .8, 1.6], .892857),
    ([0, 1, 1, 1], .5, 1., False, [.129032] + [1.290323] * 3, .798173),
    ([0, 1, 1, 1], .25, 1., False, [.065574] + [1.311475] * 3, .774563),
    ([1, 2], .25, 1., False, [.095238, 1.904762], .549875),
    ([1e-9, 2e-9, 3e-9, 5e-9], .25, 1., False, [.087690, .944351, 1.214165, 1.753794], .734015),
    (HEAVY, .25, 1., False, [.100178, .368512, .733393, 1.007362, 1.019297, 1.041620, 1.098868,
                             1.172674, 1.454527, 2.003569], .797764),
    (HEAVY, .4, 2., True, [.096832, .101092, .201188, .495692, .968321, 1.012244, 1.124885,
                           1.270105, 1.824676, 2.904965], .591196)])
def test_ties_small_and_heavy_signals(s, q, beta, reproduced, weights, ess):
    """R5 to R10b. Ties at the minimum that reach past the quantile leave nothing to suppress; a
    signal of 1e-9 is no flat one; in float32, log(1 + 1e-9) would be."""
    w, fell_back = reshape(s, q, beta, reproduced)
    close(w, weights, 2e-6)
    close(measured(w)[0], ess, 1e-6)
    assert not fell_back


def test_the_level_is_not_the_threshold():
    """R10c: comparing n with q itself, as one description has it, gives these other weights, whose
    ESS of .404 is under the least that the scheme allows."""
    n = torch.tensor(HEAVY).double().log1p()
    n = n / n.max()
    w = torch.where(n < .25, (n / .25).clamp(min=.1), 1 + (n - .25) / .75)
    wrong = w * 10 / w.sum()
    close(wrong, [.196950] * 5 + [.365309, .812412, 1.388827, 2.509691, 3.939009], 1e-6)
    assert measured(wrong)[0] < .6989 < measured(reshape(HEAVY)[0])[0]


@pytest.mark.parametrize("scale, weights", [
    (1., [1.044215, .086769, 1.735385, .867693, 1.265938]),
    (10., [1.123212, .081887, 1.637742, .818871, 1.338288]),
    (1e-6, [1.014292, .089903, 1.798064, .899032, 1.198707])])
def test_the_logarithm_makes_weights_depend_on_the_scale(scale, weights):
    """R11: log1p bends signals near 1 and leaves small ones alone."""
    close(reshape([scale * x for x in (.3, 0, 2, .05, .7)])[0], weights, 3e-6)


def test_a_threshold_a_hair_below_the_top():
    """n = 0, 1 - 1e-8, 1: tau is the middle one, 1e-8 from 1, and 1e-8 is added to the divisor, so
    the largest gets 1 + 1/2 before the division by the mean."""
    w, _ = reshape([0., 1 - 1e-8, 1.], q=.5, log=True)
    close(w, [3 * x / 2.6 for x in (.1, 1, 1.5)], 1e-6)


def test_a_permuted_signal_gives_permuted_weights():
    """R12, exactly: no position enters."""
    order = [3, 0, 9, 1, 7, 5, 2, 8, 6, 4]
    w = reshape(HEAVY)[0]
    assert torch.equal(reshape([HEAVY[i] for i in order])[0], w[order])


def test_mass_is_kept_and_signs_are_too():
    """R13, R14: without the division the mean weight of R1 would be 1.22, a longer step and not
    another credit."""
    w = reshape(FIVE, log=True)[0]
    close([(.8 * w).sum(), (-1.2 * w).sum()], [4., -6.], 1e-6)
    assert (w > 0).all() and abs(float(w.sum() / w[1] * .819672 - 5)) < 1e-5


def test_tokens_that_are_not_scored_keep_weight_one():
    """R15: the box and what follows it enter neither the threshold nor the mass."""
    for tail in (1., 1e6):
        w, _ = reshape([0., math.e - 1, math.e**2 - 1, tail, tail], scored=[True] * 3 + [False] * 2)
        close(w, [.087379, 1.165049, 1.747573, 1, 1], 1e-6)


@pytest.mark.parametrize("s", [[.7] * 4, [0.] * 4, [3.], [1e-12] * 3, [.3, .3 * (1 + 1e-9), .3],
                               [1., math.nan, 2.], [1., math.inf, 2.]])
def test_flat_short_and_broken_signals_fall_back_to_ones(s):
    """R4, R7: min-max stretches rounding noise over [0, 1] and makes ordinary-looking weights."""
    w, fell_back = reshape(s)
    assert fell_back and (w == 1).all()


def test_a_broken_signal_breaks_no_other_row():
    s = torch.tensor([[1., 2], [1, math.nan], [1, 2]])
    mask = torch.ones(3, 2, dtype=torch.bool)
    w, fell_back = oar_credit(s, mask, mask)
    assert fell_back.tolist() == [False, True, False]
    close(w, [[.095238, 1.904762], [1, 1], [.095238, 1.904762]], 1e-6)


def test_negative_signals_count_as_nothing():
    """R16: log(1 + s) of -1.5 is not finite; a likelihood that rose is no importance."""
    assert torch.equal(reshape([-1.5, -.3, 1., 2.])[0], reshape([0., 0., 1., 2.])[0])


def test_a_batch_with_padding():
    """B1, B2: each row has its own threshold and its own mass; a pooled ESS is another figure."""
    z = torch.tensor([[0., 1, 2, 3, 4], [0, 1, 9, 9, 9], [7, 7, 7, 0, 0], [5] * 5]).double()
    mask = torch.tensor([[1] * 5, [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0] * 5]).bool()
    w, fell_back = oar_credit(z.expm1(), mask, mask)
    close(w, [[.081967, .819672, 1.092896, 1.366120, 1.639344], [.095238, 1.904762, 0, 0, 0],
              [1, 1, 1, 0, 0], [0] * 5], 1e-6)
    assert fell_back.tolist() == [False, False, True, True]
    A = torch.tensor([.5, -1, 2, 0])[:, None]
    ess = effective_sample_size_ratio(A * w, mask)
    close(ess[:3], [.778000, .549875, 1], 1e-6)
    close(ess[:3].mean(), .775958, 1e-6)
    pooled = (A * w)[mask]
    close(measured(pooled), [.639358, .190476], 1e-6)
    close(measured(A.expand(4, 5)[mask]), [.722951, .190476], 1e-6)


# ------------------------------------------------------------------ how concentrated


@pytest.mark.parametrize("a, ess, top", [
    ([1.] * 20, 1, .1), ([0.] * 19 + [1.], .05, 1), ([1., 2, 3, 4], .833333, .4),
    ([-.5, -1, -1.5, -2], .833333, .4), ([.1] * 10 + [2.] * 10, .549875, .190476),
    (list(map(float, range(1, 21))), .768293, .185714),
    (list(map(float, range(1, 16))), .774194, .241667), ([.1, 1, 1, 1, 2], .742083, .392157),
    ([1.] * 70, 1, .1)])
def test_concentration_by_hand(a, ess, top):
    """M1 to M7: the number of largest tokens is rounded up, from products that are not exact."""
    close(measured(torch.tensor(a)), [ess, top], 1e-6)


@pytest.mark.parametrize("q, beta, least, most", [(.25, 1., .6989, .2286), (.4, 2., .4890, .3571)])
def test_the_scheme_cannot_concentrate_more_than_this(q, beta, least, most):
    """For long rows; a figure outside means a bug or another definition."""
    generator = torch.Generator().manual_seed(0)
    s = torch.rand(50, 400, generator=generator, dtype=torch.float64) ** torch.linspace(.1, 30, 50
                                                                                     )[:, None]
    mask = torch.ones(s.shape, dtype=torch.bool)
    w, _ = oar_credit(s, mask, mask, q=q, beta=beta)
    assert effective_sample_size_ratio(w, mask).min() > least - .01
    assert top_mass(w, mask).max() < most + .005


# ------------------------------------------------------------------ the reproduction, to the digit


@pytest.mark.parametrize("s, scored, settings, expected", [
    (list(range(13)) + [0, 0], True, {},
     [.0697407, .300357, .476054, .600713, .697407, .963552, 1.18857, 1.3835, 1.55543, 1.70923,
      1.84836, 1.97538, 2.09222, .0697407, .0697407]),
    (list(range(13)) + [0, 0], False, {}, [1] * 15),                             # no box
    ([.5] * 15, True, {}, [1] * 15),
    ([1, .5, .25, .125] + [0] * 22, True, {},
     [2.58675, 1.87102, 1.41742, 1.15529] + [.862251] * 22),
    (list(range(13)) + [0, 0], True, {"q": .7, "beta": 1.},
     [.117731, .3714, .588654, .742799, .862363, .960054, 1.04265, 1.1142, 1.17731, 1.51463,
      1.81978, 2.09835, 2.35462, .117731, .117731]),
    ([1e-8 * i for i in range(1, 14)], True, {}, [.152941] * 5 + [1.52941] * 8)])
def test_reproduction_weights(s, scored, settings, expected):
    """O1, O3 to O5, O7, O8: the last shows log(1 + x) in float32 falling into two steps."""
    w, _ = reshape([float(x) for x in s], **{"q": .4, "beta": 2., **settings}, reproduced=True,
                   scored=[scored] * len(s))
    close(w, expected)


def test_the_reproduction_divides_by_almost_nothing():
    """Signals of one and two steps of float32 beside a huge one: the threshold is 1.2e-8, and half
    of it must weigh .5. With 1e-8 under the division it would weigh .27."""
    w, _ = reshape([0, 2**-23, 2**-22, math.exp(20)], .5, 2., reproduced=True)
    close(w, [4 * x / 4.6 for x in (.1, .5, 1, 3)], 1e-4)


def test_reproduction_padding_and_masked_rows():
    """O2, O6: padding gets 0 and changes nothing; a row that is all masked gives zeros, no NaN."""
    s = torch.tensor([list(range(13)) + [0.] * 5] * 2)
    mask = torch.tensor([[True] * 15 + [False] * 3, [False] * 18])
    w, _ = released.oar_credit(s, mask, mask)
    close(w[0, :3], [.0697407, .300357, .476054])
    assert (w[0, 15:] == 0).all() and (w[1] == 0).all()


# ------------------------------------------------------------------ how far an answer moves


@pytest.mark.parametrize("clean, other, expected", [
    ([0., 0], [math.log(3), 0], .143841), ([math.log(3), 0], [0., 0], .130812),
    ([2., 1, 0], [1., 1, 1], .266217), ([1., 1, 1], [2., 1, 0], .308994),
    ([2., 1, 0], [5., 4, 3], 0), ([2., 1, 0], [1.9, 1, .1], .002180143),
    ([2., 1, 0], [0., 1, 2], 1.150420765), ([2., 1, 0], [2., 0, 1], .154697898)])
def test_kl_of_clean_from_perturbed(clean, other, expected):
    """K1 to K3, P1: the clean distribution comes first, and a shift of all logits is nothing."""
    clean, other = (torch.tensor([x], dtype=torch.float64) for x in (clean, other))
    for outcome in ("mean", "each", "first"):
        close(answer_shift(clean, other, torch.tensor([0]), outcome), expected, 1e-6)


def test_four_read_outs_of_two_positions_that_swap():
    """K4, K5: the mean of the logits does not see a swap, the mean of the KLs does; the likelihood
    falls by 4 nats a token."""
    clean = torch.tensor([[4., 0, 0], [0, 4, 0]]).double()
    ids = torch.tensor([0, 1])
    found = [float(answer_shift(clean, clean.flip(0), ids, outcome))
             for outcome in ("mean", "each", "first", "likelihood")]
    close(found, [0, 3.787979, 3.787979, 4.0], 1e-6)
    close(answer_shift(clean.flip(0), clean, ids, "likelihood"), -4.0, 1e-6)


def shift_by_hand(clean, other, ids, outcome):
    """The four read-outs of one answer, from lists (K, V) of logits, in plain loops."""
    def log_softmax(z):
        normaliser = math.log(sum(map(math.exp, z)))
        return [x - normaliser for x in z]

    def kl(a, b):
        p, q = log_softmax(a), log_softmax(b)
        return sum(math.exp(x) * (x - y) for x, y in zip(p, q))

    K = len(ids)
    if outcome == "mean":
        return kl(*([sum(column) / K for column in zip(*z)] for z in (clean, other)))
    if outcome == "first":
        return kl(clean[0], other[0])
    if outcome == "each":
        return sum(map(kl, clean, other)) / K
    return sum(log_softmax(a)[y] - log_softmax(b)[y] for a, b, y in zip(clean, other, ids)) / K


@pytest.mark.parametrize("outcome", ["mean", "each", "first", "likelihood"])
def test_many_answers_at_once_are_read_one_by_one(outcome):
    """(N, K, V): N positions were changed; a mean over the wrong dimension would mix them."""
    generator = torch.Generator().manual_seed(0)
    clean, other = torch.randn(2, 5, 3, 4, generator=generator, dtype=torch.float64)
    ids = torch.tensor([2, 0, 3])
    expected = [shift_by_hand(a.tolist(), b.tolist(), ids.tolist(), outcome)
                for a, b in zip(clean, other)]
    close(answer_shift(clean, other, ids, outcome), expected, 1e-9)
    expected = [shift_by_hand(clean[0].tolist(), b.tolist(), ids.tolist(), outcome) for b in other]
    close(answer_shift(clean[0], other, ids, outcome), expected, 1e-9)
    if outcome == "mean":
        close(answer_shift(clean[0], other, ids), expected, 1e-9)


@pytest.mark.parametrize("reproduced, q, beta, weights, ess", [
    (False, .25, 1., [.093309, .933754, 1.866177, 1.106760], .715802),
    (True, .4, 2., [.073112, .731116, 2.193347, 1.002425], .629376)])
def test_from_four_perturbations_to_weights(reproduced, q, beta, weights, ess):
    """P1, end to end but for the model."""
    other = torch.tensor([[2., 1, 0], [1.9, 1, .1], [0, 1, 2], [2, 0, 1]]).double()[:, None]
    s = answer_shift(torch.tensor([[2., 1, 0]]).double(), other, torch.tensor([0]))
    w, _ = reshape(s.tolist(), q, beta, reproduced)
    close(w, weights, 2e-6)
    close(measured(w)[0], ess, 2e-6)


# ------------------------------------------------------------------ OAR-G on a linear model


class Running(torch.nn.Module):
    """Hidden state at position p: the sum of c_s e_s over s <= p."""

    def __init__(self, coefficients):
        super().__init__()
        self.c = torch.tensor(coefficients, dtype=torch.float64)[:, None]  # (L, 1)

    def forward(self, inputs_embeds, **_):
        return SimpleNamespace(
            last_hidden_state=(self.c[:inputs_embeds.shape[1]] * inputs_embeds).cumsum(1))


def linear_forward(before):
    """Logits (sum_t b_t e_t, 0) with b = 1, .8, 0 and e = 1, 2, -1; `before` positions precede."""
    e = [0.] * before + [1., 2., -1.] + [0.] * 4
    b = [0.] * before + [1., .8, 0.] + [0.] * 4
    head = torch.nn.Linear(1, 2, bias=False, dtype=torch.float64)
    head.weight.data = torch.tensor([[1.], [0.]], dtype=torch.float64)
    T, body, embeddings = len(e) - 1, Running(b), torch.tensor([e], dtype=torch.float64)[..., None]
    return SimpleNamespace(
        embeddings=embeddings, layers=lambda x: body(x).last_hidden_state, head=head,
        hidden=body(embeddings).last_hidden_state[:, :-1],
        position=torch.arange(1, T + 1)[None], logprobs=torch.zeros(1, T),
        completion_ids=torch.zeros(1, T, dtype=torch.int64), sampled=[[0] * T],
        completion_mask=torch.ones(1, T, dtype=torch.bool))


NOISE = [.02, -.01, .3]


def with_noise(monkeypatch, values):
    """input_gradient's normal numbers, times its sigma of 1e-3, become these, then zeros."""
    def normals(key, like):
        out = torch.zeros_like(like)
        out[:len(values), 0] = 1e3 * torch.tensor(values, dtype=like.dtype)
        return out
    monkeypatch.setattr(saliency, "normals", normals)


@pytest.mark.parametrize("noise, scores, weights", [
    (NOISE, [7.68318e-4, 1.229309e-3, 0], [1.227697, 1.687907, .084395]),
    ([-x for x in NOISE], [7.76304e-4, 1.242086e-3, 0], [1.227698, 1.687906, .084395]),
    ([.1 * x for x in NOISE], [7.71900e-5, 1.235041e-4, 0], [1.227629, 1.687972, .084399]),
    ([0.] * 3, [0] * 3, [1] * 3),
    ([.08, -.1, .3], [0] * 3, [1] * 3)])
def test_one_draw_on_a_linear_outcome(noise, scores, weights, monkeypatch):
    """G1 and G1a to G1d: the clean embedding multiplies, the scale of the noise cancels, no noise
    says nothing, and a draw whose effects cancel misses what matters."""
    with_noise(monkeypatch, noise)
    s = input_gradient(linear_forward(1), boxes((3, 4, 5, 6)), draws=1)
    close(s[0, :3], scores, 2e-9)
    close(s[0, 3:], [0] * 4)
    close(reshape(s[0, :3].tolist())[0], weights, 2e-6)


def test_the_reproduction_scores_the_position_before_with_the_noisy_embedding(monkeypatch):
    """G1 once more: here the three embeddings stand one place earlier, the first in the prompt."""
    with_noise(monkeypatch, NOISE)
    forward = linear_forward(0)
    s = released.input_gradient(forward, boxes((3, 4, 5, 6)))
    # Several positions predict the box and all have the same logits: their mean is G1's.
    close(s[0, :3], [7.83684e-4, 1.223162e-3, 0], 2e-9)


def test_the_kl_of_case_g1():
    logits = torch.tensor([[[2.6, 0.]], [[2.612, 0.]]], dtype=torch.float64)
    close(answer_shift(logits[0], logits[1], torch.tensor([0])), 4.61786e-6, 1e-11)


# ------------------------------------------------------------------ both signals on real models

SPANS = boxes((5, 6, 8, 9), (4, 5, 6, 7))


def oar_forward(model):
    forward = known_forward(model)
    forward.tokenizer = SimpleNamespace(pad_token_id=9)
    return forward


def answer_logits(model, embeddings, row, span):
    """Logits that predict the box's content, from a plain forward of one row's embeddings."""
    first = 4 - int((~known_rollouts().prompt_mask[row]).sum())
    logits = model(inputs_embeds=embeddings[None]).logits[0]
    return logits[first + span[1] - 1:first + span[2] - 1]


def row_embeddings(model, row):
    rollouts = known_rollouts()
    ids = torch.cat([rollouts.prompt_ids[row][rollouts.prompt_mask[row]],
                     rollouts.completion_ids[row]])
    return model.get_input_embeddings()(ids).detach()


@pytest.mark.parametrize("outcome", ["mean", "each", "first", "likelihood"])
@pytest.mark.parametrize("chunk", [2, 4, 64])
@pytest.mark.parametrize("replace", ["pad", "mean"])
def test_perturbation_is_the_definition(outcome, chunk, replace):
    """Each token is replaced on its own and everything is run again, with no cache and no chunk: a
    cache that keeps the perturbed token, or a chunk that shares one, gives other numbers."""
    model = known_qwen3().double()
    found = perturbation(oar_forward(model), SPANS, outcome, replace, chunk)
    expected = torch.zeros(2, 10)
    for row, span in enumerate(SPANS.tolist()):
        E = row_embeddings(model, row)
        first = 3 if row == 0 else 4
        ids = known_rollouts().completion_ids[row, span[1]:span[2]]
        pad = model.get_input_embeddings()(torch.tensor(9)).detach()
        clean = answer_logits(model, E, row, span)
        for t in range(span[0]):
            changed = E.clone()
            changed[first + t] = pad if replace == "pad" else E[first:first + span[0]].mean(0)
            expected[row, t] = answer_shift(clean, answer_logits(model, changed, row, span), ids,
                                            outcome)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-5)
    naive = saliency.perturbation(oar_forward(model), SPANS, outcome, replace)
    torch.testing.assert_close(found, naive, atol=1e-9, rtol=1e-5)
    assert (found[:, :4].abs() > 1e-6).all()


@pytest.mark.parametrize("architecture", CONFIGS)
def test_perturbation_on_every_architecture(architecture):
    """Scaled embeddings (Gemma) and other caches; here a replaced id, not a replaced embedding."""
    model = tiny(architecture)
    rollouts = dataclasses.replace(known_rollouts())
    forward = forward_pass(model, rollouts, torch.arange(2), 1.0, texts=[], rewards=None,
                                advantages=None, tokenizer=SimpleNamespace(pad_token_id=9))
    found = perturbation(forward, SPANS, chunk=3)
    ids = torch.cat([rollouts.prompt_ids[1], rollouts.completion_ids[1]])[None]
    start, content, close_, _ = SPANS[1].tolist()
    with torch.no_grad():
        for t in range(start):
            changed = ids.clone()
            changed[0, 4 + t] = 9
            a, b = (model(x).logits[0, 4 + content - 1:4 + close_ - 1] for x in (ids, changed))
            assert float(found[1, t]) == pytest.approx(float(answer_shift(a, b, None)), rel=2e-3,
                                                       abs=1e-5)


def test_rows_of_one_prompt_share_its_cache_and_nothing_else():
    """Row 1 gets row 0's prompt, which is run once; a cache that row 0 has written into, or one
    that is looked up by the prompt's length, would change its scores."""
    known, model = known_rollouts(), known_qwen3()
    known.prompt_ids[1], known.prompt_mask[1] = known.prompt_ids[0], known.prompt_mask[0]
    known.prompt_ids = torch.cat([known.prompt_ids, torch.tensor([[0, 3, 7, 12]])])
    known = dataclasses.replace(known, prompt_mask=known.prompt_mask[[0, 1, 1]], texts=[""] * 3,
                                completion_ids=known.completion_ids[[0, 1, 1]],
                                lengths=known.lengths[[0, 1, 1]])

    def of(*rows):
        forward = forward_pass(model, known, list(rows), 1.0, texts=[], rewards=None,
                                    advantages=None, tokenizer=SimpleNamespace(pad_token_id=9))
        return perturbation(forward, SPANS[[0, 1, 1]][list(rows)], chunk=3)

    seen = []
    hook = model.model.layers[0].register_forward_hook(
        lambda module, args, out: seen.append(tuple(args[0].shape[:2])))
    together = of(0, 1, 2)
    hook.remove()
    assert seen.count((1, 3)) == 2  # two prompts of three tokens
    for row in range(3):
        torch.testing.assert_close(together[row, :8], of(row)[0, :8], rtol=1e-3, atol=1e-8)
    assert (together[1] - together[2]).abs().max() > 1e-6


def test_perturbation_computes_half_the_tokens_and_holds_one_chunk():
    """The definition runs N x L tokens; one un-chunked batch of it does not fit a card."""
    T, chunk = 90, 8
    model, generator = known_qwen3().eval(), torch.Generator().manual_seed(0)
    model.config.max_position_embeddings = 128
    rollouts = dataclasses.replace(
        known_rollouts(), completion_ids=torch.randint(2, 30, (2, T), generator=generator),
        lengths=torch.tensor([T, T]))
    forward = forward_pass(model, rollouts, torch.tensor([1]), 1.0, texts=[], rewards=None,
                                advantages=None, tokenizer=SimpleNamespace(pad_token_id=9))
    seen = []
    hook = model.model.layers[0].register_forward_hook(
        lambda module, args, out: seen.append(tuple(args[0].shape[:2])))
    perturbation(forward, boxes((80, 83, 85, 86)), chunk=chunk)
    hook.remove()
    assert max(rows for rows, _ in seen) == chunk
    assert sum(rows * tokens for rows, tokens in seen) < .65 * 80 * 88


def test_one_draw_is_a_hessian_vector_product():
    """To first order in sigma the score is |<e_t, (H delta)_t>|, H the Hessian of the KL, here by
    differentiating twice. A score of the gradient's norm, or of the noisy answer, is another."""
    model = known_qwen3().double()
    model.set_attn_implementation("eager")  # the fused one cannot be differentiated twice
    found = input_gradient(oar_forward(model), SPANS, draws=1, sigma=3e-5, seed=5)
    for row, span in enumerate(SPANS.tolist()):
        E, first = row_embeddings(model, row), 3 if row == 0 else 4
        with torch.no_grad():
            clean = answer_logits(model, E, row, span)
        rollouts = known_rollouts()
        key = (5, 0, rollouts.completion_ids[row, :rollouts.lengths[row]].tolist())
        at = slice(first, first + span[0])
        delta = torch.zeros_like(E)
        delta[at] = 3e-5 * seeds.normals(key, E[at])
        leaf = E.clone().requires_grad_()
        g, = torch.autograd.grad(answer_shift(clean, answer_logits(model, leaf, row, span), None),
                                 leaf, create_graph=True)
        Hd, = torch.autograd.grad((g * delta).sum(), leaf)
        expected = (E * Hd).sum(-1).abs()[at].float()
        torch.testing.assert_close(found[row, :span[0]], expected, rtol=2e-2, atol=1e-11)
        assert (found[row, span[0]:] == 0).all() and expected.min() > 0


@pytest.mark.parametrize("outcome", ["mean", "each", "first", "likelihood"])
def test_input_gradient_is_the_definition(outcome):
    """For every draw: noise before the box, one row's plain forward, K of its answer by loops over
    the draws alone; the mean over draws of |<dK/de_t, e_t>|."""
    model, draws = known_qwen3().double(), 3
    spans = boxes((5, 6, 8, 9), (4, 5, 7, 8))
    found = input_gradient(oar_forward(model), spans, draws, seed=5, outcome=outcome)
    expected = torch.zeros(2, 10, dtype=torch.float64)
    for row, span in enumerate(spans.tolist()):
        E, first = row_embeddings(model, row), 3 if row == 0 else 4
        rollouts = known_rollouts()
        sampled = rollouts.completion_ids[row, :rollouts.lengths[row]].tolist()
        ids, at = torch.tensor(sampled[span[1]:span[2]]), slice(first, first + span[0])
        with torch.no_grad():
            clean = answer_logits(model, E, row, span)
        for draw in range(draws):
            leaf = E.clone()
            leaf[at] += 1e-3 * seeds.normals((5, draw, sampled), E[at])
            leaf.requires_grad_()
            K = answer_shift(clean, answer_logits(model, leaf, row, span), ids, outcome)
            g, = torch.autograd.grad(K, leaf)
            expected[row, :span[0]] += (g * E).sum(-1).abs()[at] / draws
    torch.testing.assert_close(found, expected.float(), rtol=1e-3, atol=1e-10)


def test_four_draws_and_the_mean_of_the_logits_are_the_defaults():
    model = known_qwen3().double()
    found = input_gradient(oar_forward(model), SPANS)
    again = input_gradient(oar_forward(model), SPANS, 4, 1e-3, 0, "mean")
    torch.testing.assert_close(found, again, rtol=1e-6, atol=0)
    found = saliency.perturbation(oar_forward(model), SPANS)
    again = saliency.perturbation(oar_forward(model), SPANS, "mean", "pad")
    torch.testing.assert_close(found, again, rtol=1e-6, atol=0)


@pytest.mark.parametrize("signal", [input_gradient, saliency.perturbation])
def test_what_autocast_gives_the_head_is_in_its_own_precision(signal):
    """On a card the layers give bf16 and the head's weights are fp32: without a cast it refuses."""
    forward = oar_forward(known_qwen3())
    layers = forward.layers
    forward.layers = lambda x: layers(x).bfloat16()
    assert signal(forward, SPANS).isfinite().all()


def test_the_layers_run_in_bf16_on_a_card_and_in_fp32_elsewhere(monkeypatch):
    asked, real = [], torch.autocast

    def autocast(*args, **options):
        asked.append((args, options))
        return real("cpu", torch.bfloat16, enabled=False)

    monkeypatch.setattr(torch, "autocast", autocast)
    forward = SimpleNamespace(layers=lambda x: x)
    for kind in ("cpu", "cuda"):
        saliency.layers_again(forward, SimpleNamespace(device=SimpleNamespace(type=kind)))
    assert asked == [(("cpu", torch.bfloat16), dict(enabled=False)),
                     (("cuda", torch.bfloat16), dict(enabled=True))]


@pytest.mark.parametrize("signal", [functools.partial(input_gradient, draws=2),
                                    released.input_gradient])
def test_noise_does_not_depend_on_batch_padding_or_order(signal):
    """Noise from a shared stream changes with every micro-batch, and a resumed run with it."""
    model = known_qwen3()
    together = signal(oar_forward(model), SPANS)
    for row in (0, 1):
        torch.manual_seed(row)
        forward = forward_pass(model, known_rollouts(), torch.tensor([row]), 1.0, texts=[],
                                    rewards=None, advantages=None, tokenizer=None)
        alone = signal(forward, SPANS[[row]])[0]
        torch.testing.assert_close(alone, together[row, :len(alone)], rtol=1e-2, atol=1e-9)
    other = signal(oar_forward(model), SPANS, seed=1)
    assert not torch.allclose(other, together, rtol=1e-2)


def test_draws_are_averaged_and_differ():
    model, found = known_qwen3().double(), {}
    for draws in (1, 2):
        found[draws] = input_gradient(oar_forward(model), SPANS, draws=draws)
    second = 2 * found[2] - found[1]
    assert (second[0, :5] > 0).all() and not torch.allclose(second, found[1], rtol=.1)


def test_the_scale_of_the_noise_cancels():
    model = known_qwen3().double()
    a, b = (input_gradient(oar_forward(model), SPANS, sigma=sigma)[0, :5].double()
            for sigma in (1e-4, 1e-5))
    torch.testing.assert_close(a / a.sum(), b / b.sum(), rtol=2e-2, atol=1e-6)


def test_without_noise_there_is_no_signal():
    """What is left is rounding, which min-max would stretch over [0, 1]."""
    s = input_gradient(oar_forward(known_qwen3()), SPANS, sigma=0.0)
    assert (s == 0).all()


@pytest.mark.parametrize("signal", [input_gradient, perturbation, saliency.perturbation,
                                    released.input_gradient])
def test_rows_without_an_answer_are_skipped_and_change_no_other(signal):
    """No box, an empty box, nothing before the box."""
    forward = oar_forward(known_qwen3())
    both = signal(forward, SPANS)
    alone = signal(forward, boxes(None, (4, 5, 6, 7)))
    assert (alone[0] == 0).all()
    torch.testing.assert_close(alone[1], both[1], rtol=1e-2, atol=1e-9)
    for span in (None, (4, 6, 6, 7), (0, 1, 2, 3)):
        if signal is released.input_gradient and span:
            continue  # it asks about all of a box, the empty one's braces too
        assert (signal(forward, boxes(span, None)) == 0).all()


@pytest.mark.parametrize("signal", [input_gradient, perturbation])
@pytest.mark.parametrize("checkpointing", [True, False])
def test_signals_leave_the_policy_gradient_alone(signal, checkpointing):
    """The released script clears the gradients and calls backward inside the loss. Here .grad is
    bit-identical with and without the signal, train mode is as it was, and the signal the same."""
    model = known_qwen3()
    expected = signal(oar_forward(model), SPANS)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    gradients = []
    for with_signal in (False, True):
        model.zero_grad()
        forward = oar_forward(model)
        if with_signal:
            s = signal(forward, SPANS)
            torch.testing.assert_close(s, expected, rtol=1e-2, atol=1e-9)
            assert s.abs().sum() > 0 and not s.requires_grad
            assert model.model.training == model.training == checkpointing
            assert all(p.grad is None for p in model.parameters())
        forward.logprobs.sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients))


def test_perturbation_runs_without_dropout_and_puts_the_mode_back():
    """In train mode, which --checkpointing needs, dropout between a clean and a changed copy would
    be taken for the token's influence."""
    model = known_qwen3()
    expected = perturbation(oar_forward(model), SPANS)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = .5
    forward = oar_forward(model)
    model.train()
    torch.testing.assert_close(perturbation(forward, SPANS), expected, rtol=1e-4, atol=1e-9)
    assert model.model.training and model.model.layers[0].training


# ------------------------------------------------------------------ the parts, wired


def settings(**changes):
    return SimpleNamespace(**{"as_released": "no", "signal": "gradient", "draws": 2, "seed": 3,
                              "outcome": "each", "replace": "mean", "chunk": 4, **changes})


@pytest.mark.parametrize("signal", ["gradient", "perturbation"])
@pytest.mark.parametrize("as_released", ["no", "authors", "reproduction"])
def test_credit_asks_what_its_settings_promise(signal, as_released):
    """`credit` only wires parts, and a swapped wire still gives plausible weights."""
    if (signal, as_released) == ("perturbation", "reproduction"):
        with pytest.raises(BadInput, match="no OAR-P"):
            oar.credit(settings(signal=signal, as_released=as_released))
        return
    pieces = [b"", None, b"so ", b"then ", rb"\boxed{", b"7", b"}", b"8", b".", b"."]
    # Two tokens in the last box, or all ways to read the answer's shift would agree.
    ids = torch.tensor([[2, 3, 4, 5, 6, 3, 4, 7, 5, 6], [3, 2, 4, 7, 6, 2, 4, 5, 6, 1]])
    rollouts = dataclasses.replace(known_rollouts(), completion_ids=ids,
                                   lengths=torch.tensor([10, 10]))
    tokenizer, A = Pieces(*pieces), torch.tensor([-1., 0.])
    tokenizer.pad_token_id = 9
    forward = forward_pass(
        known_qwen3().double(), rollouts, torch.arange(2), 1.0, tokenizer=tokenizer, rewards=None,
        advantages=A, texts=[tokenizer.decode(row) for row in ids.tolist()])
    first = as_released == "reproduction"
    spans = boxes((2, 3, 4, 5) if first else (6, 7, 9, 10), None)  # row 1 has no gradient
    own = as_released == "no"
    if first:
        s = released.input_gradient(forward, spans, seed=3)
    elif signal == "gradient":
        s = input_gradient(forward, spans, 2 if own else 1, seed=3,
                           outcome="each" if own else "mean")
    else:
        s = perturbation(forward, spans, *(("each", "mean") if own else ("first", "pad")))
    scored = torch.arange(10) < torch.tensor([[10 if first else 6], [0]])
    credit_fn = released.oar_credit if first else oar_credit
    expected, _ = credit_fn(s, scored, forward.completion_mask)
    found = oar.credit(settings(signal=signal, as_released=as_released))(forward)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert forward.metrics["fallback"].tolist() == [False, True]
    assert found[0, :2].std() > 1e-3 and (found[1] == 1).all()


def test_only_rows_with_an_answer_a_gradient_and_two_tokens_are_asked_about(monkeypatch):
    """One token alone before the box has no spread, so a pass for it would be for nothing."""
    pieces = [b"", None, b"so ", b"then ", rb"\boxed{", b"7", b"}"]
    ids = [[4, 5, 6, 2, 2], [2, 4, 5, 6, 2], [2, 3, 4, 5, 6], [2, 3, 4, 5, 6], [2, 3, 2, 3, 2]]
    tokenizer, asked = Pieces(*pieces), []
    forward = SimpleNamespace(
        tokenizer=tokenizer, sampled=ids, texts=[tokenizer.decode(row) for row in ids],
        completion_mask=torch.ones(5, 5, dtype=torch.bool), metrics={}, signs=[1, -1, 1, 0, -1])

    def signal(forward, spans, draws, **options):
        asked.append((spans.tolist(), draws, options))
        return torch.arange(1., 6).expand(5, 5)

    monkeypatch.setattr(saliency, "input_gradient", signal)
    w = oar.credit(settings())(forward)
    none = [-1] * 4
    assert asked == [([none, none, [2, 3, 4, 5], none, none], 2, dict(seed=3, outcome="each"))]
    assert forward.metrics["fallback"].tolist() == [True, True, False, True, True]
    close(w[2], [.095238, 1.904762, 1, 1, 1], 1e-6)
    assert (w[[0, 1, 3, 4]] == 1).all()


def test_the_authors_settings_by_hand():
    """One draw and the padding token; OAR-P reads the first position of the answer, OAR-G the mean
    of the logits. The caller's settings stay as they are."""
    for signal, outcome in (("gradient", "mean"), ("perturbation", "first")):
        config = settings(signal=signal)
        found = vars(released.oar_authors(config))
        assert found == vars(config) | {"draws": 1, "replace": "pad", "outcome": outcome}
        assert config.draws == 2 and config.outcome == "each"


def test_the_help_names_the_flags_that_the_authors_settings_override():
    """All of them, and none that still counts: --signal and --chunk do."""
    given = dict(signal="perturbation", outcome="each", draws=7, replace="mean", chunk=9, seed=5)
    theirs = vars(released.oar_authors(SimpleNamespace(**given)))
    changed = {name for name in given if theirs[name] != given[name]}
    with pytest.raises(SystemExit), contextlib.redirect_stdout(io.StringIO()) as out:
        oar.main(["--help"])
    help_text = re.search(r"weights of a public source.*?\(default", out.getvalue(), re.S)[0]
    assert set(re.findall(r"--(\w+)", help_text)) == changed == {"outcome", "draws", "replace"}


@pytest.mark.slow
def test_oar_from_the_command_line(tmp_path, monkeypatch, capsys):
    """Two steps on the embedded model: the log has concentration and fall-backs."""
    monkeypatch.chdir(tmp_path)
    for signal in ("gradient", "perturbation"):
        oar.main(["--signal", signal, "--steps", "2", "--prompts", "4", "--group", "4",
                  "--eval-problems", "0", "--max-new-tokens", "48", "--name", signal])
        steps = [json.loads(line) for line in (tmp_path / signal / "metrics.jsonl").open()]
        assert len(steps) == 2
        assert all(0 < one["ess"] <= 1 and 0 <= one["fallback"] <= 1 for one in steps)
    assert capsys.readouterr().out.count("\nstep ") == 4
    with pytest.raises(BadInput, match="--draws 0"):
        oar.main(["--draws", "0"])
    for chunk in ("1", "-1"):
        with pytest.raises(BadInput, match=f"--chunk {chunk}: 0, or at least 2"):
            oar.main(["--signal", "perturbation", "--chunk", chunk])


# ------------------------------------------------------------------ a toy in closed form


@pytest.mark.parametrize("seed", range(3))
def test_perturbation_ranks_the_closed_form_toy_exactly(seed):
    """With uniform attention and no MLP the influence of a token is a formula: OAR-P must give it,
    value by value."""
    forward, span, influence = fidelity.toy(seed)
    s = perturbation(forward, boxes(span))[0, :span[0]].double()
    torch.testing.assert_close(s, influence, rtol=1e-4, atol=1e-10)
    assert s.argsort().tolist() == influence.argsort().tolist()
    assert fidelity.spearman(s, influence) == 1


def test_a_norm_hides_first_order_influence_from_the_input_gradient():
    """Where a norm stands between e_t and attention, scaling e_t changes nothing, so the gradient
    is orthogonal to it: what OAR-G ranks there is second order in the noise, sigma^2."""
    largest = {}
    for normed in (False, True):
        forward, span, influence = fidelity.toy(0, normed)
        assert influence.min() > 1e-3  # while every token does matter
        for sigma in (1e-3, 1e-4):
            largest[normed, sigma] = float(input_gradient(
                forward, boxes(span), sigma=sigma).max())
    assert largest[False, 1e-3] / largest[False, 1e-4] == pytest.approx(10, rel=.2)
    assert largest[True, 1e-3] / largest[True, 1e-4] == pytest.approx(100, rel=.2)


# ------------------------------------------------------------------ the script's statistics


def test_rank_correlation_by_hand():
    """Ties share their mean rank: (0, 1.5, 1.5, 3) against (0, 1, 2, 3) is 3 / sqrt(10)."""
    x, y = torch.tensor([1., 5, 5, 9]), torch.tensor([0., 1, 2, 3])
    assert fidelity.ranks(x).tolist() == [0, 1.5, 1.5, 3]
    assert fidelity.spearman(x, y) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert fidelity.spearman(x, -y) == -fidelity.spearman(x, y)
    assert fidelity.spearman(x, torch.ones(4)) == 0


def test_the_squared_effect_is_unbiased():
    """Enumerated over all outcomes of K = 3 and 3 coins: the mean is (p1 - p0)^2 to rounding, where
    the plain square would be off by .13."""
    p, mean = (.3, .6), 0.0
    for bits in range(64):
        coins = torch.tensor([[bits >> i & 1 for i in range(3)],
                              [bits >> i & 1 for i in range(3, 6)]]).double()
        chance = math.prod(q if c else 1 - q for q, row in zip(p, coins.tolist()) for c in row)
        size, toward = fidelity.effects(coins, -1)
        mean += chance * float(size)
        assert float(toward) == pytest.approx(float(coins[0].mean() - coins[1].mean()))
    assert mean == pytest.approx(.09)


def test_a_correction_needs_halves_that_agree():
    """r = 1/3 is a reliability of 1/2. From r = 0 on down there is none: no number, no error."""
    r = torch.tensor([1 / 3, 1, 0, -.2, -1, -1.5])
    assert fidelity.reliability(r)[:4].tolist() == pytest.approx([.5, 1, 0, -.5])
    assert fidelity.reliability(r)[4:].isnan().all()
    fixed = fidelity.corrected(.5, r)
    assert fixed[:2].tolist() == pytest.approx([math.sqrt(.5), .5])
    assert fixed[2:].isnan().all() and fidelity.corrected(0.0, 0.0).isnan()


def test_an_estimate_and_its_correction_by_hand():
    """All completions alike: no width. The halves at 1/3 raise .4 and -.2 by sqrt 2."""
    values = [[.4, -.2]] * 5
    found = torch.tensor(fidelity.estimate(values))
    torch.testing.assert_close(found, torch.tensor([[.4] * 3, [-.2] * 3]))
    found = torch.tensor(fidelity.estimate(values, [1 / 3] * 5))
    torch.testing.assert_close(found, math.sqrt(2) * torch.tensor([[.4] * 3, [-.2] * 3]))


@pytest.mark.parametrize("r, point, ends", [
    ([.5, .4, .6, .5, .3, .5, .6, .4], True, True),
    ([.5, -.6, .9, -.3, .8, -.4, .2, -.3], True, False),
    ([0.0] * 8, False, False), ([-.1, -.2] * 4, False, False), ([-1.0] * 8, False, False)])
def test_where_noise_is_all_there_is_no_corrected_figure(r, point, ends):
    """Nor an interval, if many resamples have none. What was measured stays as it is."""
    values = [[.1 * i] for i in range(8)]
    (mean, low, high), = fidelity.estimate(values, r)
    assert [math.isnan(x) for x in (mean, low, high)] == [not point, not ends, not ends]
    assert fidelity.estimate(values)[0][0] == pytest.approx(.35)
    said = fidelity.cell((mean, low, high))
    assert said == (f"{mean:5.2f} [{low:5.2f}, {high:5.2f}]" if ends else
                    f"{mean:5.2f} [-]" if point else "-")
    assert json.loads(json.dumps(fidelity.without_nan({"a": [(low, high)]}), allow_nan=False)) == {
        "a": [[low, high] if ends else [None, None]]}


def test_a_rare_resample_without_a_correction_widens_the_interval(monkeypatch):
    """One of 2,000: it is beyond both ends, and the 2.5 % points move by one place."""
    draws = torch.stack([torch.linspace(0, 1, 2000), torch.ones(2000)], 1).double()
    monkeypatch.setattr(fidelity, "bootstrap", lambda both: draws)
    plain = fidelity.estimate([[.5]] * 3, [1.0] * 3)[0]
    draws[1000, 1] = -.1
    wider = fidelity.estimate([[.5]] * 3, [1.0] * 3)[0]
    assert plain[1] - wider[1] == pytest.approx(1 / 1999, abs=1e-5)
    assert wider[2] - plain[2] == pytest.approx(1 / 1999, abs=1e-5)


def test_verdicts_that_are_all_alike_have_no_truth_to_find():
    """No effect at all: r = 0, which was a division by 0 after hours of sampling."""
    found = fidelity.of_the_truth([torch.ones(9, 4)], [1.0], draws=2)
    assert set(found) == {"size", "toward"} and all(map(math.isnan, found.values()))


@pytest.mark.parametrize("argv, words", [
    ("--device quick", "--device quick: no device"), ("--problems 0", "--problems 0: must be"),
    ("--problems -990", "--problems -990"), ("--max-new-tokens 0", "--max-new-tokens 0: must be"),
    ("--completions 5", "--completions 5: must be an even number, at least 4"),
    ("--completions 2", "--completions 2"), ("--samples 7", "--samples 7: must be an even number"),
    ("--samples 2", "--samples 2"), ("--samples -4", "--samples -4"), ("--seed -1", "--seed -1"),
    ("--seed 99999999999999999999", "--seed 9+: take one from 0 to 2\\^40")])
def test_the_fidelity_script_refuses_before_it_begins(argv, words, monkeypatch):
    monkeypatch.setattr(problems, "load_policy", None)
    with pytest.raises(BadInput, match=words):
        fidelity.main(argv.split())


def test_the_fidelity_script_refuses_an_out_that_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setattr(problems, "load_policy", None)
    with pytest.raises(BadInput, match="--out .*no/x.json: cannot write there"):
        fidelity.main(["--out", str(tmp_path / "no/x.json")])


@pytest.mark.slow
def test_the_fidelity_script_end_to_end(tmp_path, capsys):
    """A miniature: the random signal ranks nothing, OAR-P ranks itself, every figure has its
    interval; and too small a pool is one sentence."""
    out = tmp_path / "f.json"
    fidelity.main(["--problems", "16", "--completions", "4", "--samples", "4", "--out", str(out)])
    result = json.loads(out.read_text())
    assert result["OAR-P"][0] == pytest.approx([1, 1, 1])
    for column in ("size", "toward"):
        for kind in ("raw", "corrected"):
            assert all(low is None or low <= high for _, low, high in result[column][kind])
            assert len(result[column][kind]) == len(result["signals"]) == 9
    assert capsys.readouterr().out.count("\n| ") == 10
    with pytest.raises(BadInput, match="--completions 40"):
        fidelity.main(["--problems", "4", "--completions", "40", "--samples", "4"])
