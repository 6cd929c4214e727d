"""GRAIL against the authors' released code, cases derived by hand, and finite differences.

The expected values of released.py were obtained by running the released functions
(declare-lab/grail, commit 749aa4c); they are facts about that code, not output of ours.
"""
import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import grpo
import released
from engine.errors import BadInput
from grail import credit, grail_credit
from logprobs import forward_pass
from rollout import Rollouts
from saliency import (
    NO_BOX,
    activations,
    answer_loss,
    answer_span,
    answer_spans,
    before_answer,
    gradient_activation,
)


class Characters:
    """A tokenizer of code points: 0 is padding, 1 the stop token, both special."""

    def decode(self, ids, skip_special_tokens=True, **_):
        return "".join(chr(i) for i in ids if not (skip_special_tokens and i < 2))


def ids_of(text, eos=True):
    return [ord(c) for c in text] + [1] * eos


def boxes(*spans):
    """Spans, or None for a row without a box, as the tensor (b, 4) that our functions take."""
    return torch.tensor([span or NO_BOX for span in spans])


def as_released(text, s, A, reweight="wrong", eos=True, mask=None, dtype=torch.float64, **options):
    """Weights of one row by released.py, found through the span finder."""
    ids = ids_of(text, eos)
    s = torch.tensor([s], dtype=dtype)
    mask = torch.ones(1, len(ids), dtype=torch.bool) if mask is None else mask
    span = boxes(answer_span(Characters(), ids, text, "first"))
    return released.grail_credit(s, mask, span, torch.tensor([A]), reweight, **options)[0]


def close(actual, expected, tolerance=1e-5):
    torch.testing.assert_close(torch.as_tensor(actual, dtype=torch.float64),
                               torch.tensor(expected, dtype=torch.float64), atol=tolerance, rtol=0)


CASE_A = [.01, .02, .04, .08] * 3 + [.01]
BOX = [1.0] * 7 + [5.0]  # marker, then one character of content

# ------------------------------------------------------------------ where the box is, in tokens


class Pieces:
    """A byte-level tokenizer: id i stands for the i-th byte string, None for a special token."""

    def __init__(self, *pieces):
        self.pieces = pieces

    def decode(self, ids, skip_special_tokens=True, **_):
        special = b"" if skip_special_tokens else b"<special>"
        text = b"".join(special if self.pieces[i] is None else self.pieces[i] for i in ids)
        return text.decode("utf-8", "replace")


@pytest.mark.parametrize("pieces, expected", [
    ([b"so ", b"\\boxed{", b"4", b"2", b"}", b"."], (1, 2, 4, 5)),
    ([b"so ", b"\\", b"boxed", b"{x", b"}."], (1, 3, 4, 5)),      # marker and content in one token
    ([b"\\boxed{", b"7", b"7}"], (0, 1, 3, 3)),                   # content and brace in one token
    ([b"\\boxed{", b"}."], (0, 1, 1, 2)),                         # nothing inside
    ([None, b"\\boxed{", b"7", None, b"}", None], (1, 2, 3, 5)),  # special tokens
    ([b"\\boxed{", b"x", b"\xc3", b"\xa9", b"}"], (0, 1, 4, 5)),  # one character in two tokens
    ([b"\\boxed{", b"7"], None)])
def test_the_box_is_found_on_the_sampled_ids(pieces, expected):
    """Tokens merge across braces, split characters, are special: each puts a naive count off."""
    tokenizer, ids = Pieces(*pieces), list(range(len(pieces)))
    assert answer_span(tokenizer, ids, tokenizer.decode(ids)) == expected


@pytest.mark.parametrize("pieces, expected", [
    ([b"\\boxed{", b"X", b"}"], (0, 1, 2, 3)),     # X is a letter like any other
    ([b"\\boxed", b"{}", b"."], (0, 1, 1, 2)),     # nothing inside, both braces in one token
    ([None, b"\\boxed{", b"7", b"}"], (1, 2, 3, 4))])
def test_prefixes_are_decoded_without_special_tokens_and_as_they_are(pieces, expected):
    """A tokenizer may show special tokens, or tidy up the spaces, unless it is told not to; the
    text had neither."""
    class Untidy(Pieces):
        def decode(self, ids, skip_special_tokens=False, clean_up_tokenization_spaces=True):
            text = super().decode(ids, skip_special_tokens)
            return "tidied: " + text if clean_up_tokenization_spaces else text

    tokenizer, ids = Untidy(*pieces), list(range(len(pieces)))
    text = tokenizer.decode(ids, True, False)
    assert answer_span(tokenizer, ids, text) == expected


def test_spans_of_a_batch_and_the_tokens_before_them():
    """Row 1 has no box: -1 four times, and no token stands before it."""
    texts = [r"ab=\boxed{1}=\boxed{2}", "no box", r"\boxed{}"]
    forward = SimpleNamespace(tokenizer=Characters(), texts=texts,
                              sampled=[ids_of(text, False) for text in texts])
    spans = answer_spans(forward)
    assert spans.tolist() == [[13, 20, 21, 22], [-1] * 4, [0, 7, 7, 8]]
    assert answer_spans(forward, "first")[0].tolist() == [3, 10, 11, 12]
    assert before_answer(spans, 20).sum(1).tolist() == [13, 0, 0]
    assert before_answer(spans, 20)[0, :13].all() and before_answer(spans, 5).sum() == 5


# ------------------------------------------------------------------ the pure map, no box in the way


@pytest.mark.parametrize("s, expected", [
    (CASE_A, {0: .5, 1: .832211, 2: 1.268462, 3: 1.704714}),
    (CASE_A + [0] * 2, {0: 1.099501, 1: 1.167768, 2: 1.236034, 3: 1.304300, 13: .5}),
    (CASE_A + [0] * 11, {0: 1.393511, 1: 1.440440, 2: 1.487369, 3: 1.534297, 13: .5}),
    ([1e-3, 1e-2, 1e-1, 1], {0: .5, 1: .776393, 2: 1.223607, 3: 1.670821}),
    ([1e-3] * 99 + [1e3], {0: .949748, 98: .949748, 99: 5.0}),
    ([.05] * 6, {i: 1.0 for i in range(6)})])
def test_released_map_from_saliency_to_weight(s, expected):
    """Population std, 1e-8 inside the log, 1e-8 inside the root: each one moves these digits."""
    # A box beyond the row: every token is reasoning, as in a map without overrides.
    n = len(s)
    w = released.grail_credit(torch.tensor([s], dtype=torch.float64),
                              torch.ones(1, n, dtype=torch.bool), boxes((n, n, n, n)),
                              torch.tensor([-1.0]))[0]
    close(w[list(expected)], list(expected.values()))


# ------------------------------------------------------------------ overrides

TEXT = r"x+1=\boxed{7}."
CASE_B = CASE_A + [0, 0]
G1 = [1.099501, 1.167768, 1.236034, 1.304301] + BOX + [1, 1, 1]


@pytest.mark.parametrize("A, rows, expected", [
    (-.5, "wrong", G1), (.5, "wrong", [1] * 4 + BOX + [1] * 3), (0., "wrong", G1),
    (0., "correct", [1] * 4 + BOX + [1] * 3), (.5, "both", G1), (.5, "correct", G1)])
def test_released_overrides_by_side(A, rows, expected):
    """The release boosts the box's content in every row, also in those that `rows` leaves out."""
    close(as_released(TEXT, CASE_B, A, rows), expected)


def test_released_statistics_of_case_g1():
    w = as_released(TEXT, CASE_B, -.5)
    close([w.mean(), w.std()], [1.320507, 1.022793])


@pytest.mark.parametrize("text, s, eos, expected", [
    ("no box here, no", [.02] * 16, True, [1] * 16),
    (r"x+1=\boxed{7}", CASE_A, False, [.5, .832211, 1.268462, 1.704714] + BOX + [1]),
    (r"x+1=\boxed{7}..........", CASE_A + [0] * 11, True,
     [1.393511, 1.440440, 1.487369, 1.534297] + BOX + [1] * 12),
    (TEXT, [.05] * 13 + [0, 0], True, [1.196116] * 4 + BOX + [1] * 3),
    (r"x+1=\boxed{7}", [.05] * 13, False, [1.] * 4 + BOX + [1]),
    (r"ab=\boxed{1}=\boxed{2}", [.01 * (i + 1) for i in range(12)] + [0] * 10, False,
     [1.347565, 1.392417, 1.418654] + BOX + [1] * 11),
    (r"x+1=\boxed{7 is it", [.05] * 18, True, [1] * 19),
    (r"x+1=\boxed{}", [.01 * (i + 1) for i in range(12)], False, None)])
def test_released_formats(text, s, eos, expected):
    """No box, an unclosed or empty one, a long tail (which flattens all), two boxes (the first
    counts)."""
    s = s + [0] * (len(text) + eos - len(s))
    w = as_released(text, s, -.5, eos=eos)
    if expected is None:
        close(w[4:], [1] * 8)
    else:
        close(w, expected)


def test_released_batch_with_padding_and_a_masked_row():
    """Padding weighs 0; so does a truncated row, except on its box, which the release marks
    whatever the mask says."""
    ids = [ids_of(TEXT), ids_of("no box here"), ids_of("y")]
    mask = torch.tensor([[t < len(row) for t in range(15)] for row in ids])
    spans = [answer_span(Characters(), row, Characters().decode(row), "first") for row in ids]
    s = torch.tensor([CASE_B] * 3, dtype=torch.float64) * mask
    w = released.grail_credit(s, mask, boxes(*spans), torch.full((3,), -.5))
    close(w, [G1, [1] * 12 + [0] * 3, [1] * 2 + [0] * 13])
    masked = torch.zeros(1, 15, dtype=torch.bool)
    close(as_released(TEXT, CASE_B, -.5, mask=masked), [0] * 4 + BOX + [1, 0, 0])


def test_released_other_constants_and_bad_ones():
    close(as_released(TEXT, CASE_B, -.5, w_std=1., w_min=.1, w_max=2.),
          [1.199003, 1.335535, 1.472068, 1.608601] + [1] * 7 + [2, 1, 1, 1])
    for options in ({"w_std": 0}, {"w_std": None}, {"reweight": "all"}):
        with pytest.raises(ValueError):
            as_released(TEXT, CASE_B, -.5, **options)


# ------------------------------------------------------------------ the clean default, by hand


def clean(text, s, A, reweight="wrong", eos=True):
    ids = ids_of(text, eos)
    mask = torch.ones(1, len(ids), dtype=torch.bool)
    return grail_credit(torch.tensor([s], dtype=torch.float64), mask,
                        boxes(answer_span(Characters(), ids, text)), torch.tensor([A]), reweight)[0]


def test_clean_weights_by_hand():
    """Logs of 1, e, e^2, e^3 have mean 1.5 and population std sqrt(1.25): z = -1.3416, -0.4472, ...

    The tail after the box and the box itself do not enter, whatever their saliency.
    """
    for tail in ([0.] * 11, [7.] * 9 + [0.] * 2):
        w = clean(TEXT, [math.e ** i for i in range(4)] + tail, -.5)
        z = [(i - 1.5) / math.sqrt(1.25) for i in range(4)]
        close(w, [max(.5, 1 + .5 * x) for x in z] + BOX + [1, 1, 1], 1e-6)


def test_clean_weights_do_not_depend_on_the_scale_of_the_saliency():
    """A scaled loss multiplies all saliencies alike; credit must not notice."""
    s = [.3, .1, .9, .2] + [0.] * 11
    for scale in (1e-12, 1e6):
        close(clean(TEXT, [scale * x for x in s], -.5), clean(TEXT, s, -.5).tolist(), 1e-6)


def test_two_tokens_before_the_box_are_enough():
    """z = -1 and 1, whatever the two are."""
    close(clean(r"ab\boxed{7}", [.1, .7] + [.3] * 10, -1.), [.5, 1.5] + BOX + [1, 1], 1e-6)


def test_weights_are_cut_off_at_five():
    """One of 100 tokens stands out: z = 99 / sqrt(99) = 9.95, so w would be 5.97."""
    s = torch.tensor([[1e-3] * 99 + [1e3] + [0.] * 3], dtype=torch.float64)
    mask = torch.ones(1, 103, dtype=torch.bool)
    w = grail_credit(s, mask, boxes((100, 101, 102, 103)), torch.tensor([-1.]))[0]
    close(w[98:], [1 - .5 / math.sqrt(99), 5, 1, 5, 1], 1e-4)


def test_an_advantage_of_zero_is_on_the_wrong_side():
    s = [.3, .1, .9, .2] + [0.] * 11
    assert (clean(TEXT, s, 0., "correct") == 1).all()
    close(clean(TEXT, s, 0., "wrong"), clean(TEXT, s, -1., "wrong").tolist(), 0)


def test_the_floor_under_the_logarithm_is_the_row_s_own():
    """Beside a row of saliencies 1e9 times as large, as under another scale of the loss."""
    row = torch.tensor([[.01, .02, .04, .08, .5, .3, 0]], dtype=torch.float64)
    s, mask = torch.cat([row, 1e9 * row]), torch.ones(2, 7, dtype=torch.bool)
    w = grail_credit(s, mask, boxes(*[(4, 5, 6, 7)] * 2), torch.tensor([-1., -1.]))
    close(w[0], w[1].tolist(), 1e-6)


def test_clean_reads_the_last_box_and_leaves_the_other_side_alone():
    text = r"ab=\boxed{1}=\boxed{2}"
    w = clean(text, [.01 * (i + 1) for i in range(22)], -1., eos=False)
    assert w[20] == 5 and (w[:13] != 1).all() and (w[13:20] == 1).all() and w[21] == 1
    assert (clean(text, [.01] * 22, +1., eos=False) == 1).all()  # left out, so no boost either
    assert clean(text, [.01 * (i + 1) for i in range(22)], +1., "correct", eos=False)[20] == 5


@pytest.mark.parametrize("text", [r"\boxed{7}", r"x\boxed{7}", "no box", r"x=\boxed{7"])
def test_clean_falls_back_to_ones(text):
    """One token before the box has no spread, and without a box there is nothing to ask about."""
    assert (clean(text, [.1] * (len(text) + 1), -1.) == 1).all()


def test_clean_refuses_an_unknown_side():
    with pytest.raises(ValueError, match="reweight='all'"):
        clean(TEXT, [.1] * 15, -1., "all")


def test_clean_equal_saliencies_give_exactly_one():
    """In fp32 the rounding of the mean, divided by a std of 1e-4, is worth 0.002."""
    s = torch.full((1, 15), .05)
    mask = torch.ones(1, 15, dtype=torch.bool)
    w = grail_credit(s, mask, boxes((4, 11, 12, 13)), torch.tensor([-1.]))
    assert (w[0, :4] == 1).all()


# ------------------------------------------------------------------ saliency by hand


def toy_forward(temperature=1.0, padding=None):
    """H = 2, V = 6, hidden state = running mean of embeddings: its gradient is a closed form.

    padding: what to put in place of the embeddings of row 1's padding.
    """
    table = torch.tensor([[1, 0], [0, 1], [1, 1], [2, -1], [-1, 1], [.5, .5]]).double()  # (V, H)
    head = torch.nn.Linear(2, 6, bias=False, dtype=torch.float64)
    head.weight.data = torch.tensor(
        [[1, 0], [0, 1], [1, -1], [.5, .5], [-1, 0], [0, -1]]).double()  # (V, H)
    ids = torch.tensor([[0, 1, 2, 3, 4, 5, 1, 0], [5, 3, 1, 1, 2, 4, 0, 0]])    # (b, P + T)
    mask = torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]]).bool()                   # (b, T)
    embeddings = table[ids]                                                     # (b, P + T, H)
    if padding is not None:
        embeddings[1, 6:] = padding
    embeddings.requires_grad_()
    hidden = embeddings.cumsum(1) / torch.arange(1, 9).double()[None, :, None]  # (b, P + T, H)
    return SimpleNamespace(
        embeddings=embeddings, hidden_states=(embeddings, hidden), hidden=hidden[:, 1:-1],
                           position=torch.arange(2, 8).expand(2, 6),
        head=head, temperature=temperature, logprobs=torch.zeros(2, 6),
        completion_ids=ids[:, 2:], completion_mask=mask)


SPANS = boxes((2, 3, 4, 5), (1, 2, 3, 4))


@pytest.mark.parametrize("temperature, saliencies, weights", [
    (1.0, [[.0375964, .562162, 1.12244, .17246, .0858967, 0],
           [.692254, .0857322, .279041, .294069, 0, 0]],
     [[1.08748, 1.29973, 1, 5, 1, 1], [1.64818, 1, 5, 1, 0, 0]]),
    (0.6, [[.102719, 1.04053, 2.07343, .349254, .138739, 0],
           [1.41283, .100294, .518282, .518404, 0, 0]],
     [[1.11723, 1.29236, 1, 5, 1, 1], [1.61269, 1, 5, 1, 0, 0]])])
def test_released_toy_end_to_end(temperature, saliencies, weights):
    forward = toy_forward(temperature)
    s = released.gradient_activation(forward, SPANS)
    close(s, saliencies)
    w = released.grail_credit(s, forward.completion_mask, SPANS, torch.tensor([-.5, -.25]))
    close(w, weights)


def test_toy_saliency_is_the_closed_form():
    """dJ/de_p = sum over answer tokens a, predicted at q >= p, of
    head^T (softmax - onehot a) / (q + 1)."""
    forward = toy_forward()
    E, W = forward.embeddings.detach(), forward.head.weight.detach()
    for signal, shift in ((gradient_activation, 2), (released.gradient_activation, 1)):
        s = signal(forward, SPANS)
        expected = torch.zeros(2, 6)
        for b, (start, _, _, end) in enumerate(SPANS.tolist()):
            for t in range(6):
                g = torch.zeros(2, dtype=torch.float64)
                for a in range(start, end):
                    q = 2 + a - 1
                    if q >= t + shift:
                        p = (E[b, :q + 1].mean(0) @ W.T).softmax(0)
                        p[forward.completion_ids[b, a]] -= 1
                        g += W.T @ p / (q + 1)
                expected[b, t] = (g * E[b, t + shift]).norm()
        torch.testing.assert_close(s.float(), expected * forward.completion_mask, atol=1e-6, rtol=0)


def test_the_answer_s_loss_is_its_negative_log_likelihood():
    """In nats, at the temperature, summed over the tokens of both boxes."""
    for T in (1.0, .6):
        forward, expected = toy_forward(T), 0.0
        for row, (start, _, _, end) in enumerate(SPANS.tolist()):
            for t in range(start, end):
                logits = forward.head(forward.hidden[row, t]) / T
                expected -= float(logits.log_softmax(0)[forward.completion_ids[row, t]])
        assert float(answer_loss(forward, SPANS)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("which", ["middle", "last"])
def test_one_block_has_none_before_it(which):
    """The embeddings stood in for it, and the log called them by the block's name."""
    forward = SimpleNamespace(embeddings="e", hidden_states=("e", "block"))
    assert [activations(forward, name) for name in ("embeddings", "first")] == ["e", "block"]
    with pytest.raises(BadInput, match=f"--activation {which}: this model has one block"):
        activations(forward, which)
    forward.hidden_states = ("e", "first", "second")
    assert activations(forward, which) == "first"


@pytest.mark.parametrize("which, index", [("embeddings", 0), ("first", 1), ("middle", 1),
                                          ("last", 2)])
def test_saliency_of_a_block_is_taken_of_its_output(which, index):
    """Of three blocks the last that another one reads is the second: by J's gradient there."""
    model = known_qwen3()
    found = gradient_activation(known_forward(model), T2_SPANS, which)
    forward = known_forward(model)
    assert activations(forward) is forward.embeddings
    a = forward.hidden_states[index]
    g, = torch.autograd.grad(answer_loss(forward, T2_SPANS), a)
    s = (g * a).norm(dim=-1).detach()
    for row, first, n in ((0, 3, 10), (1, 4, 8)):
        close(found[row, :n], s[row, first:first + n].tolist(), 1e-6)
        assert (found[row, n:] == 0).all()


def test_rows_without_a_box_have_no_saliency_and_change_no_other_row():
    s = released.gradient_activation(toy_forward(), boxes((2, 3, 4, 5), None))
    close(s, [[.0375964, .562162, 1.12244, .17246, .0858967, 0], [0] * 6])
    for signal in (gradient_activation, released.gradient_activation):
        assert (signal(toy_forward(), boxes(None, None)) == 0).all()


# ------------------------------------------------------------------ a Qwen3 of known parameters


def known_qwen3():
    """Every parameter is sin(0.7 (i + 1) + 1.3 (k + 1)), i in the tensor, k over sorted names."""
    config = Qwen3Config(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=3,
                         num_attention_heads=2, num_key_value_heads=1, head_dim=8,
                         tie_word_embeddings=False, rms_norm_eps=1e-6, attention_bias=False,
                         max_position_embeddings=64,
                         rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    model = Qwen3ForCausalLM(config).eval()
    for k, (_, p) in enumerate(sorted(model.named_parameters())):
        i = torch.arange(p.numel(), dtype=torch.float64)
        v = torch.sin(.7 * (i + 1) + 1.3 * (k + 1)).view_as(p)
        p.data = (1 + .1 * v if p.dim() == 1 else .3 * v).float()
    return model


def known_rollouts():
    prompts = torch.tensor([[0, 3, 7, 11], [5, 9, 2, 14]])  # (B, P)
    mask = torch.tensor([[0, 1, 1, 1], [1] * 4]).bool()     # (B, P)
    completions = torch.tensor([[4, 8, 15, 16, 23, 30, 10, 12, 20, 1],
                                [6, 21, 17, 13, 28, 30, 11, 1, 0, 0]])  # (B, T)
    return Rollouts(prompts, mask, completions, torch.tensor([10, 8]),
                    torch.ones(2, dtype=torch.bool), torch.zeros(2, 10), ["", ""])


def known_forward(model):
    return forward_pass(model, known_rollouts(), torch.arange(2), 1.0, texts=[], rewards=None,
                             advantages=None, tokenizer=None)


T2_SPANS = boxes((5, 7, 8, 9), (4, 5, 6, 7))
T2_LOGPROBS = [
    [-3.37441, -2.86173, -3.72185, -4.19225, -3.14754, -3.72694, -2.9369, -4.26636, -3.21556,
     -2.58344],
    [-4.11496, -3.80577, -3.85245, -3.37299, -4.31375, -3.6024, -3.0747, -2.8578, 0, 0]]
T2_SALIENCY = [
    [.0537724, .0995019, .144164, .0525793, .0208849, .143468, .211535, .431362, .260719, 0],
    [.0292731, .0365561, .0385413, .0552659, .396648, .17147, .14815, 0, 0, 0]]
T2_WEIGHTS = {
    "embeddings": [[1.08956, 1.15182, 1.18933, 1.08729, .99388, 1, 1, 5, 1, 1],
                   [1.09101, 1.11186, 1.11682, 1.15063, 1, 5, 1, 1, 0, 0]],
    "first": [[1.09067, 1.19297, 1.10145, .872266, .955701, 1, 1, 5, 1, 1],
              [1.11457, 1.12918, 1.08771, 1.13306, 1, 5, 1, 1, 0, 0]],
    "last": [[1.05418, 1.18991, 1.12121, 1.03789, 1.01668, 1, 1, 5, 1, 1],
             [.975148, 1.0108, 1.13691, 1.1675, 1, 5, 1, 1, 0, 0]]}


def test_released_qwen3_logprobs_saliency_and_weights():
    forward = known_forward(known_qwen3())
    close(forward.logprobs, T2_LOGPROBS, 2e-4)
    close(released.gradient_activation(forward, T2_SPANS), T2_SALIENCY, 2e-4)
    for leaf, expected in {**T2_WEIGHTS, "middle": T2_WEIGHTS["first"]}.items():
        s = released.gradient_activation(forward, T2_SPANS, leaf)
        w = released.grail_credit(s, forward.completion_mask, T2_SPANS, torch.tensor([-1., -1.]))
        close(w, expected, 2e-4)


@pytest.mark.parametrize("rows, factors, loss, divide, value, head_norm, embedding_norm", [
    (None, (1.1, .9), "constant", 8, -.00989335, .02652728, .00836562),
    ("wrong", (1.1, .9), "constant", 8, -.01324050, .05047697, .01632597),
    ("both", (1.1, .9), "constant", 8, -.01451344, .05131980, .01653962),
    ("correct", (1.1, .9), "constant", 8, -.01509164, .05112523, .01648891),
    ("wrong", (0., .9), "constant", 8, -.02879232, .04530943, .01089243),
    ("wrong", (1.1, .9), "sequence", 8, -.03270173, .09705390, .02921442),
    ("wrong", (1.1, .9), "token", 1, -.18830937, .71789473, .23219155)])
def test_released_loss_and_gradient_norms(rows, factors, loss, divide, value, head_norm,
                                          embedding_norm):
    """The whole chain at once; the release's sampler correction is folded into the advantage."""
    model = known_qwen3()
    forward = known_forward(model)
    A = torch.tensor([-.25, .75])
    weights = torch.ones(2, 10)
    if rows:
        s = released.gradient_activation(forward, T2_SPANS)
        weights = released.grail_credit(s, forward.completion_mask, T2_SPANS, A, rows)
    assert all(p.grad is None for p in model.parameters()) and not weights.requires_grad
    drift = torch.tensor([.3, -.3, .1, -.1, 0.] * 2)
    ratio = (forward.logprobs - (forward.logprobs.detach() + drift)).exp()
    folded = (A * torch.tensor(factors))[:, None]
    surrogate = grpo.clipped_surrogate(ratio, folded, .2, .28)
    scale = grpo.token_scale(forward.completion_mask, loss, 16) / divide
    total = -(weights * surrogate * scale).sum()
    total.backward()
    close(total.detach(), value, 2e-6 if divide == 8 else 2e-5)
    norms = [model.lm_head.weight.grad.norm(), model.model.embed_tokens.weight.grad.norm()]
    close(norms, [head_norm, embedding_norm], 2e-5 if divide == 8 else 2e-4)


@pytest.mark.parametrize("as_released, span, signal, credit_fn", [
    (False, (6, 7, 8, 9), gradient_activation, grail_credit),
    (True, (2, 3, 4, 5), released.gradient_activation, released.grail_credit)])
@pytest.mark.parametrize("leaf, rows", [("embeddings", "wrong"), ("first", "both")])
def test_credit_asks_about_the_box_that_the_mode_promises(as_released, span, signal, credit_fn,
                                                          leaf, rows):
    """`credit` only wires the parts together, and a swapped wire still gives plausible weights."""
    pieces = [b"", None, b"so ", b"then ", rb"\boxed{", b"7", b"}", b"8", b"."]
    ids = torch.tensor([[2, 3, 4, 5, 6, 3, 4, 7, 6, 1], [3, 2, 4, 7, 6, 2, 4, 5, 6, 1]])
    rollouts = dataclasses.replace(known_rollouts(), completion_ids=ids,
                                   lengths=torch.tensor([10, 10]))
    tokenizer, A = Pieces(*pieces), torch.tensor([-1., 1.])
    forward = forward_pass(
        known_qwen3(), rollouts, torch.arange(2), 1.0, tokenizer=tokenizer, rewards=None,
        advantages=A, texts=[tokenizer.decode(row) for row in ids.tolist()])
    s = signal(forward, boxes(span, span), leaf)
    expected = credit_fn(s, forward.completion_mask, boxes(span, span), A, rows)
    config = SimpleNamespace(as_released=as_released, activation=leaf, reweight=rows)
    torch.testing.assert_close(credit(config)(forward), expected, atol=1e-5, rtol=0)
    assert (expected[0] == 5).any()


@pytest.mark.parametrize("as_released", [False, True])
@pytest.mark.parametrize("rows, A", [("wrong", [1., 0.]), ("correct", [-1., 0.]),
                                     ("both", [0., 0.])])
def test_no_backward_where_no_row_is_asked_for(as_released, rows, A, monkeypatch):
    """Micro-batches of one sign let half of the saliency backwards go; nothing else may change."""
    pieces = [b"", None, b"so ", b"then ", rb"\boxed{", b"7", b"}", b"8", b"."]
    ids = torch.tensor([[2, 3, 4, 5, 6, 3, 4, 7, 6, 1]] * 2)
    rollouts = dataclasses.replace(known_rollouts(), completion_ids=ids,
                                   lengths=torch.tensor([10, 10]))
    tokenizer = Pieces(*pieces)
    forward = forward_pass(
        known_qwen3(), rollouts, torch.arange(2), 1.0, tokenizer=tokenizer, rewards=None,
        advantages=torch.tensor(A), texts=[tokenizer.decode(row) for row in ids.tolist()])
    config = SimpleNamespace(as_released=as_released, activation="embeddings", reweight=rows)
    with monkeypatch.context() as patch:
        patch.setattr(torch.autograd, "grad", None)
        w = credit(config)(forward)
    # The release marks the box of every completion; here that of A = 0, where no weight matters.
    box = 5.0 if as_released or rows == "both" else 1.0
    assert w[0, 3 if as_released else 7] == box and forward.metrics["fallback"].isnan().all()
    other = torch.tensor([-1., -1.] if rows != "correct" else [1., 1.])
    forward = dataclasses.replace(forward, advantages=other, signs=None)
    with pytest.raises(TypeError), monkeypatch.context() as patch:
        patch.setattr(torch.autograd, "grad", None)
        credit(config)(forward)


@pytest.mark.parametrize("as_released", [False, True])
def test_a_row_without_a_signal_is_counted_and_not_asked_about(as_released):
    """Rows: asked about; one token before the box; no box; no box, but on the other side. The
    release asks about the second as well. Rows of the other side are not counted."""
    pieces = [b"", None, b"so ", b"then ", rb"\boxed{", b"7", b"}", b"8", b"."]
    ids = [[2, 3, 4, 5, 6], [2, 4, 5, 6, 8], [2, 3, 7, 8, 8], [2, 3, 7, 8, 8]]
    tokenizer, wanted = Pieces(*pieces), []
    forward = SimpleNamespace(
        tokenizer=tokenizer, sampled=ids, texts=[tokenizer.decode(row) for row in ids],
        completion_mask=torch.ones(4, 5, dtype=torch.bool), metrics={}, signs=[-1, -1, -1, 1],
        advantages=torch.tensor([-1., -1, -1, 1]))

    def signal(forward, spans, activation):
        wanted.append(spans.tolist())
        return torch.arange(1., 6).expand(4, 5)

    config = SimpleNamespace(as_released=as_released, activation="embeddings", reweight="wrong")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(released, "gradient_activation", signal)
        w = credit(config, signal)(forward)
    second = [1, 2, 3, 4] if as_released else [-1] * 4
    assert wanted == [[[2, 3, 4, 5], second, [-1] * 4, [-1] * 4]]
    lost = forward.metrics["fallback"]  # NaN: not counted
    assert lost[:3].tolist() == [0, not as_released, 1] and lost[3].isnan()
    assert w[0, 3] == 5 and (w[2:] == 1).all() and (w[1] == 1).all() == (not as_released)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("checkpointing", [True, False])
def test_saliency_leaves_the_policy_gradient_alone(tied, checkpointing):
    """A saliency backward that leaks into .grad, or a detached leaf, changes what is learned.

    The gradient of every parameter must be bit-identical with and without it.
    """
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=1, head_dim=8,
                         tie_word_embeddings=tied)
    model = Qwen3ForCausalLM(config)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    gradients = []
    for with_saliency in (False, True):
        model.zero_grad()
        forward = known_forward(model)
        if with_saliency:
            s = gradient_activation(forward, T2_SPANS)
            assert s.gt(0).any() and not s.requires_grad
            assert all(p.grad is None for p in model.parameters())
        forward.logprobs.sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients))
    assert gradients[0][0].abs().sum() > 0  # the embedding learns too


def test_saliency_matches_finite_differences():
    """s_t^2 = sum over k of (dJ/da_k a_k)^2, dJ/da_k by central differences on the embeddings."""
    model = known_qwen3().double()
    rollouts = known_rollouts()
    s = gradient_activation(known_forward(model), T2_SPANS)
    embed = model.get_input_embeddings()
    ids = torch.cat([rollouts.prompt_ids, rollouts.completion_ids], 1)[:1]
    base = embed(ids).detach()
    mask = torch.cat([rollouts.prompt_mask, rollouts.completion_mask], 1)[:1]

    @torch.no_grad()
    def J(embeddings):
        logits = model(inputs_embeds=embeddings, attention_mask=mask,
                       position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits[0, 3:-1]  # (T, V)
        logp = logits.log_softmax(-1).gather(1, rollouts.completion_ids[0][:, None])[:, 0]  # (T,)
        return -logp[5:9].sum()

    for t in (0, 3, 6):
        products = []
        for k in range(16):
            step = torch.zeros_like(base)
            step[0, 4 + t, k] = 3e-3  # RMSNorm computes in fp32 whatever the weights are
            slope = float(J(base + step) - J(base - step)) / 6e-3
            products.append(slope * float(base[0, 4 + t, k]))
        assert abs(math.hypot(*products) - float(s[0, t])) < 1e-4


def test_saliency_is_zero_from_the_end_of_the_box_on():
    """Causality: a token after the answer, or its last token, cannot have moved the answer."""
    s = gradient_activation(known_forward(known_qwen3()), T2_SPANS)
    assert (s[0, 8:] == 0).all() and (s[1, 6:] == 0).all()
    assert (s[0, :8] > 0).all() and (s[1, :6] > 0).all()
