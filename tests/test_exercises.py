"""The marks of exercises/ are marked here: stubs red, our own functions green, wrong answers red.

Each mutant is a mistake that a reader makes; a mark that lets it through teaches the mistake.
"""
import importlib
import inspect
import math
import re
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parent.parent / "exercises"
sys.path.insert(0, str(FOLDER))

import solutions

import released
import verify

NAMES = sorted(path.stem for path in FOLDER.glob("ex*.py"))


def marks(name):
    """The marking tests of one exercise, as functions of the attempt."""
    module = importlib.import_module(f"test_{name}")
    return [test for title, test in vars(module).items() if title.startswith("test_")]


def failures(name, attempt):
    """{test: what it raised} of the marks that this attempt does not pass."""
    found = {}
    for test in marks(name):
        try:
            test(attempt)
        except (Exception, pytest.fail.Exception) as error:  # whatever it raises, it is wrong
            found[test.__name__] = error
    return found


def test_there_are_ten_and_each_has_marks():
    assert len(NAMES) == 10 and all(len(marks(name)) >= 3 for name in NAMES)
    assert {path.stem for path in FOLDER.glob("test_*.py")} == {f"test_{name}" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_stub_is_red_and_our_own_function_green(name):
    """Every mark of a stub fails, and because nothing is there: not by a mistake of the mark."""
    stub = getattr(importlib.import_module(name), name[5:])
    found = failures(name, stub)
    wanted = AssertionError if name == "ex09_score" else NotImplementedError  # a bug hunt runs
    assert len(found) == len(marks(name)) and {type(e) for e in found.values()} == {wanted}
    assert failures(name, getattr(solutions, name[5:])) == {}


def variant(name, old, new):
    """Our own function with one piece of its source replaced."""
    function = solutions.grail.grail_credit if name == "grail_credit" else getattr(solutions, name)
    source = inspect.getsource(function)
    assert source.count(old) >= 1, f"{old!r} is not in {name}: the mutant is out of date"
    scope = dict(sys.modules[function.__module__].__dict__)
    exec(source.replace(old, new), scope)  # our own source
    if name == "grail_credit":
        return lambda s, mask, spans, A: scope[name](s, mask, solutions.boxes(spans), A)
    return scope[name]


# ------------------------------------------------------------------ wrong answers, written out


def batch_mean(rewards, scale_by_std=False):
    return rewards - rewards.mean()


def no_zero_group(rewards, scale_by_std=False):
    centred = rewards - rewards.mean(1, keepdim=True)
    return centred / (rewards.std(1, keepdim=True, unbiased=False) + 1e-6) if scale_by_std \
        else centred


def in_place(rewards, scale_by_std=False):
    out = solutions.group_advantages(rewards.clone(), scale_by_std)
    return rewards.copy_(out)


def own_position(logits, ids, P, temperature=1.0):
    return (logits[:, P:] / temperature).log_softmax(-1).gather(2, ids[:, P:, None])[..., 0]


def times_temperature(logits, ids, P, temperature=1.0):
    return solutions.completion_logprobs(logits * temperature ** 2, ids, P, temperature)


def log_of_softmax(logits, ids, P, temperature=1.0):
    p = (logits[:, P - 1:-1] / temperature).softmax(-1)
    return p.gather(2, ids[:, P:, None])[..., 0].log()


def detached(logits, ids, P, temperature=1.0):
    return solutions.completion_logprobs(logits.detach(), ids, P, temperature).requires_grad_()


def max_for_bad_tokens(ratio, A, low, high):
    clipped = ratio.clamp(1 - low, 1 + high)
    return torch.where(A > 0, torch.min(ratio * A, clipped * A), torch.max(ratio * A, clipped * A))


def always_clipped(ratio, A, low, high):
    return ratio.clamp(1 - low, 1 + high) * A


def plug_in(correct, samples, k):
    if not 1 <= k <= samples:
        raise ValueError
    return 1 - (1 - correct.double() / samples) ** k


def all_right(correct, samples, k):
    if not 1 <= k <= samples:
        raise ValueError
    return torch.tensor([math.comb(c, k) / math.comb(samples, k) for c in correct.tolist()],
                        dtype=torch.float64)


def no_refusal(correct, samples, k):
    return torch.tensor([1 - math.comb(samples - c, k) / max(1, math.comb(samples, k))
                         for c in correct.tolist()], dtype=torch.float64)


def by_text_lengths(tokenizer, ids, text):
    """Each token decoded alone: half a character counts as one."""
    box = verify.last_boxed(text)
    ends, n = [], 0
    for i in ids:
        n += len(tokenizer.decode([i]))
        ends.append(n)
    if box is None:
        return None
    at = [next((t for t, end in enumerate(ends) if end > c), len(ids))
          for c in (box[0], box[0] + 7, box[1] - 2, box[1] - 1)]
    return (at[0], at[1], at[2] + 1, at[3] + 1) if box[1] - box[0] > 8 else \
        (at[0], at[3], at[3], at[3] + 1)


def first_brace_closes(tokenizer, ids, text):
    match = list(re.finditer(r"\\boxed\{[^{}]*\}", text))
    return None if not match else solutions.answer_span(tokenizer, ids, text)


def special_tokens_shown(tokenizer, ids, text):
    class Shown:
        def decode(self, ids, **_):
            return tokenizer.decode(ids, skip_special_tokens=False)
    return solutions.answer_span(Shown(), ids, text)


def by_backward(forward, spans):
    loss = -sum(forward.logprobs[i, s[0]:s[3]].sum() for i, s in enumerate(spans) if s)
    forward.embeddings.retain_grad()
    loss.backward(retain_graph=True)
    s = (forward.embeddings.grad * forward.embeddings.detach()).norm(dim=-1)
    return s.gather(1, forward.position) * forward.completion_mask


def saliency_by(reduce, use_place=True, retain=True, content_only=False):
    def attempt(forward, spans):
        first, last = (1, 2) if content_only else (0, 3)
        J = -sum(forward.logprobs[i, s[first]:s[last]].sum() for i, s in enumerate(spans) if s)
        g, = torch.autograd.grad(J, forward.embeddings, retain_graph=retain)
        s = reduce(g, forward.embeddings.detach())
        s = s.gather(1, forward.position) if use_place else s[:, :forward.logprobs.shape[1]]
        return s * forward.completion_mask
    return attempt


def hadamard(g, e):
    return (g * e).norm(dim=-1)


def by_all_tokens(s, mask, spans, advantages):
    """The statistics over every token of the completion, as the release has them."""
    return released.grail_credit(s, mask, solutions.boxes(spans), advantages) * mask


def literal_threshold(scores, q=0.25, beta=1.0, tau=None):
    z = scores.log1p()
    n = (z - z.min()) / (z.max() - z.min()).clamp(min=1e-12)
    tau = n.new_tensor(q) if tau is None else tau(n, q)
    w = torch.where(n < tau, (n / (tau + 1e-8)).clamp(min=0.1),
                    1 + beta * (n - tau) / (1 - tau + 1e-8))
    return w * len(w) / w.sum()


def by_rank(scores, q=0.25, beta=1.0):
    return literal_threshold(scores, q, beta,
                             lambda n, q: n.sort().values[min(int(q * len(n)), len(n) - 1)])


def no_floor(scores, q=0.25, beta=1.0):
    z = scores.log1p()
    n = (z - z.min()) / (z.max() - z.min()).clamp(min=1e-12)
    tau = n.quantile(q)
    w = torch.where(n < tau, n / (tau + 1e-8), 1 + beta * (n - tau) / (1 - tau + 1e-8))
    return w * len(w) / w.sum()


def no_log(scores, q=0.25, beta=1.0):
    return solutions.bilevel_weights(torch.expm1(scores), q, beta)


def not_renormalised(scores, q=0.25, beta=1.0):
    return solutions.bilevel_weights(scores, q, beta) * 1.22


def one_bug_left(old, new):
    """Exercise 9 repaired but for one bug: three rights do not make it right."""
    def attempt(model, prompts, completions, pad_id):
        P, T = max(map(len, prompts)), max(map(len, completions))
        rows = list(zip(prompts, completions))
        ids = torch.tensor([[pad_id] * (P - len(p)) + p + c + [pad_id] * (T - len(c))
                            for p, c in rows])
        attention_mask = torch.tensor([[0] * (P - len(p)) + [1] * len(p + c) + [0] * (T - len(c))
                                       for p, c in rows])
        mask = torch.tensor([[True] * len(c) + [False] * (T - len(c)) for c in completions])
        scope = dict(model=model, ids=ids, mask=mask, attention=attention_mask, pad=pad_id, P=P)
        steps = REPAIRED.replace(old, new)
        assert steps != REPAIRED, "the mutant is out of date"
        exec(steps, scope)
        return scope["logprobs"], scope["mask"], scope["mean"]
    return attempt


REPAIRED = """
places = (attention.cumsum(1) - 1).clamp(min=0)
logits = model(ids, attention_mask=attention, position_ids=places).logits[:, P - 1:-1]
logprobs = logits.log_softmax(-1).gather(2, ids[:, P:, None])[:, :, 0] * mask
mean = logprobs.sum(1) / mask.sum(1)
"""


def batch_scaled(forward):
    e = forward.entropy
    return e / e.mean()


def with_gradient(forward):
    return forward.logprobs.exp()


def negative(forward):
    return torch.ones_like(forward.entropy) - 10 * forward.entropy


def leaky(forward):
    forward.logprobs.sum().backward(retain_graph=True)
    return torch.ones_like(forward.entropy)


MUTANTS = {
    "ex01_group_advantages": [
        batch_mean, no_zero_group, in_place,
        ("group_advantages", "unbiased=False", "unbiased=True")],
    "ex02_completion_logprobs": [own_position, times_temperature, log_of_softmax, detached],
    "ex03_clipped_surrogate": [
        max_for_bad_tokens, always_clipped, lambda r, A, low, high: r * A,
        ("clipped_surrogate", "1 - low, 1 + high", "1 - high, 1 + low")],
    "ex04_pass_at_k": [plug_in, all_right, no_refusal],
    "ex05_answer_span": [
        by_text_lengths, first_brace_closes, special_tokens_shown,
        ("answer_span", 'which="last"', 'which="first"'),
        ("answer_span", 'rstrip("\\ufffd")', 'rstrip("")'),
        ("answer_span", "if inside == stop - 1:", "if False:")],
    "ex06_gradient_activation": [
        by_backward, saliency_by(lambda g, e: g.norm(dim=-1)),
        saliency_by(lambda g, e: (g * e).sum(-1).abs()), saliency_by(hadamard, use_place=False),
        saliency_by(hadamard, retain=False), saliency_by(hadamard, content_only=True)],
    "ex07_grail_credit": [
        by_all_tokens,
        ("grail_credit", "log_s = (s + 1e-8 * s.amax(1, keepdim=True).clamp(min=1e-30)).log()",
         "log_s = s"),
        ("grail_credit", "A <= 0", "A < 0"),
        ("grail_credit", ".square() * before).sum(1, keepdim=True) / n",
         ".square() * before).sum(1, keepdim=True) / (n - 1)"),
        ("grail_credit", "s.double()", "s.float()"),
        ("grail_credit", "1e-8 * s.amax(1, keepdim=True).clamp(min=1e-30)", "1e-8"),
        ("grail_credit", ".float() * mask ", ".float() ")],
    "ex08_bilevel_weights": [literal_threshold, by_rank, no_floor, no_log, not_renormalised],
    "ex09_score": [
        one_bug_left("position_ids=places", "position_ids=None"),
        one_bug_left("attention_mask=attention", "attention_mask=(ids != pad).long()"),
        one_bug_left("\nlogits", "\nmask = ids[:, P:] != pad\nlogits"),
        one_bug_left("logprobs.sum(1) / mask.sum(1)", "logprobs.mean(1)")],
    "ex10_your_own_credit": [batch_scaled, with_gradient, negative, leaky],
}


# ------------------------------------------------------------------ right answers, not ours


def with_loops(rewards, scale_by_std=False):
    rows = []
    for group in rewards.tolist():
        mean = sum(group) / len(group)
        std = (sum((r - mean) ** 2 for r in group) / len(group)) ** 0.5
        rows.append([0.0 if len(set(group)) == 1 else
                     (r - mean) / (std + 1e-6 if scale_by_std else 1) for r in group])
    return torch.tensor(rows)


def cross_entropy(logits, ids, P, temperature=1.0):
    return -torch.nn.functional.cross_entropy((logits[:, P - 1:-1] / temperature).transpose(1, 2),
                                              ids[:, P:], reduction="none")


def by_sign(ratio, A, low, high):
    return torch.where(A >= 0, ratio.clamp(max=1 + high), ratio.clamp(min=1 - low)) * A


def exact_binomials(correct, samples, k):
    if not 1 <= k <= samples:
        raise ValueError("no such k")
    return 1 - all_right(samples - correct, samples, k)


def one_prefix_at_a_time(tokenizer, ids, text):
    box = verify.last_boxed(text)
    if box is None:
        return None
    begin, stop = box
    owner = []  # of each character
    for n in range(1, len(ids) + 1):
        prefix = tokenizer.decode(ids[:n], skip_special_tokens=True)
        while prefix.endswith("\ufffd"):
            prefix = prefix[:-1]
        owner += [n - 1] * (len(prefix) - len(owner))
    start, end = owner[begin], owner[stop - 1] + 1
    inside = owner[begin + len(r"\boxed{"):stop - 1]
    return (start, inside[0], inside[-1] + 1, end) if inside else (start, end - 1, end - 1, end)


def one_row_at_a_time(s, mask, spans, advantages):
    w = mask.double()
    for i, span in enumerate(spans):
        if span is None or span[0] < 2 or advantages[i] > 0:
            continue
        start, content, close, _ = span
        row = s[i, :start].double()
        logs = (row + 1e-8 * s[i].max()).log()
        z = (logs - logs.mean()) / (logs.var(unbiased=False) + 1e-8).sqrt()
        w[i, :start] = (1 + 0.5 * z).clamp(0.5, 5)
        w[i, content:close] = 5
    return w


def by_definition(scores, q=0.25, beta=1.0):
    return literal_threshold(scores, q, beta, lambda n, q: n.quantile(q))


RIGHT = {"ex01_group_advantages": with_loops, "ex02_completion_logprobs": cross_entropy,
         "ex03_clipped_surrogate": by_sign, "ex04_pass_at_k": exact_binomials,
         "ex05_answer_span": one_prefix_at_a_time,
         "ex06_gradient_activation": saliency_by(hadamard), "ex07_grail_credit": one_row_at_a_time,
         "ex08_bilevel_weights": by_definition, "ex09_score": one_bug_left("\n", "\n\n"),
         "ex10_your_own_credit": lambda forward: 2 - (-forward.entropy).exp()}


@pytest.mark.parametrize("name", NAMES)
def test_a_right_answer_need_not_be_ours(name):
    """Marks that only our own digits pass would mark a reader's better idea wrong."""
    assert failures(name, RIGHT[name]) == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_answer_is_marked_wrong(name):
    for number, mutant in enumerate(MUTANTS[name]):
        attempt = mutant if callable(mutant) else variant(*mutant)
        assert failures(name, attempt), f"mutant {number} of {name} passes all marks"
