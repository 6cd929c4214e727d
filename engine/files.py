"""Files that survive a crash: replaced as a whole, appended line by line, locked by one process.

Skip this on a first reading.
"""
import errno
import hashlib
import json
import os
import sys

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None

from engine.errors import BadInput

# Errors where a folder cannot be flushed (some file systems) or not even opened (Windows).
NO_FOLDERS = (errno.EACCES, errno.EPERM, errno.EBADF, errno.EINVAL, errno.ENOTSUP)
HELD = {}  # folder of a run -> its open lock file


def sync(path):
    """Wait until this file or folder is on the disk and not only in the machine's memory."""
    folder = os.path.isdir(path)
    try:
        handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if not folder or error.errno not in NO_FOLDERS:
            raise


def write(path, text):
    """Replace a text file. A reader, or a crash, finds the old one or the new one, never half."""
    new = path.with_name(path.name + ".new")
    with open(new, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def append(path, rows):
    """Add one JSON line per row."""
    with open(path, "a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
        file.flush()
        os.fsync(file.fileno())


def begins_like(raw, ours):
    """Does a file's content, bytes, begin with the bytes `ours`, or is it the start of them? If
    not, the file is someone else's, and may not be cut off."""
    return raw[:len(ours)] == ours[:len(raw)]


def check_out(path):
    """Raise BadInput, before the work and not after it, if `--out` cannot be written. A file that
    is there stays as it is."""
    try:
        append(path, [])
    except OSError as error:
        raise BadInput(f"--out {path}: cannot write there ({error.strerror}).") from None


def drop_steps_after(path, step):
    """Drop the lines of later steps, which will run again, and an incomplete last line.

    A note on stderr names steps up to `step` without a line. Raises BadInput for any other line
    that is not a JSON object with a "step".
    """
    raw = path.read_bytes() if path.exists() else b""
    lines, kept, found = raw[:raw.rfind(b"\n") + 1].splitlines(keepends=True), [], set()
    for number, line in enumerate(lines, 1):
        try:
            at = json.loads(line)["step"]
            kept += [line] if at <= step else []
            found.add(at)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BadInput(f"--resume: line {number} of {path} is damaged; remove it.") from None
    lost = [at for at in range(1, step + 1) if at not in found]
    if lost:
        print(f"{path}: {len(lost)} of the {step} steps before have no line any more, the first of "
              f"them step {lost[0]}; the run continues without.", file=sys.stderr, flush=True)
    if b"".join(kept) != raw:
        write(path, b"".join(kept).decode())


def digest(path):
    """SHA-256 of a file, in hexadecimal."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            found.update(block)
    return found.hexdigest()


def hold(folder):
    """Lock a run's folder for this process. Raises BadInput if another process has it.

    The lock belongs to the process. A kill releases it, and forked workers do not share it.
    """
    place = os.path.realpath(folder)
    if place in HELD:
        return
    try:
        HELD[place] = lock(os.path.join(folder, "lock"))
    except BlockingIOError:
        raise BadInput(f"--resume {folder}: another process is training this run; wait for it, "
                       "or stop it first.") from None


def lock(path):
    """An open file that is locked until it is closed, or None on a file system without locks.
    Raises BlockingIOError if another process has it."""
    if fcntl is None:
        return database_lock(path)
    file = open(path, "a")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
    except OSError as error:
        file.close()
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise BlockingIOError from None
        return None


def database_lock(path):
    """The same for a Python without file locks: SQLite can lock its own file on every system."""
    import sqlite3  # here, not above: some builds of Python lack it

    try:
        base = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    except sqlite3.Error:  # nothing can be opened there
        return None
    try:
        base.execute("PRAGMA journal_mode = MEMORY")  # no file beside it
        base.execute("BEGIN EXCLUSIVE")  # of an empty database, which is never written
        return base
    except sqlite3.Error as error:
        base.close()
        if "locked" in str(error):
            raise BlockingIOError from None
        return None


def release(folder):
    """Unlock the run for other processes."""
    file = HELD.pop(os.path.realpath(folder), None)
    if file:
        file.close()
