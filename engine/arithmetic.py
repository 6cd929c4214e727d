r"""Find the first false equation in a text, to mark it on a page. Skip this on a first reading.

    first_false("So 12+3=15, then 15*2=40.")     # (18, 25): the characters of 15*2=40

It only judges what is certain: numbers joined by + - * /, then = and a number. It skips brackets,
powers, mixed fractions, clock times, units between the numbers and letters for numbers. A result
may be rounded to the digits that are written: 10/3=3.33 is not false.
"""
import re
from fractions import Fraction

LOOK = 80  # characters on either side of an equals sign
NUMBER = r"\$?(?!0\d)\d{1,9}(?:,\d{3}){0,3}(?:\.\d{1,6})?"
SUM = re.compile(rf"(-?{NUMBER})((?:\s*[-+*/]\s*{NUMBER}){{1,12}})\s*\Z")
RESULT = re.compile(rf"[ \t]*(-?{NUMBER})"
                    r"(?![\w%^(/*]|\s*[-+*/^(]\s*[\w($]|[.,:]\d| \d| and \S*\d| cents)")
TERM = re.compile(rf"\s*([-+*/])\s*({NUMBER})")
# Any character that cannot be in an expression. Left of an equals sign we read back to the first
# of these.
NOT_OURS = re.compile(r"[^\d\s.,$+\-*/()^]|\n")
# "Well, 3+4=7": the end of a sentence before it; "2. 3+4=7": the 2 numbers the line.
BEFORE = re.compile(r"(?:[.,]*\s+)?(?:\d{1,2}[.)]\s+)?")
OPENS = " \t\n([{<>:;!?\"'`"  # what a sum may follow without a space
PART = re.compile(r"(?:\b[xX]|\band|\d:)\s*\Z")  # the text before is a part of the sum
MIXED = re.compile(r"[*/]\s*\$?[\d.,]+\s*/|/\s*\$?[\d.,]+\s*[*/]")  # 25 / 1/3 can mean two things
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


def first_false(text):
    """The place of the first false equation: (begin, end) in characters, or None."""
    same = plain(text)
    for sign in re.finditer("=", same):
        at = sign.start()
        left = same[max(0, at - LOOK):at]
        cut = [match.end() for match in NOT_OURS.finditer(left)]
        start = cut[-1] if cut else 0
        begin = BEFORE.match(left, start).end()
        touches = start == begin > 0 and left[start - 1] not in OPENS
        if touches or PART.search(left, 0, begin) or not cut and at > LOOK:
            continue  # x+3=5; 60 men x 2/3=40; and a sum that begins further left than LOOK
        found = SUM.match(left, begin)
        result = RESULT.match(same, at + 1, at + LOOK)
        if not found or not result or MIXED.search(found[2]):
            continue
        exact = total(found[1], TERM.findall(found[2]))
        written = result[1].replace("$", "").replace(",", "")
        digits = len(written.partition(".")[2])
        if exact is not None and 2 * abs(exact - Fraction(written)) > Fraction(1, 10**digits):
            return at - len(left) + found.start(), result.end(1)
    return None
