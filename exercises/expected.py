"""The message of a failed mark: your result and the expected one, in full if they are small."""
import math
import textwrap

import torch

WHOLE = 80  # numbers; of a larger tensor only the shape and the first difference are printed


class Wrong(AssertionError):
    """An answer that is not right. Its message is written for the reader of the exercise."""


def shown(value, indent=0):
    """A value as text, lines after the first one indented: a tensor of two axes gets rows."""
    if torch.is_tensor(value):
        kind = str(value.dtype).removeprefix("torch.")
        if value.numel() > WHOLE:
            return f"a {kind} tensor of shape {tuple(value.shape)}, too large to print"
        value = value.detach().tolist()
    elif hasattr(value, "completion_mask"):
        return "the forward of {} rows of at most {} tokens".format(*value.completion_mask.shape)
    elif not isinstance(value, (list, bool, int, float)):
        text = repr(value)
        return text if len(text) < 400 else f"{text[:400]}..."
    if isinstance(value, list) and value and all(isinstance(row, list) for row in value):
        rows = [shown(row, indent + 1) for row in value]
        return "[" + (",\n" + " " * (indent + 1)).join(rows) + "]"
    if isinstance(value, list):
        text = "[" + ", ".join(shown(x) for x in value) + "]"
        return textwrap.fill(text, 88, initial_indent=" " * indent,
                             subsequent_indent=" " * (indent + 1)).lstrip()
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def beside(yours, expected, about=""):
    """Both, one under the other. about: of which part they are, where it is not all."""
    about = f" ({about})" if about else ""
    first, second = f"yours{about}     ", f"expected{about}  "
    return (f"{first}{shown(yours, len(first))}\n"
            f"{second}{shown(expected, len(second))}")


def agree(yours, expected, tolerance):
    """Where two tensors of one shape hold the same numbers; NaN agrees with nothing."""
    yours, expected = yours.detach().double(), expected.double()
    return torch.isclose(yours, expected, rtol=tolerance, atol=tolerance)


def expect(yours, expected, tolerance=1e-4, mistakes=None, dtype=None, about=""):
    """Raise Wrong unless `yours` is a tensor like `expected`, a tensor or nested list of numbers.

    tolerance: absolute and relative, 0 for equal to the last digit. mistakes: {sentence: what that
    mistake would have given}, so that the mark can tell the reader which one it was. about: what
    `yours` is, where it is not all that the reader's function returned.
    """
    if not torch.is_tensor(expected):
        floats = torch.tensor(expected).is_floating_point()
        expected = torch.tensor(expected, dtype=torch.float64 if floats else None)
    name, both = about or "your answer", beside(yours, expected, about)
    if yours is None:
        raise Wrong(f"{name} is None: is the `return` missing?\nexpected  {shown(expected, 10)}")
    if not torch.is_tensor(yours):
        raise Wrong(f"{name} is a {type(yours).__name__} and must be a tensor.\n{both}")
    if yours.shape != expected.shape:
        raise Wrong(f"{name} has shape {tuple(yours.shape)} and must have "
                    f"{tuple(expected.shape)}.\n{both}")
    if dtype is not None and yours.dtype != dtype:
        raise Wrong(f"{name} is {str(yours.dtype).removeprefix('torch.')} and must be "
                    f"{str(dtype).removeprefix('torch.')}.\n{both}")
    same = agree(yours, expected, tolerance)
    if same.all():
        return
    at = tuple((~same).nonzero()[0].tolist())
    lines = [both]
    if expected.numel() > 1:
        lines.append(f"They differ first at {list(at)}: {shown(yours[at].item())} instead of "
                     f"{shown(expected[at].item())}.")
    if not math.isfinite(yours[at].item()):
        lines.append("Not a finite number: look for 0 / 0, log 0 or a product with infinity.")
    for sentence, value in (mistakes or {}).items():
        value = torch.as_tensor(value, dtype=torch.float64)
        if value.shape == yours.shape and agree(yours, value, max(tolerance, 1e-5)).all():
            lines.append(f"It looks like this mistake: {sentence}")
    raise Wrong("\n".join(lines))


def expect_unchanged(now, before, name):
    """Raise Wrong unless `now`, a tensor or list that the reader's function was given under this
    name, is still what it was `before`."""
    where = ""
    if torch.is_tensor(now) and now.shape == before.shape:
        now, before = now.detach(), before.detach()
        same = (now == before) | (now.isnan() & before.isnan())
        if same.all():
            return
        at = tuple((~same).nonzero()[0].tolist())
        where = (f": after your function ran it is {shown(now[at].item())} at {list(at)} and was "
                 f"{shown(before[at].item())}")
    elif not torch.is_tensor(now) and now == before:
        return
    both = (f"\n{name} before your function ran  {shown(before, len(name) + 26)}"
            f"\n{name} after your function ran   {shown(now, len(name) + 26)}")
    large = torch.is_tensor(now) and now.numel() > WHOLE
    raise Wrong(f"{name} was changed in place{where}. Work on a copy.{'' if large else both}")


def expect_equal(yours, expected):
    """Raise Wrong unless both, no tensors, are equal."""
    if yours != expected:
        raise Wrong(beside(yours, expected))


def expect_true(fact, sentence):
    """Raise Wrong with this sentence unless the fact holds."""
    if not fact:
        raise Wrong(sentence)


def expect_refused(call, what):
    """Raise Wrong unless the call raises ValueError."""
    try:
        yours = call()
    except ValueError:
        return
    raise Wrong(f"{what} was answered with {shown(yours)} and must raise ValueError.")
