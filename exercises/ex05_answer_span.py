r"""Exercise 5, forty minutes: where is the answer, counted in tokens?

The completion is a list of sampled ids. Its text has `\boxed{...}`, perhaps several times. The
last one is rewarded. If that one never closes, there is no reward. Which tokens are the box, and
which of them hold its content?

    ids of   so | \boxed{ | 4 | 2 | } | .      give   (start, content, close, end) = (1, 2, 4, 5)

Tokens start..end-1 overlap the box, content..close-1 its content. One token can hold marker and
content, such as `{x` in   so | \ | boxed | {x | }.  : it counts as content: (1, 3, 4, 5). An empty
box has no content: content = close = end - 1. Special tokens are not in the text, but they count.

Do not encode the text again: you may get other ids than the sampled ones. Decode prefixes of the
ids instead: `tokenizer.decode(ids[:n], skip_special_tokens=True)`. A prefix may end inside a
character of several bytes. Then its text ends in one or more U+FFFD ("\ufffd").
`last_boxed(text)` gives the characters of the box, or None: it is text[begin:stop].

    python -m pytest exercises -k ex05
"""
from toy import last_boxed  # noqa: F401  text -> (begin, stop) or None


def answer_span(tokenizer, ids, text):
    """ids: list of int; text: their decoding. Returns (start, content, close, end), or None."""
    raise NotImplementedError


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex05")
