"""Which equation a page marks as false: only one that is, and no right one in any clothing."""
import time

import pytest

from engine.arithmetic import first_false

FALSE = ["12+3=16", "So 12+3=16.", "3 * 4 = 13 apples", "2. 3+4=8", "7-9=2", "2+3*4=20", "9-3-3=6",
         "10/3=3.34", r"3 \times 4 = 13", "$5*3=$16", "5 x 3 = 16", "1,000+1=1,002",
         "0.1+0.2=0.4", "7-9=-3", "6\u00d77=41", "8 \u2212 3 = 4", "-4+3=1",
         "5+5=$11", "2+2=5=5", "12+3=16\n16+1=17"]
FINE = ["25 / 1/3 = 75", "60 men x 2/3=40", "12 x 1 and 1/4=15", "6:00+48=6", "0900-0130=730",
        "$2.50-$2.24=26 cents", "17/3 = 5 and 2/3", "600 x 30 = 18 000", "12/4*2=1.5",
        ".5+1=1.5", "x.5+3=8", "12+3=15", "2+3*4=14", "9-3-3=3", "10/3=3.33", "10/3=3.3333",
        "10/4=3", "7-9=-2", "(2+3)*4=20", "2^3+1=9", "x+3=5", "2x+3=5", "x = 3", "a=b", "3=3",
        "4 + 4", "10/0=5", "3+4=8/2+3", "3+4=14 / 2", "3+4=2 * 3.5", "3+4=(14)/2", "3+4=7%",
        "n+1=2+3=5", "20%*50=10", "50% of 20=10", r"\frac{1}{2}+1=1.5", "1. 3+4=7", "3+4=7.",
        "3+4=7, and 7+1=8", "3 hours + 4 hours = 8 hours", "3+4=x", "3+4=7.0", "5+3=8\u00b0",
        "1,000*2=2,000", "=", "==", "3+=4", "+3=4", "3+4==8", "3+4=\n8", "f(2)+3=9",
        "2+3 mod 4=1", "10^2+1=101", "3+4=7/1"]


@pytest.mark.parametrize("text", FALSE)
def test_a_false_equation_is_found(text):
    assert first_false(text) is not None
    begin, end = first_false(text)
    assert "=" in text[begin:end] and first_false(text[begin:end]) == (0, end - begin)


@pytest.mark.parametrize("text", FINE)
def test_what_is_right_or_not_to_be_decided_is_left_alone(text):
    assert first_false(text) is None


def test_its_place_is_the_equation_s_own():
    assert first_false("So 12+3=15, then 15*2=40.") == (17, 24)
    assert first_false(r"Now $3 \times 4 = 13$ and 1+1=3") == (4, 20)
    assert first_false("1+1=2\nWell, 2+2=5\n5+5=11") == (12, 17)


def test_every_small_sum_by_enumeration():
    for a in range(12):
        for b in range(12):
            for sign, right in (("+", a + b), ("-", a - b), ("*", a * b)):
                for c in range(right - 2, right + 3):
                    found = first_false(f"so {a}{sign}{b}={c}, or")
                    assert (found is None) == (c == right), (a, sign, b, c)


def test_hostile_text_takes_no_time():
    start = time.perf_counter()
    for text in ("=" * 20000, "1+" * 20000 + "=1", "1+1=" * 20000, "9" * 40000 + "+1=2",
                 "1 " * 20000 + "=", "1,000," * 9000 + "+1=2"):
        first_false(text)
    assert time.perf_counter() - start < 5
