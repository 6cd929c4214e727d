"""One-sentence error messages, and the wrapper of every command. Skip this on a first reading."""
import errno
import hashlib
import logging
import os
import re
import signal
import sys
from contextlib import contextmanager

import torch


class BadInput(ValueError):
    """The user's mistake: one sentence with the value, the reason and the flag to change."""


# ------------------------------------------------------------------------------ the console

# Codes that we send on purpose: the colours of show.py, and tqdm's cursor-up.
OURS = re.compile(r"(\x1b\[38;5;16;48;5;\d+m|\x1b\[0m|\x1b\[A)")


def printable(text, kept="\n\t"):
    """Text of a model or a file for a terminal: control characters are escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode()
                   for c in text)


def at_most(name, size):
    """A file name of at most `size` bytes. The end of a longer one becomes its SHA-256."""
    raw = os.fsencode(name)
    if len(raw) <= size:
        return name
    end = "-" + hashlib.sha256(raw).hexdigest()[:8]
    return raw[:size - len(end)].decode(errors="ignore") + end


class Console:
    """stdout or stderr of a command. It escapes foreign text, and a closed console is no error.

    Foreign text comes in many ways, for example from libraries that quote a config.json. So control
    characters are escaped here, too, and characters that the console's encoding lacks. If nobody
    reads any more (`| head`, a closed terminal), the rest is dropped and training continues.
    """

    def __init__(self, stream, kept):
        self.stream, self.kept = stream, kept
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text):
        parts = OURS.split(text)  # our own codes have odd indices
        parts[::2] = [printable(part, self.kept) for part in parts[::2]]
        self.until_it_is_gone(self.stream.write, "".join(parts))
        return len(text)

    def flush(self):
        self.until_it_is_gone(self.stream.flush)

    def until_it_is_gone(self, call, *args):
        try:
            call(*args)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)  # also for what is still in the buffer
            os.dup2(nowhere, self.stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name):
        return getattr(self.stream, name)


@contextmanager
def console():
    """Inside, stdout, stderr and the libraries' logs go through a Console."""
    before = sys.stdout, sys.stderr
    sys.stdout = before[0] and Console(before[0], "\n\t")
    sys.stderr = before[1] and Console(before[1], "\n\t\r")
    names = ("transformers", "datasets", "huggingface_hub")
    handlers = [h for name in names for h in logging.getLogger(name).handlers
                if getattr(h, "stream", None) is before[1]]
    for handler in handlers:
        handler.stream = sys.stderr
    try:
        yield
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        sys.stdout, sys.stderr = before
        for handler in handlers:
            handler.stream = before[1]


# ------------------------------------------------------------------------------ the sentence


def reason(error):
    """First line of an error's text, and of the error that caused it if that says more."""
    texts = []
    while error is not None and len(texts) < 20:
        text = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0]
        texts.append(text or type(error).__name__)
        error = error.__cause__ or error.__context__
    first, last = texts[0], texts[-1]
    return first if last in first else f"{first.rstrip('.:')}: {last}"


def stops():
    """The signals that end a command like Ctrl-C. Under nohup SIGHUP stays ignored."""
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    ignored = hangup is None or signal.getsignal(hangup) is signal.SIG_IGN
    return [signal.SIGTERM] if ignored else [signal.SIGTERM, hangup]


def run_cli(main):
    """Call `main()`. If something stops it, print one sentence and exit with a code, no traceback.

    2: a user's mistake, a full card or disk, NaN. 128 plus the signal's number: 130 by Ctrl-C, 143
    by SIGTERM, 129 by SIGHUP (a closed terminal).
    """
    signals = []

    def on_signal(number, _):  # raise what Ctrl-C raises, so that the same clean-up runs
        signals.append(number)
        if len(signals) == 1 or number == signal.SIGTERM:  # a terminal may send several SIGHUPs
            raise KeyboardInterrupt

    before = {number: signal.signal(number, on_signal) for number in stops()}
    try:
        with console():
            code = code_of(main, signals)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if code:
        sys.exit(code)


def code_of(main, signals):
    """Call `main()`. Returns the exit code; unless it is 0, a sentence goes to stderr."""
    try:
        main()
        return 0
    except (BadInput, FloatingPointError) as mistake:
        message, code = f"error: {mistake}", 2
    except OSError as error:
        message = f"error: {error.filename or 'input or output'}: {reason(error)}."
        code = 2
    except torch.OutOfMemoryError:
        message, code = "error: the card's memory is full; take a smaller --model.", 2
    except KeyboardInterrupt:
        code = 128 + (signals or [signal.SIGINT])[0]
        message = "\nstopped by " + (signal.Signals(signals[0]).name if signals else "Ctrl-C")
    print(printable(message), file=sys.stderr)
    return code
