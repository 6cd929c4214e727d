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
  percent    is a hundredth; a gold's sign may be missing: 50\% ~ 0.5 ; 50\% ~ 50 ; 50 !~ 50\%
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
  words      and choices ignore case: \text{Yes} ~ yes ; x !~ X ; B ~ (b) ; C ~ (C) 42 ; C !~ C, D
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
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
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
        return Fraction(answer) == Fraction(gold), "exact decimals"
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


# ---- compare: lists, names, units, brackets, sets of real numbers, words, and at last values


def agree(run, answer, gold):
    """Do two texts agree? Every reading that the gold's spelling leaves open is tried."""
    if unwrapped(answer) == unwrapped(gold):
        run.how = "identical but for \\text"
        return True
    a, g = tokens(answer), tokens(gold)
    if a == g != ():
        run.how = "identical after normalisation"
        return True
    if not a or not g:
        return False

    choice = [CHOICE.fullmatch("".join(toks)) for toks in (a, g)]
    if all(choice) and not all(match["rest"] for match in choice):
        run.how = "choices"
        letters = {re.sub("[^A-J]", "", match["letter"].upper()) for match in choice}
        return len(letters) == 1
    if EULER_OR_POWER.fullmatch(gold) and same(run, a, (gold.replace("e", "E"),)):
        return True
    a, g = without_prose(a), without_prose(g)
    if ":" in g:
        a = tuple(":" if tok == '"to' else tok for tok in a)
        notations, colons = split(g, (":",))
        if len(notations) == 2 and set_like(notations[0]) and set_like(notations[1]):
            return any(same(run, a, one) for one in notations)  # x<3:(-\infty,3)
    if same(run, a, g):
        return True
    # 40,200 is a number and a list; next to a list it may be the list.
    if len(split(g, SEPARATORS)[0]) > 1 and THOUSANDS.fullmatch(answer):
        return same(run, tokens(answer.replace(",", ", ")), g)
    return False


def same(run, a, g):
    """Do two tuples of tokens agree, the answer always first?"""
    if a == g:
        return True
    run.spend(10 + (len(a) + len(g)) // 4)
    if SIMPLE.fullmatch("".join(a)) and SIMPLE.fullmatch("".join(g)):
        return equal(run, a, g) or rounded(run, a, g)
    if spoken(a) == spoken(g) != "":
        return True
    kinds, real = {bracket(a)[0], bracket(g)[0]}, REAL & {*a, *g}
    if "{}" in kinds and not real:
        return same_braces(run, a, g)
    x, y = members(a), members(g)
    if len(x) != 1 or len(y) != 1:
        if same_members(run, x, y):
            return True
        return bool(real) and set_like(g) and same_reals(run, a, g)

    a, g = x[0], y[0]
    if proportional(run, a, g):
        return True
    (a_name, a), (g_name, g) = named(run, a), named(run, g, True)
    if a_name and g_name and not (a_name <= g_name or g_name <= a_name):
        return False
    if a == g:
        return True
    if real or {"[)", "(]"} & kinds:
        return bool(in_order(run, a, g)) or set_like(g) and same_reals(run, a, g)
    if a_name or g_name:
        return same(run, a, g)
    return same_values(run, a, g)


def same_values(run, a, g):
    """Units, tuples, bases, words, and what the calculator says."""
    (a_value, a_unit), (g_value, g_unit) = unit(a), unit(g)
    if a_unit and g_unit and a_unit != g_unit:
        return False
    if a_unit or g_unit:
        alike = same(run, a_value, g_value)
        if alike and g_unit == "%":
            return True
        if "%" not in (a_unit, g_unit):
            return alike
    ordered = in_order(run, a, g)
    if ordered is not None:
        return ordered
    a_base, g_base = (BASED.fullmatch("".join(toks)) for toks in (a, g))
    if a_base or g_base:
        if not g_base:
            return False
        digits, base = (a_base[1], a_base[2]) if a_base else ("".join(a), g_base[2])
        return (digits.strip('"'), base) == (g_base[1].strip('"'), g_base[2])
    if has_words(a) or has_words(g):
        return False  # equal words were found before
    return equal(run, a, g) or rounded(run, a, g)


def same_braces(run, a, g):
    """Sets in braces: each member has an equal one. How often counts for a list without braces."""
    x, y = (members(bracket(t)[1] if bracket(t)[0] == "{}" else t) for t in (a, g))
    if not all(any(same(run, p, q) for q in y) for p in x):
        return False
    if not all(any(same(run, p, q) for p in x) for q in y):
        return False
    if bracket(a)[0] == bracket(g)[0]:
        return True
    bare, braced = (y, x) if bracket(a)[0] == "{}" else (x, y)
    if len(names_of(bare)) > 1 and not names_of(braced):
        return False  # x=1,y=2 has an order, and braces have none
    return not any(same(run, p, q) for p, q in itertools.combinations(bare, 2))


def same_members(run, a, g):
    """One to one, in any order; but in order if the names x=1, y=2 are missing on one side."""
    if len(a) != len(g):
        return False
    a_names, g_names = names_of(a), names_of(g)
    if max(len(a_names), len(g_names)) > 1 and not (a_names and g_names):
        return all(same(run, p, q) for p, q in zip(a, g))
    a = list(a)
    for want in g:
        at = next((k for k, member in enumerate(a) if same(run, member, want)), None)
        if at is None:
            return False
        del a[at]
    return True


def in_order(run, a, g):
    """Tuples, intervals, ratios, member by member; None for anything else."""
    (x, a_inside), (y, g_inside) = bracket(a), bracket(g)
    for separators in (SEPARATORS, (":",)):
        left, right = split(a_inside, separators)[0], split(g_inside, separators)[0]
        if len(left + right) > 2:
            alike = (x, len(left)) == (y, len(right))
            return alike and all(same(run, p, q) for p, q in zip(left, right))
    return None


def named(run, toks, gold=False):
    """(name, value) of x = 5, x = 2 + 3 = 5, x in S; (None, 5) of 2 + 3 = 5; never of 6 = 5.
    \\sin x = 5 tells what sin x is, in a gold: there the problem asked for it."""
    parts, ops = split(toks, RELATIONS)
    if not ops or ops != ["\\in"] and set(ops) - {"=", "\\approx"}:
        return None, toks
    names = [is_name(part) or gold and part[:1] != () and part[0][1:] in FUNCTIONS
             and is_name(part[1:]) for part in parts]
    if names == [False, True] and ops == ["="]:
        parts, names = parts[::-1], [True, False]
    first = [*names[:-1], False].index(False)  # the first part that is a value
    if not first and any(has_letters(part) for part in parts):
        return None, toks
    about = (ops + ["\\approx"]).index("\\approx", first)
    values = parts[first:1 + about]
    last = values[-1]
    # The steps of a chain must agree. One with letters left may lead to a number, not to a formula.
    steps = [part for part in values[:-1]
             if has_letters(last) or has_words(part) or not has_letters(part)]
    if not all(same(run, part, last) for part in steps):
        raise Refused("not equal")
    if not gold and not all(near(run, part, last) for part in parts[1 + about:]):
        raise Refused("not nearly equal")
    found = {tuple(tok for tok in part if tok not in ("{", "}")) for part in parts[:first]}
    return found or None, last


def near(run, decimal, toks):
    """Does \\approx hold, to a unit in the last place?"""
    decimal = unit(decimal)[0]
    x, y = Calculator(run).numbers(decimal, unit(toks)[0])
    return abs(x - y) * 10 ** len("".join(decimal).partition(".")[2]) <= 1


def proportional(run, a, g):
    """Are two equations or inequalities the same up to a constant factor: 2x < 6 and x < 3?"""
    (a, x), (g, y) = split(a, RELATIONS), split(g, RELATIONS)
    if [len(x), len(y)] != [1, 1] or y[0] not in (x[0], FLIPPED.get(x[0])) or x[0] not in HOLDS:
        return False
    a, g = (left + ("-", "(") + right + (")",) for left, right in (a, g))
    calculator = Calculator(run)
    try:
        p, q = (calculator.value_of(parsed(toks)[0], 0, 200) for toks in (a, g))
        if min(abs(p), abs(q)) < 1e-30:
            return False  # always true, as 2 = 2
        ratio = (p / q).real * (1 if x == y else -1)
    except Exception:
        return False
    return (ratio > 0 or x[0] not in FLIPPED) and equal(run, a, g, scaled=True)


def equal(run, a, g, scaled=False):
    """Equal to 60 digits, and to 200 beyond the largest number; with letters at 8 points. scaled:
    equal up to the same factor at all points."""
    (left, a_letters), (right, g_letters) = parsed(a), parsed(g)
    letters, calculator, agreed = a_letters or g_letters, Calculator(run), 0
    run.how = "equal at several points" if letters else "equal to 200 digits"
    for point in range(8 if letters else 1):
        verdict = equal_at(calculator, left, right, point, letters, scaled)
        if verdict is False:
            return False
        agreed += verdict is True
    return agreed > letters + scaled


def equal_at(calculator, left, right, point, letters, scaled):
    """Are two trees equal at this point? None if the point tells nothing."""
    calculator.size = 0
    for bits in (200, 400 if letters else 700):
        if letters and calculator.size > 3000:
            return None  # too large a point
        bits, calculator.peak = bits + 2 * calculator.size, 0
        gold_has_value = False
        try:
            y = calculator.value_of(right, point, bits)
            y_factor = calculator.value_of(left, 2, bits) if scaled else 1
            gold_has_value = True
            x = calculator.value_of(left, point, bits)
            x_factor = calculator.value_of(right, 2, bits) if scaled else 1
        except Exception:
            # x + 0^x is no |x|: an answer has a value wherever the gold has one, but far out
            if letters and (not gold_has_value or point in LARGE_POINTS):
                return None
            raise
        if not calculator.close(x * x_factor, y * y_factor, bits):
            return False
        if scaled and calculator.close(x * x_factor, 0 * x, bits):
            return None  # zero on both sides agrees with everything
    return True


def rounded(run, a, g):
    """One is a decimal, the other the value that rounds to it: see the policy."""
    decimal, other, least = (a, g, 6) if "." in "".join(a) else (g, a, 3)
    text = "".join(decimal)
    digits = text.strip("-0.").replace(".", "")
    if not PLAIN.fullmatch(text) or "." not in text or len(digits) < least:
        return False
    if "." in "".join(other) or parsed(other)[1]:
        return False
    x, y = Calculator(run).numbers(other, decimal)
    return 2 * abs(x - y) * 10 ** len(text.partition(".")[2]) <= 1


# ---- sets of real numbers: (variables, end points, membership test), alike at, between and beyond
# all their end points


def same_reals(run, a, g):
    """Are two sets of real numbers alike? With letters in their ends: at points of both signs."""
    run.how = "sets of real numbers"
    agreed = 0
    if EMPTY in (a, g):
        return a == g
    for point in range(8):
        calculator = Calculator(run)
        names, ends, test = reals(calculator, a, point)
        g_names, g_ends, g_test = reals(calculator, g, point)
        if names and g_names and names != g_names:
            return False
        points = probes(ends | g_ends)
        run.spend(len(points) * (len(ends | g_ends) + 1) // 20)
        inside = [g_test(x) for x in points]
        if [test(x) for x in points] != inside:
            return False
        agreed += any(inside)
        if not calculator.letters:
            return agreed == 1 or refuse("an empty set")
    return agreed > 1


def reals(calculator, toks, point):
    """(variables, end points, membership test) of a set of real numbers."""
    kind, inside = bracket(toks)
    if not kind:
        parts, ops = separated(toks, SEPARATORS + SETS)
        if ops:
            return combined(calculator, parts, ops, point)
        parts, ops = split(toks, RELATIONS)
        if ops:
            return solved(calculator, parts, ops, point)
    parts, found = split(inside, ("|", ":"))
    if kind == "{}" and found:  # {x | x > 2}, {x in R : x > 2}
        head = parts[0] + ('"and',) if len(parts[0]) > 1 else ()
        names, ends, test = reals(calculator, head + parts[1], point)
        return (set(), ends, test) if names <= {parts[0][:1]} else refuse("another variable")
    if toks == ("\\setR",):
        return set(), set(), lambda x: True
    places = [calculator.place(part, point) for part in split(inside, SEPARATORS)[0]]
    if kind in ("{}", ""):
        if {math.inf, -math.inf} & {*places}:
            raise Refused("no set")
        return set(), {*places}, {*places}.__contains__
    low, high = places
    if kind[0] == "[" and low == -math.inf or kind[1] == "]" and high == math.inf:
        raise Refused("infinity is no number")
    if not calculator.letters and (low > high or low == high and kind != "[]"):
        raise Refused("an empty interval")
    after = HOLDS["\\ge" if kind[0] == "[" else ">"]
    before = HOLDS["\\le" if kind[1] == "]" else "<"]
    return set(), {low, high}, lambda x: after(x, low) and before(x, high)


def combined(calculator, parts, ops, point):
    """Unions, intersections, differences, from left to right; , is "or" if nothing is in both."""
    if len(parts) > 40:
        raise Refused("too many sets")
    names, ends, test = reals(calculator, parts[0], point)
    for op, part in zip(ops, parts[1:]):
        more, more_ends, right = reals(calculator, part, point)
        names, ends = names | more, ends | more_ends
        if len(names) > 1:
            raise Refused("two variables")
        calculator.run.spend(1 + len(ends))
        both = any(test(x) and right(x) for x in probes(ends))
        if op in (",", ";") and both and not more:
            raise Refused("a list of sets, not a set")
        union = op in ("\\cup", '"or') or not both and (op in (",", ";") or not more)
        how = operator.gt if op == "\\setminus" else operator.or_ if union else operator.and_

        def test(x, left=test, right=right, how=how):
            return how(left(x), right(x))  # gt: in left and not in right

    return names, ends, test


def solved(calculator, parts, ops, point):
    """x < 3, 1 <= x < 2, x = 1, x in S."""
    if ops == ["\\in"]:
        return ({parts[0]}, *reals(calculator, parts[1], point)[1:])
    variable = [part for part in parts if len(part) == 1 and is_name(part)]
    if len(ops) == 2:
        variable = [part for part in variable if part == parts[1]]  # of a <= x <= b the middle one
    elif len(variable) == 2:
        variable = [parts[0]]
    if len(variable) != 1 or parts.count(variable[0]) != 1:
        raise Refused("not a solved inequality")
    sides = [None if part == variable[0] else calculator.place(part, point) for part in parts]

    def test(x):
        at = [x if side is None else side for side in sides]
        return all(HOLDS[op](low, high) for op, low, high in zip(ops, at, at[1:]))

    return {variable[0]}, set(sides) - {None}, test


def probes(ends):
    """A number at each end, between each two, and beyond them all."""
    ends = sorted({end for end in ends if abs(end) != math.inf} | {0})
    between = [(low + high) // 2 for low, high in zip(ends, ends[1:])]
    return [ends[0] - 9, *ends, *between, ends[-1] + 9]


# You can stop here: below, text is spelled, split and calculated.

# ---- spelling: one way to write each thing

DIGITS = frozenset("0123456789")
# A character in LaTeX; a pair is written character=LaTeX.
SIGNS = {pair[0]: pair[2:] + " " * (pair[2] == "\\") for pair in r"""
    −=- –=- —=- ‐=- ‑=- ·=* ⋅=* •=* ×=* ∗=* ÷=/ ∕=/ ⁄=/ °=° º=° ∘=° ′=' ’=' ≤=\le
    ≥=\ge ⩽=\le ⩾=\ge ≠=\ne ≈=\approx ≡== ∈=\in ∪=\cup ∩=\cap ∅=\O ∖=\setminus ∞=\infty ±=\pm
    ∓=\mp √=\sqrt ∛=\sqrt[3] ⟨=( ⟩=) ⌊=\lfloor ⌋=\rfloor ⌈=\lceil ⌉=\rceil ∣=| ℝ=\setR €=\euro
    £=\sterling ¥=\yen Å=\AA Å=\AA Ω=\Omega µ=\mu""".split()}
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
    ("**", r"\*\*", "^"),
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
    ("+", r"([(,[])\s*\+", r"\1"),
    ("\\prime", r"\^\s*\{?\s*\\prime\s*\}?", "'"),
    ("infinity", r"(?:\\text\s*)?\{?\binfinity\b\}?", r"\\infty "),
    # bases: 4210_{(5)}, (4210)_5
    ("_", r"_\s*\{\s*\(\s*([0-9]+)\s*\)\s*\}", r"_{\1}"),
    ("_", r"\(\s*([0-9A-F]+)\s*\)\s*_", r"\1_"),
    (".", r"(?<![0-9])\.(?=[0-9\\])", "0."),
    (".", r"(?<=[0-9])\.(?=\s*[/*+)=])", ""),  # 3./2
    ("<=", "<=", r"\\le "),
    (">=", ">=", r"\\ge "),
    ("!=", "!=", r"\\ne "))]
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
# A command, or letters in a row; a word that is one already stays.
RUN = re.compile(r"\\(?:begin|end)\s*\{\w*\*?\}|\\([A-Za-z]+)|\\.|\x22\w+"
                 r"|((?:[A-Za-z]\.){2,}|[A-Za-z]{2,})")
# Brackets, in which commas separate, or a number with thousands.
GROUPED = re.compile(r"\\\{.*?\\\}|\([^()]*\)|\[[^][]*\]"
                     r"|(?<![0-9.,])([0-9]{1,3}(?:,[0-9]{3})+)(?![0-9,])", re.S)
THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+")
# The powers of ten; 2e-1 is none, but see the policies.
NUMBER = re.compile(r"(?:[0-9]+\.[0-9]+[eE][-+]?[0-9]+|[0-9]+(?:E[-+]?|e)[0-9]+|1e[-+][0-9]+"
          r"|[0-9]+e[-+][0-9]{2,}|[0-9]+(?:\.[0-9]+)?)")
EULER_OR_POWER = re.compile(r"[0-9]+e[-+][0-9]")
TOKEN = re.compile(
    r"\\(?:begin|end)\s*\{\w*\*?\}|(?:" + NUMBER.pattern + r"|\x22\w+|[A-Za-z]"
    r"|\\(?:vec|overline|hat)\s*\{[^{}]*\}|\\[A-Za-z]+|\\.)(?:(?<!\\log)\s*(?:'|_\s*(?:[0-9]+"
    r"|[A-Za-z]|\\[a-z]+|\{(?:[^{}]|\{[^{}]*\})*\})))*|\.{3}|\S", re.S | re.A)
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
SPOKEN = {"\\AA": "angstrom", "\\Omega": "ohm", "\\dollar": "$", "per cent": "percent"}
SPEEDS = {"mph": ("mile", "hour"), "kph": ("kilometer", "hour")}
WORDS = set("yes no odd or and all red not is to none true false if one two six ten are".split())


def tokens(text):
    """The tokens of an answer: "12", "x", "\\frac", "(", and '"cm' for a word. Only short texts are
    remembered: a cache that counts entries alone would hold gigabytes."""
    return (short_tokens if len(text) <= 300 else read_tokens)(text)


def read_tokens(text):
    if len(text) > MAX_CHARS:
        raise Refused("too long")
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return (text,)
    text = re.sub(r"\n\s*(?=\\?[A-Za-z][^\n=]{0,20}=)", " ; ", text)  # an equation on its line
    text = re.sub("[^ -~]+", lambda m: re.sub(r"\}[_^]\{", "", "".join(map(spelled, m[0]))), text)
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
    text = re.sub(r"\|((?:(?!\\[{}]|\\[lgn]e\b)[^|<>=,])+)\|", r"\\abs{\1}", text)
    text = GROUPED.sub(lambda m: m[1].replace(",", "") if m[1] else m[0], text)
    text = trimmed(QUALIFIER.sub("", text) or text)
    toks = tuple(tok.replace(" ", "") if len(tok) < 3 or tok.startswith(("\\begin", "\\end"))
                 else tok.translate(NO_BRACES) for tok in TOKEN.findall(text))
    depths = itertools.accumulate((tok in OPENERS) - (tok in CLOSERS) for tok in toks)
    if max(depths, default=0) > 60:
        raise Refused("nested too deeply")
    return toks


short_tokens = lru_cache(maxsize=4096)(read_tokens)


def trimmed(text):
    """Without punctuation, "=" before it, and line breaks at its ends."""
    before = None
    while before != text:
        before = text
        text = text.lstrip("*=:+ ").removeprefix("\\approx")
        text = text.rstrip("*,;: ").removesuffix("\\\\")
        text = text if text.endswith("..") else text.removesuffix(".")
    return text


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
    greek = re.match(r"GREEK (SMALL|CAPITAL) LETTER (\w+)$", unicodedata.name(plain[:1], ""))
    name = greek[2].title().replace("Lamda", "Lambda") if greek else ""
    if name:
        return f"\\{name.lower() if greek[1] == 'SMALL' else name} "
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
    text = match[1]
    for command, word in SPOKEN.items():
        text = text.replace(command, word)
    text = re.sub(r"\\[A-Za-z]+|[{}$]|\b(?:an?|[Tt]he)\s+(?=[A-Za-z]{2})(?!and|or)", " ", text)
    unit = text.strip() in ("sec", "arcsec") and "operatorname" not in match[0]
    if text.strip() in FUNCTIONS and not unit or text.strip() in OF_MANY:
        return f"\\{text.strip()} "
    return re.sub(r"(?:[A-Za-z]\.){2,}|[A-Za-z]+", lambda m: f' "{m[0].replace(".", "")} ', text)


def run_of_letters(match):
    """Commands by their usual names; letters as a function, a word, or a product of variables."""
    command, letters = match.groups()
    if not letters:
        return ALIAS.get(command, f"\\{command}") + " " if command else match[0]
    glued, name = match.string[:match.start()][-1:] in DIGITS, letters.replace(".", "")
    low, one = name.lower(), name.lower().removesuffix("s")
    if name in FUNCTIONS or name in ("pi", "theta", "alpha", "beta"):
        return f"\\{name} "
    word = low[3:] and name[1:].islower() and set("aeiouy") & set(low) and [*low] != sorted(low)
    known = name in UNITS or name in SPEEDS or low in WORDS and not name.isupper()
    known = known or one in UNITS and (not glued or one[2:])  # east is a word, abcd a product
    return f' "{name} ' if known or not glued and word else letters


# ---- structure, by splitting the tokens

SETS, SEPARATORS, INFINITY = ("\\cup", "\\cap", "\\setminus"), (",", ";", '"and', '"or'), "\\infty"
FLIPPED = {"<": ">", "\\le": "\\ge", ">": "<", "\\ge": "\\le"}
HOLDS = {"<": operator.lt, "\\le": operator.le, ">": operator.gt, "\\ge": operator.ge,
         "\\ne": operator.ne, "=": operator.eq}
RELATIONS = {"\\approx", "\\in", *HOLDS}
EMPTY = ("\\{", "\\}")
REAL = {INFINITY, "\\setR", "\\ne", *FLIPPED, *SETS}
CLOSES = {"(": ")", "[": "]", "{": "}", "\\{": "\\}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}
OPENERS, CLOSERS = set(CLOSES), set(CLOSES.values())
GREEK = set(r"""\alpha \beta \gamma \delta \epsilon \zeta \eta \theta \iota \kappa \lambda \mu \nu
    \xi \rho \sigma \tau \phi \chi \psi \omega \Gamma \Delta \Theta \Lambda \Xi \Sigma \Phi \Psi
    \Omega \ell \ddt \triangle \angle""".split())
# What may stand before "=": x, a_1, f(x), f^{-1}(x), AB, |AB|, NO/BO, (x, y), [x]_B, Area.
NAME = re.compile(
    r"(?!(e|i|\\pi)$)(m )?(\\(angle|triangle|Delta|partial|nabla|det|dim|deg) (\{ )?)?"
    r"([A-Za-z]|\\|\x22)[^ (),;]*( \})?( \^ \{ - 1 \})?( \( -?[^-+*/^]* \))?"
    r"|(m )?(\\(angle|triangle|overline|vec|abs) (\{ )?)?[A-Z]( [A-Z])+( \})?"
    r"|\\abs \{ ([zw]|\\\S+) \}|\( \S+( , \S+)+ \)"
    r"|[A-Za-z]\S*( : [A-Za-z]\S*)+|\x22\S+( \x22\S+){1,3}"
    r"|\\frac( \{ [A-Zd][ A-Za-z]* \}){2}|\[ (\{ )?[A-Za-z]( \})? \] _ (\{ )?[A-Za-z]( \})?")
CHOICE = re.compile(  # C, (C), C. 42, and what follows; operators, or another choice, may not
    r"(?:\x22(?:option|choice|answer))?(?P<letter>\(\x22?[a-j]\)|(?-i:[A-J])[).:]|(?-i:[A-J])$"
    r"|\x22[a-j]$)(?P<rest>(?![-+*/=<>^|(,&!;\\]|\x22and|\x22or)"
    r"(?!.*\([A-J]\)|.*\x22?(?:not|wrong|incorrect|false|never|neither|isn)\b).*)", re.I | re.S)
SIMPLE = re.compile(r"(?:[0-9a-z.{}^+*/-]|\\frac|\\sqrt|\\pi)+")  # no list, name, unit or word
BASED = re.compile(r"([0-9A-F]*[0-9][0-9A-F]*|\x22?[A-F]{2,})_([0-9]+)")
CURRENCY = {"\\dollar": "$", "\\euro": "euro", "\\sterling": "lb", "\\yen": "yen"}
UNIT_TOKENS = {"%": "%", "°": "°", "\\Omega": "ohm", "\\AA": "angstrom", **CURRENCY}
# Where a unit starts, one factor of it, and its quotients; tokens with a space behind each.
UNIT_START = re.compile(r'(?<!\S)(?:/ )?(?:\\frac \{ "|[%°] |\x22(?:\S\S|[mgshLlNJWVAKCFT])'
                        r'|\\(?:Omega|AA|dollar|euro|sterling|yen) )')
UNIT = re.compile(r'(?:\* )?(?P<per>(?:/ |"per )?)(?P<times>(?:"square |"cubic )?)'
                  r'(?P<word>° \x22?[CF]|\x22\S+|[%°]|\\(?:Omega|AA|dollar|euro|sterling|yen)) '
                  r'(?:\^ (?:\{ )?(?P<minus>- )?(?P<digit>[1-9]) (?:\} )?)?')
FRACTION = re.compile(r"\\frac \{ ([^{}]*) \} \{ ([^{} ]+(?: \^ [0-9])?) \} ")
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
LARGE_POINTS = (6, 7)
SCALES = (1, 3, 7, 0.111, 31, 0.0123, 1000, 10**6)  # of the letters, at the 8 points


def refuse(reason):
    raise Refused(reason)


def split(toks, separators):
    """The parts of the tokens between separators outside of brackets, and these separators."""
    if {*separators}.isdisjoint(toks):
        return [tuple(toks)], []
    cuts, depth = [-1], 0
    for at, tok in enumerate(toks):
        depth += (tok in OPENERS or tok[:6] == "\\begin") - (tok in CLOSERS or tok[:4] == "\\end")
        if depth == 0 and tok in separators:
            cuts.append(at)
    parts = [tuple(toks[i + 1:j]) for i, j in zip(cuts, cuts[1:] + [len(toks)])]
    return parts, [toks[at] for at in cuts[1:]]


def bracket(toks):
    """("[)", inside) if one pair of brackets holds all tokens, else ("", toks)."""
    if not toks or toks[0] not in OPENERS or toks[-1] not in CLOSERS:
        return "", toks
    depth = 0
    for at, tok in enumerate(toks):
        depth += (tok in OPENERS) - (tok in CLOSERS)
        if depth == 0:
            whole = at == len(toks) - 1
            return ((toks[0] + toks[-1]).replace("\\", ""), toks[1:-1]) if whole else ("", toks)
    return "", toks


def members(toks):
    """The members of a bare list, all readings of +-; brackets around a single thing go."""
    kind, inside = bracket(toks)
    if kind in ("{}", "()") and toks[0] != "\\{" and inside and not split(inside, SEPARATORS)[1]:
        return members(inside)
    found = []
    for part in separated(toks, SEPARATORS)[0]:
        found += readings(part) if part[:1] != ("\\{",) else [part]
    return [part for part in found if part]


def separated(toks, separators):
    """Like split; the name in x \\ne 1, 4 is meant for both numbers."""
    parts, found = split(toks, separators)
    for k, op in enumerate(found):
        if op in SEPARATORS and parts[k][1:2] in (("\\ne",), ("=",)):
            if not RELATIONS & {*parts[k + 1]}:
                parts[k + 1] = parts[k][:2] + parts[k + 1]
    return parts, found


def readings(part):
    """Every \\pm as + and as -; \\mp is the opposite of the first \\pm."""
    if "\\pm" not in part and "\\mp" not in part:
        return [part]
    if part.count("\\pm") > 3:
        raise Refused("too many signs")
    found = []
    for signs in itertools.product("+-", repeat=part.count("\\pm") or 1):
        free, opposite = iter(signs), "-+"[signs[0] == "-"]
        found.append(tuple(next(free) if tok == "\\pm" else opposite if tok == "\\mp" else tok
                           for tok in part))
    return found


def set_like(toks):
    return bool(REAL & {*toks}) or bracket(toks)[0] in ("()", "[)", "(]", "[]", "{}")


def is_name(part):
    """May this stand before "="? No function's value: \\sin x, \\sqrt x, \\neg x."""
    text = " ".join(part)
    command = re.match(r"\\[A-Za-z]+", text)
    if command and len(part) == 1 and not re.match(r"\\(?:vec|overline|hat|ddt)", text):
        return command[0] in GREEK
    words = {tok[1:].lower() for tok in part if tok[:1] == '"'}
    return bool(NAME.fullmatch(text)) and not words & NOT_UNITS


def names_of(parts):
    """The names before "=" in a list."""
    sides = [split(part, RELATIONS) for part in parts]
    return {left[0] for left, ops in sides if ops[:1] == ["="] and is_name(left[0])}


def has_letters(part):
    return re.search(r"(?<![\\\x22A-Za-z])[A-Za-df-hj-z](?![a-z])", " ".join(part)) is not None


def has_words(toks):
    return any(tok[0] == '"' and tok[2:] for tok in toks)


def spoken(toks):
    """Words without case, marks and hyphens, and all else as it is; "" without any word."""
    if not has_words(toks):
        return ""
    said = [tok for k, tok in enumerate(toks) if tok not in (".", "'") and not (
        tok == "-" and 0 < k < len(toks) - 1 and toks[k - 1][0] == toks[k + 1][0] == '"')]
    return "".join(f" {tok} " if tok[0] in DIGITS else tok.strip('"').lower() for tok in said)


def without_prose(toks):
    """[x=1, y=2] of Solution is: [x=1, y=2]."""
    if ":" in toks:
        at = toks.index(":")
        if 0 < at < len(toks) - 1 and all(tok[0] == '"' and tok[2:] for tok in toks[:at]):
            toks = toks[at + 1:]
    kind, inside = bracket(toks)
    named_members = kind in ("[]", "()") and all("=" in part for part in split(inside, ",")[0])
    return inside if named_members else toks


# ---- units: 5 "cm, 5 "square "feet, 45 °, 5 %, \\dollar 5, as words with exponents


def unit(toks):
    """(value, unit); "" is no unit."""
    prefix = 1 if toks and toks[0] in CURRENCY and len(toks) > 1 else 0
    text = " ".join(toks) + " "
    start = UNIT_START.search(text, len(toks[0]) if prefix else 0)
    at = text.count(" ", 0, start.start()) if start else len(toks)
    value, rest = toks[prefix:at], FRACTION.sub(r"\1 / \2 ", " ".join(toks[at:]) + " ").lstrip()
    in_function = "°" in toks and any(tok[1:] in FUNCTIONS for tok in toks)
    if not value or not prefix + len(rest) or in_function or any(tok[0] == '"' for tok in value):
        return toks, ""
    powers = Counter({CURRENCY[toks[0]]: 1} if prefix else ())
    while rest:
        found = UNIT.match(rest)
        word = found and UNIT_TOKENS.get(found["word"], re.sub('[ "]', "", found["word"]))
        low = word and word.lower()
        if not word or {low, low.removesuffix("s")} & NOT_UNITS or re.search("ieths?$", low):
            return toks, ""
        power = (-1 if found["per"] else 1) * (-1 if found["minus"] else 1)
        power *= {"": 1, '"square ': 2, '"cubic ': 3}[found["times"]] * int(found["digit"] or 1)
        for name, factor in zip(SPEEDS.get(word, (word,)), (1, -1)):
            powers[canonical(name)] += power * factor
        rest = rest[found.end():]
    kept = sorted(f"{name}^{power}" for name, power in powers.items() if power)
    return value, "%" if kept == ["%^1"] else " ".join(kept)


def canonical(word):
    word = word if word in UNITS else word.lower().removesuffix("s")
    return UNITS.get(word, word)


# ---- a parser by precedence climbing: tokens to a tree of tuples (kind, ...)

LEVEL = {"+": 6, "-": 6, "\\over": 6, "\\choose": 6, "*": 7, "/": 7, "%": 7, "^": 9, "!": 9,
         "°": 9, **dict.fromkeys(("", *CLOSERS, ",", ";", "&", "\\\\", *RELATIONS), 0)}
INFIX = {"*": "product", "/": "quotient", "\\over": "quotient"}


def parsed(toks):
    """(tree, has it letters?) of the tokens; remembered if they are short."""
    return (short_parsed if sum(map(len, toks)) <= 300 else Parser)(tuple(toks)).result


class Parser:
    """Reads tokens from left to right; at is the next one's place."""

    def __init__(self, toks):
        self.toks = [*toks, "", ""]
        self.at, self.depth = 0, 0
        self.letters, self.trig = False, False
        self.result = self.expression(0), self.letters
        if self.toks[self.at]:
            raise Refused(f"cannot read on at {self.toks[self.at]}")

    def take(self, *wanted):
        """The next token, if it is wanted, else ""."""
        tok = self.toks[self.at]
        if wanted and tok not in wanted or not tok:
            return ""
        self.at += 1
        return tok

    def level(self, argument):
        """How tightly the next token binds. argument: what follows sin without brackets."""
        tok = self.toks[self.at]
        if tok in LEVEL or tok[:5] == "\\end{":
            return LEVEL.get(tok, 0)
        if not argument:
            return 7
        return 0 if tok == "(" or tok[0] == '"' or tok[1:] in FUNCTIONS else 8

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

    def infix(self, left, level):
        """The tree with the next operator and what stands on its right."""
        tok = self.toks[self.at]
        if tok not in LEVEL:  # a product without a sign
            if tok[0] in DIGITS and self.toks[self.at - 1][-1] in DIGITS:
                raise Refused("1 2")
            return joined_tree("product", left, self.expression(8))
        self.at += 1
        if tok in ("+", "-"):
            right = self.expression(6)
            return joined_tree("sum", left, right if tok == "+" else ("negative", right))
        if tok == "\\choose":
            return ("gamma", "binomial", left, self.expression(level))
        if tok in INFIX:
            return joined_tree(INFIX[tok], left, self.expression(level))
        if tok == "%" or tok == "°" and self.trig:
            top = left if tok == "%" else ("product", [left, ("constant", "pi")])
            return ("quotient", top, ("number", "100" if tok == "%" else "180"))
        if tok == "!":
            return ("gamma", "fac2" if self.take("!") else "factorial", left)
        return left if tok == "°" else ("power", left, self.expression(8.5))

    def prefix(self, floor):
        """A number, a letter, what stands in brackets, or a command with its arguments."""
        tok = self.take()
        if tok in ("+", "-"):
            tree = self.expression(max(floor, 6))
            return ("negative", tree) if tok == "-" else tree
        if tok[:1] in DIGITS:
            return ("number", tok) if NUMBER.fullmatch(tok) else refuse(f"cannot read {tok}")
        if tok in CLOSES and tok != "\\{":
            tree, *more = self.inside(tok)
            if more:
                raise Refused("a list inside of a formula")
            return ("rounded", tok[2:], tree) if tok[0] == "\\" else tree
        if tok[:6] == "\\begin":
            return self.matrix(tok[6:])
        name = tok.lstrip('"\\')
        if tok == "\\frac":
            return ("quotient", self.expression(9), self.expression(9))
        if tok == "\\binom":
            return ("gamma", "binomial", self.expression(9), self.expression(9))
        if tok == "\\sqrt":
            index = self.prefix(9) if self.toks[self.at] == "[" else ("number", "2")
            return ("power", self.expression(9), ("quotient", ("number", "1"), index))
        if tok in ("\\abs", "\\det"):
            return ("abs", self.expression(9))
        if tok[:1] == "\\" and name in OF_MANY:
            return ("of_many", name, self.arguments())
        known = tok[:1] == "\\" and name in FUNCTIONS
        return self.function(name) if known else self.letter(tok, name)

    def letter(self, tok, name):
        if not re.match(r"(\\?[A-Za-z]|\.\.\.|\x22\w($|_))", tok) or tok in LEVEL:
            raise Refused(f"cannot read {tok or 'the end'}")
        if name in ("pi", "e", "i") and (name == "pi") == (tok[0] == "\\"):
            return ("constant", name)
        if tok == "\\unclear" or tok in REAL or tok in CURRENCY:
            raise Refused(f"cannot read {tok}")
        self.letters = True
        ahead = self.toks[self.at:self.at + 4]
        number = re.match(r"\( (- )?[0-9]", " ".join(ahead)) and ")" in ahead
        # f(x) is a function's value; of other letters, only I(0) is
        if ahead[0] == "(" and (name[0] in "fg" or number):
            return ("applied", name, self.arguments())
        return ("letter", name)

    def arguments(self):
        """(a, b, ...) or one thing without brackets."""
        opener = self.take("(", "{", "\\{", "[")
        return self.inside(opener) if opener else [self.expression(9)]

    def inside(self, opener):
        found = [self.expression(0)]
        while self.take(",", ";"):
            found.append(self.expression(0))
        if not self.take(CLOSES[opener]):
            raise Refused(f"{opener} is not closed")
        return found

    def matrix(self, name):
        rows = [[]]
        while not self.take("\\end" + name):
            if self.take("\\\\"):
                rows.append([])
            elif not self.take("&"):
                rows[-1].append(self.expression(0))
        if len({*map(len, rows)}) > 1 or not rows[0] or "cases" in name:
            raise Refused("no matrix")
        return ("abs", ("matrix", rows)) if "vmatrix" in name else ("matrix", rows)

    def function(self, name):
        """sin(x) y, sin^2 x, log_2 8, tan^{-1} x, sin 2x."""
        base, power, saved = ("number", "10") if name == "lg" else None, None, self.trig
        while tok := self.take("^", "_"):
            if tok == "^":
                power = self.expression(8.5)
            else:
                base = self.expression(9)
        self.trig = name in TRIG
        bracket_next = self.toks[self.at] in ("(", "[", "{")
        tree = self.prefix(9) if bracket_next else self.expression(7, True)
        self.trig = saved
        if name in TRIG and power == ("negative", ("number", "1")):
            name, power = "arc" + name, None
        tree = ("log", tree, base) if name in ("log", "lg") else ("function", name, tree)
        return tree if power is None else ("power", tree, power)


short_parsed = lru_cache(maxsize=2048)(Parser)


def joined_tree(kind, left, right):
    """Sums and products are flat: a tree as deep as the answer is long could not be walked."""
    if kind not in ("sum", "product"):
        return (kind, left, right)
    if left[0] == kind:
        left[1].append(right)
        return left
    return (kind, [left, right])


# ---- a calculator of trees. It fails closed: each step costs fuel by the size of what it makes,
# and no value may be infinite, no number, or too large.

LOCAL = threading.local()


def is_matrix(x):
    return hasattr(x, "rows")


class Calculator:
    """Values of trees. size: bits of the largest or smallest magnitude on the way; peak: the
    largest term of a sum; letters: whether any was met."""

    def __init__(self, run):
        from mpmath.ctx_mp import MPContext  # sympy's numeric layer, one for each thread
        self.mp = vars(LOCAL).get("mp") or vars(LOCAL).setdefault("mp", MPContext())
        self.run, self.point, self.size, self.peak, self.letters = run, 0, 0, 0, False

    def value_of(self, tree, point, bits):
        self.point, self.mp.prec = point, bits
        return self.value(tree)

    def numbers(self, *texts, point=0, bits=200):
        """Of some tuples of tokens."""
        self.point, self.mp.prec = point, bits
        return [self.scalar(parsed(toks)[0]) for toks in texts]

    def value(self, tree):
        """The kinds are our parser's own names, never the answer's."""
        self.run.spend(1 + self.mp.prec ** 2 // 30_000_000)
        x = getattr(self, tree[0])(*tree[1:])
        for entry in x if is_matrix(x) else (x,):
            if isinstance(entry, self.mp.mpc) and not self.mp.isfinite(entry):
                raise Refused("not finite")
            bits = abs(self.mp.mag(entry)) if entry else 0  # infinite, or no number, if x is
            if not bits <= MAX_BITS:
                raise Refused("too large a number, or none")
            self.size = max(self.size, bits)
        return x

    def costly(self, times=1):
        self.run.spend(times * (5 + self.mp.prec ** 2 // 300_000))

    def scalar(self, tree):
        x = self.value(tree)
        return refuse("a matrix here") if is_matrix(x) else x

    def whole(self, x):
        return x == self.mp.nint(self.mp.re(x))

    def close(self, x, y, bits):
        """Equal up to rounding. What is not finite is close to nothing."""
        if is_matrix(x) != is_matrix(y) or is_matrix(x) and (x.rows, x.cols) != (y.rows, y.cols):
            return False
        size = max(self.norm(x), self.norm(y), self.peak)
        return self.norm(x - y) <= self.mp.ldexp(size, 60 - bits)

    def norm(self, x):
        return max(map(abs, x)) if is_matrix(x) else abs(x)

    def place(self, toks, point):
        """A real number in units of 2^-140, as an integer, so that equal end points are equal."""
        if toks[-1:] == (INFINITY,) and toks[:-1] in ((), ("+",), ("-",)):
            return -math.inf if toks[0] == "-" else math.inf
        self.letters |= parsed(toks)[1]
        [x] = self.numbers(toks, point=point, bits=400)
        if abs(self.mp.im(x)) > 2 ** -140:
            raise Refused("not a real number")
        return int(self.mp.nint(self.mp.re(x) * 2 ** 140))

    # one method for each kind of tree

    def number(self, text):
        if text.isdigit() and len(text) < 16:
            return self.mp.mpf(int(text))
        if len(text.lower().partition("e")[2]) > 5:
            raise Refused("too large a number")
        self.size = max(self.size, 4 * len(text))
        return self.mp.mpf(text)

    def constant(self, name):
        return self.mp.mpc(0, 1) if name == "i" else +getattr(self.mp, name)

    def letter(self, name):
        """A letter's value at this point: no integer; sign and size change between the points."""
        seed = zlib.crc32(name.encode())
        signs = (ord(name) if len(name) == 1 else seed) * 37 % 253 + 1
        size = SCALES[self.point] * (505 + (seed >> 3 * self.point) % 500) / self.mp.mpf(1009)
        return -size if signs >> self.point & 1 else size

    def applied(self, name, arguments):
        """f(x) of an unknown f: some smooth function, which the name chooses."""
        self.costly()
        total, seed = self.letter(name + "()"), zlib.crc32(name.encode()) % 1000
        for place, tree in enumerate(arguments, 1):
            x = self.scalar(tree)
            if abs(x) > MAX_BITS:
                raise Refused("too large an argument")
            total += self.mp.atan(x * (seed + place) / 997 + place) * (place + seed)
        return total

    def sum(self, terms):
        first, *more = map(self.value, terms)
        if len({is_matrix(x) for x in (first, *more)}) > 1:
            raise Refused("a number and a matrix")
        self.peak = max(self.peak, *map(self.norm, (first, *more)))
        return sum(more, first)

    def product(self, factors):
        total = self.value(factors[0])
        for x in map(self.value, factors[1:]):
            if is_matrix(x) and is_matrix(total):
                self.costly(total.rows * x.rows * x.cols)
            total = total * x
        return total

    def negative(self, tree):
        return -self.value(tree)

    def quotient(self, top, bottom):
        return self.value(top) / self.scalar(bottom)

    def abs(self, tree):
        """The absolute value, or a matrix's determinant."""
        x = self.value(tree)
        if not is_matrix(x):
            return abs(x)
        self.costly(x.rows ** 3)
        self.peak = max(self.peak, self.norm(x) ** x.rows)
        return self.mp.det(x)

    def matrix(self, rows):
        if len(rows) * len(rows[0]) > 100:
            raise Refused("too large a matrix")
        return self.mp.matrix([[self.scalar(entry) for entry in row] for row in rows])

    def rounded(self, name, tree):
        """floor or ceil; up to rounding, so that the floor of an integer is itself."""
        x = self.scalar(tree)
        near = self.mp.nint(self.mp.re(x))
        if abs(x - near) < self.mp.mpf(2) ** (100 - self.mp.prec):
            return near
        return getattr(self.mp, name)(x)

    def of_many(self, name, trees):
        values = [self.scalar(tree) for tree in trees]
        if name in ("max", "min"):
            return (max if name == "max" else min)(values)  # not of complex numbers: an error
        if not all(self.whole(x) and abs(x) < 1e30 for x in values):
            raise Refused("not an integer")
        return self.mp.mpf(getattr(math, name)(*map(int, values)))

    def log(self, tree, base):
        self.costly(2)
        x, below = self.scalar(tree), self.scalar(base) if base else 7.31  # an unknown base
        self.peak = max(self.peak, 1)
        return self.mp.ln(x) / self.mp.ln(below) if x else refuse("ln 0")

    def function(self, name, tree):
        x = self.scalar(tree)
        real = not self.mp.im(x)
        self.costly(1 if real else 4)
        self.peak = self.peak if name == "exp" else max(self.peak, 1)
        # e^x and the like need as many digits as x; their series would fill the memory.
        if abs(x) > (1e12 if real and name in TRIG else MAX_BITS):
            raise Refused("too large an argument")
        if name[-1] == "h":
            self.size = max(self.size, 3 * int(abs(x)))  # tanh(500) is 1 in 400 digits
        name = re.sub("^arc?(?=[a-z]{3})", "a", name).replace("cis", "expj")
        return getattr(self.mp, name)(x)

    def gamma(self, name, *trees):
        """n!, n!! and binomials, exact for whole numbers. Those of fractions are slow at a high
        precision, and those of i slower."""
        x, k = [self.scalar(tree) for tree in (*trees, ("number", "0"))][:2]
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
        return getattr(self.mp, name)(*(x, k)[:len(trees)])

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
        verdicts = verify_all([(row["completion"], row["gold"])])
        ms, wrong = 1000 * (time.perf_counter() - start), {verdicts[0], expect} == {True, False}
        for kind in ("all", row.get("kind") or row.get("category") or "?"):
            results.setdefault(kind, []).append((wrong, wrong and expect, verdicts.timeouts, ms))
    print("kind                     n  right %   FP   FN timeouts   p50 ms   p99 ms")
    for kind, found in results.items():
        n, (wrong, missed, late, ms) = len(found), map(sorted, zip(*found))
        print(f"{kind:20}{n:6}{100 - 100 * sum(wrong) / n:9.1f}{sum(wrong) - sum(missed):5}"
              f"{sum(missed):5}{sum(late):9}{ms[n // 2]:9.2f}{ms[int(.99 * (n - 1))]:9.2f}")


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
