r"""Find the first false equation in a text, to mark it on a page. Skip this on a first reading.

    first_false("So 12+3=15, then 15*2=40.")     # (18, 25): the characters of 15*2=40

It only judges what is certain: numbers joined by + - * /, then = and a number. It skips brackets,
powers, mixed fractions, clock times, units between the numbers and letters for numbers. A result
may be rounded to the digits that are written, or cut after them: 2/3=0.66 is not false.

The words around an equation can change it: "half of 10 + 6 = 11", "8 + 5 = 1 pm". So it must begin
a line or a clause, or follow one of the words CLAIMS. After the result a clause must end, or a
thing must be named: "= 8 apples". We would rather miss a false equation than mark a right one.
"""
import re
from fractions import Fraction

LOOK = 80  # characters on either side of an equals sign
NUMBER = r"\$?(?!0\d)\d{1,9}(?:,\d{3}){0,3}(?:\.\d{1,6})?"
SUM = re.compile(rf"(-?{NUMBER})((?:\s*[-+*/]\s*{NUMBER}){{1,12}})\s*\Z")
TERM = re.compile(rf"\s*([-+*/])\s*({NUMBER})")
# Any character that cannot be in an expression. Left of an equals sign we read back to the first
# of these.
NOT_OURS = re.compile(r"[^\d\s.,$+\-*/()^]|\n")
# "Well, 3+4=7": the end of a clause before it; "2. 3+4=7": the 2 numbers the line.
BEFORE = re.compile(r"(?:[.,]*\s+)?(?:\d{1,2}[.)]\s+)?")
MIXED = re.compile(r"[*/]\s*\$?[\d.,]+\s*/|/\s*\$?[\d.,]+\s*[*/]")  # 25 / 1/3 can mean two things
SIGNS = str.maketrans("\u00d7\u22c5\u00b7\u00f7\u2212", "***/-")

# The words that may stand directly before an equation. None can be an operator or a function, so
# "of", "to", "take" and "add" are missing.
CLAIMS = """so then now thus hence therefore because since is are was were be been has have had get
    gets got make makes made means gives becomes equals that's that\u2019s cost costs need needs
    spend spends spent pay pays paid buy buys bought sell sells sold earn earns earned eat eats ate
    use uses used save saves saved score scored takes took weigh weighs receive receives received
    collected implies rightarrow"""
# These want a number, and get it even across a colon, a comma or the end of the line.
OPEN = """of by plus minus times over mod modulo than to from into per root sqrt square cube and or
    div divide divided multiply multiplied add added subtract less more twice half double triple
    thrice log sin cos tan average mean approx about around roughly nearly almost not"""
CLAIM = f"(?:{'|'.join(CLAIMS.split())})"
WORD = rf"(?<![\w\\])(?!(?:{'|'.join(OPEN.split())})\b)[^\W\d_]{{2,}}"
LEFT = re.compile(rf"""
    (?: \A | \n[ \t]*\n | (?: {WORD} | \\[\\\[] | [\d.,:;?)\]}}$`] ) [ \t]*\n )  # a line begins,
        \s* (?: [>\u2022]\s+ )? (?: \d{{1,2}}[.)]\s+ )? ["'`]? \Z    # perhaps with a number
  | {WORD} (?: [.,!]\s+ | [:;?]\s* ) ["'`]? \Z                       # a clause begins
  | (?: %[.,] | [;?=] ) \s+ \Z
  | (?<![\w.-]) (?: {CLAIM} | (?:{CLAIM}|for) \s+ (?:an?\s+)? total \s+ of
                  | (?:is|are|was|were) \s+ equal \s+ to ) \s+ \Z
  | (?: \\\[\s* | \\boxed\{{ | (?<!\S)["'`\[] | (?<![\w)\]}}<])<< ) \Z  # it stands in brackets
    """, re.I | re.X)
# A clause with one of these may ask for more than the sum: "Half as much: 10 + 6 = 8".
ASKS = re.compile(r"""\b (?: half | halve\w* | twice | doubl\w+ | tripl\w+ | thrice | quarter
    | third | squared? | cubed? | root | percent\w* | average | mean | median | logarithm | ratio
    | remainder | approximately | roughly | about ) \b [^.!?;=\n]* \Z""", re.I | re.X)
# Words after a result that belong to it.
PART = "[a-z]+ly with plus minus times over less point squared cubed more[ ]than".split()
RESULT = re.compile(rf"""[ \t]* (-?{NUMBER}) (?! \s*[-+*/^(]\s*[\w($] ) (?:
    (?= \s*\Z | [ \t]*\n | [ \t]* (?: [.:](?!\s*\d) | ,(?!\s?\d) | [;?=\]}})] | \$(?!\d) | `
                                    | >> | \\[\])\\] | \u2713 | \u2705 ))
  | [ ] (?!(?:{'|'.join(PART)})\b) (?P<thing> [a-z]{{4,}} | for | on | per )
        (?! [\w'\u2019-] | \s+\S?\d ) )""", re.X)
# In a text about these, the rules of arithmetic can be others.
ELSEWHERE = re.compile(r"""\b (?: p?mod | modul\w+ | bmod | congruent | binary | octal | hexa\w+
    | clock | base \W{1,3} (?: \d | two | three | four | five | six | seven | eight | nine | ten )
    ) \b | \d\s?[ap]\.?m\b | \u2261""", re.I | re.X)


def plain(text):
    r"""The signs of arithmetic as * / -. A word for a sign is padded, so that positions stay."""
    for word, sign in ((r"\times", "*"), (r"\cdot", "*"), (r"\div", "/"), (r"\$", " $")):
        text = text.replace(word, sign.ljust(len(word)) if len(word) > 2 else sign)
    return re.sub(r"(?<=\d) x (?=\$?\d)", " * ", text.translate(SIGNS))


def value(number):
    return Fraction(number.replace("$", "").replace(",", ""))


def total(first, rest):
    """The value of first and (sign, number) pairs, products before sums. None for x / 0."""
    terms = [value(first)]
    for sign, number in rest:
        x = value(number)
        if sign in "+-":
            terms.append(x if sign == "+" else -x)
        elif sign == "*":
            terms[-1] *= x
        elif x == 0:
            return None
        else:
            terms[-1] /= x
    return sum(terms)


def converted(exact, written, half):
    """Can another unit, sign or turn of the clock explain it? 30 + 30 = 1 hour, 3 - 7 = 4 below."""
    if not exact or not written:
        return False
    up, down = round(written / exact), round(exact / written)
    return ((exact - written) % 12 == 0
            or up not in (0, 1) and abs(exact * up - written) <= half
            or down not in (0, 1) and abs(exact / down - written) <= half)


def is_false(found, result):
    """Judge the matches of SUM and RESULT."""
    exact = total(found[1], TERM.findall(found[2]))
    if exact is None or MIXED.search(found[2]):
        return False
    written = value(result[1])
    half = Fraction(1, 2 * 10**len(result[1].partition(".")[2]))
    if abs(exact - written) <= half:  # rounded
        return False
    if "/" in found[2] and exact * written >= 0:
        if 0 <= abs(exact) - abs(written) < 2 * half:  # cut; 11/3=3 may be without the remainder
            return False
    # A thing after the result can be a unit, and so can a $ on one side alone.
    unit = result["thing"] or ("$" in found[0]) != ("$" in result[1])
    return not (unit and converted(exact, written, half))


def first_false(text):
    """The place of the first false equation: (begin, end) in characters, or None."""
    same = plain(text)
    for sign in re.finditer("=", same):
        at = sign.start()
        low = max(0, at - LOOK)
        cut = [match.end() for match in NOT_OURS.finditer(same, low, at)]
        begin = BEFORE.match(same, cut[-1] if cut else low, at).end()
        found = SUM.match(same, begin, at)
        result = RESULT.match(same, at + 1, at + LOOK)
        if not found or not result or not is_false(found, result):
            continue
        low = max(0, begin - LOOK)
        if LEFT.search(same, low, begin) and not ASKS.search(same, low, begin):
            return None if ELSEWHERE.search(same) else (begin, result.end(1))
    return None
