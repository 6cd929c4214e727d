"""Does a long run leak memory? Watch `python grail.py` for 2,000 steps from outside.

    python examples/soak.py --out results/soak_2000_steps.jsonl          # half an hour, Linux

Runs it as a user would, with a checkpoint every 50 steps. Reads its resident memory
and its open files from /proc ten times a second. Every 50 steps it writes one line: step, rss_mb
(median of these steps), rss_mb_max, open_files (most), seconds_per_step (median), and
seconds_per_thousand_tokens, because longer completions take longer. At the end, it judges:

    memory   the last quarter's median is at most 2 % above the second's (the first is warm-up)
    files    no more are open in the last quarter than in the second
    speed    the last quarter's seconds per step are at most 10 % above the second's
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from engine.errors import BadInput, run_cli
from engine.files import check_out

METHODS = ["grpo", "grail", "oar", "delta", "scrl", "vine"]


def observe(pid):
    """(resident megabytes, open files) of a process, or None when it has just ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, files
    except (OSError, IndexError):
        return None


def watch(command, metrics, every, out):
    """Run the command to its end. Each `every` lines of its metrics make a row, also in `out`."""
    rows, seen, done = [], [], 0
    with open(out, "w", encoding="utf-8") as file, subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while True:
            ended = process.poll() is not None
            found = None if ended else observe(process.pid)
            lines = metrics.read_text().splitlines() if metrics.exists() and (
                ended or metrics.stat().st_size != done) else []
            done = metrics.stat().st_size if lines else done
            # Before the first step the run loads. We watch only its loop.
            seen += [found] if found and (rows or done) else []
            while len(lines) >= every * (len(rows) + 1):
                steps = [json.loads(line) for line in lines[every * len(rows):][:every]]
                tokens = [step["tokens_per_second"] for step in steps]
                memory, files = zip(*(seen or [(float("nan"), 0)]))
                rows.append({
                    "step": steps[-1]["step"], "rss_mb": round(statistics.median(memory), 1),
                    "rss_mb_max": round(max(memory), 1), "open_files": max(files),
                    "seconds_per_step": round(statistics.median(s["seconds"] for s in steps), 4),
                    "seconds_per_thousand_tokens": round(1000 / statistics.median(tokens), 4),
                    "reward": round(statistics.mean(s["reward"] for s in steps), 3)})
                seen = seen[-1:]
                file.write(json.dumps(rows[-1]) + "\n")
                file.flush()
                print(rows[-1], flush=True)
            if ended:
                return rows, process.returncode
            time.sleep(0.1)


def verdict(rows):
    """{what: (second quarter, last quarter, whether it passed)} of four rows or more."""
    quarter = len(rows) // 4
    second, last = rows[quarter:2 * quarter], rows[-quarter:]

    def medians(column):
        return [statistics.median(row[column] for row in part) for part in (second, last)]

    memory, speed = medians("rss_mb"), medians("seconds_per_step")
    files = [max(row["open_files"] for row in part) for part in (second, last)]
    return {"memory": (*memory, memory[1] <= 1.02 * memory[0]),
            "files": (*files, files[1] <= files[0]),
            "speed": (*speed, speed[1] <= 1.1 * speed[0])}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=50, help="steps that a line sums up")
    parser.add_argument("--method", default="grail", choices=METHODS, help="the script to run")
    parser.add_argument("--name", default="runs/soak", help="a new folder for the run")
    parser.add_argument("--out", default="soak.jsonl", help="file of figures")
    args = parser.parse_args(argv)
    name = Path(args.name).absolute()
    if name.exists():
        raise BadInput(f"--name {args.name}: it is there; name a new folder.")
    if args.every < 1:
        raise BadInput(f"--every {args.every}: must be at least 1.")
    if args.steps < 4 * args.every:
        raise BadInput(f"--steps {args.steps}: must be at least 4 times --every {args.every}.")
    check_out(args.out)
    began = time.time()
    rows, code = watch(
        [sys.executable, str(ROOT / f"{args.method}.py"), "--steps", str(args.steps),
         "--save-every", str(args.every), "--eval-problems", "0", "--name", str(name)],
        name / "metrics.jsonl", args.every, args.out)
    if code or len(rows) < 4:
        sys.exit(f"{args.method}.py ended with code {code} after {len(rows) * args.every} steps")
    found = verdict(rows)
    found |= {"steps": rows[-1]["step"], "minutes": round((time.time() - began) / 60)}
    with open(args.out, "a", encoding="utf-8") as file:
        file.write(json.dumps({"verdict": found}) + "\n")
    for what in ("memory", "files", "speed"):
        second, last, passed = found[what]
        print(f"{what:7} second quarter {second:g}, last {last:g}: {'flat' if passed else 'GROWS'}")
    sys.exit(not all(found[what][2] for what in ("memory", "files", "speed")))


if __name__ == "__main__":
    run_cli(main)
