"""Break the code on purpose, one small change at a time, and see a test fail: see CONTRIBUTING.md.

    python tools/mutate.py                                      # every file of TESTS, all cores
    python tools/mutate.py intervals.py --sample 40 --jobs 1
    python tools/mutate.py --again                              # what the last run did not kill
"""
import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import libcst
from libcst.metadata import MetadataWrapper, WhitespaceInclusivePositionProvider
from mutmut.mutation import mutators

ROOT = Path(__file__).resolve().parent.parent
EQUIVALENT = Path(__file__).with_name("equivalent.txt")  # file, before, after, why: tabs between

# The tests that look at a file, the most relevant first. A new file goes here.
TESTS = {
    "intervals.py": "evaluate",
    "rollout.py": "rollout decode grpo",
    "evaluate.py": "evaluate bad_inputs",
    "grpo.py": "update train_loop grpo controls runs",
    "logprobs.py": "grpo cores controls runs",
    "saliency.py": "grail oar cores",
    "grail.py": "grail cores controls bad_inputs",
    "oar.py": "oar cores controls",
    "delta.py": "delta cores controls",
    "scrl.py": "scrl controls bad_inputs",
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


class Fastest:
    """A pytest plugin: of each test file the fastest tests first, by the times in `path`."""
    def __init__(self, path):
        self.path, self.seconds = path, Counter()

    def pytest_collection_modifyitems(self, items):
        known = json.loads(self.path.read_text()) if self.path.exists() else {}
        files = list(dict.fromkeys(item.path for item in items))
        items.sort(key=lambda item: (files.index(item.path), known.get(item.nodeid, 0)))

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self, exitstatus):
        if not self.path.exists():
            self.path.write_text(json.dumps(self.seconds))


def start(job, copy, times):
    """Fork a child that runs the tests of one mutant in this copy of the tree: the child's id."""
    file = job["key"][0]
    (copy / file).write_text(job["code"])
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    os.chdir(copy)
    log = os.open(f"{copy}.log", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for descriptor in (0, 1, 2):
        os.dup2(log, descriptor)
    paths = [f"tests/test_{name}.py" for name in TESTS[file].split()]
    options = ["-xq", "-p", "no:cacheprovider", f"--basetemp={copy}.tmp"]
    os._exit(pytest.main([*options, *paths], plugins=[Fastest(times / file)]))


def outcomes(jobs, copies, limit):
    """(mutant, killed, slow or survived, seconds) of each job as it ends, one a copy at a time."""
    running, times = {}, copies[0].parent
    while jobs or running:
        while jobs and copies:
            job, copy = jobs.pop(), copies.pop()
            running[start(job, copy, times)] = job, copy, time.time()
        time.sleep(0.02)
        for pid, (job, copy, begun) in list(running.items()):
            seconds, file = time.time() - begun, job["key"][0]
            late = seconds > limit[file]
            if late:
                os.kill(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if ended:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # what its tests left running
                (copy / file).write_text((ROOT / file).read_text())
                copies.append(running.pop(pid)[1])
                yield job, "slow" if late else "killed" if status else "survived", seconds


def chosen(args):
    """The mutants to try, in an order of their own, so that the first hundred are a fair sample."""
    equal = {tuple(line.split("\t")[:3]) for line in EQUIVALENT.read_text().splitlines()}
    found = [job for file in args.files for job in mutants(file)]
    for key in sorted(equal - {job["key"] for job in found}):
        if key[0] in args.files:
            print("equivalent.txt lists what is no mutant any more:", *key, sep="\n    ")
    rows = list(map(json.loads, args.out.open())) if args.again else []
    last = {(*row["key"], row["line"]): row["result"] for row in rows}
    jobs = [job for job in found if job["key"] not in equal
            and last.get((*job["key"], job["line"]), "survived") == "survived"]
    random.Random(0).shuffle(jobs)
    return jobs[:args.sample]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("files", nargs="*", default=list(TESTS), help="of TESTS; default all")
    add("--sample", type=int, help="so many mutants, drawn with seed 0")
    add("--jobs", type=int, default=os.cpu_count(), help="processes")
    add("--again", action="store_true", help="only those that --out does not call killed")
    add("--out", type=Path, default=ROOT / "runs/mutants.jsonl", help="one line a mutant")
    args = parser.parse_args()
    jobs, tally, limit = chosen(args), defaultdict(Counter), dict.fromkeys(args.files, 600)
    args.out.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, args.out.open("a" if args.again else "w") as out:
        copies = [Path(folder, str(i)) for i in range(args.jobs)]
        for copy in copies:
            skip = shutil.ignore_patterns(".*", "runs", "__pycache__")
            shutil.copytree(ROOT, copy, ignore=skip)
        whole = [dict(key=(file,), code=(ROOT / file).read_text()) for file in args.files]
        for job, result, seconds in outcomes(whole, copies, limit):
            limit[job["key"][0]] = 10 + 4 * seconds
            if result != "survived":
                print(f"{job['key'][0]} is left out: its tests fail on it as it is.", flush=True)
                jobs = [other for other in jobs if other["key"][0] != job["key"][0]]
        for job, result, seconds in outcomes(jobs, copies, limit):
            row = dict(result=result, line=job["line"], seconds=round(seconds, 1), key=job["key"])
            print(json.dumps(row), file=out, flush=True)
            tally[job["key"][0]][result] += 1
            if result == "survived":
                print("{}:{line}\n  - {}\n  + {}".format(*job["key"], **job), flush=True)
    for file, count in tally.items():
        share = 1 - count["survived"] / count.total()
        lived = count["survived"]
        print(f"{file:14}{count.total():5} mutants, {lived} survived: {share:.1%} killed")


if __name__ == "__main__":
    # Two mutants of one second and one size would share their byte code: none is written.
    sys.dont_write_bytecode = True
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
                   "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    import pytest  # with the slow imports below: once, here, and not in every fork
    import sympy  # noqa: F401
    import torch._inductor.compile_fx  # noqa: F401
    from transformers import AutoTokenizer, Qwen3ForCausalLM  # noqa: F401
    main()
