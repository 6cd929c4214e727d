"""Speed and memory of one step, GRPO beside GRAIL, in the exact Qwen3-0.6B shape.

    python examples/bench.py                                   # a card: 64 rows x 512 tokens
    python examples/bench.py --rows 64 --tokens 1024 --microbatch 4 --out bench.json
    python examples/bench.py --small --device cpu              # the machinery, in seconds

The weights are random, for throughput does not depend on them. Nothing is skipped: every group has
half-right rewards, every completion runs to its full length and holds a box of 12 tokens near its
end. GRPO's and GRAIL's updates are timed by turns in the same process, the median of --repeat.
"""
import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import grail  # noqa: E402
import grpo  # noqa: E402
import rollout  # noqa: E402
import saliency  # noqa: E402

SHAPE = dict(vocab_size=151_936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
             num_attention_heads=16, num_key_value_heads=8, head_dim=128)
SMALL = dict(vocab_size=500, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, head_dim=16)


class Ids:
    """Stands in for a tokenizer: a prompt is a text of numbers, and there is no stop token."""
    pad_token_id, eos_token_id = 0, None

    def __call__(self, texts, add_special_tokens=False):
        return SimpleNamespace(input_ids=[[int(x) for x in text.split()] for text in texts])

    def batch_decode(self, rows, **options):
        return [""] * len(rows)


def timed(work, device):
    """(seconds, peak GB of 10^9 bytes) of one call."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    return seconds, torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=64, help="B, in groups of 8")
    parser.add_argument("--prompt", type=int, default=128, help="P, tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=512, help="T, tokens of a completion")
    parser.add_argument("--microbatch", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--small", action="store_true", help="a model of 0.1 M parameters")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", default="", help="JSON file for the figures")
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    config = Qwen3Config(**(SMALL if args.small else SHAPE), tie_word_embeddings=True,
                         eos_token_id=None, pad_token_id=0)
    with device:
        model = Qwen3ForCausalLM(config).eval()
    if args.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=device.type == "cuda")
    groups = args.rows // 8
    prompts = [" ".join(str(1 + (7 * i + j) % 400) for j in range(args.prompt))
               for i in range(groups)]
    result = {"card": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
              "torch": torch.__version__, "arguments": vars(args)}

    made = []
    seconds, peak = timed(lambda: made.append(rollout.sample(
        model, Ids(), prompts, samples=8, max_new_tokens=args.tokens)), device)
    result["sampling"] = {"tokens_per_second": args.rows * args.tokens / seconds, "peak_gb": peak}

    settings = SimpleNamespace(
        scale_by_std=False, mask_truncated=False, loss="token", max_new_tokens=args.tokens, kl=0.0,
        microbatch=args.microbatch, inner=1, temperature=1.0, clip_low=0.2, clip_high=0.28,
        grad_clip=1.0, lr=1e-6)
    end = args.tokens - 4
    span = (end - 12, end - 9, end - 1, end)

    def grail_credit(forward):
        spans = [span] * len(forward.logprobs)
        s = saliency.gradient_activation(forward, spans)
        return grail.grail_credit(s, forward.completion_mask, spans, forward.advantages)

    rewards = (torch.arange(args.rows, device=device) % 2).float().view(groups, 8)
    methods = {"grpo": grpo.uniform, "grail": grail_credit}
    runs = {name: [] for name in methods}
    for _ in range(args.repeat + 1):
        for name, credit in methods.items():  # by turns: a drift of the clocks hits both
            runs[name].append(timed(lambda: grpo.update(  # noqa: B023
                model, optimizer, made[0], rewards, credit, settings, None), device))  # noqa: B023
    for name, figures in runs.items():
        seconds = statistics.median(s for s, _ in figures[1:])  # the first one warms up
        result[name] = {"update_seconds": seconds, "peak_gb": max(peak for _, peak in figures),
                        "tokens_per_second": args.rows * (args.prompt + args.tokens) / seconds}
    result["grail_over_grpo"] = {
        key: result["grail"][key] / max(result["grpo"][key], 1e-9)
        for key in ("update_seconds", "peak_gb")}
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        Path(args.out).write_text(text + "\n")


if __name__ == "__main__":
    main()
