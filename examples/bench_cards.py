"""Seconds of a training step on one card and on two: TRL with our weights, by accelerate.

    python examples/bench_cards.py --out cards.json            # needs two cards and TRL: 5 minutes
    python examples/bench_cards.py --runs 2x64 --credit none
    python examples/bench_cards.py --small --runs 1x16,2x16 --tokens 24 --steps 2     # a CPU

A run NxB is `accelerate launch --num_processes N` with B completions per step over all cards. So
1x64 and 2x64 do the same work on one and on two cards. Weights are random, in the exact Qwen3-0.6B
shape. Every completion has its full length and a box of 12 tokens near its end, and half of them
are right, so every row has a gradient and a signal. TRL samples with Hugging Face's generate, its
default. The median leaves out the first step. The result says if all processes end with the same
weights.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import trl
from datasets import Dataset
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench import NEAR_END, SHAPE, SMALL
from trl_grail import CreditGRPOTrainer, leave

import saliency
from engine.errors import BadInput, run_cli
from engine.files import check_out


def half_right(completions, **_):
    return [float(i % 2) for i in range(len(completions))]


def worker(args):
    """One of the processes that accelerate starts: trains, and the first of them writes --out."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    rows = int(args.runs.partition("x")[2]) // processes  # completions a step on this card
    cuda = torch.cuda.is_available() and not args.small
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**(SMALL if args.small else SHAPE), pad_token_id=0,
                                         tie_word_embeddings=True, eos_token_id=None))
    tokenizer = AutoTokenizer.from_pretrained(Path(__file__).parent.parent / "data" / "tiny")
    text = tokenizer.decode(tokenizer("1+" * args.prompt).input_ids[:args.prompt])
    T = args.tokens
    start = T - NEAR_END
    saliency.answer_span = lambda *_: (start, start + 3, start + 11, start + 12)
    trainer = CreditGRPOTrainer(
        model, half_right, processing_class=tokenizer, credit=args.credit,
        train_dataset=Dataset.from_list([{"prompt": text}] * 64),
        args=trl.GRPOConfig(
            "trl-bench", max_steps=args.steps, per_device_train_batch_size=8,
            gradient_accumulation_steps=rows // 8, num_generations=8, max_completion_length=T,
            learning_rate=1e-6, bf16=cuda, generation_kwargs={"min_new_tokens": T},
            save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=not cuda))
    stamps, step = [], trainer.training_step

    def stamped(*a, **k):
        if cuda:
            torch.cuda.synchronize()
        stamps.append(time.perf_counter())
        return step(*a, **k)

    trainer.training_step = stamped
    trainer.train()
    if cuda:
        torch.cuda.synchronize()
    starts = stamps[::rows // 8] + [time.perf_counter()]
    seconds = [b - a for a, b in zip(starts, starts[1:])]
    weights = trainer.accelerator.unwrap_model(trainer.model).parameters()
    mine = torch.stack([p.detach().double().sum() for p in weights])           # (parameters,)
    all_of = trainer.accelerator.gather(mine[None])                            # (N, parameters)
    if trainer.accelerator.is_main_process:
        logs = [line for line in trainer.state.log_history if "credit/fallback" in line]
        Path(args.out).write_text(json.dumps({
            "processes": processes, "completions": rows * processes, "step_seconds": seconds,
            "median_step_seconds": statistics.median(seconds[1:]),
            "peak_gb": torch.cuda.max_memory_allocated() / 1e9 if cuda else 0.0,
            "credit_fallback": logs[-1]["credit/fallback"] if logs else None,
            "same_weights": bool((all_of == all_of[0]).all())}))
    leave(trainer.accelerator)


def check(args):
    """--runs as a list of (N, B). Raises BadInput for what cannot be measured."""
    signal = args.credit != "none"  # needs two tokens before the box
    least = {"steps": 2, "prompt": 1, "tokens": NEAR_END + 2 if signal else 1}
    for name, smallest in least.items():
        if getattr(args, name) < smallest:
            raise BadInput(f"--{name} {getattr(args, name)}: must be at least {smallest}.")

    runs, cards = [], torch.cuda.device_count()
    for run in args.runs.split(","):
        found = re.fullmatch("([1-9][0-9]{0,3})x([1-9][0-9]{0,6})", run)
        if not found:
            raise BadInput(f"--runs {args.runs}: {run!r} is not processes x completions, as 2x64.")
        processes, completions = int(found[1]), int(found[2])
        if completions % (8 * processes):
            raise BadInput(f"--runs {run}: the completions of a process must be 8 or a multiple.")
        if processes > cards and not args.small:
            raise BadInput(f"--runs {run}: needs {processes} cards, and PyTorch sees {cards}; "
                           "--small is for a CPU.")
        runs.append((processes, completions))
    check_out(args.out)
    return runs


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--runs", default="1x64,2x64,2x128", help="processes x completions a step, with commas")
    add("--credit", default="grail", choices=["grail", "oar-g", "delta", "none"])
    add("--steps", type=int, default=10)
    add("--prompt", type=int, default=128, help="tokens of a prompt")
    add("--tokens", type=int, default=256, help="tokens of a completion")
    add("--small", action="store_true", help="a model of 0.1 M parameters, on the CPU")
    add("--out", default="cards.json")
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        return worker(args)
    runs = check(args)
    result = {"card": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
              "torch": torch.__version__, "trl": trl.__version__,
              "arguments": {k: v for k, v in vars(args).items() if k not in ("out", "worker")}}
    for n, completions in runs:
        run, part = f"{n}x{completions}", args.out + ".part"
        done = subprocess.run(
            [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", str(n),
             "--num_machines", "1", "--main_process_port", "0", "--dynamo_backend", "no",
             "--mixed_precision", "no" if args.small else "bf16",
             *(["--multi_gpu"] if n > 1 else []), __file__, "--worker", *argv,
             "--runs", run, "--out", part],  # TRL refuses more cards than processes:
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(n)))})
        if done.returncode:
            raise BadInput(f"--runs {run}: its processes ended with code {done.returncode}; they "
                           "say above why.")
        result[run] = json.loads(Path(part).read_text())
        Path(part).unlink()
        print(run, json.dumps(result[run]), flush=True)
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    run_cli(main)
