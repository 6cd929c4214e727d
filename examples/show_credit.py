"""Credit under every method, side by side: one right and one wrong completion, as credit.html.

    python examples/show_credit.py                          # the tiny model
    python examples/show_credit.py --model runs/NAME/checkpoint
    python examples/show_credit.py --model FOLDER --problem "What is 2 + 2?" --answer 4

A group is sampled and rewarded as in training. DelTA compares all its completions with each other;
the other methods look at one at a time. Every completion is reweighted here, right or wrong
(`--reweight both`), so that the columns can be compared.
"""
import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import delta
import grpo
import problems
import rollout
import saliency
import show
import verify
from engine.errors import BadInput, run_cli
from engine.perturb import perturbation
from grail import grail_credit
from logprobs import forward_pass
from oar import oar_credit


def columns(forward, spans):
    """{method: (weights (b, T), saliency (b, T) or None)} at the methods' defaults."""
    mask = forward.completion_mask  # (b, T)
    boxes = spans.to(mask.device)                                # (b, 4)
    before = saliency.before_answer(boxes, mask.shape[1])        # (b, T)
    s = saliency.gradient_activation(forward, spans)             # (b, T)
    w = grail_credit(s, mask, boxes, forward.advantages, "both")  # (b, T)
    found = {"GRPO": (grpo.uniform(forward), None), "GRAIL": (w, s)}
    for name, s in (("OAR-G", saliency.input_gradient(forward, spans)),
                    ("OAR-P", perturbation(forward, spans, saliency.answer_shift))):
        found[name] = oar_credit(s, before, mask)[0], s
    parts = delta.head_row(forward.hidden.detach(), forward.logprobs.detach(), mask)
    found["DelTA"] = delta.delta_weights(*parts, forward.advantages, mask)[0], None
    return found


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="tiny", help="hub id or folder; tiny: the embedded one")
    parser.add_argument("--problem", default="Start with 10, minus 3, minus 4.")
    parser.add_argument("--answer", default="3", help="the gold answer of --problem")
    parser.add_argument("--samples", type=int, default=8, help="G, completions of the group")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("credit.html"))
    args = parser.parse_args(argv)
    model, tokenizer = problems.load_policy(args.model, args.device)
    prompt = problems.build_prompt(tokenizer, args.problem)
    out = rollout.sample(model, tokenizer, [prompt], samples=args.samples, seed=args.seed,
                         max_new_tokens=args.max_new_tokens)
    texts = rollout.answers(out, tokenizer)
    triples = [(text, args.answer, args.problem) for text in texts]
    right = verify.verify_all(triples, strict=True)
    rewards = torch.tensor([right], dtype=torch.float32)                     # (1, G)
    forward = forward_pass(
        model, out, torch.arange(args.samples), 1.0, tokenizer=tokenizer, texts=texts,
        rewards=rewards[0], advantages=grpo.group_advantages(rewards)[0])
    spans = saliency.answer_spans(forward)                                   # (G, 4)
    methods, shown = columns(forward, spans), []
    for reward in (1.0, 0.0):  # the longest with a box of either sort: it has most to show
        rows = [i for i in range(args.samples) if rewards[0, i] == reward and spans[i, 0] >= 0]
        for i in sorted(rows, key=lambda i: -out.lengths[i])[:1]:
            n = out.lengths[i]
            shown.append(show.entry(
                tokenizer, out.completion_ids[i, :n].tolist(), args.problem, reward,
                {name: (w[i, :n].tolist(), None if s is None else s[i, :n].tolist())
                 for name, (w, s) in methods.items()}))
    if not shown:
        raise BadInput(f"--problem {args.problem!r}: none of {args.samples} completions "
                                "has a box; try another one, or more --samples.")
    try:
        args.out.write_text(show.page(f"Credit for {args.model}", shown), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--out {args.out}: {error.strerror}.") from None
    print(f"{len(shown)} of {args.samples} completions, five methods: {args.out}")


if __name__ == "__main__":
    run_cli(main)
