"""How sampling and the update grow with rows, with completion length and with the model's shape.

    python examples/growth.py --out results/h200_growth.jsonl        # a card: nine minutes
    python examples/growth.py --tiny --out tiny.jsonl                # a CPU: a minute
    python examples/growth.py --figure results/h200_growth.jsonl --out docs/figures/growth.svg
    python examples/growth.py --table results/h200_growth.jsonl

The shapes are Qwen3's with random weights, the training is full fine-tuning with AdamW. Each point
becomes a line of --out, even if it runs out of memory, fails or takes longer than --limit. If you
repeat the command, it measures only the points that have no line of this card yet.

Two limits stand beside each point, from rates that the same call measures on the same card:

    sampling   bytes that each token step reads (bf16 weights, KV cache so far) / copy rate
    update     FLOPs (6 x parameters x tokens, plus causal attention) / bf16 product rate

Seconds are medians after a warm-up round of sampling and update. Peaks are the largest of all
rounds.
growth_figure.py makes the table and the figure.
"""
import argparse
import gc
import json
import multiprocessing
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
import bench
import growth_figure

import grpo
import models
import rollout
from engine import graphs, memory
from engine.errors import BadInput, run_cli
from engine.files import append, check_out, write

SHAPES = {
    "tiny": bench.SMALL, "tiny, 4 layers": {**bench.SMALL, "num_hidden_layers": 4},
    "0.6B": bench.SHAPE,
    "1.7B": {**bench.SHAPE, "hidden_size": 2048, "intermediate_size": 6144},
    "4B": {**bench.SHAPE, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
           "num_attention_heads": 32},
}


def points(tiny, compiled):
    """What to measure, the most telling first: dicts. A change of shape starts a new process."""
    small, T = "0.6B", 512
    asked = [("ours", small, rows, T) for rows in (64, 8, 256, 1024)]
    asked += [("ours", shape, 64, T) for shape in ("4B", "1.7B")]
    asked += [("ours", small, rows, n) for n in (2048, 256, 1024, 4096) for rows in (64, 8)]
    asked += [("ours", small, rows, T) for rows in (512, 128, 32, 16)] + [("ours", small, 8, 8192)]
    asked += [(peer, small, 64, T) for peer in ("generate", "trl")]
    asked += [("ours", small, 64, 8192)]  # even at its limit it takes two minutes
    if tiny:
        asked = [("ours", "tiny", 8, 16), ("ours", "tiny", 16, 16), ("ours", "tiny", 8, 32),
                 ("ours", "tiny, 4 layers", 8, 16), ("generate", "tiny", 8, 16),
                 ("trl", "tiny", 8, 16)]
    return [dict(what=what, shape=shape, rows=rows, prompt=16 if tiny else 128, tokens=tokens,
                 compile=compiled and what == "ours") for what, shape, rows, tokens in asked]


def config_of(shape):
    return Qwen3Config(**SHAPES[shape], tie_word_embeddings=True, eos_token_id=None, pad_token_id=0)


def with_limits(point, rates):
    """The point with its number of parameters and the seconds that the card's rates allow."""
    config = config_of(point["shape"])
    with torch.device("meta"):  # takes no memory
        parameters = Qwen3ForCausalLM(config).num_parameters()
    sampling, update = growth_figure.limits(config, parameters, point, rates)
    return {**point, "parameters": parameters, "sampling_limit_seconds": sampling,
            "update_limit_seconds": update}


def load(point, device):
    """The model, its optimizer, and the settings of the update."""
    torch.manual_seed(0)
    with device:
        model = Qwen3ForCausalLM(config_of(point["shape"])).eval()
    settings = SimpleNamespace(**bench.SETTINGS, compile=point["compile"],
                               tokens_per_microbatch=2560)
    if point["compile"]:
        model.graphs = graphs.Graphs(model, settings.tokens_per_microbatch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=device.type == "cuda")
    return model, optimizer, settings


def ours(point, held, device):
    """Rounds of sampling and update: a warm-up, then up to three while they take below 5 s."""
    if not held:
        held += load(point, device)
    model, optimizer, settings = held
    if point["compile"]:
        model.graphs.release()  # recordings of other lengths are no part of this peak
    settings.max_new_tokens = point["tokens"]
    texts, out = bench.prompts(point["rows"], point["prompt"]), []
    rewards = bench.rewards_of(point["rows"], device)

    def draw():
        out[:] = [rollout.sample(model, bench.Ids(), texts, samples=8,
                                 max_new_tokens=point["tokens"])]

    def train():
        grpo.update(model, optimizer, out[0], rewards, grpo.uniform, settings, bench.Ids())

    sampling, update = ([], []), ([], [])  # seconds, peak GB
    while len(sampling[0]) < 4 and (len(update[0]) < 2 or sum(sampling[0][1:] + update[0][1:]) < 5):
        for (seconds, peaks), stage in ((sampling, draw), (update, train)):
            seconds += bench.timed(stage, device)[0]
            peaks.append(memory.peak_gb(model))
    return {"sampling_seconds": statistics.median(sampling[0][1:]),
            "update_seconds": statistics.median(update[0][1:]),
            "first_seconds": sampling[0][0] + update[0][0], "rounds": len(update[0]) - 1,
            "sampling_peak_gb": max(sampling[1]), "peak_gb": max(sampling[1] + update[1])}


def peers(point, device):
    """Hugging Face's generate, or a step of TRL's trainer, as in bench.py."""
    asked, config = SimpleNamespace(**point, repeat=1), config_of(point["shape"])
    if point["what"] == "generate":
        return bench.generate(asked, config, device)
    found = bench.trl_step(asked, config, device)
    if isinstance(found, str):
        return {"failed": found}
    return {"step_seconds": found["best_step_seconds"], "peak_gb": found["peak_gb"],
            "tokens_per_second": point["rows"] * point["tokens"] / min(found["sampling_seconds"])}


def measured(point, held, device):
    """The result of one point, a dict. Full memory or any other failure is a result, too."""
    try:
        return ours(point, held, device) if point["what"] == "ours" else peers(point, device)
    except torch.OutOfMemoryError:
        return {"failed": "out of memory"}
    except Exception as error:  # noqa: BLE001 the next point must have its turn
        return {"failed": f"{type(error).__name__}: {error}".partition("\n")[0][:200]}


def work(pipe, device_name):
    """A process: takes points, sends results. It keeps one model, which all its points share."""
    device, held = torch.device(device_name), []
    cuda = device.type == "cuda"
    pipe.send("ready")
    while (point := pipe.recv()) is not None:
        if point == "rates":
            small = {} if cuda else dict(size=2**24, side=256, many=5)
            reply = {"card": torch.cuda.get_device_name(device) if cuda else "cpu",
                     "torch": torch.__version__, **bench.rates(device, **small)}
        else:
            reply = measured(point, held, device)
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        pipe.send(reply)


class Worker:
    """A process of `work` that can be ended at any time, which frees its memory."""

    def __init__(self, device):
        context = multiprocessing.get_context("spawn")  # CUDA cannot be forked
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=work, args=(there, device), daemon=True)
        self.process.start()
        there.close()
        self.pipe.recv()

    def ask(self, point, seconds):
        """The reply; None if it takes longer than `seconds`."""
        try:
            self.pipe.send(point)
            return self.pipe.recv() if self.pipe.poll(max(0, seconds)) else None
        except (EOFError, OSError):
            self.process.join()
            return {"failed": f"its process ended with {self.process.exitcode}"}

    def end(self):
        self.process.kill()
        self.process.join()


def run(args):
    """Measure the points that have no line yet, until --minutes are over."""
    end, worker, before = time.monotonic() + 60 * args.minutes, Worker(args.device), None
    rates = worker.ask("rates", 120)
    if "card" not in (rates or {}):
        raise BadInput(f"--device {args.device}: its rates cannot be measured ({rates}).")
    print(json.dumps(rates), flush=True)
    there = [{k: row[k] for k in growth_figure.KEY} for row in growth_figure.read(args.out)
             if row["card"] == rates["card"]]
    todo = [point for point in points(args.tiny, args.compile) if point not in there]
    for number, point in enumerate(todo):
        kind = point["what"], point["shape"]
        if number and kind != before:
            worker.end()
            worker = Worker(args.device)
        left = end - time.monotonic()
        reply = worker.ask(point, min(args.limit, left))
        if reply is None and left < args.limit:
            print(f"--minutes {args.minutes:g} are over; {len(todo) - number} points wait for the "
                  "same command")
            break
        reply = reply or {"failed": f"longer than {args.limit:g} s"}
        before = None if "failed" in reply else kind
        line = {**with_limits(point, rates), **reply}
        append(Path(args.out), [{**line, **rates}])
        print(json.dumps(line), flush=True)
    worker.end()


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--out", default="", help="the file of lines, to append to; with --figure: the SVG")
    add("--minutes", type=float, default=9, help="stop after so long, even within a point")
    add("--limit", type=float, default=240, help="seconds that one point may take")
    add("--tiny", action="store_true", help="models of 0.1 M parameters on the CPU")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--compile", action=argparse.BooleanOptionalAction, default=True,
        help="record the update as CUDA graphs, as long runs on a card do")
    add("--figure", default="", help="draw the lines of this file")
    add("--table", default="", help="print the lines of this file as Markdown")
    args = parser.parse_args(argv)
    args.device = "cpu" if args.tiny else args.device
    args.compile = args.compile and args.device.startswith("cuda")
    if args.table:
        return print(growth_figure.table(growth_figure.of_one_card(args.table)))
    if not args.out or not (args.minutes > 0 and args.limit > 0):
        raise BadInput("--out FILE is needed, and --minutes and --limit above 0.")
    if args.figure:
        if Path(args.out).resolve() == Path(args.figure).resolve():
            raise BadInput(f"--out {args.out}: the figure would overwrite its own lines.")
        picture = growth_figure.figure(growth_figure.of_one_card(args.figure))
        return write(Path(args.out), picture)
    if args.device == "cpu" and not args.tiny:
        raise BadInput("--device cpu: these shapes need a card; --tiny is for a CPU.")
    models.check_device(args.device)  # here: in a worker it would be a traceback
    check_out(args.out)
    run(args)


if __name__ == "__main__":
    run_cli(main)
