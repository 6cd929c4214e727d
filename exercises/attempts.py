"""Attempts: where to find an answer, what it may import, and with what arguments it was called.

`from grpo import group_advantages` is not an answer to exercise 1. So an attempt may import
libraries, other attempts, and from this project only what its stub imports (`allowed`). It may also
import files that its author keeps beside it. They are part of the answer, so they obey its rules.
"""
import ast
import dis
import importlib.util
import inspect
import sys
from pathlib import Path

from expected import Wrong, shown

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
EXERCISES = sorted(path.stem[len("test_"):] for path in HERE.glob("test_ex[0-9][0-9]_*.py"))
# Of this folder by name: a reader may keep files of their own in it.
MACHINERY = {"attempts", "conftest", "expected", "leaderboard", "mark", "solutions", "exercises"}
# Folders with Python files. ROOT is on sys.path, so `from results.arms import ...` would work.
FOLDERS = {path.parent.name for path in ROOT.glob("*/*.py")} - {"engine"}
OURS = {"engine", "toy"} | FOLDERS | MACHINERY | {
    f"test_{exercise}" for exercise in EXERCISES} | {
    path.stem for folder in (ROOT, ROOT / "engine") for path in folder.glob("*.py")}
# A function of tensors needs none of these. This list does not stop an attacker: see TEACHING.md.
SYSTEM = {"builtins", "ctypes", "glob", "http", "importlib", "io", "multiprocessing", "os",
          "pathlib", "posix", "pty", "runpy", "shutil", "signal", "socket", "subprocess",
          "tempfile", "threading", "urllib"}
CALLS = {"__import__", "compile", "eval", "exec", "open", "input", "breakpoint"}
SIZE = 200_000  # characters of an answer
# Exercise 9's function as it is handed out, the only one that does something already.
BUGGY = """
def score(model, prompts, completions, pad_id):
    P, T = max(map(len, prompts)), max(map(len, completions))
    ids = torch.tensor([[pad_id] * (P - len(p)) + p + c + [pad_id] * (T - len(c))
                        for p, c in zip(prompts, completions)])
    attention_mask = (ids != pad_id).long()
    logits = model(ids, attention_mask=attention_mask).logits[:, P - 1:-1]
    completion_ids = ids[:, P:]
    logprobs = logits.log_softmax(-1).gather(2, completion_ids[:, :, None])[:, :, 0]
    mask = completion_ids != pad_id
    return logprobs, mask, logprobs.mean(1)
"""


def allowed(exercise):
    """The project's modules that this exercise's answer may import: those of its stub.

    They are written here. A file that is read for them may be an answer by now, and then whatever
    the answer imports would be allowed.
    """
    if exercise.startswith("ex10"):  # a method may use the whole project
        return OURS - MACHINERY
    return {"toy"} if exercise.startswith("ex05") else set()


def imported(tree):
    """Top-level names of the modules that a file imports anywhere in it. A relative import can only
    reach the other files of its own package, and `helpers` finds those."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.split(".")[0])
    return names


READS = {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}  # of no local variable


def builtins_used(code, bound=None):
    """(line, name) of each use in this code of CALLS that means Python's own function.

    A variable of the answer may be called `input`. Which name is whose, the compiler knows: we read
    what it made of the file, and run nothing. bound: names that the file binds outside of functions
    and classes, None for the file itself.
    """
    found, own = [], set(bound or ())
    line, starts = code.co_firstlineno, dict(dis.findlinestarts(code))
    for step in dis.get_instructions(code):
        line = starts.get(step.offset) or line
        if step.opname == "STORE_NAME":
            own.add(step.argval)
        elif step.opname in READS and step.argval in CALLS - own:
            found.append((line, step.argval))
    for part in code.co_consts:
        if inspect.iscode(part):  # a function or class inside
            found += builtins_used(part, own if bound is None else bound)
    return sorted(found)


def refusal(exercise, source, theirs=frozenset()):
    """Why this text is not accepted, in a sentence, or None.

    theirs: names of the project's folders that mean a file of the author here (`renamed`).
    """
    tree = ast.parse(source)
    names = imported(tree)
    yourself = "The exercise is to write the function yourself."
    for name in sorted(names & (OURS - allowed(exercise) - theirs)):
        return f"It imports {name}, which is the project's own code.\n{yourself}"
    for name in sorted(names & {EXERCISES[-1]} - {exercise}):
        return f"It imports {name}, which may use the project's own code.\n{yourself}"
    for name in sorted(names & SYSTEM):
        return f"It imports {name}, and an answer needs nothing of the system: take the line out."
    for line, name in builtins_used(compile(tree, "answer", "exec", dont_inherit=True)):
        return f"Line {line} uses {name}, and an answer needs none of it."
    return None


def is_stub(exercise, source):
    """Is this text the exercise as it is handed out? Only the text is asked, no other file.

    A stub has imports and then its function, which only raises NotImplementedError (exercise 9's is
    BUGGY). Docstrings and comments do not count, nor does what runs only as a script. A text with
    anything else in it is somebody's attempt, and so is one that cannot be parsed.
    """
    if len(source) > 10_000:  # four times the longest one; the parser never sees more
        return False
    try:
        return holds_stub(exercise, ast.parse(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def holds_stub(exercise, tree):
    """is_stub, of the parsed text."""
    body = [node for node in tree.body if not remark(node)]
    if not body or not isinstance(body[-1], ast.FunctionDef):
        return False
    *before, function = body
    function.body = [node for node in function.body if not remark(node)]
    if not all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in before):
        return False
    if exercise.startswith("ex09"):
        return ast.dump(function) == ast.dump(ast.parse(BUGGY).body[0])
    plain = function.name == exercise[len("ex01_"):] and not function.decorator_list
    return plain and [ast.unparse(node).partition("(")[0] for node in function.body] == [
        "raise NotImplementedError"]


def remark(node):
    """Does this statement do nothing when the file is imported: a text, or `if __name__ == ...`?"""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "__name__ == '__main__'" and not node.orelse
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def source_of(path):
    """The text of a file of at most SIZE characters, its lines ended in one way."""
    with open(path, encoding="utf-8-sig") as file:  # some editors begin a file with U+FEFF
        text = file.read(SIZE + 1)
    if len(text) > SIZE:
        raise ValueError(f"it is longer than {SIZE} characters.")
    return text.rstrip()  # not at the beginning: messages count lines


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


class Answers:
    """Imports of one answer by another, always from the folder that is marked.

    Without this, Python would take the file of this folder, which is a stub or somebody else's.
    """

    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, path=None, target=None):
        """Called by `import`; None leaves the name to Python."""
        return spec(name, self.folder) if name in EXERCISES else None


def renamed(folder):
    """The project's folders whose name an author's file has: Python imports the file, data.py,
    because data/ has no __init__.py."""
    return {name for name in FOLDERS if (folder / f"{name}.py").is_file()}


def helpers(name, folder):
    """The files that `import name` may run and that are the author's: those beside the answer.

    Python itself is asked, so a torch.py there is none of them as long as torch is installed.
    """
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # ValueError: a module that was made without a file
        return []
    if found is None:
        return []
    places = map(Path, found.submodule_search_locations or [found.origin or ""])
    own = [place for place in places if place.parent.resolve() in (folder, HERE)]
    return [file for place in own for file in [place, *place.rglob("*.py")] if file.is_file()]


def check(exercise, path, folder, seen):
    """Raise Wrong if this file, or a file of its author that it imports, is not accepted.

    seen: the files that are checked already.
    """
    seen.add(path)
    theirs = renamed(folder)
    try:
        source = source_of(path)
        reason = refusal(exercise, source, theirs)
        names = imported(ast.parse(source)) - (OURS - theirs) - set(EXERCISES)
    except SyntaxError as error:
        said = f"{path.name} is no Python: {error.msg}"
        if error.lineno:
            said += f", line {error.lineno}:\n    {(error.text or '').strip()[:80]}"
        raise Wrong(said) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise Wrong(f"{path.name} is no Python that can be read: {error}") from None
    if reason:
        raise Wrong(f"{path.name} is no answer.\n{reason}")
    for file in [file for name in sorted(names) for file in helpers(name, folder)]:
        if file not in seen:
            check(exercise, file, folder, seen)


def spec(exercise, folder):
    """How to import this exercise's file, once it is seen to be acceptable; Wrong if it is not."""
    path = folder / f"{exercise}.py"
    if not path.is_file():
        raise Wrong(f"{path} is not there.")
    check(exercise, path, folder, set())
    return importlib.util.spec_from_file_location(exercise, path)


def load(exercise, folder=HERE):
    """The function of exNN_name.py in this folder, as Recorded; Wrong where there is none."""
    folder, name = Path(folder).resolve(), exercise[len("ex01_"):]
    for place in (str(folder), str(ROOT)):  # last, so that no file of a reader hides a library
        if place not in sys.path:
            sys.path.append(place)
    found = spec(exercise, folder)
    sys.meta_path.insert(0, Answers(folder))
    module = sys.modules[exercise] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise Wrong(f"{exercise}.py defines no function {name}.")
    return Recorded(function, Path(found.origin))
