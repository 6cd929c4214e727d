"""Load the functions to mark, and format a failed mark.

    python -m pytest exercises -k ex01            # your ex01_*.py in this folder
    python -m pytest exercises --solutions        # our own functions
    python -m pytest exercises --attempts=FOLDER  # the ex*.py of another folder, as mark.py does
"""
import os
import re
import sys
import textwrap
import traceback
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
os.environ["HF_HUB_OFFLINE"] = "1"
# Last, so that no file of a reader hides a library: pytest has put this folder first.
OURS = [str(HERE), str(HERE.parent)]
sys.path[:] = [place for place in sys.path if place != OURS[0]]
sys.path.extend(place for place in OURS if place not in sys.path)

import attempts  # noqa: E402
from expected import Wrong  # noqa: E402

PRINTED = 2000  # characters of what an attempt printed that are shown

stopped = {}  # exercise -> its first mark that failed
loaded = {}   # exercise -> Recorded, or why there is none
write_to = []  # the file of --write-marks


def pytest_addoption(parser):
    group = parser.getgroup("exercises")
    group.addoption("--solutions", action="store_true", help="mark the project's own functions")
    group.addoption("--attempts", metavar="FOLDER", default=str(HERE),
                    help="mark the ex*.py of this folder; write it with =, as --attempts=FOLDER")
    group.addoption("--all-marks", action="store_true",
                    help="do not stop an exercise at its first failed mark")
    group.addoption("--write-marks", metavar="FILE",
                    help="add a line to this file for each mark that passed, at once")


def check_name(keyword):
    """`-k ex1` would mark exercise 10, and `-k ex7` nothing."""
    names = [exercise[:4] for exercise in attempts.EXERCISES]
    for digits in re.findall(r"(?<![a-z])ex(\d+)", keyword.lower()):
        if f"ex{digits}" not in [*names, "ex0"]:
            two = f" Write two digits: ex0{digits}." if f"ex0{digits}" in names else ""
            raise pytest.UsageError(f"-k {keyword}: no exercise is called ex{digits}, they are "
                                    f"{names[0]} ... {names[-1]}.{two}")


def pytest_configure(config):
    check_name(config.option.keyword)
    if config.option.write_marks:
        write_to.append(Path(config.option.write_marks).resolve())
    # PyTorch warns about its own parts on import. The student cannot change that.
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning")
    config.addinivalue_line("filterwarnings", "ignore::FutureWarning")
    if config.option.reportchars == "fE":  # the default: the names of all that failed, once more
        config.option.reportchars = ""


def exercise_of(node):
    return node.path.stem.removeprefix("test_")


def load(exercise, config):
    """The attempt at this exercise, loaded once; raises what it raised the first time."""
    if exercise not in loaded:
        try:
            if config.option.solutions:
                import solutions  # here, because it imports the whole project
                function = getattr(solutions, exercise[len("ex01_"):])
                loaded[exercise] = attempts.Recorded(function, HERE / "solutions.py")
            else:
                loaded[exercise] = attempts.load(exercise, config.option.attempts)
        except (Exception, SystemExit) as error:
            loaded[exercise] = error
    if isinstance(loaded[exercise], BaseException):
        raise loaded[exercise]
    return loaded[exercise]


@pytest.fixture
def attempt(request):
    """test_ex01_group_advantages.py gets `group_advantages` of ex01_group_advantages.py."""
    exercise = exercise_of(request.node)
    if isinstance(loaded.get(exercise), attempts.Recorded):
        loaded[exercise].asked = ""

    def ask(*args, **kwargs):  # loaded here, so that a file that cannot be is a failed mark as well
        return load(exercise, request.config)(*args, **kwargs)
    return ask


def pytest_runtest_setup(item):
    exercise = exercise_of(item)
    nothing = isinstance(loaded.get(exercise), BaseException)  # every mark would say the same
    if exercise in stopped and (nothing or not item.config.option.all_marks):
        pytest.skip(f"after {stopped[exercise]}")


def own_lines(error, path):
    """The lines of the attempt that were running when it raised, innermost last."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)
              if Path(frame.filename).resolve() == path]
    return [f"{path.name}, line {frame.lineno}, in {frame.name}:\n    {frame.line}"
            for frame in frames[-3:]]


def message(exercise, error, config):
    """A failed mark's message about the answer, without the docstring."""
    recorded = loaded.get(exercise)
    asked = getattr(recorded, "asked", "")
    path = getattr(recorded, "path", Path(config.option.attempts).resolve() / f"{exercise}.py")
    lines = [f"asked     {asked}".replace("\n", "\n" + " " * 10)] if asked else []
    if isinstance(error, Wrong):
        return "\n".join([*lines, str(error)])
    if isinstance(error, NotImplementedError):
        return f"{path.name} has no answer yet: it raises NotImplementedError."
    where = own_lines(error, path)
    text = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, RecursionError):
        text = "RecursionError: the function calls itself without end."
    return "\n".join([*lines, *where, text])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failure reads: the sentence of the mark, what was asked, yours, what was expected."""
    report = (yield).get_result()
    if not report.failed or not hasattr(item, "function"):
        return
    exercise = exercise_of(item)
    stopped.setdefault(exercise, item.name)
    error = call.excinfo.value
    if isinstance(error, KeyboardInterrupt):
        return
    text = f"{message(exercise, error, item.config)}\n"
    if not isinstance(loaded.get(exercise), BaseException):
        sentence = " ".join((item.function.__doc__ or "").split())
        text = f"{textwrap.fill(sentence, 88)}\n\n{text}"
    report.longrepr = text
    report.sections = [(title, said if len(said) < PRINTED else f"{said[:PRINTED]}\n... and more")
                       for title, said in report.sections]


def pytest_runtest_logreport(report):
    """Write each mark at once: a later one may never return."""
    if write_to and report.when == "call" and report.passed:
        with open(write_to[0], "a", encoding="utf-8") as file:
            file.write(report.nodeid.split("::")[-1] + "\n")


def pytest_sessionfinish():
    if write_to:
        with open(write_to[0], "a", encoding="utf-8") as file:
            file.write("finished\n")


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    """One line per exercise, after pytest's own."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        asked = f": no exercise is called {config.option.keyword!r}" * bool(config.option.keyword)
        number, = re.findall(r"ex\d\d", " ".join(config.args))[:1] or ["ex01"]
        terminalreporter.write_line(f"Nothing was marked{asked}. The exercises are ex01 ... "
                                    f"ex10, as in: python -m pytest exercises -k {number}")
    marks = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            name = Path(report.nodeid.split("::")[0]).stem.removeprefix("test_")
            marks.setdefault(name, []).append(outcome == "passed")
    for name, passed in sorted(marks.items()):
        done = "done" if all(passed) else f"stopped at {stopped[name]}" if name in stopped else ""
        terminalreporter.write_line(f"{name:25} {sum(passed)} of {len(passed)} marks  {done}")
