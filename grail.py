r"""GRAIL: tokens that the answer leans on get more of the advantage.

    python grail.py                                 # CPU, a minute: a tiny model learns to think
    python grail.py --model Qwen/Qwen3-0.6B         # one card: GSM8K, 64 rollouts a step
    python grail.py --model FOLDER --data FILE.jsonl --reweight both

The model writes its final answer in \boxed{}: the box. GRPO gives every token of a completion the
same advantage A. GRAIL (Pala, Toh & Poria, arXiv 2606.04889) multiplies A by a weight w_t:

    s_t = || dJ/de_t * e_t ||_2         e_t: embedding; J: negative log-likelihood of the box
    z_t = (log s_t - mean) / std        within one completion
    w_t = clip(1 + 0.5 z_t, 0.5, 5)     and A_t = A w_t in both branches of the clipped loss

The content of the box gets 5. Its delimiters and everything after it get 1. A completion without a
box gets 1 everywhere, and so does one that --reweight leaves out. The default reweights only
completions with A <= 0: those that did no better than their group. This can make the policy drift:
these completions push down the tokens on which the answer leans, and no other completion pushes
them up as much. On a real model the default failed in five of five runs, --reweight both in
none of three, --as-released in none of three (results/real_model.md).

This is a clean reading, NOT the published code. --as-released gives the published weights, and
released.py lists the differences. We have read the abstract, the released code and a third party's
notes of the paper, not its body. So the formulas above are the code's, with the constants of its
three released configurations. Where the code looked like a slip, we made our own choice.

The release trains differently, too, not only with other weights. For its recipe add

    --as-released --loss constant --num-iterations 4 --mask-truncated

What we left out, on purpose: weights of mean 1 (the release has none; the log shows the mean), the
release's sampler correction (our sampler is the policy), its top-k 50 while sampling.
"""
import torch

import released
import saliency
import show
from engine.errors import BadInput, run_cli
from engine.flags import flags, parse
from grpo import train
from logprobs import to_device


def grail_credit(s, mask, spans, advantages, reweight="wrong",
                 w_mean=1.0, w_std=0.5, w_min=0.5, w_max=5.0):
    """Saliency -> token weights, (B, T) fp32. It needs only tensors: copy it into your trainer.

    s (B, T) saliency; mask (B, T) bool, completion tokens; spans (B, 4): start, content, close, end
    of the box in tokens, -1 without one; advantages (B,). All on one device. reweight: "wrong"
    reweights completions with A <= 0, "correct" those with A > 0, "both" all. Values of s outside
    the mask are ignored. Padding gets 0. Raises ValueError for an unknown `reweight`.
    """
    A = advantages[:, None]                                                  # (B, 1)
    sides = {"wrong": A <= 0, "correct": A > 0, "both": torch.ones_like(A).bool()}
    if reweight not in sides:
        raise ValueError(f"reweight={reweight!r}: must be wrong, correct or both.")

    t = torch.arange(s.shape[1], device=s.device)                            # (T,)
    start, content, close, _ = spans.T[:, :, None]                           # (B, 1) each
    before = mask & (t < start)                                              # (B, T)
    n = before.sum(1, keepdim=True)                                          # (B, 1)

    # Equal saliencies must give exactly 1. fp32 rounding is off by 0.002 there, so use float64.
    # log 0 is -inf, so add a small floor, relative to the largest s.
    s = torch.where(mask, s.double(), 0.0)                                   # (B, T)
    log_s = (s + 1e-8 * s.amax(1, keepdim=True).clamp(min=1e-30)).log()      # (B, T)
    mean = (log_s * before).sum(1, keepdim=True) / n                         # (B, 1)
    variance = ((log_s - mean).square() * before).sum(1, keepdim=True) / n   # (B, 1)
    z = (log_s - mean) / (variance + 1e-8).sqrt()                            # (B, T)

    w = torch.where(before, (w_mean + w_std * z).clamp(w_min, w_max), 1.0)   # (B, T)
    w = torch.where((t >= content) & (t < close), w_max, w)                  # (B, T)
    # Fewer than two tokens before the box have no std. Without a box n is 0, and z was NaN.
    return torch.where(sides[reweight] & (n >= 2), w, 1.0).float() * mask    # (B, T)


def credit(config, signal=saliency.gradient_activation, credit_fn=grail_credit):
    """The credit function for `grpo.train`: Forward -> weights (b, T).

    For ablations: signal(forward, spans, activation) and credit_fn(s, mask, spans, A, reweight).
    """
    if config.as_released:
        return released.grail(config)
    signs = {"wrong": [-1], "correct": [1], "both": [-1, 1]}[config.reweight]

    def weights(forward):
        A = forward.advantages                                # (b,)
        spans = saliency.answer_spans(forward)                # (b, 4)

        # Only these rows need a saliency: rows on the reweighted side, with a gradient, and with
        # two tokens before the box. We choose them on the CPU, which avoids a GPU sync. If no row
        # is left, there is no extra backward.
        side = torch.tensor([sign in signs for sign in forward.signs])  # (b,)
        enough = spans[:, 0] >= 2                             # (b,)
        needed = spans.where((side & enough)[:, None], -1)    # (b, 4)
        s = signal(forward, needed, config.activation)        # (b, T)

        fell_back = torch.where(side, ~enough, torch.nan)     # (b,) NaN: not counted
        forward.metrics["fallback"] = to_device(fell_back, A.device)
        spans = to_device(spans, A.device)                    # (b, 4)
        return credit_fn(s, forward.completion_mask, spans, A, config.reweight)

    return weights


def main(argv=None, credit=credit):
    parser = flags("grail", __doc__.split("\n")[0])
    add = parser.add_argument
    add("--reweight", default="wrong", choices=["wrong", "correct", "both"],
        help="completions reweighted: A <= 0, A > 0 or all")
    add("--activation", default="embeddings", choices=["embeddings", "first", "middle", "last"],
        help="activation that the saliency is computed for")
    add("--as-released", action="store_true",
        help="the released code's weights, see released.py")
    config = parse(parser, argv)
    if config.compile and config.activation != "embeddings":
        raise BadInput(f"--activation {config.activation}: compiled layers keep their outputs to "
                       "themselves; add --no-compile.")
    show.last_steps(train(config, credit(config)), config)


if __name__ == "__main__":
    run_cli(main)
