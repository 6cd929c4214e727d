"""Mistakes told in one sentence, and the wrapper of every command line. Skip on a first reading."""
import signal
import sys

import torch


class BadInput(ValueError):
    """The user's mistake: one sentence with the value, the reason and the flag to change."""


def printable(text):
    """Text of a model or a file, for a terminal: control characters are shown, not obeyed."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode()
                   for c in text)


def run_cli(main):
    """Call `main()`: what stops it ends in one sentence and an exit code, not in a traceback.

    2: a mistake of the user's, a full card or disk, NaN. 130 and 143: by Ctrl-C and SIGTERM.
    """
    signals = []

    def on_sigterm(number, _):  # as Ctrl-C, so that whatever cleans up after that does here
        signals.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, on_sigterm)
    try:
        main()
    except (BadInput, FloatingPointError) as mistake:
        message, code = f"error: {mistake}", 2
    except OSError as error:
        message, code = f"error: {error.filename or 'input or output'}: {error.strerror}.", 2
    except torch.OutOfMemoryError:
        message, code = "error: the card's memory is full; take a smaller --model.", 2
    except KeyboardInterrupt:
        code = 128 + (signals or [signal.SIGINT])[0]
        message = "\nstopped by " + ("SIGTERM" if signals else "Ctrl-C")
    else:
        return
    finally:
        signal.signal(signal.SIGTERM, before)
    print(printable(message), file=sys.stderr)
    sys.exit(code)
