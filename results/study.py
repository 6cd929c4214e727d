r"""The study: does token-level credit help, under controls, at a size that anyone can repeat?

    python results/study.py --quick --out mine.jsonl    # 2 methods x 3 seeds, a quarter of an hour
    python results/study.py --plan                # the whole grid: what is missing, and how long
    python results/study.py                       # runs what is missing, two cells at a time
    python results/study.py --device cuda --jobs 8 --out results/study_card.jsonl
    python results/study.py --grid long --device cuda --jobs 16    # long chains, with an oracle
    python results/study.py --grid real --device cuda --jobs 4 --model FOLDER --data TRAIN.jsonl \
        --test TEST.jsonl --also="--max-new-tokens 512"
    python results/study.py --grid gsm8k --phases start,sweep --arms grpo --device cuda --jobs 3 \
        --model FOLDER --data gsm8k_train.jsonl --test gsm8k_test.jsonl
    python results/tables.py                      # tables and figures, from the lines alone

A cell is one command, `python grail.py --seed 3 --lr 0.0002 ...`, run in a worker process, plus the
evaluation of its snapshots. It becomes one line of results/study_GRID.jsonl, complete or not at
all. A finished cell does not run again. The lines of our own cells come with the project, so with
those files nothing is left to run: name another --out to run the cells again. Stop and start as you
like: the worker ends its step, and a cell with a checkpoint continues from it. If a worker is
killed, its cell is lost, and the same command runs it again. Three phases:

    start     the untrained model on the held-out problems
    sweep     each arm at each learning rate, seeds 100, 101, 102, or 100 alone; scored on
              validation problems (the last of the training file, on which no run trains): at the
              end, or, on long chains and GSM8K, along the curve
    final     each arm at its best rate, seeds 0, 1, ...; scored along the curve and at the end

Some arms take the rate of another sweep: ablations use GRAIL's, and on a real model all arms use
GRPO's, but in the grid gsm8k-rates. --plan trains and writes nothing. Until a first cell has been
timed, it says that the time is unknown. Cells train in a folder of runs/study/ that belongs to this
--out, its settings and its data, so two studies of one grid share nothing.

What we left out, on purpose: the best point of a curve, sweeps of anything but the learning rate, a
scheduler for several machines (--arms and --seeds cut the grid; JSONL lines can be joined).
"""
import argparse
import functools
import json
import math
import os
import shlex
import shutil
import sys
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from statistics import fmean

os.environ["OMP_NUM_THREADS"] = "1"  # workers inherit it; another number changes the rounding
os.environ["TQDM_DISABLE"] = "1"
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
import tables
import torch
from arms import ABLATIONS, ARMS
from cells import families_of, scores
from cells import read as read_cells
from pool import run_all

import evaluate
import problems
from engine.checkpoints import find, fingerprint, short_sha
from engine.errors import BadInput, run_cli
from engine.files import append, hold, lock, release, write
from engine.flags import check, flags, parse
from models import check_device

# Two models can have the same name, so a line holds these hashes as well. Older lines lack them,
# and are accepted.
NEWER = ("weights_sha256", "prompt_sha256")

# ------------------------------------------------------------------------------ the grids

FEW, SWEEP_SEEDS = 4, (100, 101, 102)  # samples per problem before the end; sweep-only seeds

# In the embedded grid these arms run only with --arms.
LATER = ("correct-level", "grail-boost-all", "grpo-release-recipe", "grail-release-recipe",
         "oracle", "entropy", "vine")
LONG = ["grpo", "oracle", "vine", "grail", "grail-released", "grail-correct", "oar-g", "oar-p",
        "delta", "scrl", "shuffled", "level", "entropy"]

# rate_of: the arm whose sweep gives the rate, if not its own. chosen_by: the sweep's measure, the
# accuracy at the end ("sampled") or the mean of the curve. sweep_seeds: how many of SWEEP_SEEDS the
# sweep has, if not all. own_files: the model and the problems are the user's.
GRIDS = {
    "embedded": dict(arms=[arm for arm in [*ARMS, *ABLATIONS] if arm not in LATER], seeds=10,
                     rates=[5e-5, 1e-4, 2e-4, 4e-4], steps=40, every=10, validation=500,
                     curve=250, final=1000, samples=8, save_every=0,
                     rate_of=dict.fromkeys(ABLATIONS, "grail")),
    "quick": dict(arms=["grpo", "grail"], seeds=3, rates=[2e-4], steps=40, every=10, validation=500,
                  curve=200, final=500, samples=4, save_every=0, rate_of={}),
    "long": dict(arms=LONG, seeds=20, rates=[2.5e-5, 5e-5, 1e-4], steps=80, every=10,
                 validation=500, curve=250, final=1000, samples=4, save_every=0, rate_of={},
                 chosen_by="curve", model="tiny-long", data="arithmetic-long"),
    "real": dict(arms=["grpo", "grail", "shuffled"], seeds=3, rates=[1e-6, 3e-6, 1e-5], steps=40,
                 every=20, validation=200, curve=200, final=None, samples=4,
                 save_every=10, rate_of=dict.fromkeys([*ARMS, *ABLATIONS], "grpo"),
                 own_files=True),
    # All arms take GRPO's rate, because a sweep for each would be 54 cells and take about twice as
    # long as all the rest. A file holds cells of one kind of card and one batch size.
    "gsm8k": dict(arms=["grpo", "grail", "oar-g", "delta", "shuffled", "vine"], seeds=5,
                  seeds_of={"vine": 3}, rates=[1e-6, 3e-6, 5e-6], steps=200, every=50,
                  validation=500, curve=500, final=500, samples=4, save_every=0,
                  rate_of=dict.fromkeys([*ARMS, *ABLATIONS], "grpo"), chosen_by="curve",
                  also="--prompts 8 --group 8 --max-new-tokens 512",
                  flags_of={"vine": "--continuations 4 --cut newline"}, one_card=True,
                  own_files=True),
}
# The same study, with each arm at its own rate. vine would take three runs of 22 minutes on a card.
GRIDS["gsm8k-rates"] = {**GRIDS["gsm8k"], "arms": ["grpo", "grail", "oar-g", "delta", "shuffled"],
                        "rates": [5e-7, 1e-6, 3e-6], "rate_of": {}, "sweep_seeds": 1}


def chosen_by(setup):
    """The measure by which the sweep chooses a rate."""
    return setup.get("chosen_by", "sampled")


def sweep_seeds(setup):
    """The seeds of the sweep."""
    return SWEEP_SEEDS[:setup.get("sweep_seeds", len(SWEEP_SEEDS))]


def arguments(cell, setup):
    """The command line of a cell, without --name: a list."""
    every = setup["every"]
    if cell["phase"] == "sweep" and chosen_by(setup) == "sampled":
        every = 0  # only the end is evaluated
    argv = ["--model", setup["model"], "--data", setup["train"], "--device", setup["device"],
            "--steps", setup["steps"], "--snapshot-every", every,
            "--save-every", setup["save_every"], "--eval-problems", 0, "--seed", cell["seed"],
            "--lr", cell["rate"]]
    own = setup.get("flags_of", {}).get(cell["arm"], "")
    return [*map(str, argv), *shlex.split((ARMS | ABLATIONS)[cell["arm"]][1]),
            *shlex.split(own), *shlex.split(setup["also"])]


def card(device):
    """The device of this worker. With plain cuda, workers take turns on the visible cards."""
    if device != "cuda" or torch.cuda.device_count() < 2:
        return device
    return f"cuda:{int(os.environ.get('WORKER', 0)) % torch.cuda.device_count()}"


def train(cell, setup, *more):
    """Run the cell's script on its command line, in this process."""
    script, _, *credit = (ARMS | ABLATIONS)[cell["arm"]]
    script.main([*arguments(cell, setup), "--device", card(setup["device"]), *map(str, more)],
                *credit)


# ------------------------------------------------------------------------------ one cell


def folder_of(cell, setup):
    return Path(setup["work"]) / "{phase}-{arm}-{rate}-{seed}".format(**cell)


def score(model, tokenizer, rows, step, samples, seed, config, temperature=1.0):
    """One point (dict): for each problem a digit, how many of its samples were right; and the
    mean length of the samples and the share that was cut off."""
    found = evaluate.evaluate(
        model, tokenizer, rows, samples=samples, seed=seed, temperature=temperature, quiet=True,
        max_new_tokens=config.max_new_tokens, thinking=config.thinking,
        batch_size=256 if model.device.type == "cpu" else 512)
    digits = {name: "".join(str(round(x * samples)) for x in found["per_problem"][column])
              for name, column in (("right", "accuracy"), ("lenient", "lenient"))}
    return {"step": step, "samples": samples, **digits, "length": round(found["mean_length"], 2),
            "truncated": round(found["truncated"], 4)}


def train_on(cell, setup):
    """Train the cell, from its checkpoint if there is one. Returns the metrics (dicts) of all steps
    and the seconds of those that an earlier call trained."""
    folder, goes_on, first = folder_of(cell, setup), [], 0
    if folder.exists():
        hold(folder)
        try:
            manifest = find(str(folder)) / "manifest.json"
            first, goes_on = json.loads(manifest.read_text())["step"], ["--resume", folder]
        except BadInput:  # no complete checkpoint, so start again
            release(folder)
            shutil.rmtree(folder, ignore_errors=True)
    train(cell, setup, "--name", folder, *goes_on)
    metrics = [json.loads(text) for text in (folder / "metrics.jsonl").open()]
    return metrics, sum(one["seconds"] for one in metrics if one["step"] <= first)


def run_cell(cell, setup):
    """Train and evaluate; returns the line (dict). What the scripts print goes to FOLDER.log.
    Raises BadInput if a worker of a killed call is still finishing its step in this cell."""
    folder, began = folder_of(cell, setup), time.time()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.log", "a") as log, redirect_stdout(log), redirect_stderr(log):
        script = (ARMS | ABLATIONS)[cell["arm"]][0]
        config = parse(flags("grpo", ""), shlex.split(setup["also"]) + ["--model", setup["model"]])
        line = {"cell": cell, "settings": setup["settings"]}
        if cell["phase"] == "start":
            at_end, tokenizer = problems.load_policy(setup["model"], card(setup["device"]))
            snapshots, sampled, step, earlier = [], [], 0, 0
        else:
            metrics, earlier = train_on(cell, setup)
            at_end, tokenizer = problems.load_policy(folder / "checkpoint", card(setup["device"]))
            snapshots, step = sorted(folder.glob("snapshots/step_*")), metrics[-1]["step"]
            shown = arguments(cell, {**setup, "model": Path(setup["model"]).name,
                                     "train": Path(setup["train"]).name})
            line["command"] = shlex.join(["python", f"{script.__name__}.py", *shown])
            line["reward"] = [round(one["reward"], 4) for one in metrics]
            # Continuations count, too, so a method that samples more has more tokens here.
            sampled = [one["length"] * config.prompts * config.group + one.get("value_tokens", 0)
                       for one in metrics]
            for k in ("weight_mean", "clipped"):
                line[k] = round(sum(one[k] for one in metrics) / len(metrics), 5)
        trained, ask = time.time(), functools.partial(score, tokenizer=tokenizer, config=config)
        held_out = problems.load_problems(setup["test"], "test")[:setup["final"]]
        rows, samples, seed = held_out, setup["samples"], cell["seed"]
        if cell["phase"] == "sweep":
            rows, samples, seed = problems.load_problems(setup["validation_rows"]), FEW, 0
        line["curve"] = []
        for path in snapshots:
            if (at := int(path.name[5:])) < step:
                body = type(at_end).from_pretrained(path).to(at_end.device).eval()
                line["curve"].append(ask(body, step=at, seed=seed, rows=rows[:setup["curve"]],
                                         samples=FEW))
        line["final"] = ask(at_end, rows=rows, step=step, samples=samples, seed=seed)
        if cell["phase"] != "sweep":
            line["greedy"] = ask(at_end, rows=rows, step=step, samples=1, seed=seed,
                                 temperature=0.0)
        described = evaluate.describe(at_end, held_out)
    line |= {"weights_sha256": described["weights_sha256"], "made_on": described["made_on"],
             "tokens": round(sum(sampled)), "tokens_by_step": [round(n) for n in sampled],
             "seconds": {"train": round(earlier + trained - began, 1),
                         "evaluate": round(time.time() - trained, 1)}}
    line["made_on"]["load"] = round(os.getloadavg()[0], 1)
    return line


# ------------------------------------------------------------------------------ the grid


@functools.lru_cache(maxsize=None)
def share_right(digits, samples):
    """Mean accuracy of a point. digits: for each problem, how many of its samples were right."""
    return sum(map(int, digits)) / (samples * len(digits))


def validation(line, setup):
    """What the sweep chooses by: accuracy at the end, or its mean along the curve."""
    points = [line["final"]]
    if chosen_by(setup) == "curve":
        points += line["curve"]
    shared = min(len(point["right"]) for point in points)
    return sum(share_right(p["right"][:shared], p["samples"]) for p in points) / len(points)


def best_rates(setup, lines):
    """{arm: the rate with the highest mean on validation problems, the lower one of a tie; None
    where the sweep is not done}. A rate may have more seeds than asked for: all of them count."""
    rates, found = sorted(setup["rates"]), {}
    if len(rates) == 1:
        return dict.fromkeys(setup["arms"], rates[0])
    for line in lines:
        cell = line["cell"]
        if cell["phase"] == "sweep":
            by_rate = found.setdefault(cell["arm"], {})
            by_rate.setdefault(cell["rate"], {})[cell["seed"]] = validation(line, setup)

    chosen = dict.fromkeys(setup["arms"])
    for arm in chosen:
        by_rate = found.get(setup["rate_of"].get(arm, arm), {})
        if all(set(sweep_seeds(setup)) <= set(by_rate.get(rate, {})) for rate in rates):
            chosen[arm] = max(rates, key=lambda rate: fmean(by_rate[rate].values()))
    return chosen


def refuse_two_rates(best, setup, lines):
    """Raise BadInput if an arm has final cells at another rate than in `best` {arm: rate}. Where
    that rate is None, every rate of the sweep is accepted."""
    for cell in (line["cell"] for line in lines if line["cell"]["phase"] == "final"):
        chosen = best.get(cell["arm"], cell["rate"])  # an arm that is not asked for stays
        rates = setup["rates"] if chosen is None else [chosen]
        if cell["rate"] not in rates:
            raise BadInput(f"--out: its final cells of {cell['arm']} have lr {cell['rate']:g}, and "
                           f"now it would be {' or '.join(f'{rate:g}' for rate in rates)}; take "
                           "another --out, or the earlier --rates.")


def cells_of(phase, setup, lines):
    """The cells of a phase that have no line yet. Seeds are the outer loop, so that in a stopped
    grid all arms have about as many seeds."""
    arms, first = setup["arms"], setup["first_seed"]
    seeds = range(first, first + setup["seeds"])
    if phase == "start":
        cells = [("grpo", 0, 0)]
    elif phase == "sweep":
        swept = dict.fromkeys(setup["rate_of"].get(arm, arm) for arm in arms)
        rates = setup["rates"] if len(setup["rates"]) > 1 else []
        cells = [(arm, rate, seed) for seed in sweep_seeds(setup)
                 for rate in rates for arm in swept]
    else:
        best = best_rates(setup, lines)
        refuse_two_rates(best, setup, lines)
        fewer = setup.get("seeds_of", {})
        cells = [(arm, best[arm], seed) for seed in seeds for arm in arms
                 if seed - first < fewer.get(arm, setup["seeds"])]
    there = {tuple(line["cell"][k] for k in ("phase", "arm", "rate", "seed")) for line in lines}
    return [dict(phase=phase, arm=arm, rate=rate, seed=seed) for arm, rate, seed in cells
            if (phase, arm, rate, seed) not in there]


def seconds_of(cells, setup, lines):
    """The seconds that these cells take together, estimated from the mean of the measured cells:
    those of the same arm if there are any, else all. NaN if none was measured yet."""
    measured = [line for line in lines if line["cell"]["phase"] != "start"]
    if not measured:
        return math.nan
    few = FEW * setup["curve"] * ((setup["steps"] - 1) // setup["every"])  # samples drawn
    whole = setup["held_out"] * (setup["samples"] + 1)
    swept = FEW * setup["validation"] + few * (chosen_by(setup) == "curve")
    points = {"start": whole, "sweep": swept, "final": few + whole}
    drawn = sum(len(point["right"]) * point["samples"] for line in measured
                for point in line["curve"] + [line[k] for k in ("final", "greedy") if k in line])
    each = sum(line["seconds"]["evaluate"] for line in measured) / drawn

    trained = {}
    for line in measured:
        trained.setdefault(line["cell"]["arm"], []).append(line["seconds"]["train"])
    known = sum(trained.values(), [])
    total = 0.0
    for cell in cells:
        mine = trained.get(cell["arm"], known)
        total += each * points[cell["phase"]]
        total += sum(mine) / len(mine) * (cell["phase"] != "start")
    return total


def split(data, test, most):
    """(training, validation, held-out rows). The end of the training file validates: a fifth of it,
    but at most `most` rows. A problem that several parts have stays only in the last of them.
    Raises BadInput if nothing is left to train on or to validate."""
    rows = problems.load_problems(data, "train")
    try:
        held_out = problems.load_problems(test, "test")
    except BadInput as mistake:
        raise BadInput(str(mistake).replace("--data", "--test", 1)) from None
    rows = without(rows, held_out, "are in --test, too")
    cut = len(rows) - min(most, len(rows) // 5)
    validation = rows[cut:]
    train = without(rows[:cut], validation, "are among the validation problems, too")
    if not train or not validation:
        raise BadInput(f"--data {data}: has {len(rows)} problems that are not in --test, the last "
                       "fifth of which validates; that leaves none to "
                       f"{'train on' if validation else 'validate'}, so take a larger file.")
    return train, validation, held_out


def without(rows, others, what):
    """The rows whose problem (spaces ignored) is in none of the others. Prints how many go."""
    known = set(map(problems.same_problem, others))
    kept = [row for row in rows if problems.same_problem(row) not in known]
    if len(kept) < len(rows):
        print(f"--data: {len(rows) - len(kept)} problems {what}; no cell trains on them")
    return kept


def asked_for(args, name):
    """The setup (dict) of the grid `name`, changed by the flags. Raises BadInput for flags with
    which no cell could run, or with which a cell would not be what its line says."""
    grid = GRIDS[name]
    if grid.get("own_files") and not (args.model and args.data and args.test):
        raise BadInput(f"--grid {name}: needs --model FOLDER --data TRAIN.jsonl --test TEST.jsonl.")
    check_device(args.device)
    setup = {**grid, "model": args.model or grid.get("model", "tiny"), "device": args.device,
             "also": f"{grid.get('also', '')} {args.also}".strip(),
             "test": args.test or grid.get("data", "arithmetic"),
             "seeds": args.seeds or grid["seeds"], "first_seed": args.first_seed}
    seeds = range(setup["first_seed"], setup["first_seed"] + setup["seeds"])
    if taken := [seed for seed in SWEEP_SEEDS if seed in seeds]:
        raise BadInput(f"--first-seed {args.first_seed} --seeds {setup['seeds']}: on seed "
                       f"{taken[0]} the sweep chooses the rates, so no final cell may have it; "
                       "take others.")
    if args.arms:
        setup["arms"] = list(dict.fromkeys(args.arms.split(",")))  # twice would train twice
        if not set(setup["arms"]) <= {*ARMS, *ABLATIONS}:
            raise BadInput(f"--arms {args.arms}: choose from {', '.join([*ARMS, *ABLATIONS])}.")
    if args.rates:
        try:
            setup["rates"] = sorted({float(rate) for rate in args.rates.split(",")})
        except ValueError:
            setup["rates"] = [math.nan]
        if not 0 < setup["rates"][0] <= setup["rates"][-1] < 1:
            raise BadInput(f"--rates {args.rates}: give numbers between 0 and 1, with commas.")
    if args.sweep_seeds:
        setup["sweep_seeds"] = args.sweep_seeds
    check_also(args.also, setup)
    return setup


def check_also(also, setup):
    """Raise BadInput for an --also that holds no valid flags, or one that the cells set themselves.
    --also comes last on their command lines, so it would win, and the lines would be wrong."""
    try:
        given = shlex.split(also)
    except ValueError as error:
        raise BadInput(f"--also {also}: cannot be cut into flags ({error}).") from None
    own = {"name", "resume"}
    for arm in setup["arms"]:
        cell = dict(phase="final", arm=arm, rate=0, seed=0)
        own |= named(arguments(cell, {**setup, "train": "", "also": ""}))
    if taken := sorted(own & named(given, also)):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in taken)
        raise BadInput(f"--also {also}: the cells set {names} themselves; leave that out.")
    check(parse(parser_of(also), [*given, "--model", setup["model"]]))  # else every cell would fail


def parser_of(also):
    """The parser of grpo.py. Where argparse would print usage or help, it raises BadInput."""
    def refuse(why="asks for help, and trains nothing; python grpo.py --help has it"):
        raise BadInput(f"--also {also}: {why}.")

    parser = flags("grpo", "")
    parser.error = parser.print_help = refuse
    return parser


def named(argv, also=""):
    """The names that these flags of grpo.py set. Only argparse knows what an abbreviation is."""
    parser = parser_of(also)
    parser.set_defaults(**dict.fromkeys(vars(parser.parse_args([]))))
    found, _ = parser.parse_known_args(argv)  # an arm's own flags are unknown
    return {name for name, value in vars(found).items() if value is not None}


def prepare(args):
    """The setup (dict) of a grid, and the path of its lines. Writes nothing: setup["files"] holds
    {name: text} of its training and validation problems. `alone` writes them to setup["work"]."""
    name = args.grid or "embedded"
    grid, out = GRIDS[name], Path(args.out or HERE / f"study_{name}.jsonl")
    setup = asked_for(args, name)
    data = args.data or grid.get("data", "arithmetic")
    train, validation, held_out = split(data, setup["test"], grid["validation"])
    setup["held_out"] = len(held_out[:grid["final"]])
    parts = {"train": train, "validation_rows": validation}
    texts = [[[row["problem"], row["answer"]] for row in part]
             for part in (train + validation, held_out)]
    model, tokenizer = problems.load_policy(setup["model"])
    prompt = problems.build_prompt(tokenizer, held_out[0]["problem"])
    setup["settings"] = {
        **{k: grid[k] for k in ("steps", "every", "validation", "curve", "final", "samples")},
        "model": Path(setup["model"]).name, "also": setup["also"],
        "device": torch.device(args.device).type,
        "data_sha256": short_sha(texts), "weights_sha256": fingerprint(model),
        "prompt_sha256": short_sha(tokenizer(prompt, add_special_tokens=False).input_ids)}
    setup["weight_bytes"] = 4 * model.num_parameters()
    if grid.get("one_card"):
        setup["settings"] |= {"flags_of": grid["flags_of"], "card": "cpu"}
        if args.device.startswith("cuda"):
            setup["settings"]["card"] = torch.cuda.get_device_name(args.device)
    setup["files"] = {f"{part}.jsonl": "".join(json.dumps(row) + "\n" for row in some)
                      for part, some in parts.items()}
    # Studies that differ in one of these must not share a folder, so its name is their hash.
    own = [os.path.realpath(out), setup["model"], setup["settings"], setup["files"]]
    setup["work"] = f"runs/study/{name}-{short_sha(own)}"
    setup |= {part: f"{setup['work']}/{part}.jsonl" for part in parts}
    return setup, out


@contextmanager
def alone(out, setup):
    """Inside this context only this process runs the cells of `out`, and the work folder holds the
    problems. Raises BadInput if another process runs them."""
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        held = lock(os.path.realpath(out) + ".lock")
    except BlockingIOError:
        raise BadInput(f"--out {out}: another process is running this study; wait for it, or take "
                       "another file.") from None
    work = Path(setup["work"])
    work.mkdir(parents=True, exist_ok=True)
    for name, text in setup.pop("files").items():
        write(work / name, text)
    try:
        yield
    finally:
        if held:
            held.close()


def check_disk(setup, jobs):
    """Raise BadInput unless `jobs` cells fit on the disk at once. Each cell checks this, too, but
    cells that start together all see the same free space. checkpoints.check_room says what a
    cell keeps."""
    needed = (6 + setup["steps"] // setup["every"]) * setup["weight_bytes"] * jobs
    kept = 0
    for folder, _, names in os.walk(setup["work"]):  # a killed call's worker may delete here
        for name in names:
            with suppress(FileNotFoundError):
                kept += os.path.getsize(os.path.join(folder, name))
    free = shutil.disk_usage(setup["work"]).free + kept
    if free < needed:
        raise BadInput(f"--jobs {jobs}: their checkpoints need {needed / 1e9:.1f} GB in "
                       f"{setup['work']}, where {free / 1e9:.1f} are free; take fewer jobs, or "
                       "another disk.")


def load(path, setup):
    """The lines that are there. Raises BadInput if they were made with other settings."""
    lines = read_cells(path)
    for line in lines:
        for k, value in setup["settings"].items():
            made = line["settings"].get(k, value if k in NEWER else None)
            if made != value:
                raise BadInput(f"--out {path}: its lines were made with {k} {made!r}, not "
                               f"{value!r}; take another file.")
    return lines


# ------------------------------------------------------------------------------ the commands


def missing(phases, setup, lines):
    """The cells of these phases that have no line yet. Until its sweep is done, a final cell has
    the rate None. Raises BadInput if a final cell waits for a sweep that is not among the phases,
    or if the only phase is a sweep of one rate."""
    if set(phases) == {"sweep"} and len(setup["rates"]) == 1:
        raise BadInput(f"--phases sweep: there is one learning rate, {setup['rates'][0]:g}, so "
                       "nothing to choose; add a phase, or more --rates.")
    cells = [cell for phase in ("start", "sweep", "final") if phase in phases
             for cell in cells_of(phase, setup, lines)]
    waiting = dict.fromkeys(cell["arm"] for cell in cells if cell["rate"] is None)
    if waiting and "sweep" not in phases:
        raise BadInput(f"--phases {','.join(phases)}: the sweep that chooses the learning rate of "
                       f"{', '.join(waiting)} is not done; add sweep, or give one rate by --rates.")
    return cells


def left(cells, jobs, setup, lines):
    """A text: how many cells are left, and how long they take. It is made after every cell, so it
    must not take longer than a cell."""
    seconds = seconds_of(cells, setup, lines) / jobs
    known = not math.isnan(seconds)
    time_left = f"about {seconds / 60:.0f} min" if known else "for an unknown time"
    return f"{len(cells)} cells left, {time_left} with --jobs {jobs}"


def plan(phases, jobs, setup, lines):
    """What --plan says."""
    cells = missing(phases, setup, lines)
    said = left(cells, jobs, setup, lines)
    timed = {line["cell"]["arm"] for line in lines if line["cell"]["phase"] != "start"}
    unknown = sorted({cell["arm"] for cell in cells} - timed)
    if not timed:
        said += ": no cell has been timed yet; ask again when the first is done"
    elif unknown:
        said += f"; not measured yet, so counted as the others: {', '.join(unknown)}"
    return said


def run(phases, jobs, setup, out):
    """Run the cells that are missing. Returns all lines."""
    lines = load(out, setup)
    ask = functools.partial(missing, phases, setup, lines)

    def done(cell, line):
        append(out, [line])
        lines.append(line)
        shutil.rmtree(folder_of(cell, setup), ignore_errors=True)
        accuracy = scores(line["final"]).mean().item()
        time_left = f"; {left(ask(), jobs, setup, lines)}" if cell["phase"] != "start" else ""
        print(f"{cell['phase']} {cell['arm']} lr {cell['rate'] or 0:g} seed {cell['seed']}: "
              f"{100 * accuracy:.1f} % in {sum(line['seconds'].values()):.0f} s{time_left}",
              flush=True)

    if cells := ask():
        check_disk(setup, min(jobs, len(cells)))
    if out.exists():  # a killed run can leave half a line, and the next would join it
        os.truncate(out, out.read_bytes().rfind(b"\n") + 1)
    while cells := [cell for cell in ask() if cell["rate"] is not None]:
        lost = run_all(cells, functools.partial(run_cell, setup=setup), jobs, done, BadInput)
        if lost:
            raise BadInput(f"{len(lost)} cells were lost with their workers ({lost[0]}, ...; logs "
                           f"in {setup['work']}); the same command runs them again.")
    return lines


def read_flags(argv):
    """The flags (a Namespace). Raises BadInput for impossible numbers and phases."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--grid", choices=list(GRIDS), help="which study (embedded)")
    one.add_argument("--quick", action="store_const", const="quick", dest="grid",
        help="the same as --grid quick: the embedded grid cut to 2 methods and 3 seeds")
    add("--phases", default="start,sweep,final", help="some of them, with commas")
    add("--plan", action="store_true", help="say what is missing and how long it takes, and stop")
    add("--jobs", type=int, default=2, help="cells at a time")
    add("--device", default="cpu", help="cpu or cuda; with several cards, workers take turns")
    add("--rates", default="", help="learning rates of the sweep, with commas")
    add("--sweep-seeds", type=int, choices=range(len(SWEEP_SEEDS) + 1), default=0,
        help="how many of the seeds 100, 101, 102 the sweep has (0: as the grid)")
    add("--arms", default="", help="some of the arms, with commas")
    add("--seeds", type=int, default=0, help="how many seeds the final cells have; 0: as the grid")
    add("--first-seed", type=int, default=0, help="the first of these seeds")
    add("--model", default="", help="a folder, in place of the grid's embedded model; real and "
        "gsm8k* have none")
    add("--data", default="", help="a .jsonl file to train on, in place of the grid's problems; "
        "real and gsm8k* have none. Its last problems validate, so shuffle a sorted file")
    add("--test", default="", help="a .jsonl file of held-out problems, in place of the grid's; "
        "real and gsm8k* have none")
    add("--also", default="", help="more flags for every cell, but none that cells set "
        'themselves; for example --also="--max-new-tokens 512"')
    add("--out", default="", help="the file of lines (results/study_GRID.jsonl)")
    args = parser.parse_args(argv)
    if args.jobs < 1 or args.seeds < 0 or args.first_seed < 0:
        raise BadInput(f"--jobs {args.jobs} --seeds {args.seeds} --first-seed {args.first_seed}: "
                       "take at least 1 job, and no negative --seeds or --first-seed.")
    if not set(args.phases.split(",")) <= {"start", "sweep", "final"}:
        raise BadInput(f"--phases {args.phases}: choose from start, sweep, final.")
    return args


def main(argv=None):
    args = read_flags(argv)
    setup, out = prepare(args)
    phases = args.phases.split(",")
    lines = load(out, setup)
    if not missing(phases, setup, lines):
        print(f"all cells are in {out}: nothing is left to run; --out another file runs them anew")
    elif args.plan:
        print(plan(phases, args.jobs, setup, lines))
    if args.plan:
        return
    with alone(out, setup):
        lines = run(phases, args.jobs, setup, out)
    print(tables.render(lines, families_of(out)))
    print(f"lines: {out}; python results/tables.py rewrites the tables of the pages in results/")


if __name__ == "__main__":
    run_cli(main)
