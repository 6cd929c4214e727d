"""Credit under every method, side by side: one right and one wrong completion, as credit.html.

    python examples/show_credit.py                          # the tiny model
    python examples/show_credit.py --model runs/NAME/checkpoint
    python examples/show_credit.py --model FOLDER --problem "What is 2 + 2?" --answer 4
    python examples/show_credit.py --reweight both          # GRAIL on the right one, too

It samples and rewards a group as in training. DelTA compares all completions of the group; the
other methods look at one at a time. GRAIL's column uses the settings of the checkpoint's run. For
any other model it uses the defaults, which do not reweight right completions.
"""
import argparse
import json
import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import delta
import grpo
import problems
import released
import rollout
import saliency
import show
from engine.checkpoints import run_folder
from engine.errors import BadInput, run_cli
from engine.flags import flags, parse
from engine.perturb import perturbation
from grail import grail_credit
from logprobs import forward_pass
from oar import oar_credit


def grail_settings(model, reweight):
    """The config of the GRAIL run that made this checkpoint, else the defaults. A flag wins."""
    config = parse(flags("grail", ""), [])
    config.reweight, config.activation, config.as_released = "wrong", "embeddings", False
    path = run_folder(model) / "config.json"
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        saved = {}
    if type(saved) is dict and saved.get("method") == "grail":
        for name in ("reweight", "activation", "as_released"):
            setattr(config, name, saved.get(name, getattr(config, name)))
    if reweight:
        config.reweight = reweight
    return config


def columns(forward, spans, config):
    """{method: (weights (b, T), saliency (b, T) or None)}. config: GRAIL's; others: defaults."""
    mask = forward.completion_mask  # (b, T)
    boxes = spans.to(mask.device)                                # (b, 4)
    before = saliency.before_answer(boxes, mask.shape[1])        # (b, T)
    s = saliency.gradient_activation(forward, spans, config.activation)  # (b, T)
    if config.as_released:
        w = released.grail(config)(forward)                      # (b, T)
    else:
        w = grail_credit(s, mask, boxes, forward.advantages, config.reweight)  # (b, T)
    found = {"GRPO": (grpo.uniform(forward), None), "GRAIL": (w, s)}
    for name, s in (("OAR-G", saliency.input_gradient(forward, spans)),
                    ("OAR-P", perturbation(forward, spans, saliency.answer_shift))):
        found[name] = oar_credit(s, before, mask)[0], s
    parts = delta.head_row(forward.hidden.detach(), forward.logprobs.detach(), mask)
    found["DelTA"] = delta.delta_weights(*parts, forward.advantages, mask)[0], None
    return found


def shown(forward, out, methods, config, tokenizer, args):
    """The entries of the page: the longest right and the longest wrong completion with a box."""
    spans, found = saliency.answer_spans(forward), []
    for reward in (1.0, 0.0):
        rows = [i for i in range(args.samples)
                if forward.rewards[i] == reward and spans[i, 0] >= 0]
        for i in sorted(rows, key=lambda i: -out.lengths[i])[:1]:
            n, A = int(out.lengths[i]), float(forward.advantages[i])
            several = {}
            for name, (w, s) in methods.items():
                weights = w[i, :n].tolist()
                note = show.of_method(config, weights, A)[1] if name == "GRAIL" else ""
                several[name] = (weights, None if s is None else s[i, :n].tolist(), note)
            found.append(show.entry(
                tokenizer, out.sampled[i], args.problem, reward, several, gold=args.answer, A=A,
                p=forward.logprobs[i, :n].exp().tolist(), entropy=forward.entropy[i, :n].tolist(),
                twins=show.twins(out, i, args.samples)))
    return found


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="tiny", type=os.path.expanduser,
                        help="hub id or folder; tiny: the embedded one")
    parser.add_argument("--problem", default="Start with 10, minus 3, minus 4.")
    parser.add_argument("--answer", default="3", help="the gold answer of --problem")
    parser.add_argument("--reweight", choices=["wrong", "correct", "both"],
                        help="of GRAIL; default: as in the run that made --model, else wrong")
    parser.add_argument("--samples", type=int, default=8, help="G, completions of the group")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("credit.html"))
    args = parser.parse_args(argv)
    for flag, value, least in (("--samples", args.samples, 2),
                               ("--max-new-tokens", args.max_new_tokens, 1)):
        if value < least:
            raise BadInput(f"{flag} {value}: must be at least {least}.")
    if not 0 <= args.seed < 2**40:
        raise BadInput(f"--seed {args.seed}: take one from 0 to 2^40.")
    model, tokenizer = problems.load_policy(args.model, args.device)
    prompt = problems.build_prompt(tokenizer, args.problem)
    out = rollout.sample(model, tokenizer, [prompt], samples=args.samples, seed=args.seed,
                         max_new_tokens=args.max_new_tokens)
    group = argparse.Namespace(group=args.samples)
    row = {"problem": args.problem, "answer": args.answer}
    rewards, _, _ = grpo.outcome_reward(out, [row], group, tokenizer, model)  # (1, G)
    advantages = grpo.group_advantages(rewards)[0]                            # (G,)
    forward = forward_pass(
        model, out, torch.arange(args.samples), 1.0, tokenizer=tokenizer,
        texts=rollout.answers(out, tokenizer), rewards=rewards[0],
        advantages=advantages, signs=advantages.sign().tolist())
    config = grail_settings(args.model, args.reweight)
    methods = columns(forward, saliency.answer_spans(forward), config)
    entries = shown(forward, out, methods, config, tokenizer, args)
    if not entries:
        raise BadInput(f"--problem {args.problem!r}: none of {args.samples} completions "
                       "has a box; try another one, or more --samples.")
    about = f"{int(rewards.sum())} of {args.samples} completions of this problem are right"
    try:
        text = show.pages.page(f"Credit for {args.model}", entries, about)
        args.out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--out {args.out}: {error.strerror}.") from None
    print(f"{len(entries)} of {args.samples} completions, five methods: {args.out}")


if __name__ == "__main__":
    run_cli(main)
