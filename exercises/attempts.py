"""Attempts: where to find an answer, what it may import, and with what arguments it was called.

`from grpo import group_advantages` is not an answer to exercise 1. So an attempt may import
libraries, other attempts, and from this project only what its own stub imports.
"""
import ast
import importlib.util
import inspect
import sys
from pathlib import Path

from expected import Wrong, shown

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OURS = {"exercises", "tests", "examples", "engine"} | {
    path.stem for folder in (ROOT, HERE, ROOT / "engine") for path in folder.glob("*.py")}
# A function of tensors needs none of these. This list does not stop an attacker: see TEACHING.md.
SYSTEM = {"builtins", "ctypes", "importlib", "multiprocessing", "os", "posix", "pty", "runpy",
          "shutil", "signal", "socket", "subprocess", "threading", "urllib", "http"}
CALLS = {"__import__", "compile", "eval", "exec", "open", "input", "breakpoint"}
EXERCISES = sorted(path.stem for path in HERE.glob("ex[0-9][0-9]_*.py"))
SIZE = 200_000  # characters of an answer


def allowed(exercise):
    """The project's modules that this exercise's answer may import."""
    if exercise.startswith("ex10"):  # a method may use the whole project
        return OURS - {"solutions", "leaderboard", "mark", "conftest", "expected", "attempts"}
    return {name for name in imported(ast.parse((HERE / f"{exercise}.py").read_text("utf-8")))
            if name in OURS} | set(EXERCISES)


def imported(tree):
    """Top-level names of the modules that a file imports anywhere in it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or ".").split(".")[0])
    return names


def refusal(exercise, source):
    """Why this text is not accepted, in a sentence, or None."""
    tree = ast.parse(source)
    names = imported(tree)
    for name in sorted(names & (OURS - allowed(exercise))):
        return (f"It imports {name}, which is the project's own code.\n"
                "The exercise is to write the function yourself.")
    for name in sorted(names & SYSTEM):
        return f"It imports {name}, and an answer needs nothing of the system: take the line out."
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in CALLS:
            return f"Line {node.lineno} uses {node.id}, and an answer needs none of it."
    return None


def source_of(path):
    """The text of a file of at most SIZE characters, its lines ended in one way."""
    with open(path, encoding="utf-8") as file:
        text = file.read(SIZE + 1)
    if len(text) > SIZE:
        raise ValueError(f"it is longer than {SIZE} characters.")
    return text.strip()


class Recorded:
    """An attempt that remembers what it was last asked, as text: it may change it in place."""

    def __init__(self, function, path):
        self.function, self.path, self.asked = function, path, ""

    def __call__(self, *args, **kwargs):
        try:
            asked = inspect.signature(self.function).bind(*args, **kwargs).arguments
        except TypeError as error:
            raise Wrong(f"{self.function.__name__} must take the arguments that its stub takes: "
                        f"{error}.") from None
        self.asked = "\n".join(f"{name} = {shown(value, len(name) + 3)}"
                               for name, value in asked.items())
        return self.function(*args, **kwargs)


def load(exercise, folder=HERE):
    """The function of exNN_name.py in this folder, as Recorded; Wrong where there is none."""
    path, name = Path(folder).resolve() / f"{exercise}.py", exercise[len("ex01_"):]
    if not path.is_file():
        raise Wrong(f"{path} is not there.")
    try:
        reason = refusal(exercise, source_of(path))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise Wrong(f"{path.name} is no Python that can be read: {error}") from None
    if reason:
        raise Wrong(f"{path.name} is no answer.\n{reason}")
    for place in (str(folder), str(ROOT)):  # last, so that no file of a reader hides a library
        if place not in sys.path:
            sys.path.append(place)
    spec = importlib.util.spec_from_file_location(exercise, path)
    module = sys.modules[exercise] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise Wrong(f"{path.name} defines no function {name}.")
    return Recorded(function, path)
