"""Marks exercise 5."""
import random

from expected import Wrong, expect_equal, expect_true, expect_unchanged

BOX = "\\boxed{"


class Pieces:
    """A byte-level tokenizer: id i stands for the i-th byte string, None for a special token."""

    def __init__(self, pieces):
        self.pieces = pieces

    def decode(self, ids, skip_special_tokens=False, **_):
        special = b"" if skip_special_tokens else b"<special>"
        text = b"".join(special if self.pieces[i] is None else self.pieces[i] for i in ids)
        return text.decode("utf-8", "replace")

    def encode(self, *_, **__):
        raise Wrong("The text was encoded again. What comes back need not be what was sampled.")

    __call__ = tokenize = convert_tokens_to_ids = encode

    def __repr__(self):
        return " | ".join("<special>" if piece is None else
                          piece.decode() if piece.decode("utf-8", "ignore").encode() == piece else
                          str(piece)[2:-1] for piece in self.pieces)


def span(attempt, *pieces):
    """What the attempt answers for a completion of these tokens, one id each."""
    tokenizer, ids = Pieces(pieces), list(range(len(pieces)))
    found = attempt(tokenizer, ids, tokenizer.decode(ids, skip_special_tokens=True))
    expect_unchanged(ids, list(range(len(pieces))), "ids")
    expect_true(found is None or isinstance(found, (tuple, list)) and len(found) == 4,
                f"The answer must be four numbers or None; yours is {found!r}.")
    return found if found is None else tuple(int(number) for number in found)


def by_bytes(pieces):
    """The definition on bytes, where a token and its characters cannot be mixed up."""
    owner, data = [], b""  # of each byte: the token that holds it
    for token, piece in enumerate(pieces):
        data += piece or b""
        owner += [token] * len(piece or b"")
    text, first = data.decode(), []  # of each character: the token of its last byte
    for n in range(len(text)):
        first.append(owner[len(text[:n + 1].encode()) - 1])
    found = None
    for begin in range(len(text)):
        if text.startswith(BOX, begin):
            depth, stop = 1, begin + len(BOX)
            while depth and stop < len(text):
                depth += {"{": 1, "}": -1}.get(text[stop], 0)
                stop += 1
            found = None if depth else (begin, stop)  # cut off: no earlier box is paid
    if found is None:
        return None
    begin, stop = found
    end, inside = first[stop - 1] + 1, first[begin + len(BOX):stop - 1]
    return (first[begin], inside[0], inside[-1] + 1, end) if inside else (
        first[begin], end - 1, end - 1, end)


def test_one_token_a_part(attempt):
    """start and end hold the box, content and close what is inside; end and close are one past the
    last token, as in Python's slices."""
    expect_equal(span(attempt, b"so ", b"\\boxed{", b"4", b"2", b"}", b"."), (1, 2, 4, 5))
    expect_equal(span(attempt, b"\\", b"box", b"ed", b"{", b"7", b"}"), (0, 4, 5, 6))


def test_no_box_or_half_a_box(attempt):
    """A completion that was cut off inside its box has no answer: None."""
    expect_equal(span(attempt, b"\\boxed{", b"7", b"}"), (0, 1, 2, 3))
    expect_equal(span(attempt, b"so ", b"7"), None)
    expect_equal(span(attempt, b"\\boxed{", b"7"), None)


def test_the_last_box_is_the_one_that_is_rewarded(attempt):
    """A completion may change its mind: the last box counts. If it was cut off there is no answer,
    and no earlier box stands in for it."""
    expect_equal(span(attempt, b"\\boxed{", b"1", b"}", b" no ", b"\\boxed{", b"2", b"}"),
                 (4, 5, 6, 7))
    expect_equal(span(attempt, b"\\boxed{", b"1", b"}", b" so ", b"\\boxed{", b"2"), None)


def test_braces_nest(attempt):
    """A box ends where its own brace closes, not at the first one."""
    expect_equal(span(attempt, b"\\boxed{", b"\\frac{", b"1", b"}{", b"2", b"}", b"}", b"!"),
                 (0, 1, 6, 7))


def test_a_token_may_hold_marker_and_content(attempt):
    """Tokenizers merge across the rim: `{x` counts as content, and in `7}` close and end agree."""
    expect_equal(span(attempt, b"so ", b"\\", b"boxed", b"{x", b"}."), (1, 3, 4, 5))
    expect_equal(span(attempt, b"\\boxed{", b"7", b"7}"), (0, 1, 3, 3))
    expect_equal(span(attempt, b"so \\boxed{7}."), (0, 0, 1, 1))


def test_an_empty_box(attempt):
    r"""\boxed{} has no content: content = close = end - 1, a range without a token."""
    expect_equal(span(attempt, b"\\boxed{", b"}."), (0, 1, 1, 2))
    expect_equal(span(attempt, b"so ", b"\\boxed{}", b"."), (1, 1, 1, 2))


def test_special_tokens_count_and_do_not_show(attempt):
    """The stop token is one of the ids, and the text does not show it: skip_special_tokens=True."""
    expect_equal(span(attempt, None, b"\\boxed{", b"7", None, b"}", None), (1, 2, 3, 5))


def test_a_character_in_two_tokens(attempt):
    """The letter é is two bytes, and here two tokens. Half of it decodes to U+FFFD, which looks
    like a character and is none; the token with the second half completes it."""
    expect_equal(span(attempt, b"\\boxed{", b"x", b"\xc3", b"\xa9", b"}"), (0, 1, 4, 5))
    expect_equal(span(attempt, b"\xc3", b"\xa9", b"\\boxed{", b"7", b"}"), (2, 3, 4, 5))
    expect_equal(span(attempt, b"\\boxed{", b"\xc3", b"\xa9", b"}"), (0, 2, 3, 4))


def test_any_text_cut_anywhere(attempt):
    """Two hundred completions, each cut into tokens at random places, between bytes too."""
    draw = random.Random(0)
    parts = ["so ", "x é", "7", "}", "∑", "{y}", "🙂", BOX + "42}", BOX + "}",
             BOX + "é{∑}🙂}", BOX + "\\frac{1}{2}}"]
    for _ in range(200):
        text = "".join(draw.choices(parts, k=draw.randint(1, 6)))
        text += draw.choice(["", BOX, BOX + "{7}"])
        data, pieces = text.encode(), []
        while data:
            size = draw.choice([1, 1, 2, 3, 7])
            pieces.append(data[:size])
            data = data[size:]
            pieces += [None] * (draw.random() < 0.05)
        expect_equal(span(attempt, *pieces), by_bytes(pieces))


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex05")
