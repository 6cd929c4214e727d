r"""Is the answer right? A small, safe, bounded verifier of math answers.

A reward that is wrong teaches the model the error, one that hangs stops the run, and one that
evaluates model text hands over the machine. So: find the final answer, spell it one way, split it
into its parts, and compare the values of formulas by a calculator of our own that refuses early.

    python verify.py "\boxed{\frac12}" 0.5                 # the verdict and how it was reached
    python verify.py --table tests/verify_table.jsonl      # accuracy, errors, milliseconds by kind

Policies: "gold ~ answer" is accepted, "gold !~ answer" is not. A test reads these lines.
  Decimals are exact, or 6 digits of the gold; 3 digits of a gold may stand for the exact answer;
  integers are exact: \frac13 ~ 0.333333 ; \frac13 !~ 0.33 ; 3 !~ 3.000001 ; 33.3 ~ \frac{100}{3}
  Percent is a hundredth; only the gold's sign may be missing: 50\% ~ 0.5 ; 50\% ~ 50 ; 50 !~ 50\%
  A unit may be missing on one side, not differ; a bare letter is a variable; degrees are a unit but
  inside of sin: 5\text{ cm} ~ 5 ; 5 ~ 5\text{ apples} ; 5\text{ cm} !~ 5\text{ m} ; 3a !~ 3
  ; \$5 ~ 5 ; 90^\circ ~ 90 ; 90^\circ !~ \frac{\pi}{2} ; \frac12 ~ \sin 30^\circ
  A bare list has no order and keeps multiplicity, braces ignore it, nothing may be missing:
  1,2 ~ 2,1 ; 1,1,2 !~ 1,2 ; \{1,2\} ~ \{2,1,2\} ; \{1,2\} ~ 1,2 ; 5 !~ 4,5 ; \pm 2 ~ -2,2
  Tuples have an order and their brackets: (1,2) !~ (2,1) ; (1,2) !~ \{1,2\} ; (1,2) !~ [1,2]
  Intervals, set-builders, solved inequalities are sets of reals: x<3 ~ (-\infty,3) ; [0,1) !~ [0,1]
  ; [1,2] ~ 1\le x\le 2 ; (-\infty,3) !~ 2x<6 ; \{x \mid x>2\} ~ (2,\infty)
  A name before "=" may be missing, not differ; x+z is no name: 5 ~ x=5 ; x=5 ~ 5 ; x=5 !~ y=5
  ; 1 !~ x+z=1 ; (1,2) ~ (x,y)=(1,2) ; x^2+1 ~ f(x)=x^2+1
  Equations are equal up to a constant factor: 2x+4y=6 ~ y=\frac{3-x}{2} ; y=2x !~ y=3x ; 5 !~ 6=5
  Unreduced is right, an echo of the question is not: \frac12 ~ \frac24 ; 55 !~ \sum_{k=1}^{10} k
  A base may be missing; log without one is only itself: 101_2 ~ 101 ; 101_2 !~ 5 ; 2 !~ \log 100
  Words and choices ignore case, variables do not: \text{Yes} ~ yes ; x !~ X ; B ~ (b) ; C ~ (C) 42
  Formulas agree at points of both signs: x+1 ~ \frac{x^2-1}{x-1} ; |x| ~ \sqrt{x^2} ; x !~ |x|
  The last complete box outside of <think> counts; an unclosed box or think block is no answer.
What we left out, on purpose: simplify and solve (unbounded), prose, the conversion of units.
"""
import argparse, json, math, operator, queue, re, subprocess, sys, threading, time, unicodedata, zlib
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

MAX_CHARS, MAX_TOKENS, MAX_DEPTH = 3000, 1500, 60  # of an answer; a longer one can only be identical
MAX_BITS = 60_000                  # of a number, checked before it is computed
CHEAP, FUEL = 3_000, 60_000        # steps of the calculator in the caller's process; and at most


class Refused(ValueError):
    """Not an answer that we can read within the limits: the verdict is False, the reason is told."""


class OutOfFuel(Exception):
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
        if a == g != ():
            return True, "identical after normalisation"
        letters = [CHOICE.fullmatch("".join(toks)) for toks in (a, g)]
        if all(letters) and not (letters[0]["rest"] and letters[1]["rest"]):
            a, g = (re.sub("[^A-J]", "", match["letter"].upper()) for match in letters)
            return a == g, "choice letters"
        depths = [0, *accumulate((tok in OPENERS) - (tok in CLOSERS) for tok in a + g)]
        if max(depths) > MAX_DEPTH or len(a + g) > MAX_TOKENS or max(map(len, a + g)) > MAX_CHARS:
            raise Refused("too long or too deep")
        if ",0" not in answer + gold and (len(members(a)) > 1) != (len(members(g)) > 1):
            a, g = tokens(answer, False), tokens(gold, False)     # 100,200 beside 200, 100 is a list
        compare = Compare(fuel)
        return compare.same(a, g), compare.how
    except OutOfFuel:
        if fuel < FUEL: raise
        return False, "refused: too much work"
    except (ArithmeticError, ValueError, TypeError, LookupError, RecursionError, MemoryError) as e:
        return False, f"refused: {e}" if isinstance(e, Refused) else f"refused: {e!r}"


def refuse(reason):
    raise Refused(reason)


# ---- find the answer ---------------------------------------------------------------------------

BRACE = re.compile(r"\\boxed\{|\\.|[{}]", re.S)
LOOSE_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(-?[0-9][0-9.,/]*))")
MARK = re.compile(
    r"####|<answer>|final answer[ *#:_]*\n|\b(?:answers?|option|choice)\b[^\n.;:=$\\]{0,40}?"
    r"(?:\b(?:is|are|be)\b|[:=])[\s*:]*(?:(?:therefore|thus|simply|then|equal to)\b\s*:?\s*)*", re.I)
END = re.compile(r"\.?\n|[.!?](?=[$*)]*(?:\s|$))|</|,\s+(?!and\b|or\b)(?=[a-z]{3})"
                 r"|\s(?:because|since|so|which|where|as|but|hence|therefore)\b")


def boxed_spans(text):
    """Character spans (start, end) of every complete \\boxed{...}, marker and last brace included.

    The only box finder of the project: the reward takes the last span, saliency the same one. One
    pass with a stack: an unclosed box hides no box in it, an outer box replaces those in it.
    """
    spans, stack = [], []
    for match in BRACE.finditer(text) if "\\boxed{" in text else ():
        if match[0] in ("{", "\\boxed{"):
            stack.append(None if match[0] == "{" else match.start())
        elif match[0] == "}" and stack:
            start = stack.pop()
            if start is not None:
                while spans and spans[-1][0] > start:
                    spans.pop()
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
    if span or strict:
        return text[span[0] + 7:span[1] - 1] if span else None
    text = text[slice(*final_part(text))].strip()
    marks = [m.end() for m in MARK.finditer(text, max(0, len(text) - 20_000))]
    if not marks:
        return text if "\n" not in text and len(text) < 300 else None
    text = text[marks[-1]:marks[-1] + MAX_CHARS].lstrip(" \t\n*:")
    for opening, closing in (("$$", "$$"), ("\\[", "\\]")):
        if text.startswith(opening) and closing in text[2:]:
            return text[2:text.index(closing, 2)]
    end = END.search(text)
    return text[:end.start() if end else None].replace("**", "").strip()


# ---- one spelling, then tokens: "12", "x", "\\frac", "(", and '"cm' for a word -----------------

PLAIN = re.compile(r"[-+]?(?:[0-9]{1,400}(?:\.[0-9]{1,400})?|\.[0-9]{1,400})")
SIGNS = {pair[0]: pair[2:] + " " * (pair[2] == "\\") for pair in r"""
    −=- –=- —=- ‐=- ‑=- ·=\cdot ⋅=\cdot •=\cdot ∙=\cdot ×=\times ✕=\times ∗=* ÷=/ ∕=/ ⁄=/ °=^\circ
    ∘=^\circ º=^\circ ′=' ’=' ≤=\le ≥=\ge ⩽=\le ⩾=\ge ≠=\ne ≈=\approx ≡== ∈=\in ∪=\cup ∩=\cap ∅=\O
    ∖=\setminus ∞=\infty ±=\pm ∓=\mp √=\sqrt ∛=\sqrt[3] ⋯=... ⟨=\langle ⟩=\rangle ⌊=\lfloor
    ⌋=\rfloor ⌈=\lceil ⌉=\rceil ∣=| ℝ=\setR ℤ=\setZ 。=. ∑=\sum ∏=\prod ∫=\int ∠=\angle ¬=\lnot
    """.split()}
ALIAS = {name: names.split()[0].strip("_") for names in r"""\frac dfrac tfrac cfrac;\binom dbinom
    tbinom;\le leq leqslant;\ge geq geqslant;\ne neq;< lt;> gt;... ldots cdots dots vdots;/ div;= equiv
    ;\{\} emptyset varnothing O;| lvert rvert lVert rVert vert Vert;\setminus backslash;| mid;* ast
    ;\{ lbrace;\} rbrace;^\circ degree;' prime;\mod bmod pmod;\epsilon varepsilon;\phi varphi
    ;\overline bar;\vec overrightarrow;\approx simeq sim;: colon;\cup bigcup;\cap bigcap;\setR R
    ;\arsinh arcsinh;\arcosh arccosh;\artanh arctanh;\tan tg;\cot ctg;"or lor vee;"and land;i imath
    ;\theta vartheta;_ left right middle quad qquad displaystyle textstyle limits nolimits hline fbox
    boxed bf rm it cal large mathbf bm boldsymbol mathsf mathit mathcal underline big Big bigl bigr
    Bigl Bigr bigg Bigg biggl biggr Biggl Biggr space""".split(";") for name in names.split()[1:]}
REWRITES = [(re.compile(pattern), new) for pattern, new in (
    (r"(?<=[0-9])(?:\{,\}|,?\s*(?:\\!\s*)+,?|(?:\\[,;: ])+)\s*(?=[0-9]{3}(?![0-9]))", ""),  # 1{,}000
    (r"(?<![0-9.,/^_{])([0-9]{1,3}) (?=[0-9]{3}(?![0-9/.{]))", r"\1"),                       # 1 000
    (r"\\\$", r"\\dollar "), (r"\\(?:left|right)\s*\.|(?<!\\)\\[][(),;:!> ]|[~$`\x22]", " "),
    (r"(\\[dtc]?(?:frac|binom))\s*([0-9])(?=[0-9])", r"\1 \2 "), (r"\\\\\s*(?=\\end)", ""),  # \frac12
    (r"(\\[dtc]?(?:frac|binom)\s*[0-9]\s+[0-9])(?=[0-9])", r"\1 "), (r"\*\*", "^"),
    (r"\\text\s*\{\s*all reals?(?: numbers)?\s*\}", r"\\setR "), (r"-\s*\\\{", r"\\setminus \\{"),
    (r"(?<=[(,[])\s*\+(?=\s*\\infty)", ""), (r"\^\s*\{?\s*\\prime\s*\}?", "'"), (r"\\mathbb\s*\{?\s*([A-Z])\s*\}?", r"\\set\1 "),
    (r"\\text\s*\{\s*(?:if|for|when)\s*\}|\\[hv]space\*?\{[^{}]*\}|(?<=n\{array\})\{[^{}]*\}", " "),
    (r"\\(?:hat|vec)\s*\{?\s*\\?([ijk])(?:math)?(?![A-Za-z])\s*\}?", r"\1"), (r"\\([|%])", r"\1"),
    (r"(?<![0-9])\.(?=[0-9])", "0."), ("<=", r"\\le "), (">=", r"\\ge "), ("!=", r"\\ne "))]
REPEATING = re.compile(              # 0.1\overline{6}, 0.\bar3, 0.(3), 0.\dot12\dot3, 0.333...
    r"([0-9]{0,40})\.([0-9]{0,40}?)(?:\\(?:overline|bar)\s*(?:\{([0-9]{1,40})\}|([0-9]))"
    r"|\(([0-9]{1,40})\)$|\\dot\s*\{?([0-9])\}?(?:([0-9]{0,40})\\dot\s*\{?([0-9])\}?)?"
    r"|([0-9]{1,9}?)\9\9+(?:\.\.\.|\\[lc]?dots))")
TEXT = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|normal|up)?|mbox|hbox|mathrm|operatorname\*?)\s*"
                  r"\{((?:[^{}]|\{[^{}]*\})*)\}")
RUN = re.compile(r"\\(?:begin|end)\s*\{\w*\*?\}|\\([A-Za-z]+)|\\.|\x22\w+"
                 r"|((?:[A-Za-z]\.){2,}|[A-Za-z]{2,})")
GROUPED = re.compile(r"\\\{.*?\\\}|\([^()]*\)|\[[^][]*\]"
                     r"|(?<![0-9.,])([0-9]{1,3}(?:,[0-9]{3})+)(?![0-9,])", re.S)
QUALIFIER = re.compile(              # , k in Z; where n is an integer
    r"(?:[,;(\s]|\x22(?:where|for|with|any|all|every)\b|\\forall)+(?:([a-z])"
    r"\s*(?:\\in\s*\\setZ|(?:\x22is\s*)?\x22integer)|\x22integers?\s*([a-z]))[\s)]*$")
TOKEN = re.compile(r"[0-9]+(?:\.(?!\.)[0-9]*)?(?:[eE][-+]?[0-9]+)?|\\(?:begin|end)\s*\{\w*\*?\}"
                   r"|\\[A-Za-z]+|\\.|\x22\w+|\.\.\.|\S", re.S | re.A)
CHOICE = re.compile(r"(?:\x22(?:option|choice|answer))?(?P<letter>\(\x22?[a-j]\)|(?-i:[A-J])[).:]|"
                    r"(?-i:[A-J])$|\x22[a-j]$)(?P<rest>(?![(,&]|\x22and|\x22or).*)", re.I | re.S)
FUNCTIONS = set("""sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh
    coth sech csch arsinh arcosh artanh ln log lg exp sqrt cis""".split())
UNITS = {name: names.split()[0] for names in """cm centimeter centimetre|m meter metre|mm millimeter
    |km kilometer|in inch inche|ft foot feet|yd yard|mi mile|kg kilogram|g gram|mg milligram|s sec
    second|lb lbs pound|oz ounce|min minute|h hr hour|L l liter litre|ml mL milliliter|mph|$ dollar
    USD|cent|euro|° degree|rad radian|N newton|J joule|W watt|V volt|A|Pa|K|C|F|Hz|mol|am|pm|people
    person|child children|percent|dozen|hundred|thousand|million|billion""".split("|")
         for name in names.split()}
WORDS = set("yes no odd or and all red not is to none true false if one two six ten are".split())


@lru_cache(maxsize=4096)
def tokens(text, grouping=True):
    """The tokens of an answer. grouping: 1,234 outside of brackets is one number."""
    if len(text) > 20 * MAX_CHARS: raise Refused("too long")
    if not text.isascii() or not text.isprintable():
        text = re.sub(r"[^ -~]", lambda m: spelled(m[0]), text).replace("}^{", "").replace("}_{", "")
    for pattern, new in REWRITES:
        text = pattern.sub(new, text)
    text = REPEATING.sub(repeating, text) if "." in text else text
    text = RUN.sub(run, TEXT.sub(prose, text))
    if grouping and "," in text:
        text = GROUPED.sub(lambda m: m[1].replace(",", "") if m[1] else m[0], text)
    index = QUALIFIER.search(text) if len(text) < MAX_CHARS else None
    if index and index.start():               # of "..., n in Z" the condition goes, n is called k
        name = rf"(?<![\\A-Za-z\x22]){index[1] or index[2]}(?![A-Za-z])"
        text = re.sub(name, "k", text[:index.start()])
    return tuple(TOKEN.findall(re.sub(r"^[*=:+\s]+|(?:[*,;:\s]|\\\\|(?<!\.)\.)+$", "", text)))


def spelled(char):
    """A character beyond ASCII in LaTeX: by our table, else by Unicode's own description of it."""
    if char in SIGNS: return SIGNS[char]
    kind, plain = unicodedata.decomposition(char)[:4], unicodedata.normalize("NFKC", char)
    if "\u2044" in plain[1:-1]: return r"\frac{%s}{%s}" % tuple(plain.split("\u2044"))
    if kind in ("<sup", "<sub"):
        return ("^" if kind == "<sup" else "_") + "{" + plain.replace("\u2212", "-") + "}"
    greek = re.match(r"GREEK (SMALL|CAPITAL) LETTER (\w+)$", unicodedata.name(plain[:1], ""))
    if greek:
        name = greek[2].replace("LAMDA", "LAMBDA").title()
        return f"\\{name.lower() if greek[1] == 'SMALL' else name} "
    return {"Cf": "", "Cc": " ", "Zs": " "}.get(unicodedata.category(char), plain)


def repeating(match):
    whole, fixed, *period = (group or "" for group in match.groups())
    shift, nines = 10 ** len(fixed), 10 ** len("".join(period)) - 1
    top = (int(whole or 0) * shift + int(fixed or 0)) * nines + int("".join(period))
    return r"\frac{%d}{%d}" % (top, shift * nines)


def prose(match):
    """\\text{square cm} as "square "cm; a letter is a symbol, but may be a unit if it is alone."""
    text = re.sub(r"\\[A-Za-z]+|[{}]|\b(?:an?|[Tt]he)\s+(?=[A-Za-z]{2})(?!and|or)", " ", match[1])
    if text.strip() in FUNCTIONS: return f"\\{text.strip()} "
    return re.sub(r"(?:[A-Za-z]\.){2,}|[A-Za-z]+", lambda m: word(m[0].replace(".", "")), text)


def run(match):
    """Commands by their usual names; letters as a function, a word, or a product of variables."""
    command, letters = match.groups()
    if not letters: return ALIAS.get(command, f"\\{command}") + " " if command else match[0]
    glued, name = match.string[:match.start()][-1:] in DIGITS, letters.replace(".", "")
    low = name.lower()
    if name in FUNCTIONS or name in ("pi", "theta", "alpha", "beta"): return f"\\{name} "
    if name in UNITS or low in WORDS and not name.isupper() or not glued and (low.removesuffix("s") in UNITS or (
            low[3:] and name[1:].islower() and set("aeiouy") & set(low) and list(low) != sorted(low))):
        return word(name)                         # east is a word, abcd is a product
    return letters


def word(name):
    return "\\infty " if name == "infinity" else f' "{name} '


# ---- structure: lists, names, units, brackets, sets of real numbers, by splitting the tokens ----

DIGITS, SETS = frozenset("0123456789"), ("\\cup", "\\cap", "\\setminus")
SEPARATORS, CONSTANTS = (",", ";", '"and', '"or'), ("\\pi", "e", "i")
HOLDS = {"<": operator.lt, "\\le": operator.le, ">": operator.gt, "\\ge": operator.ge,
         "\\ne": operator.ne}
FLIPPED = dict(zip(("<", "\\le", ">", "\\ge"), (">", "\\ge", "<", "\\le")))
RELATIONS, REAL = {"=", "\\approx", "\\in", *HOLDS}, {"\\infty", "\\setR", *HOLDS, *SETS}
OPENERS = {"(", "[", "{", "\\{", "\\langle", "\\lfloor", "\\lceil"}
CLOSERS = {")", "]", "}", "\\}", "\\rangle", "\\rfloor", "\\rceil"}
NAME = re.compile(               # what may stand before "=": x, a_1, f(x), AB, |AB|, NO/BO, Area
    r"(?!(?:e|i|\\pi)$)(?:\\\w+ (?:\{ )?)?(?:[A-Za-z]|\x22\w+|\\\w+)(?: ')*(?: _ (?:\{[^{}]*\}|\S+))?"
    r"(?: \})?(?: \( [^+]* \))?|(?:\\\w+ (?:\{ )?)?[A-Z]( [A-Z])+(?: \})?|\| [A-Z ]+ \|"
    r"|\( [A-Za-z]( , [A-Za-z])+ \)|\\frac \{ [A-Zd][ A-Za-z]* \} \{ [A-Zd][ A-Za-z]* \}"
    r"|\w( _ (\w|\{ \w \}))?( : \w( _ (\w|\{ \w \}))?)+")
UNIT = re.compile(r"(.+?) ((?:\x22(?:\w\w+|[mgshLlNJWVAKCFT])|%|\^ (?:\{ )?\\circ(?: \})?)"
                  r"(?: (?:\x22\w+|/|\\cdot|\^ (?:\{ )?-?[0-9](?: \})?))*)")
NOT_UNITS = set("""is are was be not no none to wrong false if when then than least most more less
    times half minus plus negative positive only about approximately between from until above below
    under over nor but incorrect where with for all any every because would should could cannot
    undefined except without at down up true yes correct never neither either dozen hundred thousand
    million billion""".split())


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
    """The members of a bare list, with both readings of +-; brackets around one thing are dropped."""
    while bracket(toks)[0] in ("{}", "()") and toks[0] != "\\{" and not split(toks[1:-1], SEPARATORS)[1]:
        toks = toks[1:-1]
    readings = [dict(zip(("\\pm", "\\mp"), signs)) for signs in ("+-", "-+")]
    return [tuple(reading.get(tok, tok) for tok in part) for part in split(toks, SEPARATORS)[0] if part
            for reading in readings[:1 + (part[0] != "\\{" and not {"\\pm", "\\mp"}.isdisjoint(part))]]


def unit(toks):
    """(value, canonical unit): cm^2 for square centimeters, m/s^2 for meters per second squared."""
    if toks[:1] == ("\\dollar",): return toks[1:], "$"
    match = UNIT.fullmatch(" ".join(toks))
    if match and "\\circ" in toks and any(tok[1:] in FUNCTIONS for tok in toks): match = None
    words = [word.strip('"') for word in match[2].split() if word not in "{}"] if match else ()
    if not match or NOT_UNITS & {word.lower() for word in words}: return toks, ""
    names = (word if word in UNITS else word.lower().removesuffix("s") for word in words)
    out = " " + " ".join(UNITS.get(name, name) for name in names)
    for pattern, new in ((r" (?:square|sq) (\S+)", r" \1 ^2"), (r" cubic (\S+)", r" \1 ^3"), (" cubed", "^3"),
                         (" squared", "^2"), (" per ", "/"), (r"\^ \\circ", "°"), (r"\\cdot| ", "")):
        out = re.sub(pattern, new, out)
    return tuple(match[1].split()), out.replace("percent", "%")


class Compare:
    """One comparison of two token tuples, the answer always first; how: how it was decided."""

    def __init__(self, fuel):
        self.fuel, self.how, self.mp, self.letters = fuel, "structure", contexts()[0], False
        self.size = self.peak = 0

    def same(self, a, g):
        """Lists, then names, units, brackets, sets of reals, words, and at last values."""
        if a == g: return True
        many, kinds, real = (members(a), members(g)), [bracket(t)[0] for t in (a, g)], REAL & {*a, *g}
        if "{}" in kinds and not real:
            x, y = (members(bracket(t)[1]) if kind == "{}" else m for t, kind, m in zip((a, g), kinds, many))
            return all(any(self.same(p, q) for q in y) for p in x) and all(any(self.same(p, q) for p in x) for q in y)
        if len(many[0]) != 1 or len(many[1]) != 1:
            return self.match(*many) or bool(real) and self.same_reals(a, g)
        a, g = many[0][0], many[1][0]
        if self.proportional(a, g): return True
        (a_name, a), (g_name, g) = self.named(a), self.named(g)
        if a_name and g_name and a_name != g_name: return False
        if real or {"[)", "(]"} & set(kinds): return self.in_order(a, g) or self.same_reals(a, g)
        if a_name or g_name: return self.same(a, g)
        (a_value, a_unit), (g_value, g_unit) = unit(a), unit(g)
        if a_unit and g_unit and a_unit != g_unit: return False
        if "%" not in (a_unit, g_unit) and a_unit + g_unit: return self.same(a_value, g_value)
        if g_unit == "%" and self.same(a_value, g_value): return True
        ordered = self.in_order(a, g)
        if ordered is not None: return ordered
        if g[1:2] == ("_",) and g[0].isdigit(): return a == g[:1] or "".join(a).strip("}").replace("{", "") == "".join(g).strip("}").replace("{", "")
        if any(tok[0] == '"' and tok[2:] and tok not in TENS for tok in a + g):
            a, g = ([tok.lower().strip('"') for tok in t if tok not in ".-'"] for t in (a, g))
            return a == g
        return self.equal(a, g) or self.rounded(a, g)

    def match(self, a, g):
        """One to one in any order."""
        left = list(a)
        for want in g:
            found = want if want in left else next((t for t in left if self.same(t, want)), None)
            if found is None: return False
            left.remove(found)
        return not left

    def in_order(self, a, g):
        """Tuples, intervals with letters, and ratios, member by member."""
        for separators, x, y in (SEPARATORS, bracket(a), bracket(g)), (":", ("", a), ("", g)):
            one, two = split(x[1], separators)[0], split(y[1], separators)[0]
            if len(one) > 1 or len(two) > 1:
                return x[0] == y[0] and len(one) == len(two) and all(map(self.same, one, two))

    def named(self, toks):
        """(name, value) of x = 5, x = 2 + 3 = 5, x in S; (None, 5) of 2 + 3 = 5; 6 = 5 is refused."""
        parts, ops = split(toks, RELATIONS)
        if not ops or ops != ["\\in"] and set(ops) - {"=", "\\approx"}: return None, toks
        is_name = [bool(NAME.fullmatch(" ".join(part))) for part in parts]
        if is_name == [False, True]: parts, is_name = parts[::-1], [True, False]
        first = next((k for k, name in enumerate(is_name[:-1]) if not name), len(parts) - 1)
        stated = [part for k, part in enumerate(parts[first:]) if "\\approx" not in ops[first:first + k]]
        constant = [part for part in stated if not any(map(NAME.fullmatch, part))]
        if not first and constant != stated: return None, toks
        if not all(self.same(part, constant[0]) for part in constant[1:]): raise Refused("x = y is false")
        return (parts[0] if first else None), stated[-1]

    def proportional(self, a, g):
        """Are these equations or inequalities the same up to a constant factor: 2x < 6 and x < 3?"""
        (a, x), (g, y), ratios = split(a, RELATIONS), split(g, RELATIONS), []
        if len(x) != 1 or len(y) != 1 or y[0] not in (x[0], FLIPPED.get(x[0])) or x[0] == "\\in": return False
        for point in range(6):
            try:
                p, q = (self.value(left + ("-", "(") + right + (")",), point) for left, right in (a, g))
                ratios.append(p / q)
            except (Refused, ArithmeticError): continue
        sign = ratios[0].real * (1 if x == y else -1) if len(ratios) > 2 else 0
        return sign != 0 and (sign > 0 or x[0] not in FLIPPED) and all(
            abs(ratio - ratios[0]) <= abs(ratio) * 1e-35 for ratio in ratios)

    def same_reals(self, a, g):
        """Are two sets of real numbers alike at, between and beyond all their end points?"""
        (names, ends, test), (g_names, g_ends, g_test) = self.reals(a), self.reals(g)
        self.how = "sets of real numbers"
        return (not names or not g_names or names == g_names) and all(
            test(x) == g_test(x) for x in probes(ends | g_ends))

    def reals(self, toks):
        """(variables, end points, membership test) of a set of real numbers."""
        kind, inside = bracket(toks)
        for parts, found in (split(toks, SEPARATORS), split(toks, SETS)):
            if found and not kind:
                names, ends, left = self.reals(toks[:-1 - len(parts[-1])])
                more, more_ends, right = self.reals(parts[-1])
                ends, op = ends | more_ends, found[-1]
                if op in ("\\cup", '"or') or op in ",;" and not any(left(x) and right(x) for x in probes(ends)):
                    return names | more, ends, lambda x: left(x) or right(x)
                return names | more, ends, lambda x: left(x) and right(x) == (op != "\\setminus")
        parts, ops = split(toks, RELATIONS)
        if ops:
            names = {part for part in parts if NAME.fullmatch(" ".join(part))}
            if len(names) != 1: raise Refused("not one variable")
            if ops == ["\\in"]: return names, *self.reals(parts[1])[1:]
            sides = [None if part in names else self.place(part) for part in parts]
            return names, set(sides) - {None}, lambda x: all(
                HOLDS[op](x if low is None else low, x if high is None else high)
                for low, op, high in zip(sides, ops, sides[1:]))
        parts, found = split(inside, ("|", ":"))
        if kind == "{}" and found:
            return set(), *self.reals(parts[1] if len(parts[0]) == 1 else parts[0] + ('"and',) + parts[1])[1:]
        if toks == ("\\setR",): return set(), set(), lambda x: True
        if kind in ("{}", ""):
            points = {self.place(member) for member in members(inside)} - {math.inf, -math.inf}
            if inside and not points: raise Refused("not a set of real numbers")
            return set(), points, points.__contains__
        low, high = map(self.place, split(inside, SEPARATORS)[0])
        return set(), {low, high}, lambda x: (
            low < x < high or x == low and kind[0] == "[" or x == high and kind[1] == "]")

    def place(self, toks):
        """A real number in units of 2^-140, as an integer, so that equal end points are equal."""
        if toks[-1:] == ("\\infty",) and len(toks) < 3: return -math.inf if toks[0] == "-" else math.inf
        self.mp, self.letters = contexts()[0], False
        x = self.value(toks)
        if self.letters or self.mp.im(x): raise Refused("not a number, or an inequality to be solved")
        return int(self.mp.nint(self.mp.re(x) * 2 ** 140))

    def rounded(self, a, g):
        """One is a decimal, the other the value that rounds to it: see the policy."""
        decimal, other, least = (a, g, 6) if "." in "".join(a) else (g, a, 3)
        text, digits = "".join(decimal), "".join(decimal).strip("-0.").replace(".", "")
        if not PLAIN.fullmatch(text) or "." in "".join(other) or len(digits) < least: return False
        self.mp, half = contexts()[0], Fraction(10) ** -len(text.partition(".")[2]) / 2
        x, y = self.value(other), self.value(decimal)
        return not self.letters and abs(x - y) <= self.mp.mpf(half.numerator) / half.denominator and all(
            abs(v - self.mp.nint(v.real)) > 1e-30 for v in (x, y))

    def equal(self, a, g):
        """Equal to 60 digits, and to 200 beyond the largest number met; with letters at 8 points."""
        agreed = 0
        for point in range(8):
            verdict = self.agree(a, g, point)
            if verdict is False or not self.letters: return bool(verdict)
            agreed += verdict or 0
        return agreed > 1

    def agree(self, a, g, point):
        """At this point: True, False, or None where one is undefined or drowned by rounding."""
        self.letters, self.size, norm = False, 0, lambda x: max(map(abs, x)) if hasattr(x, "rows") else abs(x)
        for self.mp in contexts():
            if self.mp is contexts()[1]: self.mp.prec = 700 + 2 * self.size * (not self.letters)
            self.peak = 0
            try:
                x, y = self.value(a, point), self.value(g, point)
                gap, size = norm(x - y), max(norm(x), norm(y))
            except (Refused, ArithmeticError, ValueError) as error:
                self.how = f"refused: {error}"
                return None if self.letters else False
            if gap > max(size, self.peak) * self.mp.mpf(2) ** (60 - self.mp.prec): return False
            if self.peak > 1e60 * max(size, 1): return None
        self.how = "equal at several points" if self.letters else "equal to 200 digits"
        return hasattr(x, "rows") == hasattr(y, "rows")

    # ---- a calculator by precedence climbing; its depth, its steps and its numbers are bounded

    def value(self, toks, point=0):
        self.toks, self.at, self.next, self.depth = [*toks, "", ""], 0, [*toks, ""][0], 0
        self.point, self.trig, self.bars = point, False, False
        x = self.expression(0)
        return x if not self.next else refuse(f"cannot read on at {self.next}")

    def take(self, *wanted):
        """The next token, of the wanted ones if some are named, or ""."""
        tok = self.next if not wanted or self.next in wanted else ""
        self.at += bool(tok)
        self.next = self.toks[self.at]
        return tok

    def expression(self, floor, argument=False):
        """All that binds more tightly than floor. argument: what follows sin without brackets."""
        self.depth, self.fuel = self.depth + 1, self.fuel - 1
        if self.depth > MAX_DEPTH: raise Refused("nested too deeply")
        if self.fuel < 0: raise OutOfFuel
        x = self.prefix(floor)
        while True:
            tok = self.next
            level = 0 if tok == "|" and self.bars or tok[:5] == "\\end{" else LEVEL.get(tok, 7)
            if argument and level and tok not in LEVEL:
                level = 0 if tok in ("(", "|") or tok[0] == '"' or tok[1:] in FUNCTIONS else 8
            if level <= floor:
                self.depth -= 1
                return x
            if tok not in LEVEL: x = self.beside(x, tok)
            elif self.take("+", "-"): x = self.plus(x, self.expression(6) * (1 if tok == "+" else -1))
            elif self.take("\\cdot", "\\times", "*"): x = self.sized(x * self.expression(7))
            elif self.take("/", "\\over"): x = self.sized(x / self.expression(level))
            elif self.take("%"): x = x / 100
            elif self.take("!"): x = self.factorial(x, self.take("!"))
            elif self.take("^"): x = self.raised(x)

    def prefix(self, floor):
        tok, mp = self.take(), self.mp
        name = tok.lstrip('"\\')
        if tok == "+" or tok == "-": return self.expression(max(floor, 6)) * (1 if tok == "+" else -1)
        if tok[:1] in DIGITS and tok: return self.number(tok)
        if tok in ("(", "[", "{", "\\lfloor", "\\lceil", "|"):
            saved, self.bars = self.bars, tok == "|"
            x = self.expression(0)
            self.take(*{"|": "|", "{": "}"}.get(tok, CLOSERS)) or refuse(f"{tok} is not closed")
            self.bars = saved
            if tok == "|": return mp.det(x) if hasattr(x, "rows") else abs(x)
            return x if tok in "([{" else self.whole(x, mp.floor if name == "lfloor" else mp.ceil)
        if tok[:6] == "\\begin": return self.matrix(tok)
        if name in ("frac", "binom"):
            x, y = self.expression(9), self.expression(9)
            if name == "binom" and max(abs(x), abs(y)) > 1e7: raise Refused("too large a binomial")
            return self.sized(x / y if name == "frac" else mp.binomial(x, y))
        if name == "sqrt":
            index = self.prefix(9) if self.next == "[" else 2
            return self.power(self.expression(9), mp.mpf(1) / index)
        if tok[:1] == "\\" and name in FUNCTIONS: return self.function(name)
        if not (name.isascii() and name.isalpha()) and tok != "..." or tok in LEVEL or tok[0] == '"' and name[1:]:
            raise Refused(f"cannot read {tok or 'the end'}")
        start = self.at
        while self.next in ("'", "_"):
            depth = self.take() == "_" and (self.take() or refuse("no subscript")) == "{"
            while depth: depth += {"{": 1, "}": -1}.get(self.take() or refuse("a { is not closed"), 0)
        return self.letter(tok.lstrip('"') + "".join(t for t in self.toks[start:self.at] if t not in "{}"))

    def letter(self, name):
        """A letter's value at this point: fixed, no integer; sign and size change with the point."""
        mp, seed = self.mp, zlib.crc32(name.encode("utf-8", "replace"))
        if name in CONSTANTS: return {"e": mp.e + 0, "i": mp.mpc(0, 1)}.get(name, mp.pi + 0)
        self.letters, sign = True, -1 if bin(self.point & (seed % 7 + 1)).count("1") % 2 else 1
        return sign * SCALES[self.point] * (505 + (seed >> 3 * self.point) % 500) / mp.mpf(1009)

    def number(self, text):
        mantissa, _, exponent = text.lower().partition("e")
        if len(exponent) > 5: raise Refused("too long a number")
        whole, _, part = mantissa.partition(".")
        self.size = max(self.size, 4 * len(mantissa))
        return self.sized(self.mp.mpf(int(whole + part)) * self.mp.mpf(10) ** (int(exponent or 0) - len(part)))

    def beside(self, x, tok):
        """Two things side by side: a product, or the mixed numbers 2 3/4 and 2\\frac34."""
        whole = self.toks[self.at - 1].isdigit()
        mixed = whole and MIXED.match(" ".join(self.toks[self.at:self.at + 8]))
        if whole and tok[0] in DIGITS and not mixed: raise Refused("two numbers side by side")
        if not mixed: return self.sized(x * (TENS[self.take()] if tok in TENS else self.expression(8)))
        y = self.expression(8) / (self.expression(8) if self.take("/") else 1)
        return x + y if 0 < y < 1 else x * y

    def function(self, name):
        """sin(x) y, sin^2 x, log_2 8, tan^{-1} x, sin 2x."""
        mp, base, power, saved = self.mp, None, None, self.trig
        while self.next in ("^", "_"):
            if self.take() == "^": power = self.expression(8.5)
            else: base = self.expression(9)
        self.trig = name in TRIG
        x = self.prefix(9) if self.next in ("(", "[", "{") else self.expression(7, True)
        self.trig, self.peak = saved, self.peak if name == "exp" else max(self.peak, 1)
        if name in TRIG and power == -1: name, power = "arc" + name, None
        if abs(x) > 1e12: raise Refused("too large an argument")
        if name in ("log", "lg"):
            base = 10 if name == "lg" else self.letter("the base of log") if base is None else base
            x = mp.ln(x) / mp.ln(base)
        else: x = getattr(mp, re.sub("^arc?(?=[a-z]{3})", "a", name).replace("cis", "expj"))(x)
        return self.sized(x) if power is None else self.power(x, power)

    def matrix(self, tok):
        rows = [[]]
        while not self.take("\\end" + tok[6:]):
            if self.take("\\\\"): rows.append([])
            elif not self.take("&"): rows[-1].append(self.expression(0))
        if len({len(row) for row in rows}) > 1 or not re.search("matrix|array", tok): raise Refused("no matrix")
        return self.mp.det(self.mp.matrix(rows)) if "vmatrix" in tok else self.mp.matrix(rows)

    def sized(self, x):
        """Remembers the size of the numbers met, for the precision that tells them apart."""
        if not hasattr(x, "rows") and x != 0: self.size = max(self.size, abs(self.mp.mag(x)))
        return x if self.size <= MAX_BITS else refuse("too large a number")

    def plus(self, x, y):
        if not hasattr(x, "rows"): self.peak = max(self.peak, abs(x), abs(y))
        return x + y

    def raised(self, x):
        if " ".join(self.toks[self.at:self.at + 3]).strip("{ }").startswith("\\circ"):
            while self.take("{", "\\circ", "}") not in ("\\circ", "}") or self.next == "}": pass
            return x * self.mp.pi / 180 if self.trig else x
        return x.T if hasattr(x, "rows") and self.take("T", "\\top") else self.power(x, self.expression(8.5))

    def power(self, x, e):
        mp = self.mp
        if hasattr(x, "rows"): return x ** int(e) if 0 < e < 20 else refuse("such a power")
        if x == 0: return x if mp.re(e) > 0 else refuse("0 to such a power")
        if abs(e) * abs(mp.ln(abs(x))) > MAX_BITS: raise Refused("too large a power")
        for q in (3, 5, 7):                                               # (-8)^{1/3} is -2
            p = int(mp.nint(mp.re(e) * q))
            if mp.im(x) == 0 > mp.re(x) and abs(e * q - p) < 1e-40 and p % q: return mp.power(-x, e) * (-1) ** p
        return self.sized(mp.power(x, e))

    def factorial(self, x, double):
        if abs(x) * self.mp.mag(x) > MAX_BITS: raise Refused("too large a factorial")
        return self.sized((self.mp.fac2 if double else self.mp.factorial)(x))

    def whole(self, x, rounding):
        if self.mp.im(x) or abs(x) > 1e40: raise Refused("no integer part")
        nearest = self.mp.nint(self.mp.re(x))
        return nearest if abs(x - nearest) < 1e-30 else rounding(x)


def probes(ends):
    ends = sorted({end for end in ends if abs(end) != math.inf} | {0})
    return [ends[0] - 9, *ends, *((x + y) // 2 for x, y in zip(ends, ends[1:])), ends[-1] + 9]


def contexts():
    """mpmath, sympy's numeric layer, at 60 and at 200 digits or more: a pair for each thread."""
    if not hasattr(_local, "pair"):
        from mpmath.ctx_mp import MPContext
        _local.pair = MPContext(), MPContext()
        _local.pair[0].dps = 60
    return _local.pair


_local = threading.local()
SCALES = (1, 3, -7, 0.111, 31, -0.0123, 1000, -10 ** 6)    # of the letters at the 8 points
TRIG = ("sin", "cos", "tan", "cot", "sec", "csc", "cis")
LEVEL = {"+": 6, "-": 6, "\\over": 6, "\\cdot": 7, "\\times": 7, "*": 7, "/": 7, "%": 7, "^": 9, "!": 9,
         **dict.fromkeys(("", *CLOSERS, ",", "&", "\\\\", "_", *RELATIONS), 0)}
TENS = {'"dozen': 12, '"hundred': 100, '"thousand': 1000, '"million': 10 ** 6, '"billion': 10 ** 9}
MIXED = re.compile(r"\\frac (?:[0-9]+|\{ [0-9]+ \}) (?:[0-9]+|\{ [0-9]+ \})|[0-9]+ / [0-9]+")


class Verdicts(list):
    timeouts = 0


def verify_all(pairs, workers=2, timeout=5.0, strict=False):
    return Verdicts(verify(c, g, strict) for c, g in pairs)
