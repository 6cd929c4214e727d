r"""Find the first false equation in a text, to mark it on a page. Skip this on a first reading.

    first_false("So 12+3=15, then 15*2=40.")     # (17, 24): the characters of 15*2=40

It only judges what is certain: numbers joined by + - * /, then = and a number. It skips brackets,
powers, mixed fractions, clock times, units between the numbers and letters for numbers. A result
may be rounded to the digits that are written, or cut after them: 2/3=0.66 is not false.

The words around can change an equation: "half of 10 + 6 = 11", "8 + 5 = 1 pm". So it must begin a
line or a clause, or follow one of the words STATES. After it the line or clause must end, or a
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
# Words after which an equation stands for itself. None asks for a number, as "of" and "plus" do.
STATES = """so then now thus hence therefore because since is are was were has have had get gets got
    makes made gives becomes equals costs needs spends spent pays paid earns earned"""
STATED = re.compile(rf"""
    (?: \A | \n[ \t]*\n | [\d.:;?!)\]}}$`][ \t]*\n  # a line begins, and goes on with no other
      | [^\W\d][.,:;?!] | %\. | [;?=\[`] | << | \\\[ | \\boxed\{{ | \b(?:{'|'.join(STATES.split())})
    ) \s* (?: [>\u2022]\s )? (?: \d{{1,2}}[.)]\s )? \s* \Z""", re.I | re.X)
# Words after a result that belong to it. Any other long word names a thing: "= 8 apples".
PART = "[a-z]+ly with plus minus times over less more point squared cubed".split()
# A number, and the end of its line or clause, or a thing.
RESULT = re.compile(rf"""[ \t]* (-?{NUMBER}) (?! \s*[-+*/^(]\s*[\w($] ) (?:
    (?= \s*\Z | [ \t]*\n | [ \t]*(?: [.,:](?!\s?\d) | [;?=\]}})`] | \$(?!\d) | >> | \\[\])\\] ) )
    | [ ] (?! (?:{'|'.join(PART)})\b ) (?P<thing> [a-z]{{4,}} ) (?! [\w'\u2019-] | \s+\S?\d ) )
    """, re.X)
MIXED = re.compile(r"[*/]\s*\$?[\d.,]+\s*/|/\s*\$?[\d.,]+\s*[*/]")  # 25 / 1/3 can mean two things
# In a text about these the rules of arithmetic are others.
ELSEWHERE = re.compile(r"\b(?:[pb]?mod|modul\w+|binary|octal|hex\w*|clock|base \d)\b|\d\s?[ap]m\b",
                       re.I)
SIGNS = str.maketrans("\u00d7\u22c5\u00b7\u00f7\u2212", "***/-")


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


def converted(exact, written):
    """May the result be in another unit: 30 + 30 = 1 hour, 8*240 = $19.20, 10 + 4 = 2 o'clock?"""
    if not exact or not written:
        return False
    times = max(abs(exact / written), abs(written / exact))
    return (exact - written) % 12 == 0 or abs(times - round(times)) < Fraction(1, 100)


def is_false(found, result):
    """Judge the matches of SUM and RESULT."""
    exact = total(found[1], TERM.findall(found[2]))
    if exact is None or MIXED.search(found[2]):
        return False
    written = value(result[1])
    last = Fraction(1, 10**len(result[1].partition(".")[2]))  # one in the last digit
    cut = "/" in found[2] and exact * written >= 0 and 0 <= abs(exact) - abs(written) < last
    if cut or abs(exact - written) <= last / 2:
        return False
    unit = result["thing"] or ("$" in result[1]) != ("$" in found[0])
    return not (unit and converted(exact, written))


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
        if not found or not result or not STATED.search(same[max(0, begin - LOOK):begin]):
            continue
        if is_false(found, result):
            return None if ELSEWHERE.search(same) else (begin, result.end(1))
    return None
