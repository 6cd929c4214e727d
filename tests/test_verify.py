r"""The verifier: a labelled table, the policies it states, hostile text, deadlines, one box finder.

tests/verify_table.jsonl holds our own (gold, completion, expect, kind) rows, grouped by kind: the
documentation of what counts as equal. Rows marked known_miss are right answers that we refuse.
"""
import ast
import itertools
import json
import random
import re
import subprocess
import sys
import threading
import time
from fractions import Fraction
from pathlib import Path

import pytest

import verify
from engine import errors
from verify import boxed_spans, equivalent, extract, last_boxed, verify_all

ROOT = Path(__file__).resolve().parent.parent
ROWS = [json.loads(line) for line in (ROOT / "tests/verify_table.jsonl").open(encoding="utf-8")]


@pytest.mark.parametrize("kind", sorted({row["kind"] for row in ROWS}))
def test_the_table(kind):
    """Every row is judged as labelled; a known miss must stay refused, or lose its mark."""
    for row in ROWS:
        if row["kind"] == kind:
            verdict, how = verify.judge(row["completion"], row["gold"])
            wanted = row["expect"] != row.get("known_miss", False)
            assert verdict == wanted, (row["gold"], row["completion"], how)


def test_the_table_is_large_and_its_misses_are_few():
    """A known miss may only be a right answer refused: a wrong one accepted teaches the error."""
    misses = [row for row in ROWS if row.get("known_miss")]
    assert len(ROWS) >= 250 and len({row["kind"] for row in ROWS}) >= 30
    assert len(misses) <= 10 and all(row["expect"] for row in misses)
    assert 0.3 < sum(row["expect"] for row in ROWS) / len(ROWS) < 0.8     # neither answer is cheap


def test_the_policies_of_the_docstring_hold():
    """Each "gold ~ answer" and "gold !~ answer" of the docstring is run."""
    policies = verify.__doc__.partition("Policies")[2].partition("The last complete box")[0]
    lines = policies.splitlines()
    examples = [part for line in lines[1:] for part in line.split(" ; ") if "~ " in part]
    assert len(examples) >= 45
    for example in examples:
        gold, differs, answer = re.fullmatch(r"(?:.*: )?\s*(.+?) (!?)~ (.+?)\s*", example).groups()
        assert equivalent(answer, gold) == (not differs), example


# ------------------------------------------------------------------ boxes


@pytest.mark.parametrize("text, contents", [
    (r"a \boxed{1} b \boxed{2}", ["1", "2"]), (r"bad \boxed{3 then \boxed{4} end", ["4"]),
    (r"\boxed{3 only", []), (r"\boxed{\frac{1}{2}}", [r"\frac{1}{2}"]),
    (r"\boxed{\boxed{4}}", [r"\boxed{4}"]), (r"\boxed{\{1,2\}}", [r"\{1,2\}"]), ("none", []),
    (r"\boxed{}", [""]), (r"}}} \boxed{5} {{{", ["5"])])
def test_boxes_by_hand(text, contents):
    """An unclosed box hides none of those inside of it; a complete one replaces those."""
    spans = boxed_spans(text)
    assert [text[a + 7:b - 1] for a, b in spans] == contents
    assert last_boxed(text) == (spans[-1] if spans else None)


@pytest.mark.parametrize("text", [
    r"So \boxed{5}. Hence \boxed{7", r"\boxed{5}\boxed{", r"The answer is 5. \boxed{5",
    r"\boxed{5} and <think> \boxed{5}</think> \boxed{5 + \frac{1}{2}", r"#### 5 \boxed{\frac{1}{2"])
def test_a_cut_off_answer_is_not_paid_by_an_earlier_one(text):
    """The last box that opens must close, in the reward, in saliency's span and in the record."""
    assert last_boxed(text) is None
    assert extract(text) is None and extract(text, strict=True) is None


def test_boxes_against_a_slow_oracle():
    """Every marker looks for its own closing brace; what lies in a complete box is dropped. All
    texts of up to six pieces, so no combination of open, closed and escaped is left out."""
    def slow(text):
        spans = []
        for start in (m.start() for m in re.finditer(r"\\boxed\{", text)):
            depth = 0
            for brace in re.finditer(r"\\boxed\{|\\.|[{}]", text[start:]):
                depth += (brace[0] in ("{", "\\boxed{")) - (brace[0] == "}")
                if depth == 0:
                    spans.append((start, start + brace.end()))
                    break
        return [s for s in spans if not any(a < s[0] and s[1] <= b for a, b in spans)]

    for pieces in itertools.product(("\\boxed{", "{", "}", "\\}", "a"), repeat=6):
        text = "".join(pieces)
        assert boxed_spans(text) == slow(text), text


@pytest.mark.parametrize("completion, gold, expect", [
    ("the answer is \\boxed{4}", "4", True), (r"first \boxed{5} then \boxed{4}", "4", True),
    (r"first \boxed{4} then \boxed{5}", "4", False), (r"\boxed{0.5}", r"\frac{1}{2}", True),
    (r"\boxed{ \text{Yes} }", "Yes", True), (r"\boxed{x=4}", "4", True),
    (r"\boxed{\boxed{4}}", "4", True), (r"\boxed{\{1,2\}}", r"\{2,1\}", True),
    (r"\boxed{3 oops \boxed{4}", "4", True), (r"\boxed{4", "4", False), (r"\boxed {4}", "4", False),
    (r"\boxed{4} or \boxed{5", "4", False),
    (r"\fbox{4}", "4", False), (r"\boxed{}", "4", False), ("answer 4 without box", "4", False)])
def test_the_training_reward_wants_a_box(completion, gold, expect):
    """The reference values of the GRAIL release's reward, under strict=True."""
    assert verify.verify(completion, gold, strict=True) == expect


def test_reward_and_saliency_read_the_same_box():
    """Saliency of one box and reward of another would credit the tokens of an abandoned answer."""
    import saliency  # here: it needs torch, the rest does not

    class Characters:
        def decode(self, ids, **_):
            return "".join(map(chr, ids))

    for text in (r"a \boxed{1} b \boxed{23} c", r"<think>\boxed{1}</think> so \boxed{2}.",
                 r"\boxed{3 oops \boxed{4}", r"<think> \boxed{7}", "no box",
                 r"\boxed{3} then \boxed{4"):
        span = saliency.answer_span(Characters(), [ord(c) for c in text], text)
        content = text[span[1]:span[2]] if span else None
        assert content == extract(text, strict=True)


def test_no_other_file_looks_for_boxes():
    """Two box finders drift apart; this is the only one."""
    for path in [*ROOT.glob("*.py"), *ROOT.glob("data/*.py"), *ROOT.glob("examples/*.py")]:
        if path.name != "verify.py":
            for line in path.read_text().splitlines():
                assert not re.search(r"(find|search|match|split|compile)\w*\(.*boxed\{", line), line


# ------------------------------------------------------------------ oracles for equality


def test_rationals_are_exact():
    """A relative tolerance, or 15 digits, calls 2^60 and 2^60 + 1 the same. Fractions decide here:
    each value in another form is equal, its neighbour in the last place never is."""
    rng = random.Random(0)
    for _ in range(150):
        top, bottom = rng.randint(-10 ** rng.randint(1, 40), 10 ** 40), rng.randint(2, 10 ** 20)
        value, factor = Fraction(top, bottom), rng.randint(2, 99)
        gold = rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
        same = rf"{top * factor}/{bottom * factor}"
        parts = rf"{value // 1} + \dfrac{{{(value % 1).numerator}}}{{{(value % 1).denominator}}}"
        assert equivalent(same, gold) and equivalent(parts, gold), (gold, same, parts)
        assert not equivalent(rf"\frac{{{top * factor + 1}}}{{{bottom * factor}}}", gold)


def test_sympy_agrees_on_formulas():
    """Random formulas, written by sympy's printer in its own rewritten forms, are equal to the
    formula; with a small term more they are not. (Forms that sympy itself finds unequal at two
    points, where a branch was cut, are left out.)"""
    import sympy
    rng, (x, y, a) = random.Random(5), sympy.symbols("x y a")
    points = {x: 1.37, y: -.73, a: 2.11}, {x: -1.37, y: .73, a: -2.11}

    def formula(depth):
        if depth == 0 or rng.random() < .15:
            return rng.choice([x, y, a, sympy.Rational(rng.randint(-9, 9), rng.randint(1, 7)),
                               sympy.pi, sympy.sqrt(rng.choice([2, 3, 5])), sympy.I, sympy.E])
        left, right = formula(depth - 1), formula(depth - 1)
        return rng.choice([left + right, left * right, left / right, left ** rng.choice([2, 3, -1]),
                           sympy.sqrt(left), sympy.sin(left), sympy.exp(left)])

    checked = 0
    while checked < 150:
        gold = formula(rng.randint(1, 3))
        if gold.has(sympy.zoo, sympy.nan) or len(str(gold)) > 90:
            continue
        for form in (sympy.expand(gold), sympy.factor(gold), sympy.together(gold)):
            if all(abs(complex(sympy.N((form - gold).subs(point)))) < 1e-9 for point in points):
                assert equivalent(sympy.latex(form), sympy.latex(gold)), (form, gold)
                checked += 1
        other = sympy.expand(gold + rng.choice([1, x, sympy.Rational(1, 1000), -y]))
        assert not equivalent(sympy.latex(other), sympy.latex(gold)), (other, gold)


def test_sets_of_reals_against_membership():
    """Unions of intervals in two notations: equal exactly if no half integer tells them apart."""
    rng = random.Random(1)

    def interval():
        low, high = sorted(rng.sample(range(5), 2))
        return rng.choice("[("), low, high, rng.choice("])")

    def inside(union, x):
        return any(low < x < high or x == low and left == "[" or x == high and right == "]"
                   for left, low, high, right in union)

    def chain(left, low, high, right):
        return f"{low} {'<=' if left == '[' else '<'} x {'<=' if right == ']' else '<'} {high}"

    equal = 0
    for _ in range(250):
        one, two = ([interval() for _ in range(rng.randint(1, 2))] for _ in range(2))
        two = rng.choice([two, one[::-1]])
        answer = r" \cup ".join(f"{left}{low},{high}{right}" for left, low, high, right in one)
        gold = " or ".join(chain(*part) for part in two)
        same = all(inside(one, x / 2) == inside(two, x / 2) for x in range(-1, 11))
        assert equivalent(answer, gold) == equivalent(gold, answer) == same, (answer, gold)
        equal += same
    assert 50 < equal < 200


# ------------------------------------------------------------------ hostile text


def box(content):
    return "\\boxed{" + content + "}"


CODE = ["__import__('os').system('touch pwned')", "open('pwned','w')", "eval('1')", "exec('x=1')",
        "(lambda:0)()", "().__class__.__bases__", "{0.__class__}", "%s%s%n", "`touch pwned`",
        "$(touch pwned)", "; rm -rf x", "'; DROP TABLE x"]
HUGE = ["9^{9^{9^9}}", "9**9**9**9", "10^{10^{10}}", "(10^6)!", "9!!!!!!!", r"\binom{10^9}{10^8}",
        r"\binom{1000000}{500000}", "2^{" * 500 + "2" + "}" * 500, "0.1^{10^{12}}", "1e999999999",
        "(1e9999)^{9999}", "9" * 100_000, "0." + "0" * 100_000 + "1", r"\sum_{k=1}^{10^{12}} k",
        r"(9999i)!!", r"(9999i)!", r"\ln(\tanh(3\cdot10^9+i))", r"\tan(10^{9}i)", r"\cosh(10^{11})",
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}" + "^{19}" * 60, r"\binom{x}{y}" * 200, "x!" * 1400,
        r"\det" + r"\begin{pmatrix}" + r"\\".join(["&".join("123456789")] * 9) + r"\end{pmatrix}",
        "+".join(rf"\ln(2^{{9000}}+{k})" for k in range(150)),
        r"\sqrt{" * 55 + "2" + "}" * 55 + "^{19}" * 300,
        r"\sin(10^{3000})", "e^{e^{e^{e^e}}}", "1/0", "0/0", r"\infty-\infty"]
DEEP = ["(" * 10_000 + "5" + ")" * 10_000, "{" * 10_000 + "5" + "}" * 10_000, "-" * 2900 + "5",
        "[" * 1400 + "5" + "]" * 1400, "|" * 2900, "\\sqrt" * 500 + "5", "\\frac" * 500 + "5",
        "\\frac{1}{" * 200 + "2" + "}" * 200, "\\sin" * 600 + " 5", "x_{" * 600 + "1" + "}" * 600,
        "1," * 1400 + "1", "x=1," * 700 + "x=1", "=".join(["5"] * 1400), "<".join(["x"] * 1400),
        "\\pm1," * 300 + "1", "\\cup".join(["(0,1)"] * 400), "\\text{" * 400 + "5" + "}" * 400,
        "\\begin{pmatrix}" * 200, "\\int " * 500, "1+" * 1400 + "1", "x" * 2900, "^" * 2900,
        "\\mathbb{R}" + ";" * 2900, "\\mathbb{R};" * 300, "x<1," * 700, "½" * 2900,
        "\ufdfa" * 2900,
        "\\{1," * 700, "x" + '"' * 2900, "\\cup\\{1\\}" * 300, "\\pm" * 700, "1 " * 1400,
        "'" * 2900, "!" * 2900, "\\left(" * 400, "." * 2900, "," * 2900, "1,234," * 400]
ODD = ["\x00", "5\x00", "\u0664\u0662", "5\u0301", "\U0001f600", "\ud800", "\u202e6", "²"]
WHOLE = ["\\boxed{" * 10_000, "{" * 200_000, "answer is " * 100_000, "#### " * 100_000,
         "<think>" * 50_000, "</think>" * 50_000, "A" * 1_000_000, "\n" * 1_000_000,
         " " * 1_000_000 + "\\boxed{", "$" * 500_000, "\\" * 1_000_000]
HOSTILE = [box(text) for text in CODE + HUGE + DEEP + ODD] + WHOLE
GOLDS = ["7", r"\frac{1}{3}", r"\{1,2\}", "[0,1)", "x=7"]


def test_hostile_text_is_refused_in_time_and_runs_nothing(tmp_path, monkeypatch):
    """Injection, towers of powers, megabytes, deep nesting, foreign digits: False, each within 2 s.

    All in this process: there is no deadline to save it, so it has to terminate by itself.
    """
    monkeypatch.chdir(tmp_path)
    assert len(HOSTILE) >= 60
    for text in HOSTILE:
        for gold in GOLDS:
            began = time.process_time()
            assert verify.verify(text, gold) is False, (text[:80], gold)
            assert time.process_time() - began < 2, (text[:80], gold)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text, reason", [
    ("9^{9^{9^9}}", "too large a power"), ("(10^5+1)!", "too large a factorial"),
    (r"\sin(10^{20})", "too large an argument"), ("1e999999", "too large a number"),
    ("(" * 70 + "1" + ")" * 70, "nested too deeply"), ("1+" * 3000 + "1", "too long")])
def test_each_bound_says_that_it_held(text, reason):
    assert verify.judge(box(text), "1") == (False, f"refused: {reason}")


def test_the_fuel_runs_out_and_a_process_goes_on():
    """What costs more than the caller's process may spend is decided in another one."""
    pair = box("2^{9000}+1-2" + "+2^{8000}-2^{8000}" * 6), "2^{9000}-1"
    with pytest.raises(verify.OutOfFuel):
        verify.judge(*pair, fuel=verify.CHEAP)
    assert verify.judge(*pair) == (True, "equal to 200 digits")
    verdicts = verify_all([(box("1"), "1"), pair, (box("2^{9000}-2"), pair[1])])
    assert list(verdicts) == [True, True, False] and verdicts.timeouts == 0


@pytest.mark.slow
def test_hostile_text_stays_small():
    """The same in a process of its own that may hold 1 GB: it must come to its end."""
    resource = pytest.importorskip("resource")          # Windows has no such limit to set
    code = ("import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (10**9, 10**9));"
            f"sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}];"
            "import verify; from test_verify import HOSTILE;"
            "print(sum(verify.verify(text, '[0,1)') for text in HOSTILE))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "0" and resource, done.stderr[-500:]


def test_nothing_is_evaluated_and_little_is_imported():
    """No eval, exec, sympify or the like by name; only the standard library and sympy's mpmath; and
    importing the file costs neither sympy nor torch."""
    tree = ast.parse((ROOT / "verify.py").read_text(encoding="utf-8"))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not names & {"eval", "exec", "sympify", "parse_expr", "__import__", "literal_eval"}
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import)
                for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} - sys.stdlib_module_names == {"mpmath"}
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import verify; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert "verify" in loaded.split() and not {"torch", "sympy", "mpmath"} & set(loaded.split())


def test_it_works_from_any_thread():
    """Graders that set an alarm raise outside the main thread: the reward is 0 for everything."""
    out = []
    thread = threading.Thread(target=lambda: out.append(
        [verify.verify(row["completion"], row["gold"]) for row in ROWS[:200]]))
    thread.start()
    thread.join()
    assert out[0] == [verify.verify(row["completion"], row["gold"]) for row in ROWS[:200]]


# ------------------------------------------------------------------ one law


OURS = sorted({row["gold"] for row in ROWS if len(row["gold"]) < 60})
ATOMS = [r"\ln 0\cdot 0", r"\log_{i}{0}", "x<x", r"\emptyset", "0", "1", "-1", "2", "x",
    r"\infty", "n",
         r"\mathbb{R}", "i", "e", r"\pi", "0.333", r"50\%", r"\pm 1", "f(0)", "I(0)", "C",
         "(B)", "2e-1",
         r"\text{or}", "1,234", "101_2", r"\begin{pmatrix}1\\1\end{pmatrix}", "0=0", r"\ldots",
         "3:4",
         r"5\text{ cm}", r"\$5", r"60^\circ", "x=5", "x>3", "[0,1]", "(1,2)", r"\{1,2\}", "1,2",
         "0^x"]
ONE = ["-@", "(@)", "|@|", r"\sqrt{@}", r"\sin @", r"\ln(@)", "@!", r"@\%", r"@^\circ", "x=@",
    "y=@",
       r"\lfloor @\rfloor", "@^2", "@^{-1}", r"\text{@}", "@x", r"@\text{ cm}", r"\$@",
       r"\{@\}", "[@]",
       r"\pm @", r"x\in @", r"@\cdot 0", "f(@)", "@_5", r"@\text{ tenths}", "@^T", r"\max(@)"]
TWO = ["@+#", "@-#", "@#", r"\frac{@}{#}", "(@)^{#}", "(@,#)", "[@,#)", "@,#", r"\{@,#\}",
    "@=#", "@<#",
       r"@\ne #", r"@\cup #", r"@\cap #", r"@\setminus #", r"@\text{ or }#", r"@\text{ and }#",
       "@:#",
       r"\{x\mid @<x<#\}", r"@\le x<#", "@ #", "@_{#}", r"@\approx #", r"\log_{@}{#}",
       r"\begin{pmatrix}@\\#\end{pmatrix}", r"\binom{@}{#}", r"\gcd(@,#)"]


def hostile_answer(rng, depth):
    if depth == 0:
        return rng.choice(OURS if rng.random() < .4 else ATOMS)
    if rng.random() < .5:
        return rng.choice(ONE).replace("@", hostile_answer(rng, depth - 1))
    one, two = hostile_answer(rng, depth - 1), hostile_answer(rng, depth - 1)
    return rng.choice(TWO).replace("@", one).replace("#", two)


def put(tree, letter, number):
    if tree == letter:
        return number
    return tuple(put(part, letter, number) if type(part) is tuple else part for part in tree)


def solution(tree):
    """The 5 of 2x = 10 and the x > 4 of 2x > 8, from the straight line through two points."""
    letters = verify.letters_of(tree)
    if tree[0] != "relation" or len(tree) != 4 or len(letters) != 1 or tree[1] == "\\in":
        return []
    line = ("sum", tree[2], ("negative", tree[3]))
    calculator = verify.Calculator(verify.Run(10**4))
    try:
        low, high, third = (calculator.scalar(put(line, *letters, ("number", n))) for n in "012")
    except Exception:
        return []
    slope = high - low
    if abs(slope) < 1e-30 or abs(third - high - slope) > 1e-30 or abs(slope.imag) > 0:
        return []
    root = Fraction(str((-low / slope).real)).limit_denominator(10**6)
    value = ("quotient", ("number", str(abs(root.numerator))), ("number", str(root.denominator)))
    value = ("negative", value) if root < 0 else value
    if tree[1] == "=":
        return [value]
    way = verify.FLIPPED.get(tree[1], tree[1]) if slope.real < 0 else tree[1]
    return [("relation", way, *letters, value)]


def bare(gold):
    """A gold's trees without its name, unit and base: an answer may leave these out. An
    equation or inequality of the first degree is its solution as well."""
    run, tree = verify.Run(10**4), verify.parsed(verify.tokens(gold))
    kind, *parts = verify.members(tree)
    if len(parts) > 1 and kind == "" and len(verify.names_of(parts)) == len(parts):  # x=1, y=2
        return [("join", tree[1], *(verify.named(run, part, gold=True)[1] for part in parts))]
    tree = verify.named(run, tree, gold=True)[1]
    plain = verify.without_units(tree)
    digits = ("number", plain[1]) if plain[0] == "based" else plain
    if verify.PERCENT_SIGN in verify.nodes(tree):
        return [digits, ("quotient", digits, ("number", "100"))]
    return [digits, *solution(digits)]


def differ(one, two):
    """Neither agrees with the other, as they stand or bare, and neither is the other, rounded."""
    if equivalent(one, two) or equivalent(two, one):
        return False
    letters = [verify.unwrapped(gold).strip("()").upper() for gold in (one, two)]
    if letters[0] == letters[1]:
        return False  # (b) is the choice B
    run = verify.Run(10**5)
    for x, y in itertools.product(bare(one), bare(two)):
        try:
            if verify.same(run, x, y) or verify.same(run, y, x) or verify.near(run, x, y):
                return False
        except Exception:
            continue
    return True


@pytest.mark.parametrize("one, two, apart", [
    ("5", "2x=10", False), (r"\$5", "2x=10", False), (r"(4,\infty)", "-2x<-8", False),
    ("5", "2x=14", True), (r"(4,\infty)", "2x<8", True), (r"[4,\infty)", "2x>8", True)])
def test_golds_differ_unless_one_is_the_solution_of_the_other(one, two, apart):
    assert differ(one, two) is apart


def search(seed, answers, golds_each):
    """The answers that are right for golds that differ."""
    rng, found = random.Random(seed), []
    for _ in range(answers):
        answer = hostile_answer(rng, rng.choice([0, 1, 1, 2]))
        right = [gold for gold in rng.sample(OURS, golds_each) if equivalent(answer, gold)]
        found += [(answer, right[0], gold) for gold in right[1:] if differ(right[0], gold)]
    return found


def test_no_answer_is_right_for_two_golds_that_differ():
    """One law for the whole reward: whatever an answer is accepted for must agree among itself."""
    assert len(OURS) > 400
    assert search(seed=0, answers=150, golds_each=40) == []
    for universal in ATOMS[:4] + [r"0\cdot\infty", r"\{x\mid x\ne x\}", "0x=0", "0^x",
    r"\text{or}"]:
        right = [gold for gold in OURS if equivalent(universal, gold)]
        assert not any(differ(right[0], gold) for gold in right[1:]), (universal, right)


@pytest.mark.slow
def test_no_answer_is_right_for_two_golds_that_differ_in_a_long_search():
    """Every answer against every gold; more seeds take a minute or two each."""
    for seed in (1, 2):
        assert search(seed, answers=100, golds_each=len(OURS)) == []


def test_every_gold_is_its_own_answer_and_no_other_sign_digit_bracket_or_letter():
    """Reflexivity, and a gold with one character changed. Chance may make the change harmless, as
    in 1^5 or 0+x: fewer than 1 in 100 may be."""
    rng, changed, accepted = random.Random(3), 0, []
    others = {"+": "-", "-": "+", "(": "[", ")": "]", "[": "(", "]": ")", "<": ">", ">": "<"}
    for gold in OURS:
        assert verify.verify(box(gold), gold, strict=True), gold
        spots = re.finditer(r"[0-9]|[-+()<>]|[][]|(?<![A-Za-z\\{])[a-z](?![A-Za-z])", gold)
        for spot in rng.sample(spots := list(spots), min(2, len(spots))):
            kin = "0123456789" if spot[0].isdigit() else "bcdfghjkmnpqrsuvwxyz"
            new = others.get(spot[0]) or rng.choice([c for c in kin if c != spot[0]])
            answer = gold[:spot.start()] + new + gold[spot.end():]
            changed += 1
            if equivalent(answer, gold):
                accepted.append((gold, answer))
    assert changed > 500 and len(accepted) < changed / 100, accepted


@pytest.mark.parametrize("frame", [
    "max at @=1", r"\max at @=1, min at @=2", r"\text{none at }@", r"\text{none at @}", "none at @",
    r"\text{if @ is even}", "f(k@) is even", r"3@\text{ cm}", r"k@\text{ cm}", "wide @ 2, high 3"])
def test_a_letter_keeps_its_case_beside_words(frame):
    """Words may begin with a capital or not; x and X may be two things, also in a sentence."""
    for letter in "bntxy":
        gold = frame.replace("@", letter)
        assert equivalent(frame.replace("@", letter) + ".", gold)
        assert not equivalent(frame.replace("@", letter.upper()), gold), gold


@pytest.mark.parametrize("gold", [r"\max at x=7", "max at x=0, min at x=2", r"\min at n\pi",
                                  r"\max(2, 3)", r"\text{max } 5", "min=4"])
def test_a_maximum_is_no_minimum(gold):
    other = {"max": "min", "min": "max"}
    assert not equivalent(re.sub("max|min", lambda word: other[word[0]], gold), gold)


@pytest.mark.parametrize("answer, gold, question, expect", [
    (r"60\%", "60", "What percentage of the eggs is brown?", True),
    (r"60\%", "60", "She gets a 20% discount. How much does she pay?", False),
    (r"60\%", "60", None, False), ("0.6", "60", "What percent is that?", False),
    ("60", "60", "What percent is that?", True), (r"50\%", "60", "What percent is that?", False)])
def test_a_question_tells_whether_a_percentage_is_asked_for(answer, gold, question, expect):
    assert verify.verify(box(answer), gold, question=question) == expect
    if question:
        assert list(verify_all([(box(answer), gold, question)])) == [expect]


@pytest.mark.parametrize("number", ["0.5", "1", "1.5", "2", "3", "3.5", "7", "12.5", "40", "250"])
def test_no_number_is_right_for_a_percentage_and_for_its_hundredfold(number):
    """1 for 1 % and for 100 % alike would let the policy give every probability in one way."""
    hundredfold = str(Fraction(number) * 100)
    right = [equivalent(number, gold + r"\%") for gold in (number, hundredfold)]
    assert right.count(True) == 1, number


# ------------------------------------------------------------------ batches


def test_a_batch_keeps_its_order():
    pairs = [(box(str(i)), str(i if i % 3 else i + 1)) for i in range(60)]
    assert list(verify_all(pairs, strict=True)) == [i % 3 != 0 for i in range(60)]
    assert verify_all(pairs).timeouts == 0 and verify_all([]) == []


def test_what_does_not_end_is_killed_and_counted():
    """A process that sleeps past its deadline gives no verdict, and None is not a quiet "wrong"."""
    sleeper = (sys.executable, "-c", "import time; time.sleep(60)")
    began = time.time()
    assert verify.in_process(b"[]", 0.5, sleeper) is None
    assert time.time() - began < 20
    crash = (sys.executable, "-c", "raise SystemExit(3)")
    assert verify.in_process(b"[]", 20, crash) is None


def test_timeouts_are_counted_and_told(monkeypatch, capsys):
    def out_of_fuel(*_, **__):
        raise verify.OutOfFuel

    monkeypatch.setattr(verify, "judge", out_of_fuel)                 # every pair is a hard one
    monkeypatch.setattr(verify, "in_process", lambda job, timeout: None)
    verdicts = verify_all([(box("x+1"), "1+x"), (box("y+2"), "2+y")])
    assert list(verdicts) == [False, False] and verdicts.timeouts == 2
    assert "2" in capsys.readouterr().err


# ------------------------------------------------------------------ the command line


def test_the_command_line(tmp_path):
    def run(*argv):
        return subprocess.run([sys.executable, ROOT / "verify.py", *argv], capture_output=True,
                              text=True)

    assert run(r"\boxed{\frac12}", "0.5").stdout.startswith("True (")
    assert run("0.3", "0.5").stdout.startswith("False (")
    table = tmp_path / "t.jsonl"
    table.write_text("".join(json.dumps(
        {"gold": "1", "completion": box(answer), "expect": True, "kind": answer}) + "\n"
        for answer in "12"))
    lines = run("--table", table).stdout.splitlines()
    p50, p99 = map(float, lines[1].split()[-2:])
    assert lines[1].split()[:5] == ["all", "2", "50.0", "0", "1"] and p50 <= p99
    assert run("--table", "nowhere").returncode == 2 and run("only one").returncode == 2


@pytest.mark.parametrize("shape", [lambda m: ("abs", m), lambda m: ("power", m, verify.ONE),
                                   lambda m: ("product", ("number", "2"), m)])
def test_m_alone_is_a_letter_like_any_other(shape):
    """Before an angle or an arc it is a mark; here nothing follows it."""
    assert verify.is_name(shape(("letter", "m"))) == verify.is_name(shape(("letter", "n")))


@pytest.mark.parametrize("second", ["no", "[]", "3", '{"gold": "2"}', "[" * 100_000, "\udcff"])
def test_the_race_with_math_verify_names_a_line_without_an_answer(second, tmp_path, monkeypatch):
    pytest.importorskip("math_verify")
    monkeypatch.syspath_prepend(ROOT / "examples")
    import verify_speed

    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"answer": "\u2028"}}\n{second}\n', "utf-8", "surrogateescape")
    with pytest.raises(errors.BadInput, match=re.escape(f"{path}, line 2: no JSON object")):
        verify_speed.main([str(tmp_path)])
    path.write_text('{"answer": "1"}\n{"answer": "x"}\n')
    assert verify_speed.answers(path) == ["1", "x"]
