"""The marks of exercises/ are marked here: stubs red, our own functions green, wrong answers red.

Each wrong answer is a mistake that a reader makes; a mark that lets it through teaches the mistake.
Most are one edit of a right answer that is written here, independent of the project's own.
"""
import csv
import importlib.util
import itertools
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "exercises"
sys.path.insert(0, str(FOLDER))

import attempts
import expected
import solutions
import toy

NAMES = sorted(path.stem[len("test_"):] for path in FOLDER.glob("test_ex*.py"))


def marks(name):
    """The marking tests of one exercise, as functions of the attempt."""
    module = importlib.import_module(f"test_{name}")
    return [test for title, test in vars(module).items() if title.startswith("test_")]


def failures(name, attempt):
    """(mark, what it raised), one at a time, of the marks that this attempt does not pass."""
    for test in marks(name):
        try:
            test(attempt)
        except Exception as error:  # whatever it raises, it is wrong
            yield test.__name__, error


def test_there_are_ten_and_each_mark_has_its_sentence():
    assert len(NAMES) == 10 and all(len(marks(name)) >= 3 for name in NAMES)
    for test in itertools.chain(*map(marks, NAMES)):
        assert len(test.__doc__.split()) >= 8, f"{test.__name__} does not say what it is there for"


@pytest.mark.parametrize("name", NAMES)
def test_our_own_function_is_green(name):
    assert list(failures(name, getattr(solutions, name[5:]))) == []


def text_of(name):
    """The exercise's file, which may hold a reader's answer by now, or no text at all."""
    path = FOLDER / f"{name}.py"
    return path.read_text("utf-8", "replace") if path.is_file() else ""


@pytest.mark.parametrize("name", NAMES)
def test_a_stub_is_red(name):
    """Every mark of a stub fails, and because nothing is there: not by a mistake of the mark."""
    if not attempts.is_stub(name, text_of(name)):
        pytest.skip(f"{name}.py is no stub any more; python -m pytest exercises -k {name[:4]}")
    found = dict(failures(name, getattr(importlib.import_module(name), name[5:])))
    wanted = expected.Wrong if name == "ex09_score" else NotImplementedError  # a bug hunt runs
    assert len(found) == len(marks(name)) and {type(e) for e in found.values()} == {wanted}
    assert attempts.refusal(name, text_of(name)) is None


def stub(name, imports="import torch\n\n"):
    """A stub as a reader may have saved it: written here, because the file may be an answer."""
    plain = f"def {name[5:]}(*arguments):\n    'What it does.'\n    raise NotImplementedError\n"
    return imports + (attempts.BUGGY if name == "ex09_score" else plain)


@pytest.mark.parametrize("name", NAMES)
def test_a_stub_is_known_by_its_own_text(name):
    """Whatever the folder holds. What a reader added to a stub, not to its text, is an attempt."""
    text, function = stub(name), name[5:]
    script = "\n\nif __name__ == '__main__':\n    raise SystemExit('x')\n"
    for same in (text, f"'Exercise'\n{text}# mine\n", text + script, "import math\n" + text,
                 text.replace("NotImplementedError", "NotImplementedError('not yet')"),
                 text.replace("raise", "# my plan\n    raise").replace("\n", "\r\n")):
        assert attempts.is_stub(name, same), same
    deep = "if " + "-" * 5000 + "1:\n    pass\n"
    for other in ("", "def f(:", "\0", "(" * 9000, deep, text + deep,
                  text + "#" * 20_000, RIGHT[name], text + RIGHT[name], RIGHT[name] + text,
                  f"{text}\nfrom mine import {function}\n", f"{text}\n{function} = max\n",
                  text + script + f"else:\n    {function} = max\n", f"class A: pass\n{text}",
                  text.replace("def ", "@mine\ndef "), text.replace(f"def {function}", "def f"),
                  text.replace("raise NotImplementedError", "pass").replace("!= pad_id)", "!= 0)")):
        assert not attempts.is_stub(name, other), other


def test_the_machinery_is_there():
    """It is named in attempts.py, so that a reader's own file in this folder is none of it."""
    assert all((FOLDER / f"{name}.py").is_file() for name in attempts.MACHINERY - {"exercises"})
    assert attempts.EXERCISES == NAMES


# ------------------------------------------------------------------ right answers, not ours

RIGHT = {
    "ex01_group_advantages": """
def group_advantages(rewards, scale_by_std=False):
    centred = rewards - rewards.mean(1, keepdim=True)
    std = rewards.std(1, keepdim=True, unbiased=False)
    if scale_by_std:
        centred = centred / (std + 1e-6)
    equal = rewards.amax(1, keepdim=True) == rewards.amin(1, keepdim=True)
    return torch.where(equal, 0.0, centred)
""",
    "ex02_completion_logprobs": """
def completion_logprobs(logits, ids, P, temperature=1.0):
    logits = logits / temperature
    log_p = logits.log_softmax(-1)
    return log_p[:, P - 1:-1].gather(2, ids[:, P:, None]).squeeze(2)
""",
    "ex03_clipped_surrogate": """
def clipped_surrogate(ratio, A, low, high):
    clipped = ratio.clamp(1 - low, 1 + high)
    plain, bounded = ratio * A, clipped * A
    return torch.minimum(plain, bounded)
""",
    "ex04_pass_at_k": """
def pass_at_k(correct, samples, k):
    if k < 1 or k > samples:
        raise ValueError("no such k")
    draws = math.comb(samples, k)
    missed = [math.comb(samples - c, k) / draws for c in correct.tolist()]
    return 1 - torch.tensor(missed, dtype=torch.float64)
""",
    "ex05_answer_span": """
def answer_span(tokenizer, ids, text):
    box = last_boxed(text)
    if box is None:
        return None
    begin, stop = box
    owner = []
    for n in range(1, len(ids) + 1):
        prefix = tokenizer.decode(ids[:n], skip_special_tokens=True)
        prefix = prefix.rstrip("\\ufffd")
        owner += [n - 1] * (len(prefix) - len(owner))
    start, end = owner[begin], owner[stop - 1] + 1
    if begin + 7 == stop - 1:
        return start, end - 1, end - 1, end
    return start, owner[begin + 7], owner[stop - 2] + 1, end
""",
    "ex06_gradient_activation": """
def gradient_activation(forward, spans):
    J = 0.0
    for i, span in enumerate(spans):
        if span is not None:
            J = J - forward.logprobs[i, span[0]:span[3]].sum()
    e = forward.embeddings
    g, = torch.autograd.grad(J, e, retain_graph=True)
    s = (g * e.detach()).norm(dim=-1)
    return s.gather(1, forward.position) * forward.completion_mask
""",
    "ex07_grail_credit": """
def grail_credit(s, mask, spans, advantages):
    w = mask.double()
    for i in range(len(s)):
        start, content, close, end = spans[i].tolist()
        if start < 2 or advantages[i] > 0:
            continue
        row = s[i].double()
        floor = 1e-8 * row[mask[i]].max().clamp(min=1e-22)
        logs = (row[:start] + floor).log()
        z = (logs - logs.mean()) / (logs.var(unbiased=False) + 1e-8).sqrt()
        w[i, :start] = (1 + 0.5 * z).clamp(0.5, 5)
        w[i, content:close] = 5
    return w
""",
    "ex08_bilevel_weights": """
def bilevel_weights(scores, q=0.25, beta=1.0):
    z = scores.log1p()
    spread = z.max() - z.min()
    n = (z - z.min()) / spread if spread > 0 else torch.zeros_like(z)
    tau = n.quantile(q)
    low = (n / (tau + 1e-8)).clamp(min=0.1)
    high = 1 + beta * (n - tau) / (1 - tau + 1e-8)
    w = torch.where(n < tau, low, high)
    return w * len(w) / w.sum()
""",
    "ex09_score": """
def score(model, prompts, completions, pad):
    P, T = max(map(len, prompts)), max(map(len, completions))
    rows = list(zip(prompts, completions))
    ids = torch.tensor([[pad] * (P - len(p)) + p + c + [pad] * (T - len(c)) for p, c in rows])
    seen = torch.tensor([[0] * (P - len(p)) + [1] * len(p + c) + [0] * (T - len(c))
                         for p, c in rows])
    mask = torch.tensor([[True] * len(c) + [False] * (T - len(c)) for c in completions])
    places = (seen.cumsum(1) - 1).clamp(min=0)
    logits = model(ids, attention_mask=seen, position_ids=places).logits[:, P - 1:-1]
    logprobs = logits.log_softmax(-1).gather(2, ids[:, P:, None])[:, :, 0]
    logprobs = logprobs * mask
    return logprobs, mask, logprobs.sum(1) / mask.sum(1)
""",
    "ex10_your_own_credit": """
def your_own_credit(forward):
    e, mask = forward.entropy, forward.completion_mask
    mean = e.sum(1, keepdim=True) / mask.sum(1, keepdim=True)
    w = 0.5 + e / (mean + 1e-8)
    return w * mask
"""}

# Other right answers, of another shape.
ALSO_RIGHT = {
    "ex01_group_advantages": ["""
def group_advantages(rewards, scale_by_std=False):
    rows = []
    for r in rewards:
        a = r - r.mean()
        if scale_by_std:
            a = a / (((r - r.mean()) ** 2).mean().sqrt() + 1e-6)
        rows.append(torch.zeros_like(r) if (r == r[0]).all() else a)
    return torch.stack(rows)
"""],
    "ex02_completion_logprobs": ["""
def completion_logprobs(logits, ids, prompt_length, temperature=1.0):
    x = (logits[:, prompt_length - 1:-1] / temperature).transpose(1, 2)
    return -torch.nn.functional.cross_entropy(x, ids[:, prompt_length:], reduction="none")
"""],
    "ex03_clipped_surrogate": ["""
def clipped_surrogate(ratio, A, low, high):
    return torch.where(A >= 0, ratio.clamp(max=1 + high), ratio.clamp(min=1 - low)) * A
"""],
    "ex04_pass_at_k": ["""
def pass_at_k(correct, samples, k):
    if not 1 <= k <= samples:
        raise ValueError(k)
    n, c = float(samples), correct.double()
    wrong = torch.ones_like(c)
    for i in range(k):
        wrong = wrong * ((n - c - i) / (n - i)).clamp(min=0)
    return 1 - wrong
"""],
    "ex07_grail_credit": ["""
def grail_credit(s, mask, spans, advantages):
    start, content, close, end = spans.T[:, :, None]
    t = torch.arange(s.shape[1])[None]
    s = s.double().masked_fill(~mask, 0)
    before = (t < start) & mask
    n = before.sum(1, keepdim=True).clamp(min=1)
    x = torch.log(s + (1e-8 * s.amax(1, keepdim=True)).clamp(min=1e-30))
    mean = torch.where(before, x, 0).sum(1, keepdim=True) / n
    var = torch.where(before, (x - mean) ** 2, 0).sum(1, keepdim=True) / n
    w = torch.where(before, (1 + 0.5 * (x - mean) / (var + 1e-8).sqrt()).clamp(0.5, 5), 1.0)
    w = torch.where((t >= content) & (t < close), 5.0, w)
    return torch.where((start >= 2) & (advantages[:, None] <= 0), w, 1.0) * mask
"""],
    "ex08_bilevel_weights": ["""
def bilevel_weights(scores, q=0.25, beta=1.0):
    z = torch.log(1 + scores)
    n = z - z.min()
    if n.max() > 0:
        n = n / n.max()
    ordered, place = n.sort().values, q * (len(n) - 1)
    below = int(place)
    above = min(below + 1, len(n) - 1)
    tau = torch.lerp(ordered[below], ordered[above], place - below)
    w = [max(x / (tau + 1e-8), x.new_tensor(0.1)) if x < tau
         else 1 + beta * (x - tau) / (1 - tau + 1e-8) for x in n]
    w = torch.stack(w)
    return w / w.mean()
""", """
def bilevel_weights(scores, q=0.25, beta=1.0):
    z = torch.log1p(scores.double())
    low, high = z.aminmax()
    n = ((z - low) / (high - low)).nan_to_num(0.0)
    tau = torch.quantile(n, q).item()
    w = 1 + beta * (n - tau) / (1 - tau + 1e-8)
    w[n < tau] = (n[n < tau] / (tau + 1e-8)).clamp_min(0.1)
    return w * w.numel() / w.sum()
"""],
    "ex09_score": ["""
def score(model, prompts, completions, pad_id):
    T = max(map(len, completions))
    logprobs, mask = torch.zeros(len(prompts), T), torch.zeros(len(prompts), T).bool()
    for i, (p, c) in enumerate(zip(prompts, completions)):
        row = model(torch.tensor([p + c])).logits[0, len(p) - 1:-1].log_softmax(-1)
        logprobs[i, :len(c)] = row[torch.arange(len(c)), torch.tensor(c)]
        mask[i, :len(c)] = True
    return logprobs, mask, torch.stack([r[m].mean() for r, m in zip(logprobs, mask)])
"""],
    "ex10_your_own_credit": ["""
def your_own_credit(forward):
    return torch.ones_like(forward.logprobs)
""", """
def your_own_credit(forward):
    return 2 - forward.logprobs.detach().exp()
"""]}


def function(name, text):
    """The function that an answer's text defines, as it would be in the exercise's file."""
    scope = {"torch": torch, "math": importlib.import_module("math"), "toy": toy,
             "last_boxed": toy.last_boxed, "re": re, "F": torch.nn.functional}
    exec(text, scope)  # our own text
    return scope[name[5:]]


@pytest.mark.parametrize("name", NAMES)
def test_a_right_answer_need_not_be_ours(name):
    """Marks that only our own digits pass would mark a reader's better idea wrong."""
    for text in [RIGHT[name], *ALSO_RIGHT.get(name, [])]:
        assert list(failures(name, function(name, text))) == []
        assert attempts.refusal(name, text) is None
# ------------------------------------------------------------------ wrong answers

CENTRED = "rewards - rewards.mean(1, keepdim=True)"
STD = "rewards.std(1, keepdim=True, unbiased=False)"
EQUAL = "rewards.amax(1, keepdim=True) == rewards.amin(1, keepdim=True)"
TARGETS = "log_p[:, P - 1:-1].gather(2, ids[:, P:, None]).squeeze(2)"
MINIMUM = "torch.minimum(plain, bounded)"
BOOST = "1 + beta * (n - tau) / (1 - tau + 1e-8)"
POSITIONS = "(seen.cumsum(1) - 1).clamp(min=0)"
NORM = "(g * e.detach()).norm(dim=-1)"

# (a piece of the right answer, what a reader writes in its place)
EDITS = {
    "ex01_group_advantages": [
        # The two that once passed: the std of the whole batch, and zeros if all groups are equal.
        (STD, "rewards.std(unbiased=False)"), (EQUAL, "rewards.amax() == rewards.amin()"),
        (STD, "rewards.std()"), (EQUAL, "(rewards == rewards[:, :1]).all()"),
        (CENTRED, "rewards - rewards.mean()"), (CENTRED, "rewards - rewards.mean(0)"),
        (CENTRED, "rewards - rewards.median(1, keepdim=True).values"),
        (CENTRED, "rewards.sub_(rewards.mean(1, keepdim=True))"),
        (CENTRED, "(rewards - rewards.mean(1, keepdim=True)) * 4 / 3"),
        (STD, "rewards.std(1, keepdim=True)"), (STD, "rewards.std(0, unbiased=False)"),
        (STD, "(rewards.mean(1, keepdim=True) * (1 - rewards.mean(1, keepdim=True))).sqrt()"),
        ("torch.where(equal, 0.0, centred)", "centred"), ("if scale_by_std", "if True"),
        ("if scale_by_std", "if False"), ("std + 1e-6", "std"), ("std + 1e-6", "std ** 2 + 1e-6"),
        ("(std + 1e-6)", "(std ** 2 + 1e-6).sqrt()"), ("std + 1e-6", "std + 1e-4"),
        (EQUAL, "rewards.sum(1, keepdim=True) == 0"), (EQUAL, f"{STD} < 1e-3"),
        (EQUAL, f"{STD} < 1e-6"), ("std + 1e-6", "std.clamp(min=1e-6)"),
        (EQUAL, "torch.isclose(rewards, rewards[:, :1]).all(1, keepdim=True)"),
        (EQUAL, "rewards.amax(1, keepdim=True) - rewards.amin(1, keepdim=True) < 1e-6"),
        (EQUAL, "((rewards == 0) | (rewards == 1)).all(1, keepdim=True) & "
                "((rewards.mean(1, keepdim=True) == 0) | (rewards.mean(1, keepdim=True) == 1))")],
    "ex02_completion_logprobs": [
        ("log_p[:, P - 1:-1]", "log_p[:, P:]"), ("ids[:, P:, None]", "ids[:, P - 1:-1, None]"),
        ("logits / temperature", "logits * temperature"), ("logits / temperature", "logits"),
        ("log_softmax(-1)", "softmax(-1).log()"), ("log_softmax(-1)", "log_softmax(1)"),
        ("log_softmax(-1)", "log_softmax(-1) / temperature"), ("log_softmax(-1)", "softmax(-1)"),
        ("log_softmax(-1)", "softmax(-1).clamp(min=1e-10).log()"),
        ("log_softmax(-1)", "softmax(-1).add(1e-9).log()"),
        ("logits.log_softmax(-1)", "logits - logits.exp().sum(-1, keepdim=True).log()"),
        ("logits.log_softmax(-1)", "(lambda x: x - x.exp().sum(-1, keepdim=True).log())"
                                   "(logits - logits.max())"),
        ("logits.log_softmax", "logits.detach().log_softmax"), (TARGETS, f"-{TARGETS}"),
        (TARGETS, TARGETS.replace("squeeze(2)", "squeeze()")), (TARGETS, f"{TARGETS}.sum(1)"),
        (TARGETS, "log_p[:, :-1].gather(2, ids[:, 1:, None]).squeeze(2)"),
        (TARGETS, "log_p[:, P - 1:-1].max(-1).values"), (TARGETS, f"{TARGETS}.detach()"),
        ("logits = logits / temperature", "logits = logits.data.div_(temperature)"),
        ("log_p[:, P - 1:-1]", "log_p.roll(-1, 1)[:, P - 1:-1]")],
    "ex03_clipped_surrogate": [
        (MINIMUM, "torch.maximum(plain, bounded)"), (MINIMUM, "bounded"), (MINIMUM, "plain"),
        (MINIMUM, "torch.where(A > 0, torch.min(plain, bounded), torch.max(plain, bounded))"),
        (MINIMUM, "torch.minimum(ratio, clipped) * A"), (MINIMUM, "-torch.minimum(plain, bounded)"),
        (MINIMUM, "torch.minimum(plain, bounded).mean()"), (MINIMUM, f"{MINIMUM}.detach()"),
        (MINIMUM, "torch.where(A > 0, torch.minimum(plain, bounded), plain)"),
        (MINIMUM, "torch.where(A > 0, torch.minimum(plain, bounded), bounded)"),
        (MINIMUM, "torch.minimum(ratio * A.sign(), clipped * A.sign())"),
        (MINIMUM, "torch.minimum(ratio * A.abs(), clipped * A.abs())"),
        (MINIMUM, "torch.minimum(plain, bounded.detach())"),
        ("1 - low, 1 + high", "1 - high, 1 + low"), ("1 - low, 1 + high", "1 - low, 1 + low"),
        ("1 - low, 1 + high", "1 - high, 1 + high"), ("1 - low, 1 + high", "low, high"),
        ("1 - low, 1 + high", "1 / (1 + high), 1 + high"),
        ("ratio.clamp(1 - low, 1 + high)", "ratio.clamp(max=1 + high)"),
        ("clipped * A", "plain.clamp(1 - low, 1 + high)"), ("ratio * A,", "ratio * A[0],"),
        ("ratio.clamp", "ratio.data.clamp_")],
    "ex04_pass_at_k": [
        ("math.comb(samples - c, k) / draws", "(1 - c / samples) ** k"),
        ("math.comb(samples - c, k) / draws", "1 - math.comb(c, k) / draws"),
        ("math.comb(samples - c, k) / draws", "float(math.comb(samples - c, k)) / float(draws)"),
        ("math.comb(samples - c, k) / draws", "1 - c / samples"),
        ("math.comb(samples - c, k) / draws", "float(c < k)"),
        ("math.comb(samples - c, k) / draws", "math.comb(samples - c, k) // draws"),
        ("math.comb(samples - c, k)", "math.comb(samples - c + 1, k)"),
        ("math.comb(samples - c, k) / draws", "max(0, 1 - c * k / samples)"),
        ("math.comb(samples - c, k) / draws", "((samples - c) / samples) * "
         "((samples - c - 1) / (samples - 1)) ** (k - 1) if k > 1 else 1 - c / samples"),
        ("k < 1 or k > samples", "k > samples"), ("k < 1 or k > samples", "k < 1"),
        ("k < 1 or k > samples", "False"), ("k < 1 or k > samples", "k < 1 or k >= samples"),
        ("k < 1 or k > samples", "k < 1 or k > samples or k > correct.max()"),
        ("ValueError", "IndexError"), ("ValueError", "AssertionError"),
        (", dtype=torch.float64", ""), ("1 - torch.tensor", "torch.tensor"),
        ("1 - torch.tensor(missed, dtype=torch.float64)",
         "(1 - torch.tensor(missed, dtype=torch.float64)).mean()")],
    "ex05_answer_span": [
        ("prefix = prefix.rstrip", "prefix.rstrip"), ("skip_special_tokens=True", ""),
        ("tokenizer.decode(ids[:n]", "''.join(tokenizer.decode([i]) for i in ids[:n]) or str(n"),
        ("last_boxed(text)", "(lambda at: None if at < 0 else (at, text.rfind('}') + 1))"
                             "(text.rfind('\\\\boxed{'))"),
        ("last_boxed(text)", "(lambda at: None if at < 0 else (at, text.find('}', at) + 1))"
                             "(text.rfind('\\\\boxed{'))"),
        ("last_boxed(text)", "(lambda m: m and m.span())(re.search(r'\\\\boxed{[^{}]*}', text))"),
        ("last_boxed(text)", "(lambda m: m[-1].span() if m else None)"
                             "(list(re.finditer(r'\\\\boxed{[^{}]*}', text)))"),
        ("if begin + 7 == stop - 1:", "if False:"), ("owner[stop - 1] + 1", "owner[stop - 1]"),
        ("owner[stop - 2] + 1, end", "owner[stop - 2], end"),
        ("owner[stop - 2] + 1, end", "owner[stop - 1], end"),
        ("return start, owner[begin + 7]", "return start, owner[begin + 6] + 1"),
        ("return start, owner[begin + 7]", "return start, owner[begin + 8]"),
        ("return start, owner[begin + 7]", "return start, start + 1"),
        ("return start, end - 1, end - 1, end", "return start, end, end, end"),
        ("return start, end - 1, end - 1, end", "return None"),
        ("return start, end - 1, end - 1, end", "return start, start + 1, start + 1, end"),
        ("return None", "return (-1, -1, -1, -1)"),
        ("owner[begin], owner", "owner[begin] + 1, owner"),
        ("tokenizer.decode(ids[:n]", "tokenizer.decode(tokenizer.encode(text)[:n]"),
        ("len(prefix) - len(owner)", "len(prefix) - (owner and len(owner) or 0) - (n == 1)"),
        ("return start, owner[begin + 7], owner[stop - 2] + 1, end", "return begin, begin + 7, "
                                                                     "stop - 1, stop")],
    "ex06_gradient_activation": [
        (NORM, "g.norm(dim=-1)"), (NORM, "(g * e.detach()).sum(-1).abs()"),
        (NORM, "(g * e.detach()).sum(-1)"), (NORM, "(g * e.detach()).abs().sum(-1)"),
        (NORM, "(g * e.detach()).pow(2).sum(-1)"),
        (NORM, "g.norm(dim=-1) * e.detach().norm(dim=-1)"),
        (NORM, "(g * e.detach()).abs().mean(-1)"), (NORM, "(g * e).norm(dim=-1)"),
        (NORM, "((g * e.detach()).norm(dim=-1) + 1e-3) * (g != 0).any(-1)"),
        (NORM, "(g * e.detach()).norm(dim=1)"), (NORM, "(g * (g * e.detach())).norm(dim=-1)"),
        ("s.gather(1, forward.position)", "s[:, :forward.logprobs.shape[1]]"),
        ("s.gather(1, forward.position)", "s.gather(1, forward.position - 1)"),
        ("s.gather(1, forward.position)", "s[:, -forward.logprobs.shape[1]:]"),
        (", retain_graph=True", ""), ("span[0]:span[3]", "span[1]:span[2]"),
        ("span[0]:span[3]", "span[0]:span[2]"), ("span[0]:span[3]", "span[0]:span[3] + 1"),
        ("span[0]:span[3]", ":"), (".sum()\n    e", ".mean()\n    e"),
        ("J = J - forward", "J = -forward"), ("span is not None", "span and span[0]"),
        ("g, = torch.autograd.grad(J, e, retain_graph=True)",
         "e.retain_grad(); J.backward(retain_graph=True); g = e.grad"),
        ("for i, span in enumerate(spans)", "for i, span in enumerate(spans[:1])")],
    "ex07_grail_credit": [
        ("logs.mean()", "(row[mask[i]] + floor).log().mean()"), ("row[:start] + floor).log()",
                                                               "row[:start] + floor)"),
        ("row[:start] + floor).log()", "row[:start] + floor).log1p()"),
        ("advantages[i] > 0", "advantages[i] >= 0"), ("advantages[i] > 0", "advantages[i] < 0"),
        (" or advantages[i] > 0", ""), ("unbiased=False", "unbiased=True"),
        ("s[i].double()", "s[i]"), ("1e-8 * row[mask[i]].max().clamp(min=1e-22)", "1e-8"),
        ("1e-8 * row[mask[i]].max().clamp(min=1e-22)", "0"),
        ("row[mask[i]].max().clamp(min=1e-22)", "row[mask[i]].max()"),
        ("row[mask[i]].max()", "row.max()"), ("row[mask[i]].max()", "s[mask].double().max()"),
        ("row[mask[i]].max()", "row[:start].max()"),
        ("row[:start] + floor", "row[:start].clamp(min=floor)"),
        ("row[:start] + floor", "torch.maximum(row[:start], floor)"),
        ("1e-8 * row[mask[i]].max().clamp(min=1e-22)", "(1e-8 * row[mask[i]].max() + 1e-12)"),
        ("1e-8 * row[mask[i]].max().clamp(min=1e-22)", "(1e-8 * row[mask[i]].max() + 1e-15)"),
        ("advantages[i] > 0", "advantages[i] > 1e-6"), ("advantages[i] > 0", "advantages[i] > 0.1"),
        ("advantages[i] > 0", "advantages[i] > -1e-6"),
        ("row[mask[i]].max()", "s.double().max()"), ("row[:start]", "row[1:start + 1]"),
        ("(logs.var(unbiased=False) + 1e-8).sqrt()", "(logs.std(unbiased=False) + 1e-8)"),
        ("(logs.var(unbiased=False) + 1e-8).sqrt()", "logs.std(unbiased=False)"),
        ("(logs.var(unbiased=False) + 1e-8).sqrt()", "(logs.var(unbiased=False) + 1e-8)"),
        (".clamp(0.5, 5)", ""), (".clamp(0.5, 5)", ".clamp(max=5)"),
        (".clamp(0.5, 5)", ".clamp(0.5)"),
        (".clamp(0.5, 5)", ".clamp(0, 5)"), ("1 + 0.5 * z", "1 + z"), ("1 + 0.5 * z", "0.5 * z"),
        ("w[i, content:close] = 5", "w[i, start:end] = 5"), ("w[i, content:close] = 5", "pass"),
        ("w[i, content:close] = 5", "w[i, content:close + 1] = 5"),
        ("w[i, content:close] = 5", "w[i, content:] = 5"), ("start < 2", "start < 1"),
        ("start < 2", "start <= 2"), ("start < 2", "start < 0"), ("mask.double()",
                                                                "torch.ones_like(s).double()"),
        ("            continue", "            w[i, content:close] = 5\n            continue"),
        ("return w", "return w * len(w[0]) / w.sum(1)[:, None]")],
    "ex08_bilevel_weights": [
        ("n.quantile(q)", "n.new_tensor(q)"), ("n.quantile(q)", "z.quantile(q)"),
        ("n.quantile(q)", "n.sort().values[min(int(q * len(n)), len(n) - 1)]"),
        ("n.quantile(q)", "n.quantile(q, interpolation='nearest')"),
        ("n.quantile(q)", "n.quantile(q, interpolation='lower')"),
        ("n.quantile(q)", "n.quantile(q, interpolation='midpoint')"),
        ("n.quantile(q)", "n.quantile(1 - q)"), ("n.quantile(q)", "n.quantile(0.25)"),
        ("n.quantile(q)", "n.median()"), (".clamp(min=0.1)", ""),
        (".clamp(min=0.1)", ".clamp(max=0.1)"),
        ("(n / (tau + 1e-8)).clamp(min=0.1)", "torch.full_like(n, 0.1)"),
        ("scores.log1p()", "scores"), ("scores.log1p()", "(scores + 1e-8).log()"),
        ("scores.log1p()", "scores.log1p_()"), ("scores.log1p()", "scores.log1p().sort().values"),
        (" if spread > 0 else torch.zeros_like(z)", ""), ("/ (tau + 1e-8)", "* tau"),
        ("(z - z.min()) / spread", "z / z.max()"), ("(z - z.min()) / spread", "z / z.sum()"),
        ("(z - z.min()) / spread", "(z - z.mean()) / z.std()"), ("w * len(w) / w.sum()", "w"),
        ("w * len(w) / w.sum()", "w / w.sum()"), (BOOST, "1 + beta * n"), (BOOST, "1 + beta"),
        (BOOST, "1 + beta * (n - tau)"), (BOOST, "1 + (n - tau) / (1 - tau + 1e-8)"),
        (BOOST, "beta * (n - tau) / (1 - tau + 1e-8)"), (BOOST, "1 + beta * (n - tau) / (1 - tau)"),
        ("n < tau, low, high", "n > tau, low, high"),
        ("/ spread if", "/ (spread + 1e-8) if"), ("/ spread if", "/ (spread + 1e-6) if"),
        ("/ spread if", "/ (spread + 1e-10) if"), ("/ spread if", "/ spread.clamp(min=1e-8) if"),
        ("spread > 0", "spread > 1e-8"), ("spread > 0", "not torch.allclose(z, z[:1])"),
        ("scores.log1p()", "scores.clamp(min=1e-8).log1p()"),
        ("scores.log1p()", "(1 + scores.float()).log()")],
    "ex09_score": [
        (", position_ids=places", ""), (POSITIONS, "seen.cumsum(1)"),
        (POSITIONS, "seen.cumsum(1) - 1"), ("attention_mask=seen, ", ""),
        (POSITIONS, "(seen.cumsum(1) - 1).clamp(min=0).flip(1)"),
        ("attention_mask=seen", "attention_mask=(ids != pad).long()"),
        (POSITIONS, "((ids != pad).long().cumsum(1) - 1).clamp(min=0)"),
        ("    logprobs = logprobs *", "    mask = ids[:, P:] != pad\n    logprobs = logprobs *"),
        ("logprobs.sum(1) / mask.sum(1)", "logprobs.mean(1)"),
        ("    logprobs = logprobs * mask", ""),
        ("logprobs.sum(1) / mask.sum(1)", "logprobs.sum(1)"),
        ("logprobs.sum(1) / mask.sum(1)", "logprobs.sum(1) / (ids[:, P:] != pad).sum(1)"),
        ("logprobs.sum(1) / mask.sum(1)", "(logprobs.sum() / mask.sum()).expand(len(ids))"),
        ("logits[:, P - 1:-1]", "logits[:, P:]"), ("ids[:, P:, None]", "ids[:, P - 1:-1, None]"),
        ("[0] * (P - len(p)) + [1] * len(p + c)", "[1] * P + [1] * len(c)"),
        ("mask = torch.tensor([[True] * len(c)", "mask = torch.tensor([[c[-1] != pad] * len(c)")],
    "ex10_your_own_credit": [
        ("e.sum(1, keepdim=True) / mask.sum(1, keepdim=True)", "e.mean()"),
        ("e.sum(1, keepdim=True) / mask.sum(1, keepdim=True)", "e.mean(1, keepdim=True)"),
        ("return w * mask", "return w * e[mask].mean()"), ("return w * mask", "return w - 2"),
        ("return w * mask", "return w * forward.logprobs.exp()"), ("return w * mask", "return -w"),
        ("return w * mask", "return w.sum(1)"), ("return w * mask", "return w[..., None]"),
        ("return w * mask", "return w.flatten().softmax(0).view(w.shape)"),
        ("return w * mask", "return e.log()"), ("return w * mask", "return w / mask"),
        ("return w * mask", "return torch.rand(w.shape)"), ("return w * mask", "return 0 * w"),
        ("return w * mask", "return w.softmax(0)"), ("return w * mask", "return w.tolist()"),
        ("return w * mask", "return torch.arange(w.shape[1]) / w.shape[1] + 0 * w"),
        ("return w * mask", "return w / w.max()"), ("return w * mask", "return w.softmax(1)"),
        ("return w * mask", "return w * forward.rewards.mean()"),
        ("return w * mask", "forward.logprobs.sum().backward(retain_graph=True); return w"),
        ("return w * mask", "torch.autograd.grad(forward.logprobs.sum(), forward.embeddings)\n"
                            "    return w"),
        ("return w * mask", "return e.add_(0.5)")]}


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_answer_is_marked_wrong(name):
    passed = []
    for old, new in EDITS[name]:
        assert old in RIGHT[name], f"{old!r} is not in the right answer: the edit is out of date"
        if next(failures(name, function(name, RIGHT[name].replace(old, new))), None) is None:
            passed.append(new)
    assert not passed, f"wrong answers that pass all marks: {passed}"


def test_the_largest_s_before_the_box_is_told_by_name():
    """It once failed only where rows are mixed, whose sentence speaks of something else."""
    name = "ex07_grail_credit"
    text = RIGHT[name].replace("row[mask[i]].max()", "row[:start].max()")
    mark, error = next(failures(name, function(name, text)))
    assert mark == "test_the_floor_takes_the_largest_s_of_the_whole_completion"
    assert "It looks like this mistake: the floor is made of the largest s before" in str(error)


def spoil(value):
    """Change a tensor or list in place, as far as a mark can see; False for anything else."""
    if isinstance(value, list):
        value.append(value[0])
    elif torch.is_tensor(value):
        value.data.copy_(value.data.roll(1, -1) if value.dtype == torch.bool else value.data + 1)
    return isinstance(value, (list, torch.Tensor))


def in_place(name, number, field=None):
    """The right answer, which afterwards changes one of its arguments, or a field of it."""
    right = function(name, RIGHT[name])

    def changes(*arguments, **more):
        found = right(*arguments, **more)
        argument = arguments[number] if field is None else getattr(arguments[number], field)
        assert spoil(argument), f"{name}: argument {number} {field} is not one to change"
        return found
    return changes


FORWARD = ("embeddings", "position", "logprobs", "completion_mask", "ids", "hidden")
CHANGED = [  # exercise, which argument, its field, what the message calls it
    ("ex01_group_advantages", 0, None, "rewards"), ("ex02_completion_logprobs", 0, None, "logits"),
    ("ex02_completion_logprobs", 1, None, "ids"), ("ex03_clipped_surrogate", 0, None, "ratio"),
    ("ex03_clipped_surrogate", 1, None, "A"), ("ex04_pass_at_k", 0, None, "correct"),
    ("ex05_answer_span", 1, None, "ids"), ("ex07_grail_credit", 0, None, "s"),
    ("ex07_grail_credit", 1, None, "mask"), ("ex07_grail_credit", 2, None, "spans"),
    ("ex07_grail_credit", 3, None, "advantages"), ("ex08_bilevel_weights", 0, None, "scores"),
    ("ex09_score", 1, None, "prompts"), ("ex09_score", 2, None, "completions"),
    *[("ex06_gradient_activation", 0, field, f"forward.{field}") for field in FORWARD],
    *[("ex10_your_own_credit", 0, field, f"forward.{field}")
      for field in (*FORWARD, "entropy", "advantages", "rewards")]]


@pytest.mark.parametrize("name, number, field, called", CHANGED)
def test_a_change_in_place_is_called_so_and_fails_nothing_else(name, number, field, called):
    """The answer is right, so no mark may compare it with what it made of its arguments: that
    message would show a right answer beside a wrong one and call it wrong."""
    found = [str(error) for _, error in failures(name, in_place(name, number, field))]
    assert found
    for text in found:
        assert text.startswith(f"{called} was changed in place"), text
        assert "Work on a copy." in text and "after your function ran" in text


def test_a_part_of_an_answer_is_shown_as_a_part():
    """The row that is asked about, a gradient or the mask is not `yours`, the whole answer."""
    with pytest.raises(expected.Wrong) as error:
        expected.expect(torch.ones(2), [1.0, 0.0], about="row 0")
    assert str(error.value) == ("yours (row 0)     [1, 1]\nexpected (row 0)  [1, 0]\n"
                                "They differ first at [1]: 1 instead of 0.")
    edits = {  # exercise: (old, new, what the message says)
        "ex01_group_advantages": (EQUAL, "rewards.amax() == rewards.amin()", "yours (row 0)  "),
        "ex03_clipped_surrogate": (MINIMUM, "torch.minimum(plain, bounded.detach())",
                                   "yours (gradient of your result's sum)  "),
        "ex06_gradient_activation": ("span[0]:span[3]", ":",
                                     "yours (1 where your saliency is not 0)  "),
        "ex09_score": ("    logprobs = logprobs *", "    mask = ids[:, P:] != pad\n"
                       "    logprobs = logprobs *", "yours (mask)  ")}
    for name, (old, new, says) in edits.items():
        assert old in RIGHT[name]
        found = failures(name, function(name, RIGHT[name].replace(old, new)))
        assert any(says in str(error) for _, error in found), name


@pytest.mark.parametrize("name, old, new, mark, sentence", [
    ("ex07_grail_credit", "row[mask[i]].max()", "row.max()", "padding_gets_nothing",
     "the largest s is taken over the padding, too"),
    ("ex07_grail_credit", "start < 2", "0 <= start < 2", "rows_that_stay",
     "-1 is used as an index; in Python it means the last place"),
    ("ex01_group_advantages", "torch.where(equal, 0.0, centred)", "centred", "equal_rewards_gets",
     "")])
def test_the_mark_that_fails_first_names_the_mistake(name, old, new, mark, sentence):
    assert old in RIGHT[name]
    first, error = next(failures(name, function(name, RIGHT[name].replace(old, new))))
    assert mark in first and sentence in str(error)
    assert not sentence or f"It looks like this mistake: {sentence}" in str(error)


def test_a_group_of_equal_rewards_is_told_what_to_do():
    test, = (test for test in marks("ex01_group_advantages") if "equal_rewards" in test.__name__)
    assert "Ask whether all rewards of the group are equal, and put 0 there." in " ".join(
        test.__doc__.split())


@pytest.mark.parametrize("name", NAMES)
def test_no_mark_is_for_nothing(name):
    """An answer that returns None, or what it was given, passes not one mark."""
    assert len(list(failures(name, lambda *args, **kwargs: None))) == len(marks(name))
    assert len(list(failures(name, lambda first, *args, **kwargs: first))) == len(marks(name))


def test_exercise_9_s_model_is_called_as_transformers_are():
    """Our repaired answer, under a GPT-2: each row equals the row alone."""
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=32, n_embd=16, n_layer=2,
                                       n_head=2, initializer_range=0.5,
                                       bos_token_id=0, eos_token_id=0,
                                       attn_implementation="eager")).eval()
    alone = importlib.import_module("test_ex09_score").alone
    rows = [([5], [6, 0]), ([1, 0, 3, 4, 5], [8, 9, 7])]
    logprobs, _, _ = solutions.score(model, *map(list, zip(*rows)), pad_id=0)
    for found, row in zip(logprobs, rows):
        expected.expect(found[:len(row[1])], alone(model, *row))


# ------------------------------------------------------------------ the same, through pytest

CHEATS = {
    "ex01_group_advantages": ["from grpo import group_advantages", "import grpo as g"],
    "ex02_completion_logprobs": ["from test_ex02_completion_logprobs import by_hand"],
    "ex03_clipped_surrogate": ["from exercises.solutions import clipped_surrogate"],
    "ex04_pass_at_k": ["import intervals", "pass_at_k = __import__('intervals').pass_at_k"],
    "ex05_answer_span": ["from saliency import answer_span", "import verify"],
    "ex06_gradient_activation": ["def f():\n    from saliency import gradient_activation as g"],
    "ex07_grail_credit": ["import importlib", "from grail import grail_credit",
                          "from results.arms import grail_credit", "import results",
                          "import data.make_tiny, docs.slips, tools.mutate"],
    "ex08_bilevel_weights": ["import oar, torch", "exec('import oar')"],
    "ex09_score": ["from solutions import score", "import rollout, grpo",
                   "from ex10_your_own_credit import score"],
    "ex10_your_own_credit": ["from solutions import your_own_credit", "import conftest"]}


@pytest.mark.parametrize("name", NAMES)
def test_another_s_function_is_no_answer(name):
    """The project's own, the marks' oracle, and ways around."""
    for line in CHEATS[name]:
        assert attempts.refusal(name, line + "\n" + RIGHT[name]), line


@pytest.mark.parametrize("text", [
    "def f(logits):\n    input = logits / 2\n    return input", "def f(input): return input(1)",
    "def f(*, open=1, **eval): return open, eval", "f = lambda compile: compile + 1",
    "def f():\n    for input in (1, 2):\n        print(input)", "x = [input for input in 'ab']",
    "def f(m):\n    with m as open:\n        return open", "import math as input\ny = input.pi",
    "from math import pi as open\ndef f(): return open", "def compile(x): return x\ny = compile(1)",
    "input = 1\ndef f():\n    return lambda: input", "def f():\n    (open := 1)\n    return open",
    "def f():\n    eval = 1\n    def g(): return eval\n    return g()",
    "class A:\n    input = 1\n    y = input", "def f(x): return x.open() + x.compile",
    "def f():\n    try: pass\n    except ValueError as input: print(input)",
    "x = {'input': 'open'}",
    "def f(x):\n    match x:\n        case [input, *open]: return input, open"])
def test_a_variable_may_have_a_builtin_s_name(text):
    """`input = logits / temperature` once earned 0 of 5: "Line 3 uses input"."""
    assert attempts.refusal("ex02_completion_logprobs", text) is None


@pytest.mark.parametrize("text, line, name", [
    ("x = open('a')", 1, "open"), ("def f(input): return input\nx = input()", 2, "input"),
    ("x = 1\ndef f():\n    return [open(x) for x in 'ab']", 3, "open"),
    ("eval = eval\ny = eval('1')", 1, "eval"), ("def f(g=exec): g('x')", 1, "exec"),
    ("def f():\n    g = eval\n    g('1')", 2, "eval"),
    ("class A:\n    input = 1\n    def f(self): return input()", 3, "input"),
    ("class A:\n    x = open", 2, "open"), ("@compile\ndef f(): pass", 1, "compile"),
    ("def f():\n    def g():\n        return lambda: breakpoint()", 3, "breakpoint"),
    ("def f(x):\n    open = x\n\ndef g(x):\n    return open(x)", 5, "open"),
    ("y = open('a')\nopen = 1", 1, "open"), ("z = __import__('grpo')", 1, "__import__")])
def test_a_builtin_itself_stays_refused(text, line, name):
    refused = attempts.refusal("ex02_completion_logprobs", text)
    assert refused == f"Line {line} uses {name}, and an answer needs none of it."


def pytest_of(*arguments, cwd=ROOT):
    """(exit status, what pytest prints and which of our modules it needed) of marking exercises."""
    code = ("import sys, pytest; status = pytest.main(sys.argv[1:]); "
            "print('imported', {'transformers', 'grpo'} & set(sys.modules)); sys.exit(status)")
    plain = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # some take a second to import
    done = subprocess.run([sys.executable, "-c", code, "exercises", "-p", "no:cacheprovider",
                           *arguments], cwd=cwd, capture_output=True, text=True, timeout=300,
                          env=plain)
    return done.returncode, done.stdout + done.stderr


# Where a reader's answer took the place of the stub.
IMPORTS = dict.fromkeys(NAMES, "import torch") | {
    "ex04_pass_at_k": "import math\nimport torch",
    "ex05_answer_span": "from toy import last_boxed"}


def answer(folder, name, text):
    """Write an answer into a folder as a reader does: below the stub's imports."""
    before = text_of(name) if attempts.is_stub(name, text_of(name)) else IMPORTS[name]
    imports = [line for line in before.split("\n") if re.match("import|from", line)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text("\n".join(imports) + "\n\n" + text, "utf-8")


def test_a_name_that_is_none_is_said():
    """-k ex1 once marked exercise 10, and -k ex7 nothing, without a word."""
    loader = importlib.util.spec_from_file_location("conftest_of_exercises", FOLDER / "conftest.py")
    conftest = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(conftest)
    for digit in range(1, 10):
        for words in (f"ex{digit}", f"ex{digit}_", f"ex01 or EX{digit}", f"not test_ex{digit}"):
            with pytest.raises(pytest.UsageError, match=f"Write two digits: ex0{digit}\\.$"):
                conftest.check_name(words)
    for words in ("ex00", "ex11", "ex001", "ex100", "ex01 or ex12"):
        with pytest.raises(pytest.UsageError, match=r"they are ex01 \.\.\. ex10\.$"):
            conftest.check_name(words)
    for words in ("", "ex0", "ex10", "group", "index1", "std", *(name[:4] for name in NAMES)):
        conftest.check_name(words)
    said, config = [], SimpleNamespace(option=SimpleNamespace(keyword="banana"), args=["exercises"])
    reporter = SimpleNamespace(stats={}, write_line=said.append)
    conftest.pytest_terminal_summary(reporter, pytest.ExitCode.NO_TESTS_COLLECTED, config)
    assert said[0].startswith("Nothing was marked: no exercise is called 'banana'. ")
    assert "The exercises are ex01 ... ex10" in said[0]


def test_an_answer_that_cannot_be_parsed_is_told_the_line(tmp_path):
    (tmp_path / "ex01_group_advantages.py").write_text("import torch\n\nx = (1,\n")
    with pytest.raises(attempts.Wrong, match=r"no Python: .* line 3:\n    x = \(1,$"):
        attempts.load("ex01_group_advantages", tmp_path)
    (tmp_path / "ex01_group_advantages.py").write_text("\n\nx = open\n")  # the file's own count
    with pytest.raises(attempts.Wrong, match="Line 3 uses open"):
        attempts.load("ex01_group_advantages", tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_run_as_a_script_says_how_it_is_marked(name):
    """It once printed nothing and exited with 0, which looks like a pass."""
    files = [f"test_{name}.py"] + [f"{name}.py"] * attempts.is_stub(name, text_of(name))
    for file in files:
        with pytest.raises(SystemExit, match=f"^Mark it with: .* exercises -k {name[:4]}$"):
            runpy.run_path(str(FOLDER / file), run_name="__main__")


@pytest.mark.slow
def test_a_failed_mark_teaches(tmp_path):
    """Its sentence, what was asked, both results whole and the mistake by name; then it stops."""
    wrong = RIGHT["ex01_group_advantages"].replace(STD, "rewards.std(unbiased=False)")
    answer(tmp_path, "ex01_group_advantages", wrong)
    wrong = RIGHT["ex04_pass_at_k"].replace("if k < 1", "print('seen', k)\n    if kk < 1")
    answer(tmp_path, "ex04_pass_at_k", wrong)
    answer(tmp_path, "ex07_grail_credit", "from grail import grail_credit\n")
    status, text = pytest_of(f"--attempts={tmp_path}", "-k", "ex01 or ex04 or ex07 or ex08")
    assert status == 1
    for line in ("Mean and std belong to the same group. With the std of the whole batch",
                 "asked     rewards = [[1, 0, 0, 0],\n                     [1, 1, 0, 0]]",
                 "yours     [[1.54919, -0.516397, -0.516397, -0.516397],\n           [1.0327",
                 "expected  [[1.73205, -0.57735, -0.57735, -0.57735],\n           [1, 1, -1, -1]]",
                 "It looks like this mistake: the std is that of the whole batch\n",
                 "ex01_group_advantages     2 of 7 marks  stopped at test_the_std_of_its_own_group",
                 "NameError: name 'kk' is not defined", "if kk < 1 or k > samples", "seen 2",
                 "It imports grail, which is the project's own code.",
                 f"{tmp_path}/ex08_bilevel_weights.py is not there."):
        assert line in text, line
    assert "torch.jit" not in text and "Warning" not in text and text.count("asked ") == 2
    # Importing transformers takes longer than marking: nothing but exercise 10 needs a model.
    assert "imported set()" in text


@pytest.mark.slow
def test_every_right_answer_is_green_as_a_file_and_so_are_the_solutions(tmp_path):
    """With the stub's own imports: right answers once failed because a stub imported nothing."""
    for name in NAMES:
        answer(tmp_path, name, RIGHT[name])
    status, text = pytest_of(f"--attempts={tmp_path}")
    assert status == 0 and text.count(" marks  done") == 10
    status, text = pytest_of("--solutions")
    assert status == 0 and text.count(" marks  done") == 10
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(stub(name, IMPORTS[name] + "\n\n"), "utf-8")
    status, text = pytest_of(f"--attempts={tmp_path}")
    assert status == 1 and text.count(" 0 of ") == text.count("stopped at") == 10


HOSTILE = {
    "ex01_group_advantages": "torch.os._exit(0)",
    "ex02_completion_logprobs": "def completion_logprobs(*a):\n    while True: pass",
    "ex03_clipped_surrogate": "def clipped_surrogate(*a):\n    while True: print('x' * 100_000)",
    "ex04_pass_at_k": "torch.os.kill(torch.os.getppid(), 9)",
    "ex05_answer_span": "raise SystemExit(0)",
    "ex06_gradient_activation": "def gradient_activation(*a): raise KeyboardInterrupt",
    "ex08_bilevel_weights": "\0", "ex09_score": "def score(*a): return score(*a)"}


@pytest.mark.slow
def test_a_folder_of_submissions_becomes_a_table(tmp_path):
    """A right one, a stub, a wrong one, and one that does harm: it stops nobody else's marks."""
    folder, table = tmp_path / "submissions", tmp_path / "marks.csv"
    answer(folder / "anna" / "deep", "ex01_group_advantages", RIGHT["ex01_group_advantages"])
    answer(folder / "anna" / "deep", "ex03_clipped_surrogate",
           RIGHT["ex03_clipped_surrogate"].replace(MINIMUM, "plain"))
    (folder / "=ben").mkdir()
    for name in ("ex01_group_advantages", "ex09_score"):
        (folder / "=ben" / f"{name}.py").write_text(stub(name), "utf-8")
    for name, text in HOSTILE.items():
        answer(folder / "eve", name, text)
    (folder / "eve" / "conftest.py").write_text("raise SystemExit")
    (folder / "eve" / "torch.py").write_text("raise SystemExit")
    (folder / "fay").mkdir()
    (folder / "fay" / "ex02_completion_logprobs.py").write_bytes(b"\xff\xfe")
    os.symlink("/etc/hostname", folder / "fay" / "ex03_clipped_surrogate.py")
    answer(folder / "gil", "ex04_pass_at_k", RIGHT["ex04_pass_at_k"])
    command = [sys.executable, str(FOLDER / "mark.py"), str(folder), "--csv", str(table),
               "--seconds", "60", "--jobs", "2", "--feedback", str(tmp_path / "feedback")]
    assert subprocess.run(command, capture_output=True).returncode == 0
    rows = list(csv.DictReader(open(table, encoding="utf-8")))
    assert [row["student"] for row in rows] == ["'=ben", "anna", "eve", "fay", "gil"]
    ben, anna, eve, fay, gil = rows
    assert (anna["ex01 (of 7)"], anna["ex03 (of 5)"], anna["ex04 (of 6)"]) == ("7", "0", "")
    assert ben["ex09 (of 5)"] == ""
    assert anna["done (of 10)"] == "1" and ben["ex01 (of 7)"] == "" and gil["ex04 (of 6)"] == "6"
    assert {eve[key] for key in eve if key[:2] == "ex" and eve[key]} == {"0"}
    for note in ("ex01: ended before", "ex02: stopped after 60 s", "ex04: ended before"):
        assert note in eve["notes"]
    assert "ex02: cannot be read" in fay["notes"] and "ex03: no plain file" in fay["notes"]
    assert "It looks like" in (tmp_path / "feedback" / "anna.txt").read_text("utf-8")
    again = subprocess.run(command, capture_output=True, text=True)  # marks are not overwritten
    assert again.returncode == 2 and "give another name" in again.stderr


@pytest.mark.parametrize("flag, name, reason", [
    ("--feedback", "file", "File exists"), ("--feedback", "file/deep", "Not a directory"),
    ("--csv", "file", "File exists"), ("--csv", "none/marks.csv", "No such file or directory")])
def test_a_place_that_cannot_be_written_is_said(tmp_path, monkeypatch, capsys, flag, name, reason):
    """Before anything is marked. --feedback once ended in a traceback."""
    import mark
    (tmp_path / "class" / "ann").mkdir(parents=True)
    (tmp_path / "file").write_text("mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["mark.py", "class", flag, name])
    with pytest.raises(SystemExit) as stopped:
        mark.main()
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and f"error: {flag} {name}: {reason}; give another name." in said
    assert (tmp_path / "file").read_text() == "mine" and not (tmp_path / "marks.csv").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count memory in another way")
def test_the_limit_is_on_data_and_not_on_addresses():
    """PyTorch with CUDA could not be imported under a limit on addresses. mmap stands for it."""
    import mark

    def ends(code):
        return subprocess.run(["sh", "-c", mark.SHELL, "60", sys.executable, "-c", code],
                              capture_output=True, text=True)
    reserved = ends("import mmap; mmap.mmap(-1, 2**36, mmap.MAP_PRIVATE, mmap.PROT_READ)")
    assert reserved.returncode == 0, reserved.stderr
    filled = ends("bytearray(9 * 2**30)")  # refused before a page of it is touched
    assert filled.returncode == 1 and filled.stderr.endswith("MemoryError\n")


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """A reader's checkout: exercise 1 and 10 solved, 7 half, 3 by importing it, 5 no Python."""
    tree = tmp_path_factory.mktemp("solved")
    for path in (*ROOT.glob("*.py"), ROOT / "pytest.ini"):
        shutil.copy(path, tree)
    for folder in ("engine", "exercises"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    this = Path(__file__)  # of tests/ it is enough
    for path in [this, *(path for path in ROOT.glob("*/*.py") if path.parent != this.parent)]:
        (tree / path.parent.name).mkdir(exist_ok=True)
        shutil.copy(path, tree / path.parent.name)
    for name in ("ex01_group_advantages", "ex10_your_own_credit"):
        answer(tree / "exercises", name, RIGHT[name])
    answer(tree / "exercises", "ex07_grail_credit", stub("ex07_grail_credit", "") + "x = 1\n")
    answer(tree / "exercises", "ex03_clipped_surrogate",
           "from grpo import clipped_surrogate as theirs\n"
           "def clipped_surrogate(*arguments):\n    return theirs(*arguments)\n")
    answer(tree / "exercises", "ex05_answer_span", "def answer_span(:\n")
    return tree


PROJECT_S = "It imports grpo, which is the project's own code."


@pytest.mark.slow
def test_the_default_tests_stay_green_in_a_solved_tree(solved):
    """A reader who solved an exercise runs `python -m pytest`: what they wrote is not our fault."""
    chosen = "(stub or machinery or no_answer or opened or script) and not place"
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider",
                           "tests/test_exercises.py", "-k", chosen], cwd=solved, timeout=300,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    for name in ("ex01_group_advantages", "ex03_clipped_surrogate", "ex05_answer_span",
                 "ex07_grail_credit", "ex10_your_own_credit"):
        assert f"{name}.py is no stub any more" in done.stdout


@pytest.fixture
def loading(monkeypatch):
    """Whatever attempts.load adds to the interpreter is taken out again."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    before = {name: sys.modules.pop(name) for name in NAMES if name in sys.modules}
    yield
    for name in NAMES:
        sys.modules.pop(name, None)
    sys.modules.update(before)


def test_an_answer_in_the_stub_s_place_is_marked_as_any_other(solved, loading, monkeypatch):
    """The exercise's file was once asked what an answer may import and what a stub is. In a
    reader's tree that file is an answer."""
    import mark
    for module in (attempts, mark):
        monkeypatch.setattr(module, "HERE", solved / "exercises")
    for name, reason in (("ex03_clipped_surrogate", PROJECT_S), ("ex05_answer_span", "no Python")):
        with pytest.raises(expected.Wrong, match=reason):
            attempts.load(name, solved / "exercises")
    monkeypatch.setattr(mark, "run", lambda *arguments: "it was marked")
    for name in ("ex01_group_advantages", "ex03_clipped_surrogate", "ex05_answer_span"):
        assert mark.mark(solved / "exercises", name, 60) == "it was marked"


@pytest.mark.slow
def test_both_commands_mark_a_solved_tree_alike(solved, tmp_path):
    """The reader's and the teacher's, as they are typed."""
    status, text = pytest_of("-k", "ex01 or ex03 or ex05", cwd=solved)
    assert status == 1 and "7 of 7 marks  done" in text and PROJECT_S in text
    assert "ex05_answer_span.py is no Python" in text
    student, table = tmp_path / "class" / "ann", tmp_path / "marks.csv"
    student.mkdir(parents=True)
    for name in ("ex01_group_advantages", "ex03_clipped_surrogate", "ex05_answer_span"):
        shutil.copy(solved / "exercises" / f"{name}.py", student)
    (student / "ex02_completion_logprobs.py").write_text(stub("ex02_completion_logprobs"))
    done = subprocess.run([sys.executable, "exercises/mark.py", str(student.parent), "--csv",
                           str(table), "--feedback", str(tmp_path)], cwd=solved, timeout=300)
    ann, = csv.DictReader(open(table, encoding="utf-8"))
    columns = {key[:4]: marks for key, marks in ann.items() if key[:2] == "ex"}
    assert done.returncode == 0 and columns == dict.fromkeys(columns, "") | {
        "ex01": "7", "ex03": "0", "ex05": "0"}
    said = (tmp_path / "ann.txt").read_text("utf-8")
    assert PROJECT_S in said and "ex05_answer_span.py is no Python" in said


def test_an_answer_imports_the_answers_of_its_own_folder(tmp_path, loading):
    """Not those of the folder of the marks, which are stubs or another reader's."""
    answer(tmp_path, "ex01_group_advantages", RIGHT["ex01_group_advantages"])
    answer(tmp_path, "ex03_clipped_surrogate", "from ex01_group_advantages import group_advantages"
           "\nassert group_advantages(torch.ones(2, 2)).sum() == 0\n"
           + RIGHT["ex03_clipped_surrogate"])
    answer(tmp_path, "ex08_bilevel_weights", "import ex02_completion_logprobs\n"
           + RIGHT["ex08_bilevel_weights"])
    answer(tmp_path, "ex04_pass_at_k", "import ex07_grail_credit\n" + RIGHT["ex04_pass_at_k"])
    answer(tmp_path, "ex07_grail_credit", "from grpo import whatever\n")
    found = attempts.load("ex03_clipped_surrogate", tmp_path)
    assert list(failures("ex03_clipped_surrogate", found)) == []
    with pytest.raises(expected.Wrong, match="/ex02_completion_logprobs.py is not there"):
        attempts.load("ex08_bilevel_weights", tmp_path)
    with pytest.raises(expected.Wrong, match=PROJECT_S):
        attempts.load("ex04_pass_at_k", tmp_path)


TAKEN = "from grpo import group_advantages\n"
# The files beside an answer to exercise 1 -> which of them is refused, and what for. The answer
# imports the first one.
BESIDE = [
    ({"helper": TAKEN}, "helper.py", PROJECT_S),
    ({"helper": "def group_advantages(*a):\n    " + TAKEN}, "helper.py", PROJECT_S),
    ({"first": "from second import *\n", "second": "import first\n" + TAKEN}, "second.py",
     PROJECT_S),
    ({"helper": "import os\n"}, "helper.py", "It imports os,"),
    ({"helper": "x = eval('1')\n"}, "helper.py", "Line 1 uses eval"),
    ({"helper": "def f(:\n"}, "helper.py is no Python", "line 1"),
    ({"mine/inner": TAKEN}, "inner.py", PROJECT_S),
    ({"mine/__init__": "from .inner import *\n", "mine/inner": TAKEN}, "inner.py", PROJECT_S),
    ({"mine/__init__": "", "mine/deep/__init__": TAKEN}, "__init__.py", PROJECT_S),
    ({"data": TAKEN}, "data.py", PROJECT_S),
    ({"ex10_your_own_credit": TAKEN}, "ex01_group_advantages.py",
     "It imports ex10_your_own_credit, which may use the project's own code."),
    ({"helper": "import ex10_your_own_credit\n", "ex10_your_own_credit": ""}, "helper.py",
     "It imports ex10_your_own_credit,"),
    ({"results/__init__": TAKEN}, "ex01_group_advantages.py", "It imports results,")]


def beside(folder, files):
    """An answer to exercise 1 that imports the first of these files, with all of them beside it."""
    module = next(iter(files)).removesuffix("/__init__").replace("/", ".")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(text)
    answer(folder, "ex01_group_advantages", RIGHT["ex01_group_advantages"]
           + f"\ndef later():\n    import {module}\n")


@pytest.mark.parametrize("files, named, reason", BESIDE)
def test_a_file_of_the_author_obeys_the_answer_s_rules(tmp_path, loading, files, named, reason):
    """One line in a second file once earned all marks: `from grpo import group_advantages`."""
    beside(tmp_path, files)
    with pytest.raises(expected.Wrong) as error:
        attempts.load("ex01_group_advantages", tmp_path)
    assert str(error.value).startswith(named) and reason in str(error.value)


@pytest.mark.parametrize("files", [
    {"helper": "import torch\nfrom second import x\n", "second": "import helper\nx = 1\n"},
    {"mine/__init__": "from .grpo import x\n", "mine/grpo": "x = 1\n"},
    {"mine/inner": "from ex01_group_advantages import group_advantages\n"},
    {"torch": "raise SystemExit\n" + TAKEN}, {"typing": "raise SystemExit\n" + TAKEN},
    {"wave": "raise SystemExit\n" + TAKEN},
    {"data": "def rows(): return 1\n", "unused": TAKEN}, {"tools": "import math\n"}])
def test_a_file_of_the_author_may_help(tmp_path, loading, files):
    """A library wins against a file of its name, which is never read. A file beside the answer that
    nobody imports is nobody's business."""
    beside(tmp_path, files)
    found = attempts.load("ex01_group_advantages", tmp_path)
    sys.modules["ex01_group_advantages"].later()
    assert list(failures("ex01_group_advantages", found)) == []
    assert not Path(sys.modules["torch"].__file__).is_relative_to(tmp_path)
    for name in {name.split("/")[0] for name in files} - {"torch", "typing", "wave"}:
        sys.modules.pop(name, None)


def test_each_exercise_has_its_own_rules(tmp_path, loading):
    """10 may use the project, through a file of its own as well; 6 may import 5, which uses toy."""
    (tmp_path / "helper.py").write_text(TAKEN)
    answer(tmp_path, "ex10_your_own_credit", "import helper\n" + RIGHT["ex10_your_own_credit"])
    answer(tmp_path, "ex05_answer_span", RIGHT["ex05_answer_span"])
    answer(tmp_path, "ex06_gradient_activation", "from ex05_answer_span import answer_span\n"
           + RIGHT["ex06_gradient_activation"])
    answer(tmp_path, "ex01_group_advantages", "from helper import group_advantages\n")
    for name in ("ex10_your_own_credit", "ex06_gradient_activation"):
        attempts.load(name, tmp_path)
    with pytest.raises(expected.Wrong, match="^helper.py is no answer.\nIt imports grpo"):
        attempts.load("ex01_group_advantages", tmp_path)
    sys.modules.pop("helper", None)


def test_a_class_s_copies_hold_what_the_answer_imports(tmp_path):
    """mark.py marks a copy. Without the sub-folders, an answer would be right here and wrong there;
    what a link leads to is not copied."""
    import mark
    student, work = tmp_path / "ann", tmp_path / "work"
    for number, (files, _, _) in enumerate(BESIDE):
        beside(student / str(number), files)
        os.symlink(ROOT, student / str(number) / "link")
        mark.copy(student, student / str(number) / "ex01_group_advantages.py",
                  "ex01_group_advantages", work / str(number))
        for name in files:
            copied = (work / str(number) / f"{name}.py").read_text("utf-8")
            assert copied == files[name] or name.startswith("ex10")
        assert not (work / str(number) / "link").exists()


@pytest.mark.slow
def test_both_commands_refuse_what_a_second_file_takes(tmp_path):
    """As they are typed, and a torch.py of the reader's stops neither."""
    student = tmp_path / "class" / "ann"
    beside(student, {"mine/inner": TAKEN})
    (student / "torch.py").write_text("raise SystemExit")
    says = "inner.py is no answer.\n" + PROJECT_S
    status, text = pytest_of(f"--attempts={student}", "-k", "ex01")
    assert status == 1 and says in text
    subprocess.run([sys.executable, str(FOLDER / "mark.py"), str(student.parent), "--csv",
                    str(tmp_path / "marks.csv"), "--feedback", str(tmp_path)], timeout=300)
    assert says in (tmp_path / "ann.txt").read_text("utf-8")


@pytest.mark.slow
def test_a_reader_s_file_hides_no_library_in_this_folder(solved):
    """Python would take exercises/torch.py for torch, because pytest puts that folder first."""
    path = solved / "exercises" / "torch.py"
    path.write_text("raise SystemExit('mine')")
    try:
        status, text = pytest_of("-k", "ex01", cwd=solved)
    finally:
        path.unlink()
    assert status == 0 and "7 of 7 marks  done" in text


def test_the_board_can_be_opened(monkeypatch, tmp_path, loading):
    """Its baselines are made while it is imported, from settings that grail.py may rename."""
    import leaderboard
    monkeypatch.setattr(sys, "argv", ["leaderboard.py", "grpo"])
    with pytest.raises(leaderboard.BadInput, match="attempt's name"):
        leaderboard.main()
    assert set(leaderboard.BASELINES) == {"grail", "grpo"}
    answer(tmp_path, "ex10_your_own_credit", "from solutions import your_own_credit\n")
    monkeypatch.setattr(leaderboard, "load", lambda name: attempts.load(name, tmp_path))
    monkeypatch.setattr(sys, "argv", ["leaderboard.py", "mine"])
    monkeypatch.setattr(leaderboard, "BOARD", tmp_path / "board")
    with pytest.raises(leaderboard.BadInput, match="It imports solutions, which is the project's"):
        leaderboard.main()


ROW = ('{"name": "grpo", "a": 0.5, "b": 0.5, "difference": 0.0, "low": 0, "high": 0, '
       '"verdict": "B x", "needed": 9}\n')


@pytest.mark.parametrize("text, line", [
    (ROW + ROW[:40], 2), (ROW[:-2], 1), ("\n" + ROW + "null\n", 3), (ROW + '{"name": "mine"}', 2),
    ("[1]\n" + ROW, 1), (ROW + "\ufffd", 2)])
def test_half_a_line_of_the_board_is_said(monkeypatch, tmp_path, text, line):
    """It was left by a full disk or a kill, and once ended in a traceback."""
    import leaderboard
    monkeypatch.setattr(leaderboard, "BOARD", tmp_path)
    (tmp_path / "board.jsonl").write_text(text, "utf-8")
    with pytest.raises(leaderboard.BadInput) as error:
        leaderboard.entries()
    assert str(error.value).startswith(f"{tmp_path}/board.jsonl, line {line}: it is no entry")
    (tmp_path / "board.jsonl").write_text(ROW + "\n" + ROW, "utf-8")
    assert [row["name"] for row in leaderboard.entries()] == ["grpo", "grpo"]


def test_a_run_of_the_board_that_is_damaged_is_made_again(monkeypatch, tmp_path):
    """And it writes no page of a step, whatever STEPS is: a page of GRAIL's asks for flags that
    only grail.py has."""
    import leaderboard
    seen = []

    def train(config, credit):
        seen.append(config)
        raise NotImplementedError
    monkeypatch.setattr(leaderboard, "BOARD", tmp_path)
    monkeypatch.setattr(leaderboard, "train", train)
    for text in ("", "[]", "null", '{"step": 3}', '{"st'):
        (tmp_path / "grail-seed0").mkdir(exist_ok=True)
        (tmp_path / "grail-seed0" / "summary.json").write_text(text)
        assert not leaderboard.finished("grail", 0)
        with pytest.raises(leaderboard.BadInput, match="no answer yet"):
            leaderboard.run("grail", 0, None, [])
    assert {config.pages_every for config in seen} == {0} and len(seen) == 5


@pytest.mark.slow
def test_the_board_trains_three_credits_and_enters_two(tmp_path, monkeypatch, capsys):
    """One step in place of fifteen. GRAIL's own row, the attempt's, which is GRAIL here and so has
    a difference of 0, and GRPO's; before it starts, it says how long it takes."""
    import leaderboard
    small = {"BOARD": tmp_path, "STEPS": 1, "SEEDS": (0,), "PROBLEMS": 8, "SAMPLES": 1}
    for name, value in small.items():
        monkeypatch.setattr(leaderboard, name, value)
    monkeypatch.setattr(leaderboard, "load", lambda name: attempts.Recorded(
        solutions.your_own_credit, None))
    monkeypatch.setattr(sys, "argv", ["leaderboard.py", "mine"])
    leaderboard.main()
    said = capsys.readouterr().out
    assert said.startswith("3 runs of 1 steps to make: about 1 minutes")
    rows = {row["name"]: row for row in leaderboard.entries()}
    assert list(rows) == ["grpo", "mine"] and rows["mine"]["difference"] == 0
    assert all(name in said for name in ("\ngrail ", "\ngrpo ", "\nmine "))
    with pytest.raises(leaderboard.BadInput, match="on the board"):
        leaderboard.main()
