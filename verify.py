r"""Is the answer right? A small, safe, bounded verifier of math answers.

A wrong reward teaches the model the error, a hanging one stops the run, one that evaluates text
hands over the machine; and in training the policy is the attacker. So: find the answer, spell it
one way, split it into its parts, and compare the values of formulas with a calculator of our own
that refuses early. Whatever we cannot read, or is not finite, is wrong.

    python verify.py "\boxed{\frac12}" 0.5              # the verdict and how it was reached
    python verify.py --table tests/verify_table.jsonl   # accuracy, errors, milliseconds by kind

Policies, each with examples that a test reads: ~ is accepted, !~ is not; the gold stands first.
  decimals   exact, or the gold to 6 digits; a gold of 3 digits is no more exact than it says:
             \frac13 ~ 0.333333 ; \frac13 !~ 0.33 ; 3 !~ 3.000001 ; 33.3 ~ \frac{100}{3}
  percent    is a hundredth; the gold's sign may be missing: 50\% ~ 0.5 ; 50\% ~ 50 ; 50 !~ 50\%
             from a number above 3, so that none has two meanings: 150\% ~ 1.5 ; 1\% !~ 1
             Only where a question is given that asks for a percentage, a gold 50 is 50 % too.
  units      may be missing on one side, not differ; degrees are a unit too, but not inside of sin:
             5\text{ cm} ~ 5 ; 5 ~ 5\text{ eggs} ; 5\text{ cm} !~ 5\text{ m} ; 3a !~ 3 ; \$5 ~ 5
             90^\circ ~ 90 ; 90^\circ !~ \frac{\pi}{2} ; \frac12 ~ \sin 30^\circ
             5\text{ m/s} ~ 5\text{ m s}^{-1} ; 5\text{ m/s} !~ 5\text{ s/m} ; 5 !~ 5\text{ tenths}
  lists      need all members, in any order; braces ignore how often: 1,2 ~ 2,1 ; 1,1,2 !~ 1,2
             \{1,2\} ~ \{2,1,2\} ; \{1,2\} ~ 1,2 ; \pm 2 ~ -2,2 ; 5 !~ 4,5 ; 1,1,2 !~ \{1,2\}
             Every \pm is free: \pm\sqrt{2\pm 1} !~ \sqrt3,-1 ; \pm\sqrt{2\pm 1} ~ 1,-1,\pm\sqrt3
  tuples     have an order and their brackets: (1,2) !~ (2,1) ; (1,2) !~ \{1,2\} ; (1,2) !~ [1,2]
  intervals  and set-builders and solved inequalities are sets of real numbers:
             x<3 ~ (-\infty,3) ; [1,2] ~ 1\le x\le 2 ; [0,1) !~ [0,1] ; (-\infty,3) !~ 2x<6
             Two empty sets agree only if both are spelled as one: (3,1) !~ x<x ; \emptyset !~ x<x
  names      before "=" may be missing, not differ: 5 ~ x=5 ; x=5 ~ 5 ; x=5 !~ y=5 ; 1 !~ x+z=1
             Where they are missing, the order tells: x=2,y=3 ~ 2,3 ; x=2,y=3 !~ 3,2
             x=2,y=3 !~ \{2,3\}
  equations  are equal up to a factor: 2x+4y=6 ~ y=\frac{3-x}{2} ; y=2x !~ y=3x ; 5 !~ 6=5
  values     need no simplest form, but to be found: \frac12 ~ \frac24 ; 55 !~ \sum_{k=1}^{10} k
  functions  of a number are unknown numbers: f(2) !~ 2f(1) ; I(0) !~ 0 ; f(x+1) ~ f(1+x)
  exponents  2e-1 is 2e minus 1, and 2.0e-1, 2E-1, 1e-1, 2e8 are powers of ten: 0.2 !~ 2e-1
             0.2 ~ 2.0e-1 ; as a gold it may be both: 2e-1 ~ 0.2 ; 2e-1 ~ -1+2e
  bases      may be missing, log without one is itself: 101_2 ~ 101 ; 101_2 !~ 5 ; 2 !~ \log 100
  words      and choices ignore case, letters keep it: \text{Yes} ~ yes ; x !~ X ; B ~ (b)
             max at x=1 !~ max at X=1 ; \max at x=1 !~ \min at x=1 ; C ~ (C) 42 ; C !~ C, D
  formulas   agree at points of both signs: x+1 ~ \frac{x^2-1}{x-1} ; |x| ~ \sqrt{x^2} ; x !~ |x|
The last box that opens outside of <think> counts. If it never closes, the answer was cut off: there
is none, and no earlier box takes its place. An unclosed think block holds no answer either.
What we left out, on purpose: simplify and solve (unbounded), prose, the conversion of units."""
import argparse
import itertools
import json
import math
import operator
import re
import subprocess
import sys
import threading
import time
import unicodedata
import zlib
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import lru_cache

MAX_CHARS, MAX_BITS = 3000, 20_000  # of an answer, and of a number in it
CHEAP, FUEL = 3_000, 60_000         # steps of about 10 us: in the caller's process, and at most
MAX_SECONDS = 1.5                   # of this thread's own time; the fuel should end it earlier


class Refused(ValueError):
    """No answer that we can read within our limits; counts as False."""


class OutOfFuel(BaseException):
    """The comparison has spent its steps."""


class Run:
    """One comparison: the steps it has left, and how it came to its verdict."""

    def __init__(self, fuel):
        self.fuel, self.calls, self.until = fuel, 0, 0
        self.how = "structure"

    def spend(self, steps):
        self.fuel -= steps
        self.calls += 1
        if self.fuel < 0:
            raise OutOfFuel
        if self.calls % 64 == 0 or steps > 300:  # to ask for the time costs more than a step
            # The thread's own time: a busy machine must not change a verdict. No signal is needed.
            now = time.thread_time()
            self.until = self.until or now + MAX_SECONDS
            if now > self.until:
                raise OutOfFuel


# ---- the verdict


def verify(completion, gold, strict=False, question=None):
    """Is the completion's final answer the gold answer? strict: nothing but a \\boxed{} counts.
    question: the problem's text, if at hand; it tells whether a percentage is asked for."""
    return judge(completion, gold, strict, question=question)[0]


def equivalent(answer, gold):
    """Do two bare answers agree? Not symmetric: see the policies on decimals, percent, bases."""
    return decide(answer, gold)[0]


def judge(completion, gold, strict=False, fuel=FUEL, question=None):
    """(verdict, how it was reached): find the answer, then compare it."""
    answer = extract(completion, strict)
    if answer is None:
        return False, "no answer found"
    return decide(answer, gold, fuel, question)


def decide(answer, gold, fuel=FUEL, question=None):
    """(verdict, how it was reached) for two bare answers, the cheapest layer first."""
    answer, gold = answer.strip(), unboxed(gold).strip()
    if not answer or not gold:
        return False, "empty"
    if answer == gold:
        return True, "identical"
    if PLAIN.fullmatch(answer) and PLAIN.fullmatch(gold):
        return Decimal(answer) == Decimal(gold), "exact decimals"
    if question and PERCENT.search(answer) and PLAIN.fullmatch(gold) and ASKED.search(question):
        gold += "%"
    run = Run(fuel)
    try:
        return agree(run, answer, gold), run.how
    except OutOfFuel:
        if fuel < FUEL:
            raise
        return False, "refused: too much work"
    except Exception as error:  # a grader that raises drops the sample
        return False, f"refused: {error if isinstance(error, Refused) else repr(error)}"


class Verdicts(list):
    timeouts = 0  # how many are False because they were stopped


def verify_all(pairs, workers=2, timeout=5.0, strict=False):
    """Verdicts in the order of the pairs (completion, gold) or triples (..., question). Most work
    is done here; what takes too many steps goes to a process that is killed after a time."""
    pairs, verdicts, hard, start = list(pairs), Verdicts(), {}, time.monotonic()
    for k, (completion, gold, *question) in enumerate(pairs):
        try:
            verdicts.append(judge(completion, gold, strict, CHEAP, *question)[0])
        except OutOfFuel:
            verdicts.append(False)
            hard[k] = json.dumps((completion, gold, strict, *question)).encode()
        if time.monotonic() - start > 2 and (k % 100 == 99 or k + 1 == len(pairs)):
            print(f"\r{k + 1}/{len(pairs)}", end="\n" * (k + 1 == len(pairs)), file=sys.stderr)

    with ThreadPoolExecutor(workers) as pool:
        found = pool.map(lambda job: in_process(job, timeout), hard.values())
        for k, verdict in zip(hard, found):
            verdicts[k] = bool(verdict)
            verdicts.timeouts += verdict is None
    if verdicts.timeouts:
        print(f"verify: {verdicts.timeouts} stopped, so wrong", file=sys.stderr)
    return verdicts


def in_process(job, timeout, command=(sys.executable, __file__, "--worker")):
    """One verdict from a process of its own; None if it took too long or died."""
    apart = dict(capture_output=True, start_new_session=True)  # Ctrl-C is the caller's to handle
    try:
        done = subprocess.run(command, input=job, timeout=timeout, **apart)
    except subprocess.TimeoutExpired:
        return None
    return None if done.returncode else json.loads(done.stdout)


# ---- find the answer

BRACE = re.compile(r"\\boxed\{|\\.|[{}]", re.S)
# What a completion without strict may write in place of \boxed{: \boxed {, \fbox{, \boxed 5.
LOOSE_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(-?[0-9][0-9.,/]*))")
BOLD = re.compile(r"(?<![0-9a-z)}])\*\*|\*\*(?![0-9a-z({\\])")
# What announces an answer: "####", "<answer>", "the answer is", "Final Answer:".
MARK = re.compile(
    r"####|<answer>|答案|final answer[ *#:_]*\n|\b(?:answers?|option|choice)\b[^\n.;:=$\\]{0,40}?"
    r"(?:\b(?:is|are|be|equals)\b|[:=])[\s*:]*(?:(?:therefore|thus|equal to)\b\s*:?\s*)*", re.I)
# What ends it: a new line, the end of the sentence, a clause that goes on in words.
END = re.compile(
    r"\.?\n|[.!?](?=[$*)]*(?:\s|$))|。|</|\s\((?=[a-z]{3})"
    r"|,\s+(?!and\b|or\b)(?=[a-z]{3}|(?:in|so|as|at|by|on|to|of|if|it|we|is)\b)"
    r"|\s(?:because|since|so|which|where|as|but|hence|therefore)\b")
ABOUT = re.compile(r"(?:approximately|about|roughly)\s+(?=\$?-?[0-9]*\.[0-9])")
PLAIN = re.compile(r"[-+]?(?:[0-9]{1,400}(?:\.[0-9]{1,400})?|\.[0-9]{1,400})")
PERCENT = re.compile(r"%|\bpercent")
# A question that asks for a percentage, not one that gives some: no digit, no end of a sentence.
ASKED = re.compile(
    r"\b(?:what|which|how many|as an?|in|calculate|find|determine)\b[^.?!0-9%$]{0,80}?"
    r"\bpercent(?:age)?s?\b[^.!]{0,200}\?", re.I)


def boxed_spans(text):
    """Spans (start, end) of all complete \\boxed{...}; the project's only box finder, in one pass.
    An unclosed box hides none of those inside of it, a complete one replaces them."""
    return scanned(text)[0]


def scanned(text):
    """(spans of the complete boxes, start of the last box that opens and never closes, or -1)."""
    spans, stack = [], []
    for match in BRACE.finditer(text) if "\\boxed{" in text else ():
        if match[0] in ("{", "\\boxed{"):
            stack.append(-1 if match[0] == "{" else match.start())
        elif match[0] == "}" and stack:
            start = stack.pop()
            if start >= 0:
                while spans and spans[-1][0] > start:
                    spans.pop()
                spans.append((start, match.end()))
    return spans, max(stack, default=-1)


def final_part(text):
    """(start, end) of the part after the last </think> and before a <think> that never closes."""
    start = text.rfind("</think>") + 8 if "</think>" in text else 0
    return start, (text + "<think>").index("<think>", start)


def last_boxed(text):
    """Span of the box that is rewarded: the last that opens outside of thinking; None if it stays
    open, since a cut-off answer must not be paid by an earlier one."""
    start, end = final_part(text)
    spans, unclosed = scanned(text[start:end])
    if not spans or unclosed > spans[-1][0]:
        return None
    return start + spans[-1][0], start + spans[-1][1]


def unboxed(text):
    """The content of the text's last box, or the text."""
    span = last_boxed(text) if "\\boxed" in text else None
    return text[span[0] + 7:span[1] - 1] if span else text


def extract(text, strict=False):
    """The final answer, or None: the last box; if not strict, also \\boxed 5 and \\fbox{5}, what
    follows the last "####", "<answer>" or "answer is", or a completion of one line as a whole."""
    if not strict:
        text = LOOSE_BOX.sub(lambda m: "\\boxed{" + (m[1] + "}" if m[1] else ""), text)
    span = last_boxed(text)
    if span:
        return text[span[0] + 7:span[1] - 1]
    text = text[slice(*final_part(text))]
    if strict or scanned(text)[1] >= 0:
        return None

    text = BOLD.sub("", text).strip()
    marks = [m.end() for m in MARK.finditer(text, max(0, len(text) - 20_000))]
    if not marks:
        return None if "\n" in text or "\\boxed" in text or len(text) > 300 else text
    text = text[marks[-1]:marks[-1] + MAX_CHARS].lstrip(" \t\n*:：是为")
    text = ABOUT.sub("", text, count=1) if ABOUT.match(text) else text
    shown = re.match(r"\$\$(.*?)\$\$|\\\[(.*?)\\\]", text, re.S)
    if shown:
        return shown[1] or shown[2]
    end = END.search(text)
    return text[:end.start() if end else None].strip()


# ---- compare: an answer is one tree, and one function walks two of them


def agree(run, answer, gold):
    """Do two texts agree? Every reading that the gold's spelling leaves open is tried."""
    a, g = tokens(answer), tokens(gold)
    if a == g != () or unwrapped(answer) == unwrapped(gold):
        run.how = "identical after normalisation"
        return True
    if not a or not g:
        return False
    choices = [CHOICE.fullmatch("".join(toks)) for toks in (a, g)]
    if all(choices) and not all(choice["rest"] for choice in choices):
        run.how = "choices"
        return len({choice["letter"].upper().strip('(").:') for choice in choices}) == 1
    if choices[0] and choices[0]["rest"] and not choices[1]:
        return False  # (B): y=-1 is right for the choice (B), so not for -1 too
    if spoken(a) == spoken(g) != "":
        run.how = "the same words"
        return True
    if choices[1] and not choices[1]["rest"] and any(tok[:1] == '"' and tok[2:] for tok in a):
        return False  # "Brand B" is neither the choice (B) nor a B with a unit

    x, y = parsed(a), parsed(g)
    if same(run, x, y):
        return True
    if EULER_OR_POWER.fullmatch(gold):
        return same(run, x, ("number", gold.replace("e", "E")))
    # 40,200 is a number and a list; next to a list it may be the list.
    if y[0] == "join" and THOUSANDS.fullmatch(answer):
        return same(run, parsed(tokens(answer.replace(",", ", "))), y)
    return False


def same(run, a, g):
    """Do two trees agree, the answer always first?"""
    if a == g:
        return True
    run.spend(10)
    if "relation" in (a[0], g[0]):
        if a[0] == g[0] and proportional(run, a, g):
            return True
        (a_names, a), (g_names, g) = named(run, a), named(run, g, gold=True)
        if a_names and g_names and not (a_names <= g_names or g_names <= a_names):
            return False
        if a_names or g_names:
            return same(run, a, g)
    kinds = {a[0], g[0]}
    if {"list", "join"} & kinds and same_lists(run, a, g):
        return True
    if "text" in kinds:
        return same_measures(run, a, g)
    if is_real_set(a) or is_real_set(g):
        return set_like(g) and same_reals(run, a, g)
    if "based" in kinds:  # the base may be missing in the answer, where the digits stand alone
        if a[0] == "number" or g[1].isdigit():
            return a == ("number", g[1])
        return a[0] == "product" and "".join(part[1] for part in a[1:]) == g[1]  # 152A
    return not STRUCTURES & kinds and (equal(run, a, g) or rounded(run, a, g))


def same_measures(run, a, g):
    """Values with units: a unit may be missing, not differ. Words alone agree word by word."""
    if a[:2] == g[:2]:
        return True
    a, g = (tree[2] if tree[0] == "text" else tree for tree in (a, g))
    if UNREADABLE in (a, g) or is_unit(a) or is_unit(g):
        return False
    x, y = without_units(a), without_units(g)
    if a != x and g != y:
        return equal(run, ("quotient", a, x), ("quotient", g, y)) and same(run, x, y)
    if PERCENT_SIGN in nodes(a):
        return same(run, a, y)
    if PERCENT_SIGN in nodes(g) and abs(Calculator(run).scalar(x)) <= MAX_FRACTION:
        # A number without the sign counts hundredths only if it is large, so it is never both.
        return same(run, x, g)
    return same(run, x, y)


def same_lists(run, a, g):
    """Bare lists agree in any order, tuples and ratios in theirs, braces ignore how often."""
    (a_kind, *x), (g_kind, *y) = members(a), members(g)
    if [x, y] == [[a], [g]]:
        return False
    names = names_of(x), names_of(y)
    order = max(map(len, names)) > 1 and not all(names)  # x=2,y=3 names what 2,3 only orders
    if "{}" in (a_kind, g_kind):
        x = x if a_kind in ("", "{}") else [a]
        y = y if g_kind in ("", "{}") else [g]
        left, right = distinct(run, x), distinct(run, y)
        # A list without braces has an order, where names are missing, and each member counts.
        bare_repeats = a_kind != "{}" and left != x or g_kind != "{}" and right != y
        if bare_repeats or order and a_kind != g_kind:
            return False
        x, y, order = left, right, False
    elif a_kind != g_kind:
        # x<3 : (-\infty,3) is one set in two notations
        return g_kind == ":" and all(map(set_like, y)) and any(same(run, a, one) for one in y)
    if len(x) != len(y):
        return False
    if order or a_kind not in ("", "{}"):
        return all(same(run, p, q) for p, q in zip(x, y))
    for want in y:
        at = next((k for k, member in enumerate(x) if same(run, member, want)), None)
        if at is None:
            return False
        del x[at]
    return True


def distinct(run, parts):
    """The parts without those that agree with one before them."""
    kept = []
    for part in parts:
        if not any(same(run, part, other) for other in kept):
            kept.append(part)
    return kept


def named(run, tree, gold=False):
    """(names, value) of x = 5, x = 2 + 3 = 5, x in S; of 2 + 3 = 5 no names; never of 6 = 5.
    \\sin x = 5 tells what sin x is, in a gold: there the problem asked for it."""
    kind, ops, *parts = tree
    if kind != "relation" or ops != "\\in" and {*ops.split()} - {"=", "\\approx"}:
        return set(), tree
    names = [is_name(part) or gold and part[0] in ("function", "log") and is_name(part[-1])
             for part in parts]
    if names == [False, True] and ops == "=":
        parts, names = parts[::-1], [True, False]
    first = [*names[:-1], False].index(False)  # the first part that is a value
    if not first and any(has_letters(part) or UNREADABLE in part for part in parts):
        return set(), tree
    about = [*ops.split(), "\\approx"].index("\\approx", first)
    values, last = parts[first:1 + about], parts[about]
    if any(name in nodes(last) for name in parts[:first]):
        return set(), tree  # x = 2x
    # The steps of a chain must agree. One with letters left may lead to a number, not to a formula.
    steps = [part for part in values[:-1]
             if has_letters(last) or part[0] == "text" or not has_letters(part)]
    if not all(same(run, part, last) for part in steps):
        raise Refused("not equal")
    if not gold and not all(near(run, part, last) for part in parts[1 + about:]):
        raise Refused("not nearly equal")
    return {*parts[:first]}, last


def proportional(run, a, g):
    """Are two equations or inequalities the same up to a constant factor: 2x < 6 and x < 3?"""
    if len(a) != 4 or len(g) != 4 or g[1] not in (a[1], FLIPPED.get(a[1])) or a[1] == "\\in":
        return False
    x, y = (("sum", tree[2], ("negative", tree[3])) for tree in (a, g))
    x_there, y_there = ("at", "2", x), ("at", "2", y)
    try:
        p, q = (Calculator(run).scalar(tree) for tree in (x_there, y_there))
        factor = (p / q).real * (1 if a[1] == g[1] else -1)
        always = not has_letters(g) or min(abs(p), abs(q)) < 1e-30  # as 2 = 2
        # x - x = C is no C = 0: an answer speaks of the same letters.
        if letters_of(a) != letters_of(g) or always or factor < 0 and a[1] in FLIPPED:
            return False
        return equal(run, ("product", x, y_there), ("product", y, x_there))
    except Exception:
        return False


def equal(run, a, g):
    """Equal to 60 digits, and to 200 beyond the largest number; with letters at 8 points."""
    letters, agreed = any(has_letters(tree, VARIABLE) for tree in (a, g)), 0
    run.how = "equal at several points" if letters else "equal to 200 digits"
    for point in range(8 if letters else 1):
        calculator = Calculator(run, point)
        for bits in (200, 400 if letters else 700):
            if letters and calculator.size > 3000:
                break  # too large a point: it tells nothing
            calculator.mp.prec, calculator.peak = bits + 2 * calculator.size, 0
            y = None
            try:
                y = calculator.value(g)
                x = calculator.value(a)
            except Exception:
                # x + 0^x is no |x|: an answer has a value wherever the gold has one, but far out
                if letters and (y is None or point in LARGE_POINTS):
                    break
                raise
            if not calculator.close(x, y):
                return False
        else:
            agreed += 1
    return agreed > letters


def rounded(run, a, g):
    """One is a decimal, the other the value that rounds to it: see the policy."""
    decimal, other, least = (a, g, 6) if "." in decimal_of(a) else (g, a, 3)
    text = decimal_of(decimal)
    if "." not in text or len(text.strip("-0.").replace(".", "")) < least:
        return False
    exact = not any(node[0] == "number" and "." in node[1] for node in nodes(other))
    return exact and not has_letters(other, VARIABLE) and near(run, decimal, other, 2)


def near(run, decimal, tree, parts=1):
    """Does \\approx hold, to a part of a unit in the last place?"""
    decimal, tree = without_units(decimal), without_units(tree)
    calculator = Calculator(run)
    gap = abs(calculator.scalar(decimal) - calculator.scalar(tree))
    return parts * gap * 10 ** len(decimal_of(decimal).partition(".")[2]) <= 1


# ---- sets of real numbers: members are tried at, between and beyond all end points


def is_real_set(tree):
    """Must this be a set of real numbers: by an infinity, an inequality, a union, [0,1)?"""
    kind, first, *parts = tree
    if kind == "list":
        return first in ("[)", "(]") or any(map(is_real_set, parts))
    if kind in ("join", "relation"):
        return bool(REAL & {*first.split()}) or any(map(is_real_set, parts))
    return tree in (REALS, *INFINITIES)


def set_like(tree):
    return tree not in INFINITIES and (is_real_set(tree) or tree[0] == "list" and tree[1] != ":")


def same_reals(run, a, g):
    """Are two sets of real numbers alike? With letters in their ends: at points of both signs."""
    run.how = "sets of real numbers"
    agreed = 0
    if EMPTY in (a, g):
        return a == g
    for point in range(8):
        calculator = Calculator(run, point, 400)
        inside(calculator, a, [])
        inside(calculator, g, [])
        if len(calculator.variables) > 1:
            return False
        ends = sorted({end for end in calculator.ends.values() if abs(end) != math.inf} | {0})
        between = [(low + high) // 2 for low, high in zip(ends, ends[1:])]
        probes = [ends[0] - 9, *ends, *between, ends[-1] + 9]
        expected = inside(calculator, g, probes)
        if inside(calculator, a, probes) != expected:
            return False
        agreed += any(expected)
        if not calculator.letters:
            return agreed == 1 or refuse("an empty set")
    return agreed > 1


def inside(calculator, tree, probes):
    """Which of the probes are in the set? Without any, its end points are found and kept."""
    kind, first, *parts = tree
    calculator.run.spend(1 + len(probes) // 20)
    if kind == "reals":
        return [True] * len(probes)
    if kind == "relation":
        return solved(calculator, first.split(), parts, probes)
    if kind == "join":  # from left to right; , is "or" if nothing is in both
        if len(parts) > 40:
            raise Refused("too many sets")
        total = inside(calculator, parts[0], probes)
        for op, part in zip(first.split(), parts[1:]):
            right = inside(calculator, part, probes)
            both = any(map(operator.and_, total, right))
            is_set = part[0] != "relation" or BOUND in nodes(part)
            if op in (",", ";") and both and is_set:
                raise Refused("a list of sets, not a set")
            union = op in ("\\cup", '"or') or not both and (op in (",", ";") or is_set)
            # gt: in the left one, and not in the right one
            how = operator.gt if op == "\\setminus" else operator.or_ if union else operator.and_
            total = [*map(how, total, right)]
        return total

    places = [calculator.place(part) for part in (parts if kind == "list" else [tree])]
    if kind != "list" or first == "{}":
        if {math.inf, -math.inf} & {*places}:
            raise Refused("no set")
        return [x in places for x in probes]
    low, high = places
    if first[0] == "[" and low == -math.inf or first[1] == "]" and high == math.inf:
        raise Refused("infinity is no number")
    if not calculator.letters and (low > high or low == high and first != "[]"):
        raise Refused("an empty interval")
    after = operator.ge if first[0] == "[" else operator.gt
    before = operator.le if first[1] == "]" else operator.lt
    return [after(x, low) and before(x, high) for x in probes]


def solved(calculator, ops, parts, probes):
    """The same for x < 3, 1 <= x < 2, x = 1, x in S."""
    variable = parts[1] if len(ops) == 2 or parts[0][0] != "letter" else parts[0]
    if variable[0] != "letter" or parts.count(variable) != 1 or "\\approx" in ops:
        raise Refused("not a solved inequality")
    calculator.variables |= {variable} - {BOUND}
    if ops == ["\\in"]:
        return inside(calculator, parts[1], probes)
    sides = [None if part == variable else calculator.place(part) for part in parts]
    lines = [[x if side is None else side for side in sides] for x in probes]
    return [all(HOLDS[op](low, high) for op, low, high in zip(ops, at, at[1:])) for at in lines]


# You can stop here: below, text is spelled, split and calculated.

# ---- spelling: one way to write each thing

DIGITS = frozenset("0123456789")
# A character in LaTeX; a pair is written character=LaTeX.
SIGNS = {pair[0]: pair[2:] + " " * (pair[2] == "\\") for pair in r"""
    −=- –=- —=- ‐=- ‑=- ·=* ⋅=* •=* ×=* ∗=* ÷=/ ∕=/ ⁄=/ °=°
    º=° ∘=° ′=' ’=' ≤=\le ≥=\ge ⩽=\le ⩾=\ge
    ≠=\ne ≈=\approx ≡== ∈=\in
    ∪=\cup ∩=\cap ∅=\O ∖=\setminus ∞=\infty ±=\pm ∓=\mp √=\sqrt
    ∛=\sqrt[3] ⟨=( ⟩=) ⌊=\lfloor ⌋=\rfloor ⌈=\lceil ⌉=\rceil
    ∣=| ℝ=\setR €=\euro £=\sterling ¥=\yen Å=\AA Å=\AA Ω=\Omega µ=\mu""".split()}
# A command under its usual name, which stands first; "_" is nothing.
ALIAS = {name: names.split()[0].strip("_") for names in r"""\frac dfrac tfrac cfrac;\binom dbinom
    tbinom;\le leq leqslant;\ge geq geqslant;\ne neq;< lt;> gt;... ldots cdots dots vdots;/ div
    ;= equiv;* ast cdot times;\{\} emptyset varnothing O oslash;| lvert rvert lVert rVert vert Vert
    mid;\{ lbrace;\} rbrace;( langle;) rangle;° degree;\mod bmod pmod;\epsilon varepsilon;\phi
    varphi;\overline bar;\vec overrightarrow;\cup bigcup;\cap bigcap;\setR R Reals reals;i imath
    ;\setminus backslash;\sterling pounds;\euro EUR;_ left right middle quad qquad displaystyle
    textstyle limits nolimits hline fbox boxed bf rm it mathbf bm boldsymbol mathsf mathit mathcal
    underline big Big bigl bigr Bigl Bigr bigg Bigg biggl biggr Biggl Biggr space large Large
    notag nonumber""".split(";") for name in names.split()[1:]}
# What is rewritten in the text, in this order.
# Each: a piece without which it cannot apply (quick to look for), the pattern, what comes instead.
REWRITES = [(piece, re.compile(pattern), new) for piece, pattern, new in (
    ("color", r"\\(?:text)?color\s*\{[a-zA-Z!0-9]{1,20}\}", " "),
    ("\\\\", r"\\\\\s*\[\s*-?[0-9.]+\s*(?:pt|mm|cm|em|ex|in)\s*\]", r"\\\\ "),  # \\[4pt]
    # thousands: 1{,}000, 1\,000, 1,\!000 and 1 000
    ("", r"(?<=[0-9])(?:\{,\s*\}|,?\s*(?:\\!\s*)+,?|(?:\\[,;: ])+)\s*(?=[0-9]{3}(?![0-9]))", ""),
    (" ", r"(?<![0-9.,/^_{])([0-9]{1,3}) (?=[0-9]{3}(?![0-9/.{]))", r"\1"),
    ("\\$", r"\\\$", r"\\dollar "),
    # spaces; the character " is ours
    ("", r"\\(?:left|right)\s*\.|(?<!\\)\\[][(),;:!> ]|[~$`\x22]", " "),
    ("!=", r"(?<=[0-9)}])!=(?!=)", "! = "),  # 5!=120
    # \frac12 and \frac1{2}
    ("\\", r"(\\[dtc]?(?:frac|binom))\s*([0-9])\s*([0-9])", r"\1{\2}{\3}"),
    ("\\end", r"\\\\\s*(?=\\end)", ""),
    ("\\frac", r"\\frac\s*\{\s*d\s*([A-Za-z])\s*\}\s*\{\s*d\s*([A-Za-z])\s*\}", r"\\ddt_{\1\2}"),
    ("\\circ", r"\^\s*(?:\\circ|\{\s*\\circ\s*\})", "° "),
    ("\\", r"\\([|%])", r"\1"),
    ("\\mathbb", r"\\mathbb\s*\{?\s*([A-Z])\s*\}?", r"\\set\1 "),
    ("\\{", r"-\s*\\\{", r"\\setminus \\{"),
    # the unit vectors: \hat{\mathbf{i}}, \vec{i}, \hat\imath
    ("\\", r"\\(?:hat|vec)\s*\{\s*(?:\\mathbf\s*)?\\?([ijk])(?:math)?\s*\}", r" \1 "),
    ("\\text", r"\\text\s*\{\s*if\s*\}", " "),
    ("\\", r",\s*(?=&)|\\[hv]space\*?\{[^{}]*\}|(?<=n\{array\})\{[^{}]*\}", " "),
    ("all", r"\\text\s*\{\s*all real(?:s| numbers)\.?\s*\}|\ball real(?:s| numbers)\b", r"\\setR "),
    ("^", r"\b([fg])\s*\^\s*\{\s*-\s*1\s*\}", r"\1_{inv}"),
    # the coordinates of a vector: [\mathbf{x}]_B
    ("]", r"\[\s*(?:\\mathbf\s*)?\{?\s*([a-z])\s*\}?\s*\]\s*_\s*\{?([A-Z])\}?", r"\1_{\2}"),
    ("\\prime", r"\^\s*\{?\s*\\prime\s*\}?", "'"),
    ("mph", r"\bmph\b", "miles / hours"),
    ("kph", r"\bkph\b", "kilometers / hours"),
    ("square", r"\bsquare ?(?![ds]?(?![a-z]))([a-z]+)", r"\1^2"),
    ("cubic", r"\bcubic ?([a-z]+)", r"\1^3"),
    ("per cent", "per cent", "percent"),
    ("infinity", r"(?:\\text\s*)?\{?\binfinity\b\}?", r"\\infty "),
    # bases: 4210_{(5)}, (4210)_5
    ("_", r"_\s*\{\s*\(\s*([0-9]+)\s*\)\s*\}", r"_{\1}"),
    ("_", r"\(\s*([0-9A-F]+)\s*\)\s*_", r"\1_"),
    (".", r"(?<![0-9])\.(?=[0-9\\])", "0."),
    (".", r"(?<=[0-9])\.(?=\s*[/*+)=])", ""))]  # 3./2
NEW_EQUATION = re.compile(r"\n\s*(?=\\?[A-Za-z][^\n=]{0,20}=)")
FOREIGN, AGAIN = re.compile("[^ -~]+"), re.compile(r"\}[_^]\{")  # x²³ has one exponent
BARS = re.compile(r"\|((?:(?!\\[{}]|\\[lgn]e\b)[^|<>=,])+)\|")
DISPLAY = re.compile(r"\\(?:begin|end)\s*\{(?:aligned|align|gathered|equation|split)\*?\}")
# Mixed numbers: 1\frac12, 1 1/2. The fraction is smaller than 1, and nothing stands before.
MIXED = re.compile(
    r"(?<![A-Za-z0-9.^_}])([0-9]+)(?:\s*\\[dtc]?frac\s*\{([0-9]+)\}\s*\{?([0-9]+)\}?"
    r"| +([0-9]+)/([0-9]+))")
REPEATING = re.compile(              # 0.1\overline{6}, 0.\bar3, 0.\dot6, 0.(3), 0.333...
    r"([0-9]{1,40})\.([0-9]{0,20}?)(?:\\(?:overline|bar|dot)\s*(?:\{([0-9]+)\}|([0-9]))"
    r"|\(([0-9]+)\)$|([0-9]{1,9}?)\6\6+(?:\.\.\.|\\[lc]?dots))")
TEXT = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|normal|up)?|mbox|hbox|mathrm|operatorname\*?)\s*"
                  r"\{((?:[^{}]|\{[^{}]*\})*)\}")
# What goes from it: articles; and its words, p.m. is one.
NO_PROSE = re.compile(r"\$|\b(?:an?|[Tt]he)\s+(?=[A-Za-z]{2})(?!and|or)")
WORD = re.compile(r"\\[A-Za-z]+|(?:[A-Za-z]\.){2,}|[A-Za-z]+")
# A command, or letters in a row; a word that is one already stays.
RUN = re.compile(r"\\(?:begin|end)\s*\{\w*\*?\}|\\([A-Za-z]+)|\\.|\x22\w+"
                 r"|((?:[A-Za-z]\.){2,}|[A-Za-z]{2,})")
OPENS = re.compile(r"\s*(?:\\left\s*)?\\?[({[_]")  # what \max needs to be a function
# Brackets, in which commas separate, or a number with thousands.
GROUPED = re.compile(r"\\\{.*?\\\}|\([^()]*\)|\[[^][]*\]"
                     r"|(?<![0-9.,])([0-9]{1,3}(?:,[0-9]{3})+)(?![0-9,])", re.S)
THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+")
# The powers of ten; 2e-1 is none, but see the policies.
NUMBER = re.compile(r"(?:[0-9]+\.[0-9]+[eE][-+]?[0-9]+|[0-9]+(?:E[-+]?|e)[0-9]+|1e[-+][0-9]+"
          r"|[0-9]+e[-+][0-9]{2,}|[0-9]+(?:\.[0-9]+)?)")
EULER_OR_POWER = re.compile(r"[0-9]+e[-+][0-9]")
TOKEN = re.compile(
    r"\\(?:begin|end)\s*\{\w*\*?\}"
    r"|(?:[0-9]{1,9}[A-F]|[A-F]{1,9}[0-9]|[A-F]{2})[0-9A-F]{0,40}\s*_\s*\{?\s*1[1-6]\s*\}?"
    r"|(?:" + NUMBER.pattern + r"|\x22\w+|[A-Za-z]"
    r"|\\(?:vec|overline|hat)\s*\{[^{}]*\}|\\[A-Za-z]+|\\.)(?:(?<!\\log)\s*(?:'|_\s*(?:[0-9]+"
    r"|[A-Za-z]|\\[a-z]+|\{(?:[^{}]|\{[^{}]*\})*\})))*|\.{3}|[<>!]=|\*\*|\S", re.S | re.A)
SYNONYMS = {'"to': ":", '"per': "/", '"percent': "%", '"degrees': "°", '"degree': "°",
            "**": "^", "<=": "\\le", ">=": "\\ge", "!=": "\\ne"}
PRELUDE = re.compile(r"^(?:\s*\x22[A-Za-z]{2,})+\s*:(?=.)")  # Solution is:
NO_BRACES = str.maketrans("", "", "{} ")
QUALIFIER = re.compile(r"(?:[,;(\s]|\x22(?:where|for|with|any|all)\b|\\forall){1,6}[a-z]\s*(?:\\in"
                       r"\s*\\setZ|(?:\x22is\s*)?\x22integer)[\s)]{0,9}$")              # , k in Z
TRIG = ("sin", "cos", "tan", "cot", "sec", "csc", "cis")
FUNCTIONS = {"ln", "log", "lg", "exp", "sqrt", "arsinh", "arcosh", "artanh", *TRIG,
             *("arc" + name for name in TRIG), *(name + "h" for name in TRIG[:6])}
OF_MANY = ("gcd", "lcm", "max", "min")
UNITS = {name: names.split()[0] for names in """cm centimeter|m meter|mm millimeter|km kilometer|kg
    kilogram|g gram|in inch inche|ft foot feet|s sec second|min minute|h hr hour|$ dollar USD
    |° degree|am|pm|% percent|lb pound|mi mile|euro EUR|ohm|day|week|month|year yr|yd yard|angstrom
    |cent|mL ml milliliter|L liter""".split("|") for name in names.split()}
WORDS = set("""yes no odd or and all red not is to none true false if one two six ten are max min
    the any for let but has its was can""".split())


def remembered(function):
    """With its results for short texts or tokens: a cache that only counts may hold gigabytes."""
    short = lru_cache(maxsize=2048)(function)
    return lambda text: (short if len("".join(text[:301])) <= 300 else function)(text)


@remembered
def tokens(text):
    """The tokens of an answer: "12", "x", "\\frac", "(", and '"cm' for a word."""
    if len(text) > MAX_CHARS:
        raise Refused("too long")
    text = NEW_EQUATION.sub(" ; ", text)
    text = FOREIGN.sub(lambda m: AGAIN.sub("", "".join(map(spelled, m[0]))), text)
    if DISPLAY.search(text) and "begin" not in DISPLAY.sub("", text):
        text = DISPLAY.sub(" ", text).replace("&", " ").replace("\\\\", " ; ")
    text = " ".join(text.split())
    if len(text) > 2 * MAX_CHARS:
        raise Refused("too long")
    for piece, pattern, new in REWRITES:
        if piece in text:
            text = pattern.sub(new, text)
    text = MIXED.sub(mixed, text)
    text = RUN.sub(run_of_letters, TEXT.sub(prose, REPEATING.sub(
        repeating, text.replace("}\\dot{", ""))))
    text = BARS.sub(r"\\abs{\1}", text)
    text = GROUPED.sub(lambda m: m[1].replace(",", "") if m[1] else m[0], text)
    text, before = PRELUDE.sub("", QUALIFIER.sub("", text) or text), None
    while before != text:  # without punctuation, "=" before it, and line breaks at its ends
        before = text
        text = text.lstrip("*=:+ ").removeprefix("\\approx")
        text = text.rstrip("*,;: ").removesuffix("\\\\")
        text = text if text.endswith("..") else text.removesuffix(".")
    toks = tuple(tok.replace(" ", "") if len(tok) < 3 or tok.startswith(("\\begin", "\\end"))
                 else tok.translate(NO_BRACES) for tok in TOKEN.findall(text))
    toks = tuple(SYNONYMS.get(tok, tok) for tok in toks)
    depths = itertools.accumulate((tok in OPENERS) - (tok in CLOSERS) for tok in toks)
    if max(depths, default=0) > 60:
        raise Refused("nested too deeply")
    return toks


def unwrapped(text):
    r"""The text without \text{}, $ and a final dot: \text{Jim} is Jim, also where no word is."""
    return " ".join(TEXT.sub(r"\1", text).replace("$", "").split()).rstrip(".")


def spelled(char):
    """A character beyond ASCII in LaTeX: by our table, else by Unicode's own description of it."""
    if char in SIGNS:
        return SIGNS[char]
    plain, kind = unicodedata.normalize("NFKC", char), unicodedata.decomposition(char).split(" ")[0]
    if "\u2044" in plain[1:-1]:
        return r"\frac{%s}{%s}" % tuple(plain.split("\u2044"))
    if kind in ("<super>", "<sub>"):
        return "^_"[kind == "<sub>"] + "{%s}" % plain.replace("−", "-")
    script, size, _, name = [*unicodedata.name(plain[:1], "").split(), "", "", "", ""][:4]
    if script == "GREEK":
        name = name.replace("LAMDA", "LAMBDA")
        return f"\\{name.lower() if size == 'SMALL' else name.title()} "
    return {"Cf": "", "Cc": " ", "Zs": " "}.get(unicodedata.category(char), plain)


def mixed(match):
    """1\\frac12 as {1+\\frac12}; 4 10/3 is refused, for nobody can say what it is."""
    whole, top, bottom = match[1], match[2] or match[4], match[3] or match[5]
    if len(top) > len(bottom) or len(top) == len(bottom) and top >= bottom:
        return match[0] if match[2] else " \\unclear "
    return rf"{{{whole}+\frac{{{top}}}{{{bottom}}}}}"


def repeating(match):
    whole, fixed, period = match[1], match[2], match[3] or match[4] or match[5] or match[6]
    shift, nines = 10 ** len(fixed), 10 ** len(period) - 1
    return rf"\frac{{{int(whole + fixed) * nines + int(period)}}}{{{shift * nines}}}"


def prose(match):
    """\\text{square cm} as "square "cm, without articles."""
    text = NO_PROSE.sub(" ", match[1])
    unit = text.strip() in ("sec", "arcsec") and "operatorname" not in match[0]
    if text.strip() in FUNCTIONS and not unit or text.strip() in OF_MANY:
        return f"\\{text.strip()} "
    return WORD.sub(lambda m: m[0] if m[0][0] == "\\" else f' "{m[0].replace(".", "")} ', text)


def run_of_letters(match):
    """Commands by their usual names; letters as a function, a word, or a product of variables."""
    command, letters = match.groups()
    if command in OF_MANY and not OPENS.match(match.string, match.end()):
        return f' "{command} '  # the word, as in \\max at x=2
    if not letters:
        return ALIAS.get(command, f"\\{command}") + " " if command else match[0]
    glued, name = match.string[:match.start()][-1:] in DIGITS, letters.replace(".", "")
    low, one = name.lower(), name.lower().removesuffix("s")
    if name in FUNCTIONS or name in ("pi", "theta", "alpha", "beta"):
        return f"\\{name} "
    word = low[3:] and name[1:].islower() and set("aeiouy") & set(low) and [*low] != sorted(low)
    known = name in UNITS or low in WORDS and not name.isupper()
    known = known or one in UNITS and (not glued or one[2:])  # east is a word, abcd a product
    return f' "{name} ' if known or not glued and word else letters


# ---- trees: tuples (kind, part, ...); all parts but texts are trees. Structures are
#   ("list", "[)", members...)     also "()", "{}", ":" of a ratio, "|" of {(x,y) | x < y}
#   ("join", ", ;", members...)    a bare list or a union, and what stands between its members
#   ("relation", "< <", parts...)  a chain
#   ("text", words, tree)          a value and its unit, or a name; the words are leaves of the tree
#   ("based", digits, base)        101_2
# and all others are formulas, whose value the calculator finds.

SETS, SEPARATORS = ("\\cup", "\\cap", "\\setminus"), (",", ";", '"and', '"or')
FLIPPED = {"<": ">", "\\le": "\\ge", ">": "<", "\\ge": "\\le"}
HOLDS = {"<": operator.lt, "\\le": operator.le, ">": operator.gt, "\\ge": operator.ge,
         "\\ne": operator.ne, "=": operator.eq}
REAL = {"<", ">", "\\le", "\\ge", "\\ne", *SETS}
RELATIONS = ("\\approx", "\\in", *HOLDS)
STRUCTURES = {"list", "join", "relation", "reals"}
WORDLESS = {*STRUCTURES, "text"}
EMPTY, REALS, INFINITY = ("list", "{}"), ("reals", ""), ("constant", "inf")
INFINITIES, BOUND = (INFINITY, ("negative", INFINITY)), ("letter", "|")
ONE, PERCENT_SIGN, UNREADABLE = ("number", "1"), ("word", "%"), ("unreadable", "")
UNKNOWN_BASE = ("number", "7.31")  # of \log, which agrees with no known base
CLOSES = {"(": ")", "[": "]", "{": "}", "\\{": "\\}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}
OPENERS, CLOSERS = {*CLOSES}, {*CLOSES.values()}
# How tightly what follows binds to what stands before it; 0 ends a formula.
LEVEL = {":": 3, **dict.fromkeys(SETS, 4), **dict.fromkeys(("+", "-", "\\pm", "\\mp"), 6),
         "\\over": 6, "\\choose": 6, "%": 6.5, "*": 7, "/": 7, "^": 9, "!": 9, "°": 9,
         **dict.fromkeys(("", *CLOSERS, *SEPARATORS, *RELATIONS, "&", "\\\\", "|"), 0)}
ENDS = {*SEPARATORS, *SETS, *RELATIONS}
RATIO, SUM, UNIT = 2, 5, 5.5
FLAT = ("list", ":"), ("sum",), ("product",)
KINDS = {":": FLAT[0], "+": FLAT[1], "\\pm": FLAT[1], "*": FLAT[2], "/": ("quotient",),
         "\\over": ("quotient",), "\\choose": ("binomial",), "^": ("power",),
         "\\lfloor": ("floor",), "\\lceil": ("ceil",)}
LEAVES = {"\\pi": ("constant", "pi"), "e": ("constant", "e"), '"e': ("constant", "e"),
          "i": ("constant", "i"), '"i': ("constant", "i"), "\\setR": REALS, "\\infty": INFINITY}
APPLIED = re.compile(r"\( (?:(?:- )?[0-9.]+ \)|[^()]* \) (?:=|\\approx))")
# Of a name: \angle ABC, \Delta x.
MARKS = ("angle", "overarc", "widehat", "triangle", "Delta", "partial", "nabla")
# C, (C), C. 42, and what follows; no operator, no other choice, and no ratio as in A:B=2:3.
CHOICE = re.compile(
    r"(?:\x22(?:option|choice|answer))?(?P<letter>\(\x22?[a-j]\)|(?-i:[A-J])[).:]|(?-i:[A-J])$"
    r"|\x22[a-j]$)(?P<rest>(?![-+*/=<>^|(,&!;\\]|\x22and|\x22or|(?<=:)(?-i:[A-Z])[:=])"
    r"(?!.*\([A-J]\)|.*\x22?(?:not|wrong|incorrect|false|never|neither|isn)\b).*)", re.I | re.S)
BASED = re.compile(r"\x22?([0-9A-F]*[0-9][0-9A-F]*|[A-F]{2,})_([0-9]+)")
CURRENCY = {"\\dollar": "$", "\\euro": "euro", "\\sterling": "lb", "\\yen": "yen"}
UNIT_SIGNS = {"%": "%", "°": "°", "\\Omega": "ohm", "\\AA": "angstrom", **CURRENCY}
BEHIND_VALUE = re.compile(r".*[A-Za-z0-9)\]}°%/*{]|\\[{}]", re.S)
ONE_LETTER_UNITS = "mgshLlNJWVAKCFT"
# Words that turn a number into another one, or into a statement about it: no units.
NOT_UNITS = set("""is are was be not no none to wrong false if when then than least most more less
    times half halve minus plus negative positive only about between from until above below under
    over nor but incorrect where with for all any every because should cannot undefined except or
    true yes without at correct never neither dozen hundred thousand million billion trillion grand
    square squared cube cubed root quarter third fourth fifth sixth seventh eighth ninth tenth
    twelfth hundredth thousandth millionth billionth double doubled triple tripled quadruple
    quadrupled halved twice thrice factorial pi tau modulo mod choose divided multiplied added
    subtracted increased decreased reduced raised inverse inverted reciprocal negated power th nd rd
    log ln sin cos tan exp radical rounded approximately roughly nearly almost maybe unknown
    zero one two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty
    sixty seventy eighty ninety short off too many fold score gross myriad infinite
    infinity nothing""".split())
MAX_FRACTION = 3  # an answer 1.5 is 150 %, and 4 is 4 %, so that no number is both


def refuse(reason):
    raise Refused(reason)


def nodes(tree):
    """The tree and all trees in it."""
    yield tree
    for part in tree:
        if type(part) is tuple:
            yield from nodes(part)


def has_letters(tree, kinds=("letter", "applied")):
    return any(node[0] in kinds for node in nodes(tree))


def letters_of(tree):
    return {node for node in nodes(tree) if node[0] == "letter"}


def members(tree):
    """(brackets, member, ...) of a list; anything else is the only member of a bare one."""
    if tree[0] == "join" and not {*SETS} & {*tree[1].split()}:
        return "", *tree[2:]
    return tree[1:] if tree[0] == "list" else ("", tree)


def replaced(tree, variable):
    """The tree with the variable that {x | ...} binds under one name."""
    if tree == variable:
        return BOUND
    return tuple(replaced(part, variable) if type(part) is tuple else part for part in tree)


def is_unit(tree):
    """Is there no value, only words?"""
    if tree[0] in ("text", "power"):
        return is_unit(tree[2 if tree[0] == "text" else 1])
    return tree[0] == "word" or tree[0] in ("product", "quotient") and all(map(is_unit, tree[1:]))


def without_units(tree):
    """5 m/s is 5."""
    if tree[0] == "text":
        return without_units(tree[2])
    factors = tree[0] in ("product", "quotient")
    parts = [without_units(part) if type(part) is tuple else part for part in tree
             if not (factors and is_unit(part))]
    return parts[1] if factors and len(parts) == 2 else (*parts,)


def is_name(tree):
    r"""May this stand before "="? x, a_1, f(x), AB, \frac{NO}{BO}, |AB|, \angle ABC, (x, y), Area;
    no product of variables, and no function's value."""
    kind, first = tree[:2]
    if kind == "letter":
        return tree != BOUND
    if kind == "text":
        return is_unit(tree[2])
    if kind == "list":
        return first in ("()", ":") and all(map(is_name, tree[2:]))
    kinds = {node[0] for node in nodes(tree)}
    if kind == "applied":
        return kinds.isdisjoint(("sum", "quotient", "power"))
    letters = [node[1] for node in nodes(tree) if node[0] == "letter"]
    if len(letters) > 1 and letters[0] == "m" and len(letters[1]) > 1:  # m\angle ABC, not m x
        letters = letters[1:]
    marked = letters[:1] and letters[0] in MARKS
    return kinds <= {"abs", "product", "quotient", "letter"} and (
        marked and kind == "product" or all(map(str.isupper, letters)))


def names_of(parts):
    """The names before "=" in a list."""
    return {part[2] for part in parts if part[0] == "relation" and part[1][0] == "="
            and is_name(part[2])}


def spoken(toks):
    """Words without case, marks and hyphens; "" without any word. Letters are variables and keep
    their case, but for the article that begins a sentence."""
    if not any(tok[0] == '"' and tok[2:] for tok in toks):
        return ""
    said = [tok for k, tok in enumerate(toks) if tok not in (".", "'") and not (
        tok == "-" and 0 < k < len(toks) - 1 and toks[k - 1][0] == toks[k + 1][0] == '"')]
    if said[0] == "A" and said[1][0] == '"':
        said[0] = "a"
    said = [tok[1:].lower() if tok[0] == '"' and tok[2:] else tok.strip('"') for tok in said]
    return "".join(f" {tok} " if tok[0] in DIGITS else tok for tok in said)


def decimal_of(tree):
    """The text of a plain decimal, else nothing."""
    if tree[0] == "negative":
        text = decimal_of(tree[1])
        return text and "-" + text
    return tree[1] if tree[0] == "number" and PLAIN.fullmatch(tree[1]) else ""


# ---- one grammar for all of them, by precedence climbing


@remembered
def parsed(toks):
    """The tree of the tokens."""
    return Parser(toks).tree


class Parser:
    """Reads tokens from left to right; at is the next one's place, opener the bracket around."""

    def __init__(self, toks):
        self.toks = [*toks, "", ""]
        self.at, self.depth, self.words = 0, 0, 0
        self.trig, self.unit, self.opener = False, False, ""
        notations = [self.listing()]
        while self.take(":"):  # x<3 : (-\infty,3)
            notations.append(self.listing())
        if self.toks[self.at]:
            raise Refused(f"cannot read on at {self.toks[self.at]}")
        self.tree = notations[0] if len(notations) == 1 else ("list", ":", *notations)

    def take(self, *wanted):
        """The next token, if it is wanted, else ""."""
        tok = self.toks[self.at]
        if wanted and tok not in wanted or not tok:
            return ""
        self.at += 1
        return tok

    # structures

    def listing(self):
        """One thing, or a list without brackets."""
        items, ops = [], []
        while self.take(*SEPARATORS):
            pass
        while not ops or ops[-1] and self.toks[self.at]:
            for tree in self.readings():
                last = items[-1] if items else tree
                if last[0] == "relation" != tree[0] and last[1] in ("\\ne", "="):
                    tree = ("relation", last[1], last[2], tree)  # x \ne 1, 4
                items.append(tree)
                ops.append('"and' if tree[1] == "\\ne" else '"or')
            ops[-1] = ""
            while op := self.take(*SEPARATORS, *SETS):
                ops[-1] = op
        return ("join", " ".join(ops[:len(items) - 1]), *items) if items[1:] else items[0]

    def readings(self):
        """The next member: for \\pm both + and -, each with each; \\mp is opposite to the first."""
        start, tree = self.at, self.relation()
        toks = self.toks[start:self.at]
        count = toks.count("\\pm") or toks.count("\\mp")
        if not count or self.opener not in ("", "\\{") or toks[0] == "\\{":
            return [tree]
        if count > 3:
            raise Refused("too many signs")
        found = []
        for signs in itertools.product("+-", repeat=count):
            chosen = {"\\pm": iter(signs), "\\mp": itertools.repeat("-+"[signs[0] == "-"])}
            found.append(Parser([next(chosen.get(tok, iter((tok,)))) for tok in toks]).tree)
        return found

    def relation(self):
        parts, ops = [self.measure(RATIO)], []
        while op := self.take(*RELATIONS):
            ops.append(op)
            # x<1 \cup x>2 are two inequalities, x \in A \cup B is one relation.
            parts.append(self.measure(RATIO if op in ("=", "\\in", "\\approx") else SUM))
        return ("relation", " ".join(ops), *parts) if ops else parts[0]

    def measure(self, floor):
        """A formula; with words it is a value with its unit, or text."""
        start, words, outer = self.at, self.words, (self.depth, self.trig, self.opener)
        unit, self.unit = self.unit, False
        try:
            tree = self.expression(floor)
        except Refused:
            # Text goes on to the next separator outside of brackets.
            self.at, (self.depth, self.trig, self.opener) = start, outer
            tree, depth = UNREADABLE, 0
            while tok := self.toks[self.at]:
                depth += (tok in OPENERS or tok[:6] == "\\begin")
                depth -= (tok in CLOSERS or tok[:4] == "\\end")
                if depth < 0 or depth == 0 and tok in ENDS:
                    break
                self.at += 1
        self.unit, toks = unit, self.toks[start:self.at]
        if not toks:
            raise Refused(f"cannot read {self.toks[self.at] or 'the end'}")
        if tree != UNREADABLE and (self.words == words or tree[0] in WORDLESS and tree[1] != ":"):
            return tree
        return ("text", spoken(toks) or " ".join(toks), tree)

    def group(self, opener):
        """What stands in brackets: one thing, a list, or {variable | condition}."""
        if opener == "\\{" and self.take("\\}"):
            return EMPTY
        outer, self.opener = self.opener, opener
        inside = self.listing()
        condition = self.listing() if opener == "\\{" and self.take("|", ":") else None
        self.opener = outer
        closer = self.take(*CLOSERS) or refuse(f"{opener} is not closed")
        brackets = (opener + closer).replace("\\", "")
        if condition:  # {x in S | x > 2} is the set of solutions of both
            variable = inside[2] if inside[0] == "relation" else inside
            both = condition if variable is inside else ("join", '"and', inside, condition)
            solutions = variable[0] == "letter" and variable in nodes(both)
            return replaced(both, variable) if solutions else ("list", "|", variable, both)
        items = members(inside)[1:] if inside[0] == "join" else (inside,)
        if len(items) == 1 and closer == CLOSES[opener] != "\\}":
            return (*KINDS[opener], inside) if opener in KINDS else inside
        if brackets in ("()", "[]") and all(tree[0] == "relation" for tree in items):
            return inside
        return ("list", brackets, *items)

    # formulas

    def expression(self, floor, argument=False):
        """All that binds more tightly than floor."""
        self.depth += 1
        if self.depth > 100:
            raise Refused("nested too deeply")
        tree = self.prefix(floor)
        while (level := self.level(argument)) > floor:
            tree = self.infix(tree, level)
        self.depth -= 1
        return tree

    def level(self, argument):
        """How tightly the next token binds. argument: what follows sin without brackets."""
        tok = self.toks[self.at]
        if tok == ":" and self.opener == "\\{":
            return 0  # {x : x > 2}
        if tok in LEVEL or tok[:5] == "\\end{":
            return LEVEL.get(tok, 0)
        word = tok in UNIT_SIGNS or tok[0] == '"'
        if argument:
            return 0 if word or tok == "(" or tok[1:] in FUNCTIONS else 8
        return UNIT if word and (tok[2:] or self.unit) else 7

    def infix(self, left, level):
        """The tree with the next operator and what stands on its right."""
        tok = self.toks[self.at]
        if tok not in LEVEL:  # a product without a sign
            word = tok in UNIT_SIGNS or tok[0] == '"'
            if tok[0] in DIGITS and self.toks[self.at - 1][-1] in DIGITS or self.unit and not word:
                raise Refused("a number behind a number or a unit")
            tok, level = "*", 8
        else:
            self.at += 1
        if self.unit and level in (4, 6):
            raise Refused("a unit inside of a formula")
        if tok == "°" and self.trig:
            return ("quotient", ("product", left, ("constant", "pi")), ("number", "180"))
        if tok in ("%", "°"):
            self.words += 1
            return ("product", left, ("word", tok + self.take("C", "F", '"C', '"F').strip('"')))
        if tok == "!":
            return ("fac2" if self.take("!") else "factorial", left)
        right = self.expression(8.5 if tok == "^" else level)
        if tok in SETS:
            return ("join", tok, left, right)
        if tok in ("-", "\\mp"):
            tok, right = "+", ("negative", right)
        head = KINDS[tok]
        # Sums and products are flat: a tree as deep as the answer is long could not be walked.
        flat = head in FLAT and left[:len(head)] == head
        return (*left, right) if flat else (*head, left, right)

    def prefix(self, floor):
        """A number, a letter, what stands in brackets, or a command with its arguments."""
        tok = self.take()
        if tok in ("+", "-", "\\pm", "\\mp"):
            tree = self.expression(max(floor, 6))
            return ("negative", tree) if tok in ("-", "\\mp") else tree
        if based := BASED.fullmatch(tok):
            return ("based", *based.groups())
        if tok[:1] in DIGITS:
            return ("number", tok) if NUMBER.fullmatch(tok) else refuse(f"cannot read {tok}")
        if tok in CLOSES:
            return self.group(tok)
        if tok[:6] == "\\begin":
            return self.matrix(tok[6:])
        if tok in ("\\frac", "\\binom"):
            kind = "quotient" if tok == "\\frac" else "binomial"
            return (kind, self.expression(9), self.expression(9))
        if tok in ("\\abs", "\\det"):
            return ("abs", self.expression(9))
        if tok == "\\sqrt":
            index = self.prefix(9) if self.toks[self.at] == "[" else ("number", "2")
            return ("power", self.expression(9), ("quotient", ONE, index))
        if tok[:1] == "\\" and tok[1:] in OF_MANY:
            values = self.arguments()
            return (tok[1:], *values) if values[1:] else refuse("one thing has no maximum")
        if tok[:1] == "\\" and tok[1:] in FUNCTIONS:
            return self.function(tok[1:])
        return LEAVES[tok] if tok in LEAVES else self.letter(tok, tok.lstrip('"\\'))

    def letter(self, tok, name):
        """A variable, f(x), or a word; of the letters in \\text, units are those behind a value."""
        unit = tok in UNIT_SIGNS or tok[:1] == '"' and name in ONE_LETTER_UNITS
        behind = self.at > 1 and BEHIND_VALUE.fullmatch(self.toks[self.at - 2])
        if tok in CURRENCY or tok[:1] == '"' and tok[2:].isalpha() or unit and behind:
            low = name.lower()
            if {low, low.removesuffix("s")} & NOT_UNITS or low.endswith(("ieth", "ieths")):
                raise Refused(f"{name} is no unit")
            # A currency stands before its value.
            value = tok in CURRENCY and self.level(False) >= 6 and self.expression(SUM)
            self.unit = True
            self.words += 1
            name = UNIT_SIGNS.get(tok, name)
            name = name if name in UNITS else low.removesuffix("s")
            unit = ("word", UNITS.get(name, name))
            return ("product", value, unit) if value else unit

        if tok in LEVEL or tok == "\\unclear" or not (name[:1].isalpha() or tok == "..."):
            raise Refused(f"cannot read {tok or 'the end'}")
        # f(x) is a function's value; of other letters, only I(0) and P(x) = are
        ahead = " ".join(self.toks[self.at:self.at + 9])
        if ahead[:1] == "(" and (name[0] in "fg" or APPLIED.match(ahead)):
            return ("applied", name, *self.arguments())
        return ("letter", name)

    def arguments(self):
        """(a, b, ...) or one thing without brackets."""
        opener = self.take("(", "{", "\\{", "[")
        return members(self.group(opener))[1:] if opener else [self.expression(9)]

    def matrix(self, name):
        rows = [("row",)]
        while not self.take("\\end" + name):
            if self.take("\\\\"):
                rows.append(("row",))
            elif not self.take("&"):
                rows[-1] += (self.expression(SUM),)
        if len({*map(len, rows)}) > 1 or not rows[0][1:] or "cases" in name:
            raise Refused("no matrix")
        return ("abs", ("matrix", *rows)) if "vmatrix" in name else ("matrix", *rows)

    def function(self, name):
        """sin(x) y, sin^2 x, log_2 8, tan^{-1} x, sin 2x."""
        base, power, outer = UNKNOWN_BASE if name == "log" else ("number", "10"), None, self.trig
        while tok := self.take("^", "_"):
            if tok == "^":
                power = self.expression(8.5)
            else:
                base = self.expression(9)
        self.trig = name in TRIG
        bracket_next = self.toks[self.at] in ("(", "[", "{")
        tree = self.prefix(9) if bracket_next else self.expression(7, True)
        self.trig = outer
        if name in TRIG and power == ("negative", ONE):
            name, power = "arc" + name, None
        tree = ("log", base, tree) if name in ("log", "lg") else ("function", name, tree)
        return tree if power is None else ("power", tree, power)


# ---- a calculator of trees. It fails closed: each step costs fuel by the size of what it makes,
# and no value may be infinite, no number, or too large.

VARIABLE = ("letter", "applied", "word")
LOCAL = threading.local()
MPMATH = {"cis": "expj", "arsinh": "asinh", "arcosh": "acosh", "artanh": "atanh"}
LARGE_POINTS = (6, 7)
SCALES = (1, 3, 7, 0.111, 31, 0.0123, 1000, 10**6)  # of the letters, at the 8 points
SIGNS_AT = [bits for bits in range(256) if bits.bit_count() == 4]  # negative at half of them


def is_matrix(x):
    return hasattr(x, "rows")


def norm(x):
    return max(map(abs, x)) if is_matrix(x) else abs(x)


class Calculator:
    """Values of trees at one of 8 points. size: bits of the largest or smallest magnitude on the
    way; peak: the largest term of a sum; for sets: the ends and variables met, any letters?"""

    def __init__(self, run, point=0, bits=200):
        from mpmath.ctx_mp import MPContext  # sympy's numeric layer, one for each thread
        self.mp = vars(LOCAL).get("mp") or vars(LOCAL).setdefault("mp", MPContext())
        self.mp.prec, self.run, self.point = bits, run, point
        self.size, self.peak = 0, 0
        self.ends, self.variables, self.letters = {}, set(), False

    def costly(self, times=1):
        self.run.spend(times * (5 + self.mp.prec ** 2 // 300_000))

    def value(self, tree):
        self.run.spend(1 + self.mp.prec ** 2 // 30_000_000)
        kind, *parts = tree
        if kind in ("number", "constant", "letter", "word"):
            x = self.leaf(kind, *parts)
        elif kind in ("sum", "product", "negative", "quotient"):
            x = self.arithmetic(kind, *map(self.value, parts))
        else:
            x = self.special(kind, parts)
        for entry in x if is_matrix(x) else (x,):
            if isinstance(entry, self.mp.mpc) and not self.mp.isfinite(entry):
                raise Refused("not finite")
            bits = abs(self.mp.mag(entry)) if entry else 0  # infinite, or no number, if x is
            if not bits <= MAX_BITS:
                raise Refused("too large a number, or none")
            self.size = max(self.size, bits)
        return x

    def scalar(self, tree):
        x = self.value(tree)
        return refuse("a matrix here") if is_matrix(x) else x

    def whole(self, x):
        return x == self.mp.nint(self.mp.re(x))

    def close(self, x, y):
        """Equal up to rounding. What is not finite is close to nothing."""
        if is_matrix(x) != is_matrix(y) or is_matrix(x) and (x.rows, x.cols) != (y.rows, y.cols):
            return False
        size = max(norm(x), norm(y), self.peak)
        return norm(x - y) <= self.mp.ldexp(size, 60 - self.mp.prec)

    def place(self, tree):
        """A real number in units of 2^-140, as an integer, so that equal end points are equal."""
        if tree in self.ends:
            return self.ends[tree]
        if tree in INFINITIES:
            place = math.inf if tree == INFINITY else -math.inf
        else:
            self.letters = self.letters or has_letters(tree)
            x = self.scalar(tree)
            if abs(self.mp.im(x)) > 2 ** -140:
                raise Refused("not a real number")
            place = int(self.mp.nint(self.mp.re(x) * 2 ** 140))
        self.ends[tree] = place
        return place

    def leaf(self, kind, text):
        """A number, a constant, a unit, or a letter's value at this point: no integer, of a sign
        and a size that change between the points."""
        if kind == "number":
            if len(text.lower().partition("e")[2]) > 5:
                raise Refused("too large a number")
            self.size = max(self.size, 4 * len(text) - 60)
            return self.mp.mpf(int(text) if text.isdigit() and len(text) < 16 else text)
        if kind == "constant":
            return self.mp.mpc(0, 1) if text == "i" else +getattr(self.mp, text)
        if text == "%":
            return self.mp.mpf(1) / 100
        seed = zlib.crc32(text.encode())
        signs = SIGNS_AT[(ord(text) if len(text) == 1 else seed) * 37 % len(SIGNS_AT)]
        size = SCALES[self.point] * (505 + (seed >> 3 * self.point) % 500) / self.mp.mpf(1009)
        return -size if signs >> self.point & 1 else size

    def arithmetic(self, kind, first, *rest):
        """Sums, products, quotients, of numbers and of matrices."""
        if kind == "negative":
            return -first
        if kind == "quotient":
            return first / rest[0] if not is_matrix(rest[0]) else refuse("a matrix here")
        if kind == "product":
            for x in rest:
                if is_matrix(x) and is_matrix(first):
                    self.costly(first.rows * x.rows * x.cols)
                first = first * x
            return first
        if len({is_matrix(x) for x in (first, *rest)}) > 1:
            raise Refused("a number and a matrix")
        self.peak = max(self.peak, *map(norm, (first, *rest)))
        return sum(rest, first)

    def special(self, kind, parts):
        """What needs a bound of its own."""
        mp = self.mp
        if kind in STRUCTURES or kind in ("based", "unreadable"):
            raise Refused("no formula")
        if kind == "text":
            return self.value(parts[1])
        if kind == "at":  # another of the points
            here, self.point = self.point, int(parts[0])
            x, self.point = self.value(parts[1]), here
            return x
        if kind == "matrix":
            if len(parts) * len(parts[0]) > 100:
                raise Refused("too large a matrix")
            return mp.matrix([[self.scalar(entry) for entry in row[1:]] for row in parts])
        if kind == "power":
            return self.power(*parts)
        if kind == "abs":
            x = self.value(parts[0])
            if not is_matrix(x):
                return abs(x)
            self.costly(x.rows ** 3)
            self.peak = max(self.peak, norm(x) ** x.rows)
            return mp.det(x)

        name, parts = (parts[0], parts[1:]) if kind in ("function", "applied") else (kind, parts)
        values = [self.scalar(part) for part in parts]
        if kind == "function":
            return self.function(name, *values)
        if kind == "applied":
            return self.applied(name, values)
        if kind in ("factorial", "fac2", "binomial"):
            return self.gamma(name, values)
        if kind == "log":
            self.costly(2)
            self.peak = max(self.peak, 1)
            return mp.ln(values[1]) / mp.ln(values[0]) if values[1] else refuse("ln 0")
        if kind in ("max", "min"):
            return (max if kind == "max" else min)(values)  # not of complex numbers: an error
        if kind in ("gcd", "lcm"):
            if not all(self.whole(x) and abs(x) < 1e30 for x in values):
                raise Refused("not an integer")
            return mp.mpf(getattr(math, kind)(*map(int, values)))
        near = mp.nint(mp.re(values[0]))
        # Up to rounding, so that the floor of an integer is itself.
        close = abs(values[0] - near) < mp.mpf(2) ** (100 - mp.prec)
        return near if close else getattr(mp, kind)(values[0])

    def applied(self, name, values):
        """f(x) of an unknown f: some smooth function, which the name chooses."""
        self.costly()
        total, seed = self.leaf("letter", name + "()"), zlib.crc32(name.encode()) % 1000
        for place, x in enumerate(values, 1):
            if abs(x) > MAX_BITS:
                raise Refused("too large an argument")
            total += self.mp.atan(x * (seed + place) / 997 + place) * (place + seed)
        return total

    def function(self, name, x):
        real = not self.mp.im(x)
        self.costly(1 if real else 4)
        self.peak = self.peak if name == "exp" else max(self.peak, 1)
        # e^x and the like need as many digits as x; their series would fill the memory.
        if abs(x) > (1e12 if real and name in TRIG else MAX_BITS):
            raise Refused("too large an argument")
        if name == "ln" and not x:
            raise Refused("ln 0")
        if name[-1] == "h":
            self.size = max(self.size, 3 * int(abs(x)))  # tanh(500) is 1 in 400 digits
        return getattr(self.mp, MPMATH.get(name) or name.replace("arc", "a"))(x)

    def gamma(self, name, values):
        """n!, n!! and binomials, exact for whole numbers. Those of fractions are slow at a high
        precision, and those of i slower."""
        x, k = [*values, self.mp.mpf(0)][:2]
        if all(self.whole(y) and 0 <= y <= 1e12 for y in (x, k, x - k)):
            k = min(k, x - k) if name == "binomial" else x
            self.costly()
            if k * math.log2(x + 1) > 2 * MAX_BITS:
                raise Refused("too large a factorial")
            if name == "binomial":
                return self.mp.mpf(math.comb(int(x), int(k)))
            return self.mp.mpf(math.prod(range(int(x), 0, -2 if name == "fac2" else -1)))
        if self.mp.prec > 1000 or any(self.mp.im(y) or abs(y) > 1e5 for y in (x, k)):
            raise Refused("too large a factorial")
        self.run.spend(300)
        return getattr(self.mp, name)(*values)

    def power(self, base, exponent):
        x, mp = self.value(base), self.mp
        if is_matrix(x) and exponent == ("letter", "T"):
            return x.T
        e = self.scalar(exponent)
        if is_matrix(x):
            self.costly(8 * x.rows ** 3)
            return x ** int(e) if e in (-1, 2, 3) else refuse("such a power")
        if x == 0:
            return x if mp.re(e) > 0 else refuse("0 to such a power")
        self.costly(2)
        mag = mp.mag(x)  # the logarithm's full precision would cost more than the power
        bits = mag + math.log2(mp.ldexp(abs(x), -mag))
        if mp.mag(e) > 60 or abs(e) * abs(bits) > MAX_BITS:
            raise Refused("too large a power")
        for q in (3, 5, 7) if mp.im(x) == 0 > mp.re(x) else ():  # (-8)^{1/3} is -2
            p = int(mp.nint(mp.re(e) * q))
            if p % q and abs(e * q - p) < mp.mpf(2) ** (60 - mp.prec):
                return mp.power(-x, e) * (-1) ** p
        return mp.power(x, e)


# ---- the command line


def table(path):
    """Scores a file of rows (gold, completion, expect, kind) and prints a line for each kind."""
    results = {}
    for row in map(json.loads, open(path, encoding="utf-8")):
        start, expect = time.perf_counter(), row["expect"]
        if expect not in (True, False, None):  # None: either verdict is fine
            raise ValueError(f"expect is {expect!r}, not true or false")
        verdicts = verify_all([(row["completion"], row["gold"])])
        ms, wrong = 1000 * (time.perf_counter() - start), {verdicts[0], expect} == {True, False}
        for kind in ("all", row.get("kind") or row.get("category") or "?"):
            results.setdefault(kind, []).append((wrong, wrong and expect, verdicts.timeouts, ms))
    if not results:
        raise ValueError("no row in it")
    print("kind                     n  right %   FP   FN timeouts   p50 ms   p99 ms")
    for kind, found in results.items():
        n, (wrong, missed, late, ms) = len(found), map(sorted, zip(*found))
        print(f"{kind:20}{n:6}{100 - 100 * sum(wrong) / n:9.1f}{sum(wrong) - sum(missed):5}"
              f"{sum(missed):5}{sum(late):9}{ms[(n - 1) // 2]:9.2f}{ms[int(.99 * (n - 1))]:9.2f}")


def main(argv=None):
    parser = argparse.ArgumentParser(description="Is the final answer of a completion right?")
    parser.add_argument("completion", nargs="?", help="a completion, or an answer alone")
    parser.add_argument("gold", nargs="?", help="the right answer")
    parser.add_argument("--table", metavar="FILE", help="JSONL with gold, completion, expect, kind")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        return print(json.dumps(verify(*json.load(sys.stdin))))
    if args.table:
        try:
            return table(args.table)
        except (OSError, ValueError, KeyError, TypeError) as e:
            parser.error(f"{args.table}: {e!r}")
    if args.gold is None:
        parser.error("give a completion and a gold answer, or --table FILE")
    print("{} ({})".format(*judge(args.completion, args.gold)))


if __name__ == "__main__":
    main()
