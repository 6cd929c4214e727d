"""The rooms: no import cycle, an engine that knows nothing of the lesson, no early compiler."""
import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
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


@pytest.mark.slow
def test_no_command_waits_for_the_compiler_that_it_may_not_need():
    """torch._dynamo and Inductor take seconds to import; only --compile needs them."""
    code = ("import sys, grail; "
            "print([name for name in ('torch._dynamo', 'torch._inductor') if name in sys.modules])")
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert out.stdout == "[]\n", out.stdout + out.stderr
