"""The rooms: no import cycle, an engine that knows nothing of the lesson, no early compiler."""
import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "results"))
import tables

FILES = {path.stem: path for path in ROOT.glob("*.py")}
FILES |= {f"engine.{path.stem}": path for path in (ROOT / "engine").glob("*.py")}


def imports(path):
    """Names of the project's modules that this file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found & set(FILES)


GRAPH = {name: imports(path) for name, path in FILES.items()}


def test_no_file_imports_itself_by_a_detour():
    """A reader can start anywhere and follow the arrows down: taking away files that need nothing
    any more, again and again, leaves none."""
    left = dict(GRAPH)
    while left:
        done = {name for name, needs in left.items() if not needs & set(left)}
        assert done, f"a cycle among {sorted(left)}"
        left = {name: needs for name, needs in left.items() if name not in done}


def test_the_engine_imports_nothing_of_the_lesson():
    for name, needs in GRAPH.items():
        if name.startswith("engine."):
            assert all(other.startswith("engine.") for other in needs), (name, needs)


def test_the_engine_says_that_it_can_be_skipped():
    for path in (ROOT / "engine").glob("*.py"):
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert "first reading" in doc, path.name


def scripts():
    """The files that do something when they are called. Those of exercises/ex*.py only say how to
    mark them."""
    for folder in (ROOT, *(ROOT / name for name in (
            "examples", "docs", "data", "exercises", "results", "tools"))):
        for path in sorted(folder.glob("*.py")):
            exercise = path.name.removeprefix("test_").startswith("ex")
            if not exercise and '__name__ == "__main__"' in path.read_text(encoding="utf-8"):
                yield path


@pytest.mark.parametrize("path", list(scripts()), ids=lambda path: path.name)
def test_no_script_starts_to_work_on_help(path):
    """Each one reads its arguments; without a parser, --help or a typing error would start it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = {ast.unparse(node.func).rpartition(".")[2] for node in ast.walk(tree)
             if isinstance(node, ast.Call)}
    ours = {"parse"} if path.parent == ROOT else set()  # of engine/flags.py
    assert calls & {"parse_args", "parse_args_into_dataclasses"} | calls & ours


@pytest.mark.parametrize("argv, code", [(["--help"], 0), (["--nonsense"], 2), (["page.md"], 2)])
def test_the_tables_are_not_rewritten_on_help(argv, code, monkeypatch):
    monkeypatch.setattr(tables, "HERE", None)
    with pytest.raises(SystemExit) as stop:
        tables.main(argv)
    assert stop.value.code == code


@pytest.mark.slow
def test_no_command_waits_for_the_compiler_that_it_may_not_need():
    """torch._dynamo and Inductor take seconds to import; only --compile needs them."""
    code = ("import sys, grail; "
            "print([name for name in ('torch._dynamo', 'torch._inductor') if name in sys.modules])")
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert out.stdout == "[]\n", out.stdout + out.stderr
