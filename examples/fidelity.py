r"""How faithful is each cheap signal to what a token really does?

    python examples/fidelity.py                        # the embedded model, 90 s of CPU time
    python examples/fidelity.py --toy                  # a model whose influences are a formula
    python examples/fidelity.py --completions 40 --samples 128 --out fidelity.json

A token's true effect is measured by sampling. V(prefix) is the success rate of K continuations;

    effect(t) = V(prefix with y_t) - V(prefix before y_t, so y_t itself is drawn again)

We compare each signal with the effect, and with OAR-P, by Spearman's rank correlation over a
completion's tokens before the box, and average over completions. Intervals come from a bootstrap
over completions. The effect is measured in two ways:

    size     effect(t)^2 minus its sampling variance (unbiased; may be below 0): does the token
             matter at all? All signals except DelTA's margin claim to measure this.
    toward   effect(t) in right completions, -effect(t) in wrong ones: did the token help to cause
             the outcome? A weight on the advantage should measure this.

K continuations leave noise. The two halves of the K give two independent effects. If their
correlation is r, the whole has reliability 2 r / (1 + r). We divide a correlation by the root of
the reliability: this estimates the correlation with infinitely many continuations. Where r is not
positive there is no such estimate, and the table has a "-" (raise --samples). It is rough for
`size`, which is a square: even the true size would not get 1 (see `of_the_truth`). If a token has
entropy 0, the same token is always drawn again, so its effect is 0 by definition. This favours
entropy over all other signals.

What we left out, on purpose: a trained checkpoint's figures (--model FOLDER makes them).
"""
import argparse
import json
import math
import sys
import time
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import delta
import grpo
import models
import problems
import saliency
import verify
import vine
from engine import seeds
from engine.errors import BadInput, run_cli
from engine.files import check_out
from engine.perturb import perturbation
from intervals import bootstrap, middle95
from logprobs import forward_pass
from rollout import Rollouts, answers, sample


def ranks(x):
    """Ranks of x (n,) from 0, ties share their mean: (n,) float64."""
    return ((x[:, None] > x).double().sum(1) + ((x[:, None] == x).double().sum(1) - 1) / 2)


def spearman(x, y):
    """Rank correlation of x and y, (n,) each; 0 where either is constant."""
    x, y = (ranks(v) - (len(v) - 1) / 2 for v in (x, y))
    return float((x @ y) / (x.norm() * y.norm()).clamp(min=1e-12))


# ------------------------------------------------------------------ a toy in closed form


def toy(seed, normed=False, N=24):
    """A transformer whose influences are a formula: (Forward of a row, span, influence (N,)).

    Queries are 0, so attention is the plain mean of the values, and the MLP adds 0. Where the one
    answer token is predicted, at position p with embedding e_p, the head reads

        norm(e_p + (1 / (p + 1)) sum_s O V norm(e_s))

    with both norms left out unless `normed`. The padding's embedding is 0, so replacing token t
    takes its term out of the sum: influence(t) = KL(clean || without).
    """
    torch.manual_seed(seed)  # only the toy's weights depend on it
    config = Qwen3Config(vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                         num_attention_heads=1, num_key_value_heads=1, head_dim=16,
                         tie_word_embeddings=False, pad_token_id=0, eos_token_id=1)
    model = Qwen3ForCausalLM(config).double().eval()
    layer = model.model.layers[0]
    layer.self_attn.q_proj.weight.data.zero_()
    layer.mlp.down_proj.weight.data.zero_()
    for weight in (model.model.embed_tokens.weight, model.lm_head.weight,
                   layer.self_attn.v_proj.weight, layer.self_attn.o_proj.weight):
        weight.data = torch.randn(weight.shape, dtype=torch.float64) / weight.shape[1] ** 0.25
    model.model.embed_tokens.weight.data[0] = 0
    if not normed:
        layer.input_layernorm = model.model.norm = torch.nn.Identity()
    completion = torch.randperm(60)[:N + 3] + 3  # all different: N tokens, marker, answer, brace
    rollouts = Rollouts(torch.tensor([[2]]), torch.ones(1, 1, dtype=torch.bool), completion[None],
                        torch.tensor([N + 3]), torch.tensor([True]), torch.zeros(1, N + 3), [""])
    forward = forward_pass(model, rollouts, torch.tensor([0]), 1.0, texts=[""], rewards=None,
                                advantages=None, tokenizer=argparse.Namespace(pad_token_id=0))

    def norm(x):
        return x / (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() if normed else x

    with torch.no_grad():
        OV = layer.self_attn.o_proj.weight @ layer.self_attn.v_proj.weight  # (H, H)
        E = model.model.embed_tokens.weight                                 # (V, H)
        seen = torch.cat([torch.tensor([2]), completion[:N + 1]])           # (p + 1,)
        mean = norm(E[seen]).mean(0)                                        # (H,)
        without = mean - norm(E[completion[:N]]) / len(seen)                # (N, H)

        def log_probs(x):
            return (norm(E[seen[-1]] + x @ OV.T) @ model.lm_head.weight.T).log_softmax(-1)
        clean = log_probs(mean)                                             # (V,)
        influence = (clean.exp() * (clean - log_probs(without))).sum(-1)    # (N,)
    return forward, (N, N + 1, N + 2, N + 3), influence


def print_toy(toys=50):
    """Rank correlation with the closed form, mean over some toys and 95 % interval."""
    for normed in (False, True):
        rows = []
        for seed in range(toys):
            forward, span, influence = toy(seed, normed)
            box = torch.tensor([span])                                      # (1, 4)
            found = {"OAR-P": perturbation(forward, box, saliency.answer_shift),
                     "gradient x activation": saliency.gradient_activation(forward, box)}
            for draws in (1, 4, 16, 64):
                found[f"input gradient, {draws} draws"] = saliency.input_gradient(
                    forward, box, draws)
            rows.append([spearman(s[0, :span[0]].double(), influence) for s in found.values()])
        values = torch.tensor(rows, dtype=torch.float64)                    # (toys, S)
        low, high = middle95(bootstrap(values))                             # (S,) each
        print(f"rank correlation with the influence in closed form, {toys} toys of {span[0]} "
              f"tokens, attention over {'normed' if normed else 'raw'} embeddings")
        for name, m, a, b in zip(found, values.mean(0).tolist(), low.tolist(), high.tolist()):
            print(f"  {name:28s} {m:6.3f} [{a:.3f}, {b:.3f}]")


# ------------------------------------------------------------------ completions and their signals


def choose(model, tokenizer, rows, args):
    """(pool of rollouts, rewards (N, G), row numbers of the completions to study).

    We study finished completions that have a box and at least 8 tokens before it, from groups of
    mixed rewards. Half are right and half wrong. A problem gives the first of each kind at most.
    """
    prompts = [problems.build_prompt(tokenizer, row["problem"]) for row in rows]
    pool = sample(model, tokenizer, prompts, samples=8, max_new_tokens=args.max_new_tokens,
                  seed=args.seed, batch_size=256)
    asked = [(row["answer"], row["problem"]) for row in rows for _ in range(8)]
    triples = [(text, *gold) for text, gold in zip(answers(pool, tokenizer), asked)]
    right = torch.tensor(verify.verify_all(triples, strict=True)).view(-1, 8)
    chosen, wanted = {True: [], False: []}, args.completions // 2
    for i, group in enumerate(right):
        for kind in (True, False):
            for j in (group == kind).nonzero()[:, 0].tolist():
                row = 8 * i + j
                ids = pool.completion_ids[row, :pool.lengths[row]].tolist()
                span = saliency.answer_span(tokenizer, ids, pool.texts[row])
                mixed = 0 < int(group.sum()) < 8
                if (mixed and span and span[0] >= 8 and bool(pool.finished[row])
                        and len(chosen[kind]) < wanted):
                    chosen[kind].append(row)
                    break
    if min(map(len, chosen.values())) < wanted:
        raise BadInput(f"--completions {args.completions}: only {len(chosen[True])} right and "
                       f"{len(chosen[False])} wrong ones with 8 tokens before a box among "
                       f"{len(pool.texts)}; raise --problems or take fewer.")
    return pool, right.float(), chosen[True] + chosen[False]


def all_signals(model, tokenizer, pool, rewards, chosen, seed):
    """(name -> (b, T) signal, spans) of the chosen completions."""
    advantages = grpo.group_advantages(rewards).flatten()  # (B,)

    def forward_of(rows):
        rows = torch.as_tensor(rows)
        return forward_pass(model, pool, rows, 1.0, texts=[pool.texts[i] for i in rows],
                                 rewards=rewards.flatten()[rows], advantages=advantages[rows],
                                 tokenizer=tokenizer)

    forward = forward_of(chosen)
    mask = forward.completion_mask  # (b, T)
    spans, shift = saliency.answer_spans(forward), saliency.answer_shift  # (b, 4)
    signals = {"OAR-P": perturbation(forward, spans, shift),
               "OAR-P, mean embedding": perturbation(forward, spans, shift, replace="mean"),
               "gradient x activation": saliency.gradient_activation(forward, spans)}
    for draws in (1, 4, 16):
        signals[f"input gradient, {draws} draws"] = saliency.input_gradient(
            forward, spans, draws, seed=seed)
        # Only for the agreement of two seeds; the table leaves it out.
        signals[f"other seed, {draws} draws"] = saliency.input_gradient(
            forward, spans, draws, seed=seed + 1)
    with torch.no_grad():
        hidden, logprobs = (torch.zeros(*pool.completion_ids.shape, *more) for more in
                            ((model.config.hidden_size,), ()))
        for rows in torch.arange(len(pool.texts)).split(128):
            part = forward_of(rows)
            t = part.logprobs.shape[1]
            hidden[rows, :t], logprobs[rows, :t] = part.hidden, part.logprobs
    weights, _ = delta.delta_weights(*delta.head_row(hidden, logprobs, pool.completion_mask),
                                     advantages, pool.completion_mask)
    signals["DelTA margin"] = weights[chosen]  # a weight rises with the margin: same ranks
    signals["entropy"] = forward.entropy
    signals["random"] = torch.rand(mask.shape, generator=seeds.generator_for(seed, "random"))
    return signals, spans.tolist()


# ------------------------------------------------------------------ the true effect


def success(model, tokenizer, pool, rows, chosen, spans, args):
    """K continuations of every prefix: ([verdicts (start + 1, K) of each completion], tokens)."""
    prompts, prefixes, asked, counts = [], [], [], []
    for row, span in zip(chosen, spans):
        problem = rows[row // 8]
        text = problems.build_prompt(tokenizer, problem["problem"])
        prompt = tokenizer(text, add_special_tokens=False).input_ids
        for t in range(span[0] + 1):
            prompts.append(prompt)
            prefixes.append(pool.sampled[row][:t])
            asked.append(problem)
        counts.append(span[0] + 1)
    right, tokens = vine.verdicts(model, tokenizer, prompts, prefixes, asked, args.samples,
                                  args.max_new_tokens, seed=args.seed + 1)
    return list(right.double().split(counts)), tokens


def effects(verdicts, sign):
    """(size (N,), toward (N,)) from verdicts (N + 1, K) of a completion; sign: +1 right, -1 wrong.

    size: the squared difference less its expected sampling variance, p (1 - p) / (K - 1) each.
    """
    V = verdicts.mean(1)                                  # (N + 1,)
    noise = V * (1 - V) / (verdicts.shape[1] - 1)         # (N + 1,)
    effect = V[1:] - V[:-1]                               # (N,)
    return effect.square() - noise[1:] - noise[:-1], sign * effect


def reliability(r):
    """2 r / (1 + r), of all K continuations, where the two halves correlate at r: any shape.

    NaN at r = -1.
    """
    r = torch.as_tensor(r, dtype=torch.float64)
    return torch.where(r > -1, 2 * r / (1 + r), torch.nan)


def corrected(correlation, r):
    """The correlation over the root of the reliability. NaN unless r > 0: then there is none."""
    r = torch.as_tensor(r, dtype=torch.float64)
    return torch.where(r > 0, correlation / reliability(r).sqrt(), torch.nan)


def estimate(values, r=None):
    """[(mean, low, high)] of S signals, 95 %, from values (C, S) of C completions, lists.

    r: C correlations of the two halves; then the mean is corrected. A resample that cannot be
    corrected could be anywhere. If 2.5 % or more are such, the interval has no ends: NaN.
    """
    values = torch.tensor(values, dtype=torch.float64)                           # (C, S)
    if r is None:
        low, high = middle95(bootstrap(values))                                  # (S,) each
        return list(zip(values.mean(0).tolist(), low.tolist(), high.tolist()))

    both = torch.cat([values, torch.tensor(r, dtype=torch.float64)[:, None]], 1)  # (C, S + 1)
    mean, draws = (corrected(x[:, :-1], x[:, -1:])                               # (1 or R, S)
                   for x in (both.mean(0, keepdim=True), bootstrap(both)))
    low, _ = middle95(draws.where(~draws.isnan(), -torch.inf))                   # (S,)
    _, high = middle95(draws.where(~draws.isnan(), torch.inf))                   # (S,)
    known = low.isfinite() & high.isfinite() & ~mean[0].isnan()                  # (S,)
    low, high = (end.where(known, torch.nan) for end in (low, high))
    return list(zip(mean[0].tolist(), low.tolist(), high.tolist()))


def of_the_truth(verdicts, signs, draws=50):
    """What the table would give the true effect, as a signal: {"size": ..., "toward": ...}.

    We take the rates of `verdicts`, C of (N + 1, K), as the truth and draw verdicts from them. If
    the correction were exact, both would be 1. But the rates contain noise, which spreads the
    effects. So the real truth would come out lower than this, if anything.
    """
    generator, seen, halves = torch.Generator().manual_seed(0), {}, {}
    for sign, measured in zip(signs, verdicts):
        K, V = measured.shape[1], measured.mean(1)                # (N + 1,)
        effect = V[1:] - V[:-1]                                   # (N,)
        truth = {"size": effect.square(), "toward": sign * effect}
        for _ in range(draws):
            again = torch.bernoulli(V[:, None].expand(-1, K), generator=generator)  # (N + 1, K)
            whole, a, b = (dict(zip(truth, effects(part, sign)))
                           for part in (again, again[:, :K // 2], again[:, K // 2:]))
            for column, known in truth.items():
                seen.setdefault(column, []).append(spearman(known, whole[column]))
                halves.setdefault(column, []).append(spearman(a[column], b[column]))
    return {column: float(corrected(sum(cs) / len(cs), sum(halves[column]) / len(cs)))
            for column, cs in seen.items()}


# ------------------------------------------------------------------ the command


def check(args):
    """Raise BadInput for numbers that leave nothing to study."""
    least = {"problems": 1, "completions": 4, "samples": 4, "max_new_tokens": 1}
    for name, smallest in least.items():
        value = getattr(args, name)
        even = name in ("completions", "samples")  # both are cut into two halves
        if value < smallest or (even and value % 2):
            raise BadInput(f"--{name.replace('_', '-')} {value}: must be "
                           f"{'an even number, ' * even}at least {smallest}.")
    if not 0 <= args.seed < 2**40:
        raise BadInput(f"--seed {args.seed}: take one from 0 to 2^40.")


def cell(x):
    """An estimate (mean, low, high) in the table, with - for what is NaN."""
    mean, low, high = x
    if math.isnan(mean):
        return "-"
    interval = "-" if math.isnan(low) else f"{low:5.2f}, {high:5.2f}"
    return f"{mean:5.2f} [{interval}]"


def without_nan(x):
    """x of dicts, lists and numbers, with None in place of NaN: JSON has none."""
    if isinstance(x, dict):
        return {key: without_nan(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [without_nan(value) for value in x]
    return None if x != x else x


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--toy", action="store_true", help="print the closed-form toy's correlations and stop")
    add("--model", default="tiny", help="tiny: the embedded one; a folder or hub id")
    add("--data", default="arithmetic")
    add("--problems", type=int, default=64, help="problems from which completions are taken")
    add("--completions", type=int, default=32, help="completions studied, half of them right")
    add("--samples", type=int, default=64, help="K, continuations of each prefix; even")
    add("--max-new-tokens", type=int, default=72)
    add("--seed", type=int, default=0)
    add("--device", default="cpu", help="where to sample the continuations (most of the time)")
    add("--out", default="", help="JSON file for the figures")
    args = parser.parse_args(argv)
    if args.toy:
        return print_toy()
    check(args)
    models.check_device(args.device)  # now, because it and --out are used late
    if args.out:
        check_out(args.out)
    began = time.time()
    model, tokenizer = problems.load_policy(args.model)
    rows = problems.load_problems(args.data, "test")[:args.problems]
    pool, rewards, chosen = choose(model, tokenizer, rows, args)
    signals, spans = all_signals(model, tokenizer, pool, rewards, chosen, args.seed)
    model.to(args.device)  # all before this is done on the CPU
    verdicts, tokens = success(model, tokenizer, pool, rows, chosen, spans, args)

    K, tables = args.samples, {"OAR-P": [], "size": [], "toward": []}
    halves = {"size": [], "toward": []}
    names = [name for name in signals if not name.startswith("other seed")]
    for n, (span, right) in enumerate(zip(spans, rewards.flatten()[chosen].tolist())):
        own = {name: s[n, :span[0]].double() for name, s in signals.items()}
        sign = 2 * right - 1
        truth = dict(zip(("size", "toward"), effects(verdicts[n], sign)))
        truth["OAR-P"] = own["OAR-P"]
        for column, against in truth.items():
            tables[column].append([spearman(own[name], against) for name in names])
        a, b = effects(verdicts[n][:, :K // 2], sign), effects(verdicts[n][:, K // 2:], sign)
        for i, column in enumerate(halves):
            halves[column].append(spearman(a[i], b[i]))

    result = {"arguments": vars(args), "seconds": round(time.time() - began, 1), "tokens": tokens,
              "positions": sum(span[0] for span in spans), "signals": names,
              "OAR-P": estimate(tables["OAR-P"])}
    for column, r in halves.items():
        mean = sum(r) / len(r)
        result[column] = {"split_half": mean, "reliability": float(reliability(mean)),
                          "raw": estimate(tables[column]),
                          "corrected": estimate(tables[column], r)}
    signs = [2 * right - 1 for right in rewards.flatten()[chosen].tolist()]
    result["of_the_truth"] = of_the_truth(verdicts, signs)
    result["seed_to_seed"] = {draws: sum(
        spearman(signals[f"input gradient, {draws} draws"][n, :span[0]],
                 signals[f"other seed, {draws} draws"][n, :span[0]])
        for n, span in enumerate(spans)) / len(spans) for draws in (1, 4, 16)}

    def listed(values):
        return ", ".join(f"{c} {value:.2f}".replace("nan", "-") for c, value in values.items())

    print(f"{len(chosen)} completions, {result['positions']} tokens before a box, K = {K}, "
          f"{tokens:,} tokens sampled, {result['seconds']:.0f} s\n"
          "reliability of the effect (split-half): "
          + listed({column: result[column]["reliability"] for column in halves}) + "\n"
          "corrected, of the true effect itself: "
          + listed(result["of_the_truth"]) + "\n"
          "OAR-G, rank correlation of two seeds: "
          + ", ".join(f"{k} draws {v:.2f}" for k, v in result["seed_to_seed"].items()) + "\n\n"
          "| signal | with OAR-P | with the effect's size, raw | corrected "
          "| toward the outcome, raw | corrected |\n|---|---|---|---|---|---|")
    for i, name in enumerate(names):
        cells = [result["OAR-P"][i], result["size"]["raw"][i], result["size"]["corrected"][i],
                 result["toward"]["raw"][i], result["toward"]["corrected"][i]]
        print(f"| {name} | " + " | ".join(map(cell, cells)) + " |")
    if args.out:
        text = json.dumps(without_nan(result), indent=1) + "\n"
        Path(args.out).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    run_cli(main)
