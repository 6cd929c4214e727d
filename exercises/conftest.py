"""Whose function a marking test examines: the reader's file, or with EXERCISES=solutions ours."""
import importlib
import os
import sys
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


@pytest.fixture
def attempt(request):
    """test_ex01_group_advantages.py gets `group_advantages` of ex01_group_advantages.py."""
    whose = os.environ.get("EXERCISES", "stubs")
    if whose not in ("stubs", "solutions"):
        raise pytest.UsageError(f"EXERCISES={whose}: must be stubs or solutions.")
    exercise = request.module.__name__.removeprefix("test_")
    module = importlib.import_module("solutions" if whose == "solutions" else exercise)
    return getattr(module, exercise[len("ex01_"):])


def pytest_configure(config):
    if config.option.tbstyle == "auto":
        config.option.tbstyle = "short"  # fifty stubs, a screen each, would bury the summary


def pytest_terminal_summary(terminalreporter):
    """One line an exercise, after pytest's own."""
    marks = {}
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            name = Path(report.nodeid.split("::")[0]).stem.removeprefix("test_")
            marks.setdefault(name, []).append(outcome == "passed")
    for name, passed in sorted(marks.items()):
        done = "done" if all(passed) else ""
        terminalreporter.write_line(f"{name:28} {sum(passed)} of {len(passed)} marks  {done}")
