r"""Is the answer right? A small, safe, bounded verifier of math answers.

A reward that is wrong teaches the model the error, one that hangs stops the run, one that evaluates
model text hands over the machine. So: find the answer, spell it one way, split it into its parts,
and compare the values of formulas with a calculator of our own that refuses early.

    python verify.py "\boxed{\frac12}" 0.5              # the verdict and how it was reached
    python verify.py --table tests/verify_table.jsonl   # accuracy, errors, milliseconds by kind

Policies, each with examples that a test reads: ~ is accepted, !~ is not; the gold stands first.
  decimals   exact, or the gold to 6 digits; a gold of 3 digits is no more exact than it says:
             \frac13 ~ 0.333333 ; \frac13 !~ 0.33 ; 3 !~ 3.000001 ; 33.3 ~ \frac{100}{3}
  percent    is a hundredth; a gold's sign may be missing: 50\% ~ 0.5 ; 50\% ~ 50 ; 50 !~ 50\%
  units      may be missing on one side, not differ; degrees are a unit too, but not inside of sin:
             5\text{ cm} ~ 5 ; 5 ~ 5\text{ eggs} ; 5\text{ cm} !~ 5\text{ m} ; 3a !~ 3 ; \$5 ~ 5
             90^\circ ~ 90 ; 90^\circ !~ \frac{\pi}{2} ; \frac12 ~ \sin 30^\circ
  lists      need all members, in any order; braces ignore how often: 1,2 ~ 2,1 ; 1,1,2 !~ 1,2
             \{1,2\} ~ \{2,1,2\} ; \{1,2\} ~ 1,2 ; \pm 2 ~ -2,2 ; 5 !~ 4,5
  tuples     have an order and their brackets: (1,2) !~ (2,1) ; (1,2) !~ \{1,2\} ; (1,2) !~ [1,2]
  intervals  and set-builders and solved inequalities are sets of real numbers:
             x<3 ~ (-\infty,3) ; [1,2] ~ 1\le x\le 2 ; [0,1) !~ [0,1] ; (-\infty,3) !~ 2x<6
  names      before "=" may be missing, not differ: 5 ~ x=5 ; x=5 ~ 5 ; x=5 !~ y=5 ; 1 !~ x+z=1
  equations  are equal up to a factor: 2x+4y=6 ~ y=\frac{3-x}{2} ; y=2x !~ y=3x ; 5 !~ 6=5
  values     need no simplest form, but to be found: \frac12 ~ \frac24 ; 55 !~ \sum_{k=1}^{10} k
  bases      may be missing, log without one is itself: 101_2 ~ 101 ; 101_2 !~ 5 ; 2 !~ \log 100
  words      and choices ignore case: \text{Yes} ~ yes ; x !~ X ; B ~ (b) ; C ~ (C) 42 ; C !~ C, D
  formulas   agree at points of both signs: x+1 ~ \frac{x^2-1}{x-1} ; |x| ~ \sqrt{x^2} ; x !~ |x|
The last complete box outside of <think> counts; an unclosed box or think block is no answer.
What we left out, on purpose: simplify and solve (unbounded), prose, the conversion of units."""
import argparse
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
from fractions import Fraction
from functools import lru_cache

MAX_CHARS, MAX_BITS = 3000, 20_000  # of an answer, and of a number in it
CHEAP, FUEL = 3_000, 60_000         # steps of the calculator: in the caller's process, and at most

class Refused(ValueError): """No answer that we can read within our limits; counts as False."""
class OutOfFuel(BaseException): """The comparison has spent its steps."""

def verify(completion, gold, strict=False):
    """Is the completion's final answer the gold answer? strict: nothing but a \\boxed{} counts."""
    return judge(completion, gold, strict)[0]

def equivalent(answer, gold):
    """Do two bare answers agree? Not symmetric: see the policies on decimals, percent, bases."""
    return decide(answer, gold)[0]

def judge(completion, gold, strict=False, fuel=FUEL):
    """(verdict, how it was reached): find the answer, then compare it."""
    answer = extract(completion, strict)
    return (False, "no answer found") if answer is None else decide(answer, gold, fuel)

def decide(answer, gold, fuel=FUEL):
    """(verdict, how it was reached) for two bare answers, the cheapest layer first."""
    span = last_boxed(gold)
    answer, gold = answer.strip(), (gold[span[0] + 7:span[1] - 1] if span else gold).strip()
    if answer == gold or not answer or not gold:
        return answer == gold != "", "identical" if answer == gold else "empty"
    if PLAIN.fullmatch(answer) and PLAIN.fullmatch(gold):
        return Fraction(answer) == Fraction(gold), "exact decimals"
    try:
        a, g = tokens(answer), tokens(gold)
        if a == g != (): return True, "identical after normalisation"
        choices = [CHOICE.fullmatch("".join(toks)) for toks in (a, g)]
        if all(choices) and not all(match["rest"] for match in choices):
            return len({re.sub("[^A-J]", "", m["letter"].upper()) for m in choices}) == 1, "choices"
        compare = Compare()
        compare.fuel = fuel
        return compare.same(a, g), compare.how
    except (Exception, OutOfFuel) as error:                # a grader that raises drops the sample
        if isinstance(error, OutOfFuel) and fuel < FUEL: raise
        return False, f"refused: {error if isinstance(error, Refused) else repr(error)}"

def refuse(reason): raise Refused(reason)
# ---- find the answer
BRACE = re.compile(r"\\boxed\{|\\.|[{}]", re.S)
LOOSE_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(-?[0-9][0-9.,/]*))")
BOLD = re.compile(r"(?<![0-9a-z)}])\*\*|\*\*(?![0-9a-z({\\])")
MARK = re.compile(
    r"####|<answer>|答案|final answer[ *#:_]*\n|\b(?:answers?|option|choice)\b[^\n.;:=$\\]{0,40}?"
    r"(?:\b(?:is|are|be|equals)\b|[:=])[\s*:]*(?:(?:therefore|thus|equal to)\b\s*:?\s*)*", re.I)
END = re.compile(r"\.?\n|[.!?](?=[$*)]*(?:\s|$))|</|,\s+(?!and\b|or\b)(?=[a-z]{3})|\s\((?=[a-z]{3})"
                 r"|\s(?:because|since|so|which|where|as|but|hence|therefore)\b")

def boxed_spans(text):
    """Spans (start, end) of all complete \\boxed{...}; the project's only box finder, in one pass.
    An unclosed box hides none of those inside of it, a complete one replaces them."""
    spans, stack = [], []
    for match in BRACE.finditer(text) if "\\boxed{" in text else ():
        if match[0] in ("{", "\\boxed{"): stack.append(None if match[0] == "{" else match.start())
        elif match[0] == "}" and stack:
            start = stack.pop()
            if start is not None:
                while spans and spans[-1][0] > start: spans.pop()
                spans.append((start, match.end()))
    return spans

def final_part(text):
    """(start, end) of the part after the last </think> and before a <think> that never closes."""
    start = text.rfind("</think>") + 8 if "</think>" in text else 0
    return start, (text + "<think>").index("<think>", start)

def last_boxed(text):
    """Span of the box that is rewarded, the last complete one outside of thinking, or None."""
    start, end = final_part(text)
    return next((s for s in reversed(boxed_spans(text)) if start <= s[0] and s[1] <= end), None)

def extract(text, strict=False):
    """The final answer, or None: the last box; if not strict, also \\boxed 5 and \\fbox{5}, what
    follows the last "####", "<answer>" or "answer is", or a completion of one line as a whole."""
    if not strict: text = LOOSE_BOX.sub(lambda m: "\\boxed{" + (m[1] + "}" if m[1] else ""), text)
    span = last_boxed(text)
    if span or strict: return text[span[0] + 7:span[1] - 1] if span else None
    text = BOLD.sub("", text[slice(*final_part(text))]).strip()
    marks = [m.end() for m in MARK.finditer(text, max(0, len(text) - 20_000))]
    if not marks: return None if "\n" in text or "\\boxed" in text or len(text) > 300 else text
    text = text[marks[-1]:marks[-1] + MAX_CHARS].lstrip(" \t\n*:：是为")
    shown, end = re.match(r"\$\$(.*?)\$\$|\\\[(.*?)\\\]", text, re.S), END.search(text)
    if shown: return shown[1] or shown[2]
    return text[:end.start() if end else None].strip()

# ---- one spelling, then tokens: "12", "x", "\\frac", "(", and '"cm' for a word
PLAIN = re.compile(r"[-+]?(?:[0-9]{1,400}(?:\.[0-9]{1,400})?|\.[0-9]{1,400})")
SIGNS = {pair[0]: pair[2:] + " " * (pair[2] == "\\") for pair in r"""
    −=- –=- —=- ‐=- ‑=- ·=* ⋅=* •=* ×=* ∗=* ÷=/ ∕=/ ⁄=/ °=° º=° ∘=° ′=' ’=' ≤=\le
    ≥=\ge ⩽=\le ⩾=\ge ≠=\ne ≈=\approx ≡== ∈=\in ∪=\cup ∩=\cap ∅=\O ∖=\setminus ∞=\infty ±=\pm
    ∓=\mp √=\sqrt ∛=\sqrt[3] ⟨=( ⟩=) ⌊=\lfloor ⌋=\rfloor ⌈=\lceil ⌉=\rceil ∣=| ℝ=\setR""".split()}
ALIAS = {name: names.split()[0].strip("_") for names in r"""\frac dfrac tfrac cfrac;\binom dbinom
    tbinom;\le leq leqslant;\ge geq geqslant;\ne neq;< lt;> gt;... ldots cdots dots vdots;/ div
    ;= equiv;* ast cdot times;\{\} emptyset varnothing O;| lvert rvert lVert rVert vert Vert mid
    ;\{ lbrace;\} rbrace;( langle;) rangle;° degree;\mod bmod pmod;\epsilon varepsilon;\phi varphi
    ;\overline bar;\vec overrightarrow;\cup bigcup;\cap bigcap;\setR R;i imath;\setminus backslash
    ;_ left right middle quad qquad displaystyle textstyle limits nolimits hline fbox boxed bf rm it
    mathbf bm boldsymbol mathsf mathit mathcal underline big Big bigl bigr Bigl Bigr bigg Bigg biggl
    biggr Biggl Biggr space large Large""".split(";") for name in names.split()[1:]}
REWRITES = [(re.compile(pattern), new) for pattern, new in (
    (r"(?<=[0-9])(?:\{,\s*\}|,?\s*(?:\\!\s*)+,?|(?:\\[,;: ])+)\s*(?=[0-9]{3}(?![0-9]))", ""),
    (r"(?<![0-9.,/^_{])([0-9]{1,3}) (?=[0-9]{3}(?![0-9/.{]))", r"\1"),                     # 1 000
    (r"\\\$", r"\\dollar "), (r"\\(?:left|right)\s*\.|(?<!\\)\\[][(),;:!> ]|[~$`\x22]", " "),
    (r"(\\[dtc]?(?:frac|binom))\s*([0-9])\s*([0-9])", r"\1{\2}{\3}"), (r"\*\*", "^"),      # \frac12
    (r"(\\[dtc]?(?:frac|binom))\s*([0-9])(?=\s*[{\\a-z])", r"\1{\2}"), (r"\\\\\s*(?=\\end)", ""),
    (r"(?<![A-Za-z0-9.^_{}])([0-9]+)\s*(\\[dtc]?frac\s*\{[0-9]+\}\s*\{?[0-9]+\}?)", r"{\1+\2}"),
    (r"(?<![A-Za-z0-9.^_])([0-9]+) +([0-9]+)/([0-9]+)", r"{\1+\\frac{\2}{\3}}"),           # 1 1/2
    (r"\^\s*(?:\\circ|\{\s*\\circ\s*\})", "° "), (r"\\([|%])", r"\1"), (r"\^\s*\{\s*T\s*\}", "^T"),
    (r"\\mathbb\s*\{?\s*([A-Z])\s*\}?", r"\\set\1 "), (r"-\s*\\\{", r"\\setminus \\{"),
    (r"\\text\s*\{\s*if\s*\}|,\s*(?=&)|\\[hv]space\*?\{[^{}]*\}|(?<=n\{array\})\{[^{}]*\}", " "),
    (r"\\text\s*\{\s*all reals?(?: numbers)?\s*\}", r"\\setR "), (r"([(,[])\s*\+", r"\1"),
    (r"\^\s*\{?\s*\\prime\s*\}?", "'"), (r"(?:\\text\s*)?\{?\binfinity\b\}?", r"\\infty "),
    (r"(?<![0-9])\.(?=[0-9\\])", "0."), ("<=", r"\\le "), (">=", r"\\ge "), ("!=", r"\\ne "))]
REPEATING = re.compile(              # 0.1\overline{6}, 0.\bar3, 0.\dot6, 0.(3), 0.333...
    r"([0-9]+)\.([0-9]{0,20}?)(?:\\(?:overline|bar|dot)\s*(?:\{([0-9]+)\}|([0-9]))|\(([0-9]+)\)$"
    r"|([0-9]{1,9}?)\6\6+(?:\.\.\.|\\[lc]?dots))")
TEXT = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|normal|up)?|mbox|hbox|mathrm|operatorname\*?)\s*"
                  r"\{((?:[^{}]|\{[^{}]*\})*)\}")
RUN = re.compile(r"\\(?:begin|end)\s*\{\w*\*?\}|\\([A-Za-z]+)|\\.|\x22\w+"
                 r"|((?:[A-Za-z]\.){2,}|[A-Za-z]{2,})")
GROUPED = re.compile(r"\\\{.*?\\\}|\([^()]*\)|\[[^][]*\]"
                     r"|(?<![0-9.,])([0-9]{1,3}(?:,[0-9]{3})+)(?![0-9,])", re.S)
TOKEN = re.compile(
    r"\\(?:begin|end)\s*\{\w*\*?\}|(?:[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|\x22\w+|[A-Za-z]"
    r"|\\(?:vec|overline|hat)\s*\{[^{}]*\}|\\[A-Za-z]+|\\.)(?:(?<!\\log)\s*(?:'|_\s*(?:[0-9]+"
    r"|[A-Za-z]|\\[a-z]+|\{(?:[^{}]|\{[^{}]*\})*\})))*|\.{3}|\S", re.S | re.A)
QUALIFIER = re.compile(r"(?:[,;(\s]|\x22(?:where|for|with|any|all)\b|\\forall)+[a-z]\s*(?:\\in\s*"
                       r"\\setZ|(?:\x22is\s*)?\x22integer)[\s)]*$")                   # , k in Z
CHOICE = re.compile(r"(?:\x22(?:option|choice|answer))?(?P<letter>\(\x22?[a-j]\)|(?-i:[A-J])[).:]|"
                    r"(?-i:[A-J])$|\x22[a-j]$)(?P<rest>(?![(,&]|\x22and|\x22or).*)", re.I | re.S)
TRIG = ("sin", "cos", "tan", "cot", "sec", "csc", "cis")
FUNCTIONS = {"ln", "log", "lg", "exp", "sqrt", "arsinh", "arcosh", "artanh", *TRIG,
             *("arc" + name for name in TRIG), *(name + "h" for name in TRIG[:6])}
UNITS = {name: names.split()[0] for names in """cm centimeter|m meter|mm millimeter|km kilometer|kg
    kilogram|g gram|in inch inche|ft foot feet|s sec second|min minute|h hr hour|mph|$ dollar USD
    |° degree|am|pm|% percent|/ per|^2 square|^3 cubic""".split("|")
         for name in names.split()}
WORDS = set("yes no odd or and all red not is to none true false if one two six ten are".split())

@lru_cache(maxsize=4096)
def tokens(text):
    """The tokens of an answer; 1,234 outside of brackets is one number."""
    if len(text) > MAX_CHARS: raise Refused("too long")
    text = re.sub("[^ -~]+", lambda m: re.sub(r"\}[_^]\{", "", "".join(map(spelled, m[0]))), text)
    for pattern, new in REWRITES:
        text = pattern.sub(new, text)
    text = RUN.sub(run, TEXT.sub(prose, REPEATING.sub(repeating, text.replace("}\\dot{", ""))))
    text = re.sub(r"\|((?:(?!\\[{}]|\\[lgn]e\b)[^|<>=,])+)\|", r"\\abs{\1}", text)
    text = GROUPED.sub(lambda m: m[1].replace(",", "") if m[1] else m[0], text)
    text = QUALIFIER.sub("", text) or text
    text = re.sub(r"^(?:[*=:+\s]|\\approx)+|(?:[*,;:\s]|\\\\|(?<!\.)\.)+$", "", text)
    return tuple(tok if re.match(r"\\begin|\\end|..?$", tok) else re.sub(r"[{}\s]", "", tok)
                 for tok in TOKEN.findall(text))

def spelled(char):
    """A character beyond ASCII in LaTeX: by our table, else by Unicode's own description of it."""
    plain, kind = unicodedata.normalize("NFKC", char), unicodedata.decomposition(char).split(" ")[0]
    if char in SIGNS: return SIGNS[char]
    if "\u2044" in plain[1:-1]: return r"\frac{%s}{%s}" % tuple(plain.split("\u2044"))
    if kind in ("<super>", "<sub>"): return "^_"[kind == "<sub>"] + "{%s}" % plain.replace("−", "-")
    greek = re.match(r"GREEK (SMALL|CAPITAL) LETTER (\w+)$", unicodedata.name(plain[:1], ""))
    name = greek[2].title().replace("Lamda", "Lambda") if greek else ""
    if name: return f"\\{name.lower() if greek[1] == 'SMALL' else name} "
    return {"Cf": "", "Cc": " ", "Zs": " "}.get(unicodedata.category(char), plain)

def repeating(match):
    whole, fixed, period = match[1], match[2], match[3] or match[4] or match[5] or match[6]
    shift, nines = 10 ** len(fixed), 10 ** len(period) - 1
    return rf"\frac{{{int(whole + fixed) * nines + int(period)}}}{{{shift * nines}}}"

def prose(match):
    """\\text{square cm} as "square "cm, without articles."""
    text = re.sub(r"\\[A-Za-z]+|[{}]|\b(?:an?|[Tt]he)\s+(?=[A-Za-z]{2})(?!and|or)", " ", match[1])
    if text.strip() in FUNCTIONS - {"sec"}: return f"\\{text.strip()} "
    return re.sub(r"(?:[A-Za-z]\.){2,}|[A-Za-z]+", lambda m: f' "{m[0].replace(".", "")} ', text)

def run(match):
    """Commands by their usual names; letters as a function, a word, or a product of variables."""
    command, letters = match.groups()
    if not letters: return ALIAS.get(command, f"\\{command}") + " " if command else match[0]
    glued, name = match.string[:match.start()][-1:] in DIGITS, letters.replace(".", "")
    low, one = name.lower(), name.lower().removesuffix("s")
    if name in FUNCTIONS or name in ("pi", "theta", "alpha", "beta"): return f"\\{name} "
    word = low[3:] and name[1:].islower() and set("aeiouy") & set(low) and [*low] != sorted(low)
    known = name in UNITS or low in WORDS and not name.isupper()  # east is a word, abcd a product
    return f' "{name} ' if known or not glued and (one in UNITS or word) else letters

# ---- structure: lists, names, units, brackets, sets of real numbers, by splitting the tokens
DIGITS, SETS = frozenset("0123456789"), ("\\cup", "\\cap", "\\setminus")
SEPARATORS, INFINITY = (",", ";", '"and', '"or'), ("\\infty",)
FLIPPED = dict(zip(("<", "\\le", ">", "\\ge"), (">", "\\ge", "<", "\\le")))
HOLDS = dict(zip((*FLIPPED, "\\ne"), map(vars(operator).get, ("lt", "le", "gt", "ge", "ne"))))
RELATIONS, REAL = {"=", "\\approx", "\\in", *HOLDS}, {"\\infty", "\\setR", *HOLDS, *SETS}
OPENERS, CLOSERS = set(r"( [ { \{ \lfloor \lceil".split()), set(r") ] } \} \rfloor \rceil".split())
NAME = re.compile(         # what may stand before "=": x, a_1, f(x), AB, |AB|, NO/BO, (x, y), Area
    r"(?!(e|i|\\pi)$)(m )?(\\\w+ (\{ )?)?([A-Za-z]|\\|\x22)[^ (),;]*( \})?( \( -?[^-+*/^]* \))?"
    r"|(m )?(\\\w+ (\{ )?)?[A-Z]( [A-Z])+( \})?|\( \S+( , \S+)+ \)|[A-Za-z]\S*( : [A-Za-z]\S*)+"
    r"|\\frac( \{ [A-Zd][ A-Za-z]* \}){2}")
UNIT = re.compile(r"(.+?) ((?:\x22(?:\w\w+|[mgshLlNJWVAKCFT])|%|°(?: [CF])?)"
                  r"(?: (?:\x22\w+|/|\*|\^ (?:\{ )?-?[0-9](?: \})?))*)")
NOT_UNITS = set("""is are was be not no none to wrong false if when then than least most more less
    times half minus plus negative positive only about between from until above below under over nor
    but incorrect where with for all any every because should cannot undefined except or true yes
    without at correct never neither dozen hundred thousand million billion squared""".split())

def split(toks, separators):
    """The parts of the tokens between separators outside of brackets, and these separators."""
    cuts, depth = [-1], 0
    for at, tok in enumerate(toks):
        depth += (tok in OPENERS or tok[:6] == "\\begin") - (tok in CLOSERS or tok[:4] == "\\end")
        if depth == 0 and tok in separators: cuts.append(at)
        if depth > 60: raise Refused("nested too deeply")
    parts = [tuple(toks[i + 1:j]) for i, j in zip(cuts, cuts[1:] + [len(toks)])]
    return parts, [toks[at] for at in cuts[1:]]

def bracket(toks):
    """("[)", inside) if one pair of brackets holds all tokens, else ("", toks)."""
    whole = toks and toks[0] in OPENERS and split(toks, {*toks})[1] == [toks[-1]]
    return ((toks[0] + toks[-1]).replace("\\", ""), toks[1:-1]) if whole else ("", toks)

def members(toks):
    """The members of a bare list, both readings of +-; brackets around a single thing go."""
    inside = bracket(toks)[0] in ("{}", "()") and toks[0] != "\\{" and toks[1:-1]
    if inside and not split(inside, SEPARATORS)[1]: return members(inside)
    signs = [{"\\pm": "+", "\\mp": "-"}, {"\\pm": "-", "\\mp": "+"}]
    return [tuple(sign.get(tok, tok) for tok in part) for part in split(toks, SEPARATORS)[0] if part
            for sign in (signs if {*signs[0]} & {*part} and part[0] != "\\{" else [{}])]

def unit(toks):
    """(value, unit) of 5 "cm, 5 "square "feet, 45 °, 5 %, \\dollar 5; "" is no unit."""
    match = UNIT.fullmatch(" ".join(toks))
    words = re.sub(r"\^\s+", "^", re.sub('["{}]', "", match[2])).split() if match else ()
    if not match or {*'"%°'} & {*match[1]} or NOT_UNITS & {word.lower() for word in words} or (
            "°" in words and any(tok[1:] in FUNCTIONS for tok in toks)):
        return (toks[1:], "$") if toks[:1] == ("\\dollar",) else (toks, "")
    words = [word if word in UNITS else word.lower().removesuffix("s") for word in words]
    return tuple(match[1].split()), " ".join(sorted(UNITS.get(word, word) for word in words))

def probes(ends):
    ends = sorted({end for end in ends if abs(end) != math.inf} | {0})
    return [ends[0] - 9, *ends, *((x + y) // 2 for x, y in zip(ends, ends[1:])), ends[-1] + 9]

def norm(x): return max(map(abs, x)) if hasattr(x, "rows") else abs(x)

class Compare:
    """One comparison of two token tuples, the answer always first."""
    how, letters, size, peak = "structure", False, 0, 0

    def same(self, a, g):
        """Lists, then names, units, brackets, sets of reals, words, and at last values."""
        if a == g: return True
        self.fuel -= 20
        kinds, real = {bracket(a)[0], bracket(g)[0]}, REAL & {*a, *g}
        if "{}" in kinds and not real:
            x, y = (members(bracket(t)[1] if bracket(t)[0] == "{}" else t) for t in (a, g))
            return (all(any(self.same(p, q) for q in y) for p in x)
                    and all(any(self.same(p, q) for p in x) for q in y))
        x, y = members(a), members(g)
        if (len(x), len(y)) != (1, 1):
            return self.match(x, y) or bool(real) and self.same_reals(a, g)
        a, g = x[0], y[0]
        if self.proportional(a, g): return True
        (a_name, a), (g_name, g) = self.named(a), self.named(g)
        if a_name and g_name and a_name != g_name: return False
        if real or {"[)", "(]"} & kinds: return self.in_order(a, g) or self.same_reals(a, g)
        if a_name or g_name: return self.same(a, g)
        (a_value, a_unit), (g_value, g_unit) = unit(a), unit(g)
        if a_unit and g_unit and a_unit != g_unit: return False
        if a_unit + g_unit:
            alike = self.same(a_value, g_value)
            if "%" not in (a_unit, g_unit) or alike and g_unit == "%": return alike
        ordered = self.in_order(a, g)
        if ordered is not None: return ordered
        if "_" in g[0] and g[0][0] in DIGITS: return a == (g[0].partition("_")[0],)
        if any(tok[0] == '"' and tok[2:] for tok in a + g):
            a, g = ([tok.lower().strip('"') for tok in t if tok not in ".-'"] for t in (a, g))
            return a == g
        return self.equal(a, g) or self.rounded(a, g)

    def match(self, a, g):  # one to one, in any order
        for want in g:
            at = next((k for k, member in enumerate(a) if self.same(member, want)), None)
            if at is None: return False
            a = a[:at] + a[at + 1:]
        return not a

    def in_order(self, a, g):  # tuples and intervals, member by member; None for anything else
        (x, a), (y, g) = bracket(a), bracket(g)
        a, g = split(a, SEPARATORS)[0], split(g, SEPARATORS)[0]
        if len(a + g) > 2: return (x, len(a)) == (y, len(g)) and all(map(self.same, a, g))

    def named(self, toks):
        """(name, value) of x = 5, x = 2 + 3 = 5, x in S; (None, 5) of 2 + 3 = 5; never of 6 = 5."""
        parts, ops = split(toks, RELATIONS)
        if not ops or ops != ["\\in"] and set(ops) - {"=", "\\approx"}: return None, toks
        is_name = [bool(NAME.fullmatch(" ".join(part))) for part in parts]
        if is_name == [False, True]: parts, is_name = parts[::-1], [True, False]
        first = [*is_name[:-1], False].index(False)
        parts, name = parts[first:1 + (ops + ["\\approx"]).index("\\approx", first)], parts[0]
        constant = [part for part in parts if not re.search(r"\b[A-Za-df-hj-z]\b", " ".join(part))]
        if not first and constant != parts: return None, toks
        if not all(self.same(part, constant[0]) for part in constant): raise Refused("not equal")
        return name if first else None, parts[-1]

    def proportional(self, a, g):
        """Are two equations or inequalities the same up to a constant factor: 2x < 6 and x < 3?"""
        (a, x), (g, y) = split(a, RELATIONS), split(g, RELATIONS)
        if [len(x), len(y)] != [1, 1] or y[0] not in (x[0], FLIPPED.get(x[0])): return False
        a, g = (left + ("-", "(") + right + (")",) for left, right in (a, g))
        try: p, q = self.value(a), self.value(g)
        except Exception: return False
        if min(norm(p), norm(q)) < 1e-30: return False                      # always true, as 2 = 2
        same = (p / q).real * (1 if x == y else -1) > 0 or x[0] not in FLIPPED
        return same and self.equal(a, g, True)

    def same_reals(self, a, g):
        """Are two sets of real numbers alike at, between and beyond all their end points?"""
        (names, ends, test), (g_names, g_ends, g_test) = self.reals(a), self.reals(g)
        self.how = "sets of real numbers"
        return (not names or not g_names or names == g_names) and all(
            test(x) == g_test(x) for x in probes(ends | g_ends))

    def reals(self, toks):
        """(variables, end points, membership test) of a set of real numbers."""
        (kind, inside), (parts, found) = bracket(toks), split(toks, SEPARATORS + SETS)
        if found and not kind:
            (names, ends, left), op = self.reals(toks[:-1 - len(parts[-1])]), found[-1]
            more, more_ends, right = self.reals(parts[-1])
            names, ends = names | more, ends | more_ends
            apart = op in ",;" and not any(left(x) and right(x) for x in probes(ends))
            if apart or op in ("\\cup", '"or'): return names, ends, lambda x: left(x) or right(x)
            return names, ends, lambda x: left(x) and right(x) == (op != "\\setminus")
        parts, ops = split(toks, RELATIONS)
        names = {part for part in parts if NAME.fullmatch(" ".join(part))}
        if ops == ["\\in"]: return {parts[0]}, *self.reals(parts[1])[1:]
        if ops and len(names) == 1:
            sides = [None if part in names else self.place(part) for part in parts]
            return names, set(sides) - {None}, lambda x: all(
                HOLDS[op](*(x if side is None else side for side in pair))
                for op, *pair in zip(ops, sides, sides[1:]))
        parts, found = split(inside, ("|", ":"))
        if kind == "{}" and found:                            # {x | x > 2}, {x in R : x > 2}
            head = parts[0] + ('"and',) if len(parts[0]) > 1 else ()       # x, or x in R
            return set(), *self.reals(head + parts[1])[1:]
        if toks == ("\\setR",): return set(), set(), lambda x: True
        if kind in ("{}", ""):
            points = {self.place(member) for member in members(inside)} - {math.inf, -math.inf}
            return set(), points, points.__contains__ if points or not inside else refuse("no set")
        low, high = map(self.place, split(inside, SEPARATORS)[0])
        return set(), {low, high}, lambda x: (
            low < x < high or x == low and kind[0] == "[" or x == high and kind[1] == "]")

    def place(self, toks):
        """A real number in units of 2^-140, as an integer, so that equal end points are equal."""
        if toks in (INFINITY, ("-", *INFINITY)): return math.inf if toks == INFINITY else -math.inf
        self.letters, x = False, self.value(toks)
        if self.letters or x.imag: raise Refused("not a number, or not a solved inequality")
        return int(self.mp.nint(x.real * 2 ** 140))

    def rounded(self, a, g):
        """One is a decimal, the other the value that rounds to it: see the policy."""
        decimal, other, least = (a, g, 6) if "." in "".join(a) else (g, a, 3)
        text, digits = "".join(decimal), "".join(decimal).strip("-0.").replace(".", "")
        exact = "." in text and "." not in "".join(other) and len(digits) >= least
        if not exact or not PLAIN.fullmatch(text): return False
        y, x = self.value(decimal), self.value(other)
        if self.letters or abs(x - self.mp.nint(x.real)) < 1e-30: return False
        return 2 * abs(x - y) * 10 ** len(text.partition(".")[2]) <= 1

    def equal(self, a, g, scaled=False):
        """Equal to 60 digits, and to 200 beyond the largest number; with letters at 8 points."""
        agreed = 0
        for point in range(8):
            self.letters, self.size = False, 0
            for bits in (200, 700):
                if self.letters and self.size > 3000: break               # too large a point
                bits, self.peak = bits + 2 * self.size, 0
                try:
                    x, y = self.value(a, point, bits), self.value(g, point, bits)
                    if scaled: x, y = x * self.value(g, 2, bits), y * self.value(a, 2, bits)
                    gap, size = norm(x - y), max(norm(x), norm(y))
                except Exception as error:
                    self.how = f"refused: {error}"
                    if not self.letters: return False
                    break
                if gap > max(size, self.peak) * self.mp.mpf(2) ** (60 - bits): return False
            else: agreed += 1
            if not self.letters: break
        self.how = "equal at several points" if self.letters else "equal to 200 digits"
        return agreed > self.letters + scaled

    # ---- a calculator by precedence climbing; its steps and its numbers are bounded
    def value(self, toks, point=0, bits=200):
        self.toks, self.at, self.next, self.trig = [*toks, "", ""], 0, [*toks, ""][0], False
        from mpmath.ctx_mp import MPContext  # sympy's numeric layer, one for each thread
        self.mp = vars(LOCAL).get("mp") or vars(LOCAL).setdefault("mp", MPContext())
        self.point, self.mp.prec = point, bits
        x = self.expression(0)
        return x if not self.next else refuse(f"cannot read on at {self.next}")

    def take(self, *wanted):
        tok = self.next if not wanted or self.next in wanted else ""
        self.at, self.next = self.at + bool(tok), self.toks[self.at + bool(tok)]
        return tok

    def expression(self, floor, argument=False):
        """All that binds more tightly than floor. argument: what follows sin without brackets."""
        self.fuel -= 1 + self.mp.prec ** 2 // 300_000
        if self.fuel < 0: raise OutOfFuel
        x = self.prefix(floor)
        while True:
            tok = self.next
            level = 0 if tok[:5] == "\\end{" else LEVEL.get(tok, 7)
            if argument and level and tok not in LEVEL:
                level = 0 if tok == "(" or tok[0] == '"' or tok[1:] in FUNCTIONS else 8
            if level <= floor:
                if not hasattr(x, "rows") and x: self.size = max(self.size, abs(self.mp.mag(x)))
                return x if self.size <= MAX_BITS else refuse("too large a number")
            if tok not in LEVEL:
                if tok[0] in DIGITS and self.toks[self.at - 1][-1] in DIGITS: raise Refused("1 2")
                x = x * self.expression(8)
            elif self.take("+", "-"):
                y = self.expression(6) * (1 if tok == "+" else -1)
                self.peak, x = max(self.peak, norm(x), norm(y)), x + y
            elif self.take("*"): x = x * self.expression(7)
            elif self.take("/", "\\over"): x = x / self.expression(level)
            elif self.take("%"): x = x / 100
            elif self.take("°"): x = x * self.mp.pi / 180 if self.trig else x
            elif self.take("\\choose"): x = self.counted("binomial", x, self.expression(6))
            elif self.take("!"): x = self.counted("fac2" if self.take("!") else "factorial", x)
            elif self.take("^"):
                turned = hasattr(x, "rows") and self.take("T")
                x = x.T if turned else self.power(x, self.expression(8.5))

    def prefix(self, floor):
        tok, mp = self.take(), self.mp
        name = tok.lstrip('"\\')
        if tok in ("+", "-"): return self.expression(max(floor, 6)) * (1 if tok == "+" else -1)
        if tok and tok[0] in DIGITS:
            if len(tok.lower().partition("e")[2]) > 5: raise Refused("too large a number")
            self.size = max(self.size, 4 * len(tok))
            return mp.mpf(tok)
        if tok in OPENERS and tok not in ("\\{", "\\langle"):
            x = self.expression(0)
            self.take(*{"{": "}"}.get(tok, CLOSERS)) or refuse(f"{tok} is not closed")
            if tok in ("(", "[", "{"): return x
            near, rounding = mp.nint(mp.re(x)), mp.floor if name == "lfloor" else mp.ceil
            return near if abs(x - near) < 1e-30 else rounding(x)
        if tok[:6] == "\\begin":
            rows = [[]]
            while not self.take("\\end" + tok[6:]):
                if self.take("\\\\"): rows.append([])
                elif not self.take("&"): rows[-1].append(self.expression(0))
            if len({*map(len, rows)}) > 1 or "cases" in tok: raise Refused("no matrix")
            return mp.det(mp.matrix(rows)) if "vmatrix" in tok else mp.matrix(rows)
        if name == "frac": return self.expression(9) / self.expression(9)
        if name == "binom": return self.counted("binomial", self.expression(9), self.expression(9))
        if name == "sqrt":
            index = self.prefix(9) if self.next == "[" else 2
            return self.power(self.expression(9), mp.mpf(1) / index)
        if name in ("abs", "det"): return (abs if name == "abs" else mp.det)(self.expression(9))
        if tok[:1] == "\\" and name in FUNCTIONS: return self.function(name)
        if not re.match(r"(\\?[A-Za-z]|\.\.\.|\x22\w($|_))", tok) or tok in LEVEL:
            raise Refused(f"cannot read {tok or 'the end'}")
        name, seed = tok.lstrip('"'), zlib.crc32(tok.lstrip('"').encode())
        if name in ("\\pi", "e", "i"): return {"e": +mp.e, "i": mp.mpc(0, 1)}.get(name, +mp.pi)
        # A letter's value at this point: no integer; sign and size change from point to point.
        self.letters, signs = True, (ord(name) if len(name) == 1 else seed) * 37 % 253 + 1
        size = SCALES[self.point] * (505 + (seed >> 3 * self.point) % 500) / mp.mpf(1009)
        return -size if signs >> self.point & 1 else size

    def function(self, name):
        """sin(x) y, sin^2 x, log_2 8, tan^{-1} x, sin 2x."""
        mp, base, power, saved = self.mp, 10 if name == "lg" else None, None, self.trig
        while self.next in ("^", "_"):
            if self.take() == "^": power = self.expression(8.5)
            else: base = self.expression(9)
        self.trig = name in TRIG
        x = self.prefix(9) if self.next in ("(", "[", "{") else self.expression(7, True)
        self.trig, self.peak = saved, self.peak if name == "exp" else max(self.peak, 1)
        if name in TRIG and power == -1: name, power = "arc" + name, None
        if abs(x) > 1e12: raise Refused("too large an argument")
        if name in ("log", "lg"): x = mp.ln(x) / mp.ln(base or 7.31)  # an unknown base
        else: x = getattr(mp, re.sub("^arc?(?=[a-z]{3})", "a", name).replace("cis", "expj"))(x)
        return x if power is None else self.power(x, power)

    def counted(self, name, *xs):
        """Factorials and binomials; those of fractions are slow at a high precision."""
        broken = self.mp.prec > 1000 and any(x != self.mp.nint(x) for x in xs)
        if broken or max(map(abs, xs)) > 1e5: raise Refused("too large a factorial")
        return getattr(self.mp, name)(*xs)

    def power(self, x, e):
        mp = self.mp
        if hasattr(x, "rows"): return x ** int(e) if -2 < e < 20 else refuse("such a power")
        if x == 0: return x if mp.re(e) > 0 else refuse("0 to such a power")
        if abs(e) * abs(mp.ln(abs(x))) > MAX_BITS: raise Refused("too large a power")
        for q in (3, 5, 7):                                               # (-8)^{1/3} is -2
            p = int(mp.nint(mp.re(e) * q))
            if mp.im(x) == 0 > mp.re(x) and abs(e * q - p) < 1e-40 and p % q:
                return mp.power(-x, e) * (-1) ** p
        return mp.power(x, e)

LOCAL, SCALES = threading.local(), (1, 3, 7, 0.111, 31, 0.0123, 1000, 10**6)  # at the 8 points
LEVEL = {"+": 6, "-": 6, "\\over": 6, "\\choose": 6, "*": 7, "/": 7, "%": 7, "^": 9, "!": 9, "°": 9,
         **dict.fromkeys(("", *CLOSERS, ",", "&", "\\\\", *RELATIONS), 0)}

# ---- many at once
class Verdicts(list): timeouts = 0  # how many are False because they were stopped
def verify_all(pairs, workers=2, timeout=5.0, strict=False):
    """Verdicts in the order of the (completion, gold) pairs. Work is bounded, most of it done here;
    what takes too many steps goes to a process that is killed after so many seconds."""
    pairs, verdicts, hard, start = list(pairs), Verdicts(), {}, time.monotonic()
    for k, (completion, gold) in enumerate(pairs):
        try: verdicts.append(judge(completion, gold, strict, CHEAP)[0])
        except OutOfFuel:
            verdicts.append(False)
            hard[k] = json.dumps((completion, gold, strict)).encode()
        if time.monotonic() - start > 2 and (k % 100 == 99 or k + 1 == len(pairs)):
            print(f"\r{k + 1}/{len(pairs)}", end="\n" * (k + 1 == len(pairs)), file=sys.stderr)
    with ThreadPoolExecutor(workers) as pool:
        for k, verdict in zip(hard, pool.map(lambda job: in_process(job, timeout), hard.values())):
            verdicts[k], verdicts.timeouts = bool(verdict), verdicts.timeouts + (verdict is None)
    if verdicts.timeouts: print(f"verify: {verdicts.timeouts} stopped, so wrong", file=sys.stderr)
    return verdicts

def in_process(job, timeout, command=(sys.executable, __file__, "--worker")):
    """One verdict from a process of its own; None if it took too long or died."""
    apart = dict(capture_output=True, start_new_session=True)  # Ctrl-C is the caller's to handle
    try: done = subprocess.run(command, input=job, timeout=timeout, **apart)
    except subprocess.TimeoutExpired: return None
    return None if done.returncode else json.loads(done.stdout)

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
    if args.worker: return print(json.dumps(verify(*json.load(sys.stdin))))
    if args.table:
        try: return table(args.table)
        except (OSError, ValueError, KeyError, TypeError) as e: parser.error(f"{args.table}: {e!r}")
    if args.gold is None: parser.error("give a completion and a gold answer, or --table FILE")
    print("{} ({})".format(*judge(args.completion, args.gold)))

if __name__ == "__main__": main()
