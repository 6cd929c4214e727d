"""Speed and memory of one step beside the peers, in the exact Qwen3-0.6B shape, in one process.

    python examples/bench.py                            # a card: everything below, ten minutes
    python examples/bench.py --parts sampling,methods --out bench.json
    python examples/bench.py --small --device cpu --parts sampling,update,methods,long  # 4 minutes

The weights are random, because throughput does not depend on them. No work is skipped: half of each
group is right, and every completion has its full length and a box of 12 tokens near its end. Parts:

    sampling   rollout.sample, 64 and 256 rows; the first call compiles and is listed separately
    generate   Hugging Face's generate with a static cache, compiled, on bf16 weights
    update     grpo.update, first with equal lengths, then with lengths from 1/8 to full
    methods    the step (sampling + update) of each method, divided by GRPO's and measured in
               turns; OAR-P's credit is timed on 8 rows and scaled to all rows
    long       8 rows of 4,096 tokens, GRAIL
    compiled   grpo.update with --compile at several budgets, then whole steps; `_short` (GRPO
               only) acts as if memory were short: it frees the recordings before sampling, and
               makes them again afterwards
    trl        TRL's GRPOTrainer with its own sampler, if it can be imported
    profile    kernels of a sampled token at 8, 64 and 256 rows, by PyTorch's profiler; on request

Seconds are medians of --repeat calls after at least one warm-up call. For OAR-P and `long` they are
the second call, for `generate` and TRL the best. Peaks are the largest allocation, warm-up
included; with `--compile` they are an upper bound, see memory.peak_gb.
"""
import argparse
import dataclasses
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import delta
import grail
import grpo
import models
import oar
import rollout
import saliency
from engine import graphs, memory
from engine.errors import BadInput, run_cli
from engine.files import check_out

PARTS = "sampling generate update methods long compiled trl profile".split()
NEAR_END = 16  # the made-up box begins so many tokens before a completion's end
SHAPE = dict(vocab_size=151_936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
             num_attention_heads=16, num_key_value_heads=8, head_dim=128)
SMALL = dict(vocab_size=500, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, head_dim=16)
SETTINGS = dict(
    scale_by_std=False, mask_truncated=False, loss="token", kl=0.0, num_iterations=1,
    temperature=1.0, clip_low=0.2, clip_high=0.28, grad_clip=1.0, lr=1e-6, as_released=False,
    activation="embeddings", reweight="wrong", seed=0, gradient="head-row",
    refinements=1, outcome="mean", replace="pad", chunk=64, draws=1)


class Ids:
    """Stands in for a tokenizer: a prompt is a text of numbers, and there is no stop token."""
    pad_token_id, eos_token_id = 0, None

    def __call__(self, texts, add_special_tokens=False):
        return SimpleNamespace(input_ids=[[int(x) for x in text.split()] for text in texts])

    def decode(self, ids, **options):
        return ""

    def batch_decode(self, rows, **options):
        return [""] * len(rows)


def timed(work, device, repeat=1):
    """(seconds of each call, peak GB of 10^9 bytes over all of them)."""
    seconds = []
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return seconds, torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else 0.0


def prompts(rows, tokens):
    return [" ".join(str(1 + (7 * i + j) % 400) for j in range(tokens)) for i in range(rows // 8)]


def rates(device, size=2**31, side=8192, many=500):
    """What the card can do: TB/s of a copy (read and written), TFLOP/s of one bf16 product, and of
    `many` in a row. In a row they reach the power limit, and the card lowers its clock. The copy
    has `size` bytes, the matrices have side x side numbers."""
    x = torch.empty(size, dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    a, b, c = (torch.randn(side, side, device=device).bfloat16() for _ in range(3))
    copy, product, products = (
        statistics.median(timed(work, device, 5)[0][1:])
        for work in (lambda: y.copy_(x), lambda: torch.mm(a, b, out=c),
                     lambda: [torch.mm(a, b, out=c) for _ in range(many)]))
    return {"copy_tb_per_second": 2 * size / copy / 1e12,
            "matrix_tflops": 2 * side**3 / product / 1e12,
            "matrix_tflops_sustained": many * 2 * side**3 / products / 1e12}


def kernels(work, tokens, device):
    """The 20 longest kernels of `work`, which makes `tokens` tokens a row, and the sum over all
    kernels. On a CPU they are operations. On a card only kernels count, no operations."""
    cuda = device.type == "cuda"
    activity = getattr(torch.profiler.ProfilerActivity, "CUDA" if cuda else "CPU")
    with torch.profiler.profile(activities=[activity]) as profiler:
        timed(work, device)
    found = []
    for event in profiler.key_averages():
        us = event.self_device_time_total if cuda else event.self_cpu_time_total
        if event.device_type.name == activity.name and not event.is_user_annotation and us:
            found.append({"ms_a_token": us / tokens / 1e3, "calls_a_token": event.count / tokens,
                          "us_a_call": us / event.count, "name": event.key[:90]})
    found.sort(key=lambda kernel: -kernel["ms_a_token"])
    return {"ms_a_token": sum(kernel["ms_a_token"] for kernel in found),
            "calls_a_token": sum(kernel["calls_a_token"] for kernel in found),
            "longest": found[:20]}


def rewards_of(rows, device):
    return (torch.arange(rows, device=device) % 2).float().view(-1, 8)


def generate(args, config, device):
    """Seconds of three calls of Hugging Face's generate, the first of which compiles, and peak."""
    with device:
        half = Qwen3ForCausalLM(config).to(torch.bfloat16).eval()
    ids = torch.randint(1, 400, (args.rows, args.prompt), device=device)
    seconds, peak = timed(lambda: half.generate(
        ids, do_sample=True, max_new_tokens=args.tokens,
        cache_implementation="static"), device, 3)
    return {"first_seconds": seconds[0], "peak_gb": peak,
            "tokens_per_second": args.rows * args.tokens / min(seconds)}


def trl_step(args, config, device):
    """Seconds of TRL's steps at the same size, and of the sampling in them."""
    try:
        import trl
        from datasets import Dataset
    except ImportError as error:
        return f"not run: {error}"
    tokenizer = AutoTokenizer.from_pretrained(Path(__file__).parent.parent / "data" / "tiny")
    with device:
        model = Qwen3ForCausalLM(config)
    text = tokenizer.decode(tokenizer("1+" * args.prompt).input_ids[:args.prompt])
    trainer = trl.GRPOTrainer(
        model, reward_funcs=lambda completions, **_: [i % 2 for i in range(len(completions))],
        processing_class=tokenizer, train_dataset=Dataset.from_list([{"prompt": text}] * 64),
        args=trl.GRPOConfig(
            "trl-bench", max_steps=args.repeat + 1, per_device_train_batch_size=8,
            gradient_accumulation_steps=args.rows // 8, num_generations=8,
            max_completion_length=args.tokens, learning_rate=1e-6, bf16=device.type == "cuda",
            generation_kwargs={"min_new_tokens": args.tokens}, save_strategy="no",
            report_to="none", disable_tqdm=True, use_cpu=device.type == "cpu"))
    sampling, generate = [], trainer._generate

    def clocked(*a, **k):
        out = []
        sampling.append(timed(lambda: out.append(generate(*a, **k)), device)[0][0])
        return out[0]

    trainer._generate = clocked
    stamps, step = [], trainer.training_step

    def stamped(*a, **k):
        if device.type == "cuda":
            torch.cuda.synchronize()
        stamps.append(time.perf_counter())
        return step(*a, **k)

    trainer.training_step = stamped
    _, peak = timed(trainer.train, device)
    starts = stamps[::args.rows // 8] + [time.perf_counter()]
    seconds = [b - a for a, b in zip(starts, starts[1:])]
    return {"version": trl.__version__, "step_seconds": seconds, "sampling_seconds": sampling,
            "best_step_seconds": min(seconds), "peak_gb": peak,
            "checkpointing": trainer.args.gradient_checkpointing}


def check(args):
    """The names in --parts, a list. Raises BadInput for what cannot be measured."""
    parts = args.parts.split(",")
    wrong = [part for part in parts if part not in PARTS]
    if wrong:
        raise BadInput(f"--parts {args.parts}: there is no part {wrong[0]!r}; choose from "
                       f"{','.join(PARTS)}.")
    if "compiled" in parts and not args.device.startswith("cuda"):
        raise BadInput(f"--parts {args.parts}: compiled needs --device cuda; leave it out.")
    if args.rows < 8 or args.rows % 8:
        raise BadInput(f"--rows {args.rows}: must be 8 or a multiple of it, because a group is 8 "
                       "completions of one prompt.")

    least = {"prompt": 1, "tokens": 1, "long": 1, "tokens_per_microbatch": 1, "repeat": 1}
    if "update" in parts:
        least["tokens"] = 8  # its shortest completion has an eighth of them
    if "methods" in parts or "compiled" in parts:
        least["tokens"] = NEAR_END + 2  # GRAIL and OAR need two tokens before the box
    if "long" in parts:
        least["long"] = NEAR_END + 2
    for name, smallest in least.items():
        if getattr(args, name) < smallest:
            raise BadInput(f"--{name.replace('_', '-')} {getattr(args, name)}: must be at least "
                           f"{smallest} with --parts {args.parts}.")
    return parts


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--parts", default="sampling,generate,update,methods,long,compiled,trl",
        help="see the docstring")
    add("--rows", type=int, default=64, help="B, in groups of 8")
    add("--prompt", type=int, default=128, help="P, tokens of a prompt")
    add("--tokens", type=int, default=512, help="T, tokens of a completion")
    add("--long", type=int, default=4096, help="T of the long completions")
    add("--tokens-per-microbatch", type=int, default=5120)
    add("--repeat", type=int, default=3)
    add("--small", action="store_true", help="a model of 0.1 M parameters")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--out", default="", help="JSON file, written again after every part")
    args = parser.parse_args(argv)
    models.check_device(args.device)
    parts = check(args)
    if args.out:
        check_out(args.out)
    device = torch.device(args.device)
    cuda = device.type == "cuda"
    torch.manual_seed(0)
    config = Qwen3Config(**(SMALL if args.small else SHAPE), tie_word_embeddings=True,
                         eos_token_id=None, pad_token_id=0)
    result = {"card": torch.cuda.get_device_name() if cuda else "cpu", "torch": torch.__version__,
              "arguments": {k: v for k, v in vars(args).items() if k != "out"},
              **(rates(device) if cuda else {})}

    def note(name, value):
        result[name] = value
        print(name, json.dumps(value), flush=True)
        if args.out:
            Path(args.out).write_text(json.dumps(result, indent=1) + "\n")

    if parts == ["trl"]:
        return note("trl", trl_step(args, config, device))
    if "trl" in parts:  # in a process of its own, gone before ours begins
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            given = sys.argv[1:] if argv is None else argv
            subprocess.run([sys.executable, __file__, *given, "--parts", "trl", "--out", file.name])
            note("trl", json.loads(file.read() or b"{}").get("trl", "failed"))
    if "generate" in parts:
        note("generate", generate(args, config, device))
    with device:
        model = Qwen3ForCausalLM(config).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=cuda)
    made = {}

    def draw(rows, tokens):
        made[rows, tokens] = rollout.sample(model, Ids(), prompts(rows, args.prompt), samples=8,
                                            max_new_tokens=tokens)

    def update(credit=grpo.uniform, rollouts=None, compiled=False, budget=0, **more):
        out = rollouts or made[args.rows, args.tokens]
        settings = SimpleNamespace(
            **SETTINGS, compile=compiled, max_new_tokens=out.completion_ids.shape[1],
            tokens_per_microbatch=budget or args.tokens_per_microbatch)
        grpo.update(model, optimizer, out, rewards_of(len(out.texts), device), credit,
                    settings, Ids(), **more)

    for rows in (args.rows, 4 * args.rows) if "sampling" in parts else (args.rows,):
        seconds, peak = timed(lambda: draw(rows, args.tokens),  # noqa: B023
                              device, args.repeat + 1)
        note(f"sampling_{rows}", {
            "first_seconds": seconds[0], "seconds": statistics.median(seconds[1:]), "peak_gb": peak,
            "tokens_per_second": rows * args.tokens / statistics.median(seconds[1:])})

    for rows in (8, args.rows, 4 * args.rows) if "profile" in parts else ():
        draw(rows, args.tokens)  # compiles
        note(f"profile_{rows}", kernels(lambda: draw(rows, args.tokens),  # noqa: B023
                                        args.tokens, device))

    def measure(name, tokens, *stages):
        """Run the stages one by one, twice, for their peaks, which include what the recordings
        keep. Then run them in a row for the seconds."""
        if cuda:
            torch.cuda.empty_cache()
        first, peaks = 0.0, []
        for turn in range(2):
            for stage in stages:
                seconds, _ = timed(stage, device)
                first += seconds[0] * (turn == 0)
                peaks.append(memory.peak_gb(model))
        seconds = timed(lambda: [stage() for stage in stages], device, args.repeat + 1)[0][1:]
        note(name, {"first_seconds": first, "seconds": statistics.median(seconds),
                    "tokens_per_second": tokens / statistics.median(seconds),
                    "peak_gb": max(peaks)})

    def uneven(**options):
        """(tokens, an update of the same rows cut to lengths from 1/8 to all)."""
        lengths = torch.linspace(args.tokens // 8, args.tokens, args.rows).long()[
            torch.randperm(args.rows)].to(device)
        out = dataclasses.replace(made[args.rows, args.tokens], lengths=lengths)
        return args.rows * args.prompt + int(lengths.sum()), lambda: update(rollouts=out, **options)

    def step(name, train, short=True):
        """Sampling and this update. Recordings are kept; if short, also measure without them."""
        tokens = args.rows * args.tokens
        measure(name, tokens, lambda: draw(args.rows, args.tokens), train)
        if short:
            measure(f"{name}_short", tokens,
                    lambda: (model.graphs.release(), draw(args.rows, args.tokens)), train)

    all_tokens = args.rows * (args.prompt + args.tokens)
    if "update" in parts:
        measure("update", all_tokens, update)
        measure("update_twice_the_microbatch", all_tokens,
                lambda: update(budget=2 * args.tokens_per_microbatch))
        measure("update_uneven_lengths", *uneven())

    def boxed(tokens):  # 12 tokens near the end, in every row
        start = tokens - NEAR_END
        saliency.answer_span = lambda *_: (start, start + 3, start + 11, start + 12)

    settings = SimpleNamespace(**SETTINGS)
    methods = {"grpo": {}, "grail": {"credit": grail.credit(settings)},
               "oar_g_one_draw": {"credit": oar.credit(
                   SimpleNamespace(**SETTINGS, signal="gradient"))},
               "delta": {"whole_batch": delta.whole_batch(settings)}}
    if "methods" in parts:
        boxed(args.tokens)
        runs = {name: [] for name in methods}
        for _ in range(args.repeat + 1):
            for name, options in methods.items():  # in turns, so a clock's drift hits all
                runs[name].append((
                    timed(lambda: draw(args.rows, args.tokens), device),
                    timed(lambda: update(**options), device)))  # noqa: B023
        for name, turns in runs.items():
            sampling, updating = (statistics.median(turn[i][0][0] for turn in turns[1:])
                                  for i in (0, 1))
            note(f"step_{name}", {
                "seconds": sampling + updating, "sampling_seconds": sampling,
                "update_seconds": updating,
                "peak_gb": max(part[1] for turn in turns for part in turn)})
        base = result["step_grpo"]
        for name in methods:
            note(f"{name}_over_grpo", {key: result[f"step_{name}"][key] / max(base[key], 1e-9)
                                       for key in ("seconds", "update_seconds", "peak_gb")})
        draw(8, args.tokens)
        every = oar.credit(SimpleNamespace(**SETTINGS, signal="perturbation"))
        (plain, dear), peaks = zip(*(
            timed(lambda: update(credit, made[8, args.tokens]), device, 2)  # noqa: B023
            for credit in (grpo.uniform, every)))
        more = (dear[1] - plain[1]) * args.rows / 8
        note("oar_p_over_grpo", {"seconds": 1 + more / base["seconds"], "seconds_more": more,
                                 "peak_gb_of_8_rows": peaks[1]})
    if "long" in parts:
        seconds, peak = timed(lambda: draw(8, args.long), device, 2)
        note("long_sampling", {"tokens_per_second": 8 * args.long / seconds[1], "peak_gb": peak})
        boxed(args.long)
        seconds, peak = timed(lambda: update(rollouts=made[8, args.long], **methods["grail"]),
                              device, 2)
        note("long_update_grail", {"seconds": seconds[1], "peak_gb": peak})
    if "compiled" in parts:
        made = {key: made[key] for key in [(args.rows, args.tokens)]}
        model.graphs = graphs.Graphs(model, 0)
        boxed(args.tokens)
        for quarters in (2, 4, 8):
            model.graphs.release()
            budget = model.graphs.tokens = args.tokens_per_microbatch * quarters // 4
            measure(f"update_compiled_{budget}", all_tokens,
                    lambda: update(compiled=True, budget=budget))  # noqa: B023
            for name in methods if quarters in (2, 4) else ():
                step(f"step_{name}_compiled_{budget}", lambda: update(
                    compiled=True, budget=budget, **methods[name]), name == "grpo")  # noqa: B023
        model.graphs.release()
        model.graphs.tokens = args.tokens_per_microbatch
        tokens, train = uneven(compiled=True)
        measure("update_compiled_uneven_lengths", tokens, train)
        step("step_grpo_compiled_uneven_lengths", train)


if __name__ == "__main__":
    run_cli(main)
