"""Mark a folder of submissions: one sub-folder for each student, one row of a CSV for each.

    python exercises/mark.py submissions                         # writes marks.csv
    python exercises/mark.py submissions --feedback feedback     # and a text to hand back

A sub-folder holds any of ex01_*.py ... ex10_*.py, at any depth. An exercise's column has the number
of marks that passed. It is empty if nothing was handed in or the function is still that of the
stub. What a stub is does not depend on the files of this folder, which may hold answers.

Each exercise of each student runs in its own process, in an empty folder, for at most --seconds and
8 GiB of data. Code that fails, hangs, exits or prints without end only costs its own author marks.
This is not a sandbox: the code runs with your rights. If you do not trust the authors, run this in
a container or under a separate account.
"""
import argparse
import ast
import csv
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent))
from attempts import EXERCISES, HERE, ROOT, SIZE, is_stub, source_of  # noqa: E402

KEPT = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "SYSTEMROOT", "PYTHONPATH")
# As a child of this shell, a submission that kills its parent kills the shell. Kilobytes of data,
# blocks of a file, seconds of a processor; systems that lack one of them go without. Data, not
# addresses (-v): PyTorch with CUDA reserves tens of GiB of addresses that it never fills.
SHELL = 'ulimit -d 8388608; ulimit -f 20000; ulimit -t "$0"; "$@"; exit $?'
TOTAL = {exercise: [node.name for node in ast.parse(
    (HERE / f"test_{exercise}.py").read_text("utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    for exercise in EXERCISES}


def python_files(folder):
    """(depth, path) of the .py files below a folder, the least deep first."""
    found = []
    for place, folders, files in os.walk(folder, followlinks=False):
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = [] if depth >= 5 else [name for name in folders if not name.startswith(".")]
        found += [(depth, Path(place) / name) for name in files if name.endswith(".py")]
    return sorted(found)


def find(folder, exercise):
    """The file of this exercise below a student's folder, the least deep; or None."""
    found = [(path.name != f"{exercise}.py", depth, path.name, path)
             for depth, path in python_files(folder) if path.name.startswith(exercise[:4])]
    return min(found)[3] if found else None


def copy(student, path, exercise, folder):
    """The attempt under its proper name, and what it may import: the student's other answers and
    the Python files beside it, in sub-folders too."""
    answers = {f"{name}.py": find(student, name) for name in EXERCISES}
    beside = {str(other.relative_to(path.parent)): other
              for _, other in python_files(path.parent)[:50]}
    for name, other in (beside | answers).items():
        plain = other and other.is_file() and not other.is_symlink()
        if plain and other.stat().st_size <= SIZE and os.access(other, os.R_OK):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(other, folder / name)
    shutil.copyfile(path, folder / f"{exercise}.py")


def stop(process):
    """Kill a process and all that it started."""
    if hasattr(os, "killpg"):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # it is over
    else:
        process.kill()
    process.wait()


def run(exercise, attempt, place, seconds):
    """(marks passed, note, what pytest printed) of the attempt in this folder."""
    work, marks, output = place / "work", place / "marks", place / "output"
    work.mkdir()
    environment = {name: os.environ[name] for name in KEPT if name in os.environ} | {
        "OMP_NUM_THREADS": "1", "TMPDIR": str(work), "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--all-marks",
               "-c", str(ROOT / "pytest.ini"), f"--attempts={attempt}", f"--write-marks={marks}",
               str(HERE / f"test_{exercise}.py")]
    if os.name == "posix":
        command = ["sh", "-c", SHELL, str(2 * seconds), *command]
    note = ""
    with open(output, "wb") as file:
        process = subprocess.Popen(command, cwd=work, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=file, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            note = f"stopped after {seconds} s"
        finally:
            stop(process)
    passed = read(marks).split("\n")
    # A killed shell leaves its child some milliseconds in which it may still write its marks.
    killed = process.returncode < 0
    if not note and (killed or "finished" not in passed):
        note = "ended before its marks did"
    return len(set(passed) & set(TOTAL[exercise])), note, read(output)


def read(path, most=30_000):
    """The beginning of a file that a submission may have written to, or nothing."""
    if not path.is_file() or path.is_symlink():
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(most)


def mark(folder, exercise, seconds):
    """(marks passed or None, note, text for the student) of one exercise of one student."""
    path = find(folder, exercise)
    if path is None:
        return None, "", "not handed in"
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > SIZE:
            return 0, "no plain file of usual size", ""
        if is_stub(exercise, source_of(path)):
            return None, "", "no answer yet: the function is still that of the stub"
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            attempt = Path(place) / "attempt"
            attempt.mkdir()
            copy(folder, path, exercise, attempt)
            return run(exercise, attempt, Path(place), seconds)
    except (OSError, ValueError) as error:
        return 0, f"cannot be read: {error}", ""


def cell(text):
    """For a spreadsheet, which would run a text that begins like a formula."""
    text = "".join(c if c.isprintable() else " " for c in text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def row_of(student, results):
    """A row of the CSV: the student, each exercise's marks, sums, and what went wrong."""
    passed = [marks for marks, _, _ in results]
    done = sum(marks == len(TOTAL[name]) for name, marks in zip(EXERCISES, passed))
    notes = [f"{name[:4]}: {note}" for name, (_, note, _) in zip(EXERCISES, results) if note]
    return [cell(student), *("" if marks is None else marks for marks in passed), done,
            sum(marks or 0 for marks in passed), cell("; ".join(notes))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("folder", type=Path, help="holds one sub-folder for each student")
    add("--csv", type=Path, default=Path("marks.csv"), help="where the marks go; not overwritten")
    add("--feedback", type=Path, help="a folder for one text a student: what the marks printed")
    add("--seconds", type=int, default=60, help="the most that one exercise may take")
    add("--jobs", type=int, default=os.cpu_count(), help="exercises marked at a time")
    args = parser.parse_args()
    if not args.folder.is_dir():
        parser.error(f"{args.folder} is no folder; give the one that holds the students' folders.")
    if args.seconds < 1 or args.jobs < 1:
        parser.error(f"--seconds {args.seconds} --jobs {args.jobs}: both must be at least 1.")
    everything = sorted(path for path in args.folder.iterdir() if not path.name.startswith("."))
    students = [path for path in everything if path.is_dir() and not path.is_symlink()]
    if not students:
        parser.error(f"{args.folder} holds no sub-folder; each student needs one.")
    for path in everything:
        if path not in students:
            print(f"left out, no folder: {cell(path.name)}")
    try:
        if args.feedback:
            args.feedback.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--feedback {args.feedback}: {error.strerror}; give another name.")
    try:
        file = open(args.csv, "x", newline="", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        parser.error(f"--csv {args.csv}: {error.strerror}; give another name.")
    with file, ThreadPoolExecutor(args.jobs) as pool:
        table = csv.writer(file)
        table.writerow(["student", *(f"{name[:4]} (of {len(TOTAL[name])})" for name in EXERCISES),
                        "done (of 10)", f"marks (of {sum(map(len, TOTAL.values()))})", "notes"])
        waiting = [[pool.submit(mark, student, name, args.seconds) for name in EXERCISES]
                   for student in students]
        for student, futures in zip(tqdm(students, unit="student"), waiting):
            results = [future.result() for future in futures]
            table.writerow(row_of(student.name, results))
            file.flush()  # nothing is lost where the rest is never marked
            if args.feedback:
                text = "\n".join(f"==== {name}: {marks or 0} of {len(TOTAL[name])} {note}\n{said}"
                                 for name, (marks, note, said) in zip(EXERCISES, results))
                (args.feedback / f"{student.name}.txt").write_text(text, "utf-8", "replace")
    print(f"{len(students)} students: {args.csv}")


if __name__ == "__main__":
    main()
