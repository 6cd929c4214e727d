r"""Is the answer right? A small, safe, bounded verifier of math answers.

A reward that is wrong teaches the model the error, one that hangs stops the run, and one that
evaluates model text hands over the machine. So: find the final answer, spell it one way, split it
into its parts, and compare the values of formulas by a calculator of our own that refuses early.

    python verify.py "\boxed{\frac12}" 0.5                 # the verdict and how it was reached
    python verify.py --table tests/verify_table.jsonl      # accuracy, errors, milliseconds by kind

Policies: "gold ~ answer" is accepted, "gold !~ answer" is not. A test reads these lines.
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
What we left out, on purpose: simplify and solve (unbounded), prose, the conversion of units.
"""
import argparse, json, math, operator, re, subprocess, sys, threading, time, unicodedata, zlib
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

MAX_CHARS, MAX_DEPTH, MAX_BITS = 3000, 60, 60_000  # of an answer, of its nesting, of its numbers
CHEAP, FUEL = 3_000, 60_000  # steps of the calculator: in the caller's process, and at most

class Refused(ValueError):
    """No answer that we can read within the limits: the verdict is False, the reason is told."""

class OutOfFuel(BaseException):
    """The comparison has spent its steps."""

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
        letters = [CHOICE.fullmatch("".join(toks)) for toks in (a, g)]
        if all(letters) and not (letters[0]["rest"] and letters[1]["rest"]):
            a, g = (re.sub("[^A-J]", "", match["letter"].upper()) for match in letters)
            return a == g, "choice letters"
        if ",0" not in answer + gold and (len(members(a)) > 1) != (len(members(g)) > 1):
            a, g = tokens(answer, False), tokens(gold, False)  # 100,200 beside 200, 100 is a list
        compare = Compare(fuel)
        return compare.same(a, g), compare.how
    except OutOfFuel:
        if fuel < FUEL: raise
        return False, "refused: too much work"
    except Exception as error:                         # a grader that raises drops the sample
        return False, f"refused: {error}" if isinstance(error, Refused) else f"refused: {error!r}"

def refuse(reason): raise Refused(reason)

# ---- find the answer

BRACE = re.compile(r"\\boxed\{|\\.|[{}]", re.S)
LOOSE_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(-?[0-9][0-9.,/]*))")
MARK = re.compile(
    r"####|<answer>|final answer[ *#:_]*\n|\b(?:answers?|option|choice)\b[^\n.;:=$\\]{0,40}?"
    r"(?:\b(?:is|are|be)\b|[:=])[\s*:]*(?:(?:therefore|thus|then|equal to)\b\s*:?\s*)*", re.I)
END = re.compile(r"\.?\n|[.!?](?=[$*)]*(?:\s|$))|</|,\s+(?!and\b|or\b)(?=[a-z]{3})"
                 r"|\s(?:because|since|so|which|where|as|but|hence|therefore)\b")

def boxed_spans(text):
    """Character spans (start, end) of every complete \\boxed{...}, marker and last brace included.
    The only box finder of the project, for reward and saliency: one pass with a stack of braces; an
    unclosed box hides no box inside of it, an outer box replaces those inside of it."""
    spans, stack = [], []
    for match in BRACE.finditer(text) if "\\boxed{" in text else ():
        if match[0] in ("{", "\\boxed{"):
            stack.append(None if match[0] == "{" else match.start())
        elif match[0] == "}" and stack:
            start = stack.pop()
            if start is not None:
                while spans and spans[-1][0] > start: spans.pop()
                spans.append((start, match.end()))
    return spans

def final_part(text):
    """(start, end) of the part after the last </think> and before a <think> that never closes."""
    start = text.rfind("</think>") + 8 if "</think>" in text else 0
    end = text.find("<think>", start)
    return start, len(text) if end < 0 else end

def last_boxed(text):
    """Span of the box that is rewarded, the last complete one outside of thinking, or None."""
    start, end = final_part(text)
    return next((s for s in reversed(boxed_spans(text)) if start <= s[0] and s[1] <= end), None)

def extract(text, strict=False):
    """The final answer, or None: the last box; if not strict, also \\boxed 5 and \\fbox{5}, what
    follows the last "####", "<answer>" or "answer is", or a completion of one line as a whole."""
    if not strict:
        text = LOOSE_BOX.sub(lambda m: "\\boxed{" + (m[1] + "}" if m[1] else ""), text)
    span = last_boxed(text)
    if span or strict: return text[span[0] + 7:span[1] - 1] if span else None
    text = text[slice(*final_part(text))].strip()
    marks = [m.end() for m in MARK.finditer(text, max(0, len(text) - 20_000))]
    if not marks: return None if "\n" in text or "\\boxed" in text or len(text) > 300 else text
    text = text[marks[-1]:marks[-1] + MAX_CHARS].lstrip(" \t\n*:")
    for opening, closing in (("$$", "$$"), ("\\[", "\\]")):
        if text.startswith(opening) and closing in text[2:]: return text[2:text.index(closing, 2)]
    end = END.search(text)
    return text[:end.start() if end else None].replace("**", "").strip()

# ---- one spelling, then tokens: "12", "x", "\\frac", "(", and '"cm' for a word

PLAIN = re.compile(r"[-+]?(?:[0-9]{1,400}(?:\.[0-9]{1,400})?|\.[0-9]{1,400})")
SIGNS = {pair[0]: pair[2:] + " " * (pair[2] == "\\") for pair in r"""
    −=- –=- —=- ‐=- ‑=- ·=\cdot ⋅=\cdot •=\cdot ×=\times ∗=* ÷=/ ∕=/ ⁄=/ °=^\circ º=^\circ ∘=^\circ
    ′=' ’=' ≤=\le ≥=\ge ⩽=\le ⩾=\ge ≠=\ne ≈=\approx ≡== ∈=\in ∪=\cup ∩=\cap ∅=\O ∖=\setminus
    ∞=\infty ±=\pm ∓=\mp √=\sqrt ⋯=... ⟨=\langle ⟩=\rangle ⌊=\lfloor ⌋=\rfloor ⌈=\lceil ⌉=\rceil
    ∣=| ℝ=\setR ℤ=\setZ ∑=\sum ∏=\prod ∫=\int ∠=\angle ¬=\lnot""".split()}
ALIAS = {name: names.split()[0].strip("_") for names in r"""\frac dfrac tfrac cfrac;\binom dbinom
    tbinom;\le leq leqslant;\ge geq geqslant;\ne neq;< lt;> gt;... ldots cdots dots vdots;/ div
    ;= equiv;\{\} emptyset varnothing O;| lvert rvert lVert rVert vert Vert mid;\setminus backslash
    ;* ast;\{ lbrace;\} rbrace;° degree;\mod bmod pmod;\epsilon varepsilon;\phi varphi;\overline bar
    ;\vec overrightarrow;\approx simeq sim;: colon;\cup bigcup;\cap bigcap;\arsinh arcsinh;i imath
    ;\arcosh arccosh;\artanh arctanh;\tan tg;\cot ctg;"or lor vee;"and land;\theta vartheta;\setR R
    ;_ left right middle quad qquad displaystyle textstyle limits nolimits hline fbox boxed bf rm it
    mathbf bm boldsymbol mathsf mathit mathcal underline big Big bigl bigr Bigl Bigr bigg Bigg biggl
    biggr Biggl Biggr space large""".split(";") for name in names.split()[1:]}
REWRITES = [(re.compile(pattern), new) for pattern, new in (
    (r"(?<=[0-9])(?:\{,\}|,?\s*(?:\\!\s*)+,?|(?:\\[,;: ])+)\s*(?=[0-9]{3}(?![0-9]))", ""),  # 1{,}000
    (r"(?<![0-9.,/^_{])([0-9]{1,3}) (?=[0-9]{3}(?![0-9/.{]))", r"\1"),                     # 1 000
    (r"\\\$", r"\\dollar "), (r"\\(?:left|right)\s*\.|(?<!\\)\\[][(),;:!> ]|[~$`\x22]", " "),
    (r"(\\[dtc]?(?:frac|binom))\s*([0-9])\s*([0-9])", r"\1{\2}{\3}"), (r"\*\*", "^"),       # \frac12
    (r"(\\[dtc]?(?:frac|binom))\s*([0-9])(?=\s*[{\\a-z])", r"\1{\2}"), (r"\\\\\s*(?=\\end)", ""),
    (r"(?<![A-Za-z0-9.^_{}])([0-9]+)\s*(\\[dtc]?frac\s*\{[0-9]+\}\s*\{?[0-9]+\}?)", r"{\1+\2}"),
    (r"(?<![A-Za-z0-9.^_])([0-9]+) +([0-9]+)/([0-9]+)", r"{\1+\\frac{\2}{\3}}"),            # 1 1/2
    (r"\^\s*(?:\\circ|\{\s*\\circ\s*\}|\{?\\text\s*\{o\}\}?)", "° "), (r"\\([|%])", r"\1"),
    (r"\\mathbb\s*\{?\s*([A-Z])\s*\}?", r"\\set\1 "), (r"-\s*\\\{", r"\\setminus \\{"),
    (r"\\text\s*\{\s*(?:if|for)\s*\}|\\[hv]space\*?\{[^{}]*\}|(?<=n\{array\})\{[^{}]*\}", " "),
    (r"\\text\s*\{\s*all reals?(?: numbers)?\s*\}", r"\\setR "), (r"([(,[])\s*\+", r"\1"),
    (r"\\(?:hat|vec)\s*\{?\s*\\?([ijk])(?:math)?(?![A-Za-z])\s*\}?", r"\1"),
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
    r"(?:[0-9]+(?:\.(?!\.)[0-9]*)?(?:[eE][-+]?[0-9]+)?|\\(?:begin|end)\s*\{\w*\*?\}|\\[A-Za-z]+|\\."
    r"|\x22\w+|[A-Za-z])(?:(?<!\\log)\s*(?:'|_\s*(?:\w+|\\[a-z]+|\{(?:[^{}]|\{[^{}]*\})*\})))*|\.\.\.|\S",
    re.S | re.A)
CHOICE = re.compile(r"(?:\x22(?:option|choice|answer))?(?P<letter>\(\x22?[a-j]\)|(?-i:[A-J])[).:]|"
                    r"(?-i:[A-J])$|\x22[a-j]$)(?P<rest>(?![(,&]|\x22and|\x22or).*)", re.I | re.S)
FUNCTIONS = set("""sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh
    coth sech csch arsinh arcosh artanh ln log lg exp sqrt cis""".split())
UNITS = {name: names.split()[0] for names in """cm centimeter|m meter|mm millimeter|km kilometer|yd
    yard|in inch inche|ft foot feet|mi mile|kg kilogram|g gram|mg milligram|s sec second|lb lbs pound
    |oz ounce|min minute|h hr hour|L liter|mL ml|mph|$ dollar USD|° degree|rad radian|N newton|W watt
    |V volt|Pa|K|C|F|am|pm|people person|% percent|/ per""".split("|") for name in names.split()}
WORDS = set("yes no odd or and all red not is to none true false if one two six ten are".split())

@lru_cache(maxsize=4096)
def tokens(text, grouping=True):
    """The tokens of an answer. grouping: 1,234 outside of brackets is one number."""
    if len(text) > MAX_CHARS: raise Refused("too long")
    if not text.isascii() or not text.isprintable():
        text = re.sub("[^ -~]", spelled, text).replace("}^{", "").replace("}_{", "")
    for pattern, new in REWRITES:
        text = pattern.sub(new, text)
    text = RUN.sub(run, TEXT.sub(prose, REPEATING.sub(repeating, text.replace("}\\dot{", ""))))
    text = re.sub(r"\|((?:(?!\\[{}lgn])[^|<>=,])+)\|", r"\\abs{\1}", text)
    if grouping and "," in text:
        text = GROUPED.sub(lambda m: m[1].replace(",", "") if m[1] else m[0], text)
    text = re.sub(r"^[*=:+\s]+|(?:[*,;:\s]|\\\\|(?<!\.)\.)+$", "", text)
    toks = [re.sub(r"[{}\s]", "", tok) if "_" in tok else tok for tok in TOKEN.findall(text)]
    depths = accumulate(((tok in OPENERS) - (tok in CLOSERS) for tok in toks), initial=0)
    return tuple(toks) if max(depths) <= MAX_DEPTH else refuse("nested too deeply")

def spelled(match):
    """A character beyond ASCII in LaTeX: by our table, else by Unicode's own description of it."""
    char, plain = match[0], unicodedata.normalize("NFKC", match[0])
    kind = unicodedata.decomposition(char)[:4]
    if char in SIGNS: return SIGNS[char]
    if "\u2044" in plain[1:-1]: return r"\frac{%s}{%s}" % tuple(plain.split("\u2044"))
    if kind in ("<sup", "<sub"): return "^_"[kind == "<sub"] + "{%s}" % plain.replace("\u2212", "-")
    greek = re.match(r"GREEK (SMALL|CAPITAL) LETTER (\w+)$", unicodedata.name(plain[:1], ""))
    if not greek: return {"Cf": "", "Cc": " ", "Zs": " "}.get(unicodedata.category(char), plain)
    name = greek[2].title().replace("Lamda", "Lambda")
    return f"\\{name.lower() if greek[1] == 'SMALL' else name} "

def repeating(match):
    whole, fixed, period = match[1], match[2], match[3] or match[4] or match[5] or match[6]
    shift, nines = 10 ** len(fixed), 10 ** len(period) - 1
    return rf"\frac{{{int(whole + fixed) * nines + int(period)}}}{{{shift * nines}}}"

def prose(match):
    """\\text{square cm} as "square "cm, without articles."""
    text = re.sub(r"\\[A-Za-z]+|[{}]|\b(?:an?|[Tt]he)\s+(?=[A-Za-z]{2})(?!and|or)", " ", match[1])
    if text.strip() in FUNCTIONS: return f"\\{text.strip()} "
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
SEPARATORS, CONSTANTS = (",", ";", '"and', '"or'), ("\\pi", "e", "i")
FLIPPED = dict(zip(("<", "\\le", ">", "\\ge"), (">", "\\ge", "<", "\\le")))
HOLDS = dict(zip((*FLIPPED, "\\ne"), map(vars(operator).get, ("lt", "le", "gt", "ge", "ne"))))
RELATIONS, REAL = {"=", "\\approx", "\\in", *HOLDS}, {"\\infty", "\\setR", *HOLDS, *SETS}
OPENERS = {"(", "[", "{", "\\{", "\\langle", "\\lfloor", "\\lceil"}
CLOSERS = {")", "]", "}", "\\}", "\\rangle", "\\rfloor", "\\rceil"}
NAME = re.compile(         # what may stand before "=": x, a_1, f(x), AB, |AB|, NO/BO, (x, y), Area
    r"(?!(e|i|\\pi)$)(\\\w+ (\{ )?)?([A-Za-z]|\\|\x22)[^ (),;]*( \})?( \( [^+]* \))?"
    r"|(\\\w+ (\{ )?)?[A-Z]( [A-Z])+( \})?|\( \S+( , \S+)+ \)|[A-Za-z]\S*( : [A-Za-z]\S*)+"
    r"|\\frac( \{ [A-Zd][ A-Za-z]* \}){2}")
UNIT = re.compile(r"(.+?) ((?:\x22(?:\w\w+|[mgshLlNJWVAKCFT])|%|°)"
                  r"(?: (?:\x22\w+|/|\\cdot|\^ (?:\{ )?-?[0-9](?: \})?))*)")
NOT_UNITS = set("""is are was be not no none to wrong false if when then than least most more less
    times half minus plus negative positive only about between from until above below under over nor
    but incorrect where with for all any every because would should could cannot undefined except or
    without at true yes correct never neither dozen hundred thousand million billion""".split())

def split(toks, separators):
    """The parts of the tokens between separators outside of brackets, and these separators."""
    cuts, depth = [-1], 0
    for at, tok in enumerate(toks):
        depth += (tok in OPENERS or tok[:6] == "\\begin") - (tok in CLOSERS or tok[:4] == "\\end")
        if depth == 0 and tok in separators: cuts.append(at)
    parts = [tuple(toks[i + 1:j]) for i, j in zip(cuts, cuts[1:] + [len(toks)])]
    return parts, [toks[at] for at in cuts[1:]]

def bracket(toks):
    """("[)", inside) if one pair of brackets holds all tokens, else ("", toks)."""
    if len(toks) < 2 or toks[0] not in OPENERS or toks[-1] not in CLOSERS: return "", toks
    depths = accumulate((tok in OPENERS) - (tok in CLOSERS) for tok in toks[:-1])
    kind = (toks[0] + toks[-1]).replace("\\langle", "(").replace("\\rangle", ")").replace("\\", "")
    return (kind, toks[1:-1]) if min(depths) > 0 else ("", toks)

def members(toks):
    """The members of a bare list, both readings of +-; brackets around a single thing go."""
    while bracket(toks)[0] in ("{}", "()") != toks[0] != "\\{" and not split(toks[1:-1], SEPARATORS)[1]:
        toks = toks[1:-1]
    signs = [{"\\pm": "+", "\\mp": "-"}, {"\\pm": "-", "\\mp": "+"}]
    return [tuple(sign.get(tok, tok) for tok in part) for part in split(toks, SEPARATORS)[0] if part
            for sign in (signs if {*signs[0]} & {*part} and part[0] != "\\{" else [{}])]

def unit(toks):
    """(value, unit) of 5 "cm, 5 "centimeters, 45 °, 5 %, \\dollar 5; the unit "" if there is none."""
    match = UNIT.fullmatch(" ".join(toks))
    words = [word.strip('"') for word in match[2].split() if word not in "{}"] if match else ()
    if not match or '"' in match[1] or NOT_UNITS & {word.lower() for word in words} or (
            "°" in words and any(tok[1:] in FUNCTIONS for tok in toks)):
        return (toks[1:], "$") if toks[:1] == ("\\dollar",) else (toks, "")
    words = [word if word in UNITS else word.lower().removesuffix("s") for word in words]
    name = re.sub(r"(?:square|(cubic))(\w+)", lambda m: m[2] + ("^3" if m[1] else "^2"),
                  "".join(UNITS.get(word, word) for word in words))
    return tuple(match[1].split()), name

def norm(x): return max(map(abs, x)) if hasattr(x, "rows") else abs(x)

def probes(ends):
    ends = sorted({end for end in ends if abs(end) != math.inf} | {0})
    return [ends[0] - 9, *ends, *((x + y) // 2 for x, y in zip(ends, ends[1:])), ends[-1] + 9]

class Compare:
    """One comparison of two token tuples, the answer always first; how: how it was decided."""

    def __init__(self, fuel):
        self.fuel, self.how, self.letters, self.size, self.peak = fuel, "structure", False, 0, 0

    def same(self, a, g):
        """Lists, then names, units, brackets, sets of reals, words, and at last values."""
        if a == g: return True
        kinds, real = {bracket(a)[0], bracket(g)[0]}, REAL & {*a, *g}
        if "{}" in kinds and not real:
            x, y = (members(bracket(t)[1] if bracket(t)[0] == "{}" else t) for t in (a, g))
            return all(any(self.same(p, q) for q in y) for p in x) and all(
                any(self.same(p, q) for p in x) for q in y)
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

    def match(self, a, g):
        """One to one in any order."""
        left = list(a)
        for want in g:
            found = next((t for t in left if self.same(t, want)), None)
            if found is None: return False
            left.remove(found)
        return not left

    def in_order(self, a, g):
        """Tuples, intervals with letters, and ratios, member by member; None for anything else."""
        for separators, x, y in (SEPARATORS, bracket(a), bracket(g)), (":", ("", a), ("", g)):
            one, two = split(x[1], separators)[0], split(y[1], separators)[0]
            if len(one) > 1 or len(two) > 1:
                return x[0] == y[0] and len(one) == len(two) and all(map(self.same, one, two))

    def named(self, toks):
        """(name, value) of x = 5, x = 2 + 3 = 5, x in S; (None, 5) of 2 + 3 = 5; never of 6 = 5."""
        parts, ops = split(toks, RELATIONS)
        if not ops or ops != ["\\in"] and set(ops) - {"=", "\\approx"}: return None, toks
        is_name = [bool(NAME.fullmatch(" ".join(part))) for part in parts]
        if is_name == [False, True]: parts, is_name = parts[::-1], [True, False]
        first = next((k for k, name in enumerate(is_name[:-1]) if not name), len(parts) - 1)
        last = next((k for k, op in enumerate(ops) if k >= first and op == "\\approx"), len(ops))
        stated = parts[first:last + 1]
        constant = [part for part in stated if not any(map(NAME.fullmatch, part))]
        if not first and constant != stated: return None, toks
        if not all(self.same(part, constant[0]) for part in constant[1:]): raise Refused("not equal")
        return (parts[0] if first else None), stated[-1]

    def proportional(self, a, g):
        """Are two equations or inequalities the same up to a constant factor: 2x < 6 and x < 3?"""
        (a, (x, *many)), (g, (y, *more)) = ((p, ops or [""]) for p, ops in (split(a, RELATIONS), split(g, RELATIONS)))
        if many or more or x in ("", "\\in") or y not in (x, FLIPPED.get(x)): return False
        a, g = (left + ("-", "(") + right + (")",) for left, right in (a, g))
        ratios = []
        for point in range(6):
            try: ratios.append(self.value(a, point) / self.value(g, point))
            except Exception: continue
        sign = ratios[0].real * (1 if x == y else -1) if len(ratios) > 2 else 0
        return sign != 0 and (sign > 0 or x not in FLIPPED) and all(
            abs(ratio - ratios[0]) <= abs(ratio) * 1e-35 for ratio in ratios)

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
        if ops:
            names = {part for part in parts if NAME.fullmatch(" ".join(part))}
            if ops == ["\\in"]: return {parts[0]}, *self.reals(parts[1])[1:]
            if len(names) != 1: raise Refused("not one variable")
            sides = [None if part in names else self.place(part) for part in parts]
            return names, set(sides) - {None}, lambda x: all(
                HOLDS[op](x if low is None else low, x if high is None else high)
                for low, op, high in zip(sides, ops, sides[1:]))
        parts, found = split(inside, ("|", ":"))
        if kind == "{}" and found:
            head = () if len(parts[0]) == 1 else parts[0] + ('"and',)
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
        if toks in (("\\infty",), ("-", "\\infty")): return math.inf if len(toks) == 1 else -math.inf
        self.letters, x = False, self.value(toks)
        if self.letters or x.imag: raise Refused("not a number, or an inequality to be solved")
        return int(self.mp.nint(x.real * 2 ** 140))

    def rounded(self, a, g):
        """One is a decimal, the other the value that rounds to it: see the policy."""
        decimal, other, least = (a, g, 6) if "." in "".join(a) else (g, a, 3)
        text, digits = "".join(decimal), "".join(decimal).strip("-0.").replace(".", "")
        if not PLAIN.fullmatch(text) or "." in "".join(other) or len(digits) < least: return False
        self.letters, x, y = False, self.value(other), self.value(decimal)
        return not self.letters and abs(x - y) * 2 * 10 ** len(text.partition(".")[2]) <= 1 and all(
            abs(v - self.mp.nint(v.real)) > 1e-30 for v in (x, y))

    def equal(self, a, g):
        """Equal to 60 digits, and to 200 beyond the largest number met; with letters at 2 or more
        of 8 points, and at all where both are defined and not drowned by rounding."""
        agreed = 0
        for point in range(8):
            self.letters, self.size = False, 0
            for bits in (200, 700):
                bits, self.peak = bits + 2 * self.size * (not self.letters), 0
                try:
                    x, y = self.value(a, point, bits), self.value(g, point, bits)
                    gap, size = norm(x - y), max(norm(x), norm(y))
                except Exception as error:
                    self.how = f"refused: {error}"
                    if not self.letters: return False
                    break
                if gap > max(size, self.peak) * self.mp.mpf(2) ** (60 - bits): return False
                if self.peak > 1e60 * max(size, 1): break
            else: agreed += 1
            if not self.letters: break
        self.how = "equal at several points" if self.letters else "equal to 200 digits"
        return agreed > self.letters

    # ---- a calculator by precedence climbing; its depth, its steps and its numbers are bounded

    def value(self, toks, point=0, bits=200):
        self.toks, self.at, self.next, self.trig = [*toks, "", ""], 0, [*toks, ""][0], False
        self.mp, self.point, self.mp.prec = context(), point, bits
        x = self.expression(0)
        return x if not self.next else refuse(f"cannot read on at {self.next}")

    def take(self, *wanted):
        tok = self.next if not wanted or self.next in wanted else ""
        self.at += bool(tok)
        self.next = self.toks[self.at]
        return tok

    def expression(self, floor, argument=False):
        """All that binds more tightly than floor. argument: what follows sin without brackets."""
        self.fuel -= 1
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
            elif self.take("\\cdot", "\\times", "*"): x = x * self.expression(7)
            elif self.take("/", "\\over"): x = x / self.expression(level)
            elif self.take("%"): x = x / 100
            elif self.take("°"): x = x * self.mp.pi / 180 if self.trig else x
            elif self.take("!"):
                if abs(x) * self.mp.mag(x) > MAX_BITS: raise Refused("too large a factorial")
                x = (self.mp.fac2 if self.take("!") else self.mp.factorial)(x)
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
        if tok[:6] == "\\begin": return self.matrix(tok)
        if name in ("frac", "binom"):
            x, y = self.expression(9), self.expression(9)
            if name == "binom" and max(abs(x), abs(y)) > 1e7: raise Refused("too large a binomial")
            return x / y if name == "frac" else mp.binomial(x, y)
        if name == "sqrt":
            index = self.prefix(9) if self.next == "[" else 2
            return self.power(self.expression(9), mp.mpf(1) / index)
        if name == "abs": return abs(self.expression(9))
        if tok[:1] == "\\" and name in FUNCTIONS: return self.function(name)
        if not re.match(r"(\\?[A-Za-z]|\.\.\.|\x22\w($|_))", tok) or tok in LEVEL:
            raise Refused(f"cannot read {tok or 'the end'}")
        return self.letter(tok.lstrip('"'))

    def letter(self, name):
        """A letter at this point: no integer; its sign and size change from point to point."""
        mp, seed = self.mp, zlib.crc32(name.encode("utf-8", "replace"))
        if name in CONSTANTS: return {"e": mp.e + 0, "i": mp.mpc(0, 1)}.get(name, mp.pi + 0)
        self.letters, sign = True, -1 if bin(self.point & (seed % 7 + 1)).count("1") % 2 else 1
        return sign * SCALES[self.point] * (505 + (seed >> 3 * self.point) % 500) / mp.mpf(1009)

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
        if name in ("log", "lg"): x = mp.ln(x) / mp.ln(base or self.letter("the base of log"))
        else: x = getattr(mp, re.sub("^arc?(?=[a-z]{3})", "a", name).replace("cis", "expj"))(x)
        return x if power is None else self.power(x, power)

    def matrix(self, tok):
        rows = [[]]
        while not self.take("\\end" + tok[6:]):
            if self.take("\\\\"): rows.append([])
            elif not self.take("&"): rows[-1].append(self.expression(0))
        if len({*map(len, rows)}) > 1 or not re.search("matrix|array", tok): raise Refused("no matrix")
        return self.mp.det(self.mp.matrix(rows)) if "vmatrix" in tok else self.mp.matrix(rows)

    def power(self, x, e):
        mp = self.mp
        if hasattr(x, "rows"): return x ** int(e) if 0 < e < 20 else refuse("such a power")
        if x == 0: return x if mp.re(e) > 0 else refuse("0 to such a power")
        if abs(e) * abs(mp.ln(abs(x))) > MAX_BITS: raise Refused("too large a power")
        for q in (3, 5, 7):                                               # (-8)^{1/3} is -2
            p = int(mp.nint(mp.re(e) * q))
            if mp.im(x) == 0 > mp.re(x) and abs(e * q - p) < 1e-40 and p % q:
                return mp.power(-x, e) * (-1) ** p
        return mp.power(x, e)

_local = threading.local()
SCALES = (1, 3, -7, 0.111, 31, -0.0123, 1000, -10 ** 6)    # of the letters at the 8 points
TRIG = ("sin", "cos", "tan", "cot", "sec", "csc", "cis")
LEVEL = {"+": 6, "-": 6, "\\over": 6, "\\cdot": 7, "\\times": 7, "*": 7, "/": 7, "%": 7, "^": 9, "!": 9,
         "°": 9, **dict.fromkeys(("", *CLOSERS, ",", "&", "\\\\", *RELATIONS), 0)}

def context():
    """mpmath, sympy's numeric layer, with a precision of its own for every thread."""
    if not hasattr(_local, "mp"):
        from mpmath.ctx_mp import MPContext
        _local.mp = MPContext()
    return _local.mp

# ---- many at once

class Verdicts(list): timeouts = 0  # how many are False because they were stopped

def verify_all(pairs, workers=2, timeout=5.0, strict=False):
    """Verdicts for (completion, gold) pairs, in their order. Easy ones are decided here, since the
    work is bounded; what runs out of its steps goes to a process that is killed at the timeout."""
    pairs, verdicts, hard, start = list(pairs), Verdicts(), {}, time.monotonic()
    for k, (completion, gold) in enumerate(pairs):
        try: verdicts.append(judge(completion, gold, strict, CHEAP)[0])
        except OutOfFuel:
            verdicts.append(False)
            hard[k] = completion, gold, strict
        if time.monotonic() - start > 2 and (k % 100 == 99 or k + 1 == len(pairs)):
            print(f"\rverify {k + 1}/{len(pairs)}", end="\n" * (k + 1 == len(pairs)), file=sys.stderr)
    with ThreadPoolExecutor(workers) as pool:
        for k, verdict in zip(hard, pool.map(lambda job: in_process(job, timeout), hard.values())):
            verdicts[k], verdicts.timeouts = bool(verdict), verdicts.timeouts + (verdict is None)
    if verdicts.timeouts:
        print(f"verify_all: {verdicts.timeouts} of {len(pairs)} stopped and wrong", file=sys.stderr)
    return verdicts

def in_process(job, timeout, command=(sys.executable, __file__, "--worker")):
    """One verdict from a process of its own; None if it took too long, or too much memory."""
    try: done = subprocess.run(command, input=json.dumps(job), text=True, capture_output=True, timeout=timeout)
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
            result = wrong, wrong and verdicts[0], wrong and expect, verdicts.timeouts, ms
            results.setdefault(kind, []).append(result)
    print("kind                     n  right %   FP   FN timeouts   p50 ms   p99 ms")
    for kind, found in results.items():
        wrong, positive, negative, late, ms = zip(*found)
        n, ms = len(found), sorted(ms)
        print(f"{kind:20}{n:6}{100 - 100 * sum(wrong) / n:9.1f}{sum(positive):5}{sum(negative):5}"
              f"{sum(late):9}{ms[n // 2]:9.2f}{ms[int(.99 * (n - 1))]:9.2f}")

def main():
    parser = argparse.ArgumentParser(description="Is the final answer of a completion right?")
    parser.add_argument("completion", nargs="?", help="a completion, or an answer alone")
    parser.add_argument("gold", nargs="?", help="the right answer")
    parser.add_argument("--strict", action="store_true", help=r"nothing but a \boxed{} counts")
    parser.add_argument("--table", metavar="FILE", help="JSONL with gold, completion, expect, kind")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker: return print(json.dumps(verify(*json.load(sys.stdin))))
    if not args.table and args.gold is None: parser.error("give a completion and a gold, or --table FILE")
    try: return table(args.table) if args.table else print(
        "{} ({})".format(*judge(args.completion, args.gold, args.strict)))
    except (OSError, ValueError, KeyError) as error: parser.error(f"--table {args.table}: {error!r}")

if __name__ == "__main__":
    main()
