r"""GRAIL: tokens that the answer leans on get more of the advantage.

    python grail.py                                 # CPU, a minute: a tiny model learns to think
    python grail.py --model Qwen/Qwen3-0.6B         # one card: GSM8K, 64 rollouts a step
    python grail.py --model FOLDER --data FILE.jsonl --rows both --as-released

GRPO gives every token of a completion the same advantage A. GRAIL (Pala, Toh & Poria, arXiv
2606.04889) multiplies it by a weight:

    s_t = || dJ/de_t * e_t ||_2         saliency.py; J: negative log-likelihood of the model's box
    z_t = (log s_t - mean) / std        within one completion
    w_t = clip(1 + 0.5 z_t, 0.5, 5)     and A_t = A w_t in both branches of the clipped loss

with w = 5 on the content of the box, 1 on its delimiters and on everything after it, and 1
everywhere in completions without a box or on the wrong side of --rows (default: only completions
that fared no better than their group, A <= 0, are reweighted).

The default here is a clean reading, NOT the published code; --as-released is, to the digit:

                           default                         --as-released
    saliency of token t    its own embedding               the position before it, which predicts it
    mean and std over      the tokens before the box       all tokens; those after the box have
                                                           saliency 0, which flattens all others
    which box              the last, the one rewarded      the first
    box content = 5        in reweighted completions only  in every completion
    fewer than 2 tokens    all ones                        as any other
      before the box
    floor under the log    1e-8 of the row's largest s     1e-8

Two things of the release we do in neither column: with --num-iterations > 1 it computes the weights again in
each pass (ours are kept from the first), and it finds the box by encoding the text again, which is
off by one token in common formats (ours: on the sampled ids).

What we left out, on purpose: weights of mean 1 (the paper has none: the mean is in the log line),
the release's sampler correction (our sampler is the policy), its top-k 50 while sampling.
"""
import math

import torch

import saliency
import show
from engine.errors import BadInput, run_cli
from engine.flags import flags, parse
from grpo import train
from logprobs import to_device


def grail_credit(s, mask, spans, advantages, rows="wrong", as_released=False,
                 w_mean=1.0, w_std=0.5, w_min=0.5, w_max=5.0):
    """Saliency -> token weights, (B, T) fp32. Needs nothing but tensors: copy it into your trainer.

    s (B, T) saliency; mask (B, T) bool, completion tokens; spans: B entries (start, content, close,
    end) in tokens, or None without a box; advantages (B,). rows: "wrong" reweights completions with
    A <= 0, "correct" those with A > 0, "both" all. The defaults are the paper's. Padding gets 0
    (the release: not on the box). Raises ValueError for w_std = 0 or an unknown `rows`.
    """
    if rows not in ("wrong", "correct", "both") or w_std is None or w_std <= 0:
        raise ValueError(f"rows={rows!r} must be wrong, correct or both; w_std={w_std!r} positive.")
    B, T = s.shape
    t = torch.arange(T, device=s.device).expand(B, T)                                # (B, T)
    edges = torch.tensor([span or (-1, -1, -1, -1) for span in spans])               # (B, 4)
    if s.is_cuda:  # sent from pinned memory, for which nobody has to wait
        edges = edges.pin_memory().to(s.device, non_blocking=True)                   # (B, 4)
    boxed = edges[:, 0] >= 0                                                         # (B,)
    start, content, close, end = edges.T[:, :, None]                                 # (B, 1) each
    A = advantages[:, None]  # (B, 1)
    side = {"wrong": A <= 0, "correct": A > 0, "both": A.new_ones(B, 1).bool()}[rows]  # (B, 1)
    counted = mask if as_released else mask & (t < start)                              # (B, T)
    included = boxed[:, None] & side  # (B, 1)
    if not as_released:
        included = included & (counted.sum(1, keepdim=True) >= 2)  # (B, 1)

    # In float64, for equal saliencies must give exactly 1: fp32 rounding is worth 0.002 there.
    s = s.double()
    floor = 1e-8 if as_released else 1e-8 * s.amax(1, keepdim=True).clamp(min=1e-30)  # (B, 1)
    log_s = (s + floor).log()                                                # (B, T)
    n = counted.sum(1, keepdim=True).clamp(min=1)                            # (B, 1)
    mean = (log_s * counted).sum(1, keepdim=True) / n                        # (B, 1)
    variance = ((log_s - mean).square() * counted).sum(1, keepdim=True) / n  # (B, 1)
    z = (log_s - mean) / (variance + 1e-8).sqrt()                            # (B, T)
    w = (w_mean + w_std * z).clamp(w_min, w_max)                             # (B, T)

    w = torch.where(included, w, 1.0) * mask            # (B, T)
    in_content = (t >= content) & (t < close)           # (B, T)
    delimiter = (t >= start) & (t < end) & ~in_content  # (B, T)
    if as_released:
        w = torch.where(in_content, w_max, torch.where(delimiter, w_mean, w))  # (B, T)
        return torch.where((t >= end) & mask & boxed[:, None], w_mean, w).float()
    w = torch.where(included & in_content, w_max, torch.where(included & (t >= start), 1.0, w))
    return (w * mask).float()  # (B, T)


def credit(config, alignment=None, weigh=grail_credit):
    """The credit function that `grpo.train` wants: Forward -> weights (b, T).

    alignment (see saliency.py) and weigh (in place of grail_credit) are there for ablations.
    """
    def weights(forward):
        which = "first" if config.as_released else "last"
        read = alignment or ("predictor" if config.as_released else "own")
        mask = forward.completion_mask  # (b, T)
        A = forward.advantages  # (b,)
        spans = [saliency.answer_span(forward.tokenizer, ids, text, which)
                 for ids, text in zip(forward.sampled, forward.texts)]
        # Saliency only where it is used: on this side and with a gradient. Without any such row
        # the backward is skipped. Decided on the CPU: to ask the card is to wait.
        sides = {"wrong": (-1,), "correct": (1,), "both": (-1, 1)}[config.rows]
        asked = [sign in sides for sign in forward.signs]  # b of bool
        lost = [span is None or (span[0] < 2 and not config.as_released) for span in spans]
        forward.metrics["fallback"] = to_device(
            [float(gone) if on else math.nan for on, gone in zip(asked, lost)], A.device)  # (b,)
        wanted = [span if on and not gone else None
                  for span, on, gone in zip(spans, asked, lost)]
        s = saliency.gradient_activation(forward, wanted, config.leaf, read)  # (b, T)
        return weigh(s, mask, spans, A, config.rows, config.as_released)
    return weights


def main(argv=None, credit=credit):
    parser = flags("grail", __doc__.split("\n")[0])
    add = parser.add_argument
    add("--rows", default="wrong", choices=["wrong", "correct", "both"],
        help="completions reweighted: A <= 0, A > 0 or all")
    add("--leaf", default="embeddings", choices=["embeddings", "first", "middle", "last"],
        help="activation whose saliency is taken")
    add("--as-released", action="store_true", help="the authors' released code, see the docstring")
    config = parse(parser, argv)
    if config.compile and config.leaf != "embeddings":
        raise BadInput(f"--leaf {config.leaf}: compiled layers keep their outputs to "
                       "themselves; add --no-compile.")
    show.last_steps(train(config, credit(config)))


if __name__ == "__main__":
    run_cli(main)
