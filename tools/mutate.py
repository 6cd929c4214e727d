"""Break the code on purpose, one small change at a time, and see a test fail: see CONTRIBUTING.md.

    python tools/mutate.py                   # every file of TESTS, all cores
    python tools/mutate.py --again           # what the last run did not kill
"""
import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from multiprocessing.pool import ThreadPool
from pathlib import Path

import libcst
from libcst.metadata import MetadataWrapper, WhitespaceInclusivePositionProvider
from mutmut.mutation import mutators

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "runs/mutants.jsonl"  # a line a mutant
# The tests that look at a file, the most relevant first. A new file goes here.
TESTS = {
    "intervals.py": "intervals edges evaluate",
    "rollout.py": "rollout models decode grpo",
    "evaluate.py": "flags evaluate train_loop edges bad_inputs",
    "grpo.py": "train_loop update flags grpo rollout controls runs",
    "logprobs.py": "logprobs grpo cores grail controls",
    "saliency.py": "cores grail oar",
    "grail.py": "flags grail cores controls bad_inputs",
    "oar.py": "flags oar cores controls",
    "delta.py": "flags delta cores controls",
    "scrl.py": "flags scrl controls bad_inputs",
    "vine.py": "vine",
    "controls.py": "controls oracle",
}
# No behaviour: the texts of errors, of these calls and of these arguments.
SAYS, WORDS = {"print", "say", "say_once", "tqdm"}, {"help", "description", "desc", "unit"}


def changes(node, text=False):
    """(node, its replacement) for every mutant under node; text: inside of a message."""
    called = getattr(node, "func", None)
    text = (text or isinstance(node, libcst.Raise)
            or getattr(getattr(called, "attr", called), "value", "") in SAYS
            or getattr(getattr(node, "keyword", None), "value", "") in WORDS)
    for kind, operator in mutators.mutation_operators:
        made = list(operator(node)) if isinstance(node, kind) else []
        if operator is mutators.operator_string:
            made = [] if text else made[:1]  # of three changes of a text, one
        elif operator is mutators.operator_arg_removal and made:
            made = [] if text else made[-len(node.args):]  # f(a) -> f(None); f(a, b) -> f(b), f(a)
            made = [new for new, arg in zip(made, node.args)
                    if getattr(arg.keyword, "value", "") not in WORDS]
        elif operator is mutators.operator_assignment:
            made = []  # x = 1 -> x = None fails at once, and would flatter the score
        yield from ((node, new) for new in made)
    for child in node.children:
        if not isinstance(child, libcst.Annotation):
            yield from changes(child, text)


def mutants(file):
    """Every mutant of a file: dicts of key (file, lines before, lines after), line and code."""
    source, found = (ROOT / file).read_text(), {}
    wrapper = MetadataWrapper(libcst.parse_module(source), unsafe_skip_copy=True)
    places = wrapper.resolve(WhitespaceInclusivePositionProvider)
    starts = [0, *itertools.accumulate(map(len, source.splitlines(True)))]
    for node, new in changes(wrapper.module):
        ends = places[node].start, places[node].end
        cut, end = (starts[at.line - 1] + at.column for at in ends)
        code = source[:cut] + wrapper.module.code_for_node(new) + source[end:]
        first, rest = source[:cut].count("\n"), source[end:].count("\n")
        before, after = (" ".join(map(str.strip, lines[first:len(lines) - rest]))
                         for lines in (source.split("\n"), code.split("\n")))
        with contextlib.suppress(SyntaxError):
            compile(code, file, "exec")
            found[code] = dict(key=(file, before, after), line=first + 1, code=code)
    found.pop(source, None)
    return list(found.values())


def tests(file, folder):
    """In a process of its own: the tests of this file, in the copy of the tree that lies there."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    os.chdir(f"{folder}/tree")
    options = ["-xq", "-p", "no:cacheprovider", f"--basetemp={folder}/tmp"]
    sys.exit(pytest.main([*options, *(f"tests/test_{name}.py" for name in TESTS[file].split())]))


def outcome(job):
    """A mutant's line of OUT: is it killed, or did it survive?"""
    file, skip = job["key"][0], shutil.ignore_patterns(".*", "runs")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        tree = shutil.copytree(ROOT, Path(folder, "tree"), ignore=skip)
        (tree / file).write_text(job["code"])
        child = multiprocessing.get_context("fork").Process(target=tests, args=(file, folder))
        child.start()
        child.join(300)  # seconds: tests that take more never end
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # those, and what others left running
        child.join()
    return dict(result="killed" if child.exitcode else "survived", line=job["line"], key=job["key"])


def chosen(args):
    """The mutants to try, in an order of their own, so that the first hundred are a fair sample."""
    done = {tuple(line.split("\t")[:3]) for line in (ROOT / "tools/equivalent.txt").open()}
    rows = list(map(json.loads, OUT.open())) if args.again else []
    done |= {(*row["key"], row["line"]) for row in rows if row["result"] == "killed"}
    jobs = [job for file in args.files for job in mutants(file)
            if not done & {job["key"], (*job["key"], job["line"])}]
    return random.Random(0).sample(jobs, min(len(jobs), args.sample or len(jobs)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("files", nargs="*", default=list(TESTS), help="of TESTS; default all")
    add("--sample", type=int, help="so many mutants, drawn with seed 0")
    add("--jobs", type=int, default=os.cpu_count(), help="processes")
    add("--again", action="store_true", help=f"only those that {OUT.name} does not call killed")
    args = parser.parse_args()
    jobs, tally = chosen(args), defaultdict(Counter)
    for file in args.files:
        if outcome(dict(key=[file], line=0, code=(ROOT / file).read_text()))["result"] == "killed":
            sys.exit(f"{file}: its tests fail on it as it is.")
    OUT.parent.mkdir(exist_ok=True)
    with OUT.open("a" if args.again else "w") as out, ThreadPool(args.jobs) as pool:
        for row in pool.imap_unordered(outcome, jobs):
            print(json.dumps(row), file=out, flush=True)
            tally[row["key"][0]][row["result"]] += 1
            if row["result"] == "survived":
                print("{}:{line}\n  - {}\n  + {}".format(*row["key"], **row), flush=True)
    for file, count in tally.items():
        print(f"{file:14}{count.total():5} mutants, {count['killed'] / count.total():.1%} killed")


if __name__ == "__main__":
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
                   "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    import pytest  # with the slow imports below: once, here, and not in every fork
    import torch._inductor.compile_fx  # noqa: F401
    from transformers import AutoTokenizer, Qwen3ForCausalLM  # noqa: F401
    main()
