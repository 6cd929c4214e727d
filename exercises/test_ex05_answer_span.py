"""Marks exercise 5."""


class Pieces:
    """A byte-level tokenizer: id i stands for the i-th byte string, None for a special token."""

    def __init__(self, *pieces):
        self.pieces = pieces

    def decode(self, ids, skip_special_tokens=True, **_):
        special = b"" if skip_special_tokens else b"<special>"
        text = b"".join(special if self.pieces[i] is None else self.pieces[i] for i in ids)
        return text.decode("utf-8", "replace")


def span(attempt, *pieces):
    tokenizer, ids = Pieces(*pieces), list(range(len(pieces)))
    found = attempt(tokenizer, ids, tokenizer.decode(ids))
    return found if found is None else tuple(found)


def test_one_token_a_part(attempt):
    assert span(attempt, b"so ", b"\\boxed{", b"4", b"2", b"}", b".") == (1, 2, 4, 5)
    assert span(attempt, b"\\", b"box", b"ed", b"{", b"7", b"}") == (0, 4, 5, 6)


def test_no_box_or_half_a_box(attempt):
    assert span(attempt, b"so ", b"7") is None
    assert span(attempt, b"\\boxed{", b"7") is None


def test_the_last_box_is_the_one_that_is_rewarded(attempt):
    assert span(attempt, b"\\boxed{", b"1", b"}", b" no ", b"\\boxed{", b"2", b"}") == (4, 5, 6, 7)


def test_braces_nest(attempt):
    """A box ends where its own brace closes, not at the first one."""
    assert span(attempt, b"\\boxed{", b"\\frac{", b"1", b"}{", b"2", b"}", b"}", b"!") \
        == (0, 1, 6, 7)


def test_a_token_may_hold_marker_and_content(attempt):
    assert span(attempt, b"so ", b"\\", b"boxed", b"{x", b"}.") == (1, 3, 4, 5)
    assert span(attempt, b"\\boxed{", b"7", b"7}") == (0, 1, 3, 3)


def test_an_empty_box(attempt):
    assert span(attempt, b"\\boxed{", b"}.") == (0, 1, 1, 2)
    assert span(attempt, b"so ", b"\\boxed{}", b".") == (1, 1, 1, 2)


def test_special_tokens_count_and_do_not_show(attempt):
    assert span(attempt, None, b"\\boxed{", b"7", None, b"}", None) == (1, 2, 3, 5)


def test_a_character_in_two_tokens(attempt):
    """Half an e-acute decodes to U+FFFD, which looks like a character and is none."""
    assert span(attempt, b"\\boxed{", b"x", b"\xc3", b"\xa9", b"}") == (0, 1, 4, 5)
    assert span(attempt, b"\xc3", b"\xa9", b"\\boxed{", b"7", b"}") == (2, 3, 4, 5)
