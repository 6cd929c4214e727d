r"""OAR: tokens that move the answer get more of the advantage, tokens that do not get less.

    python oar.py                                   # CPU, two minutes: OAR-G on the tiny model
    python oar.py --signal perturbation             # three minutes: OAR-P, which OAR-G estimates
    python oar.py --model Qwen/Qwen3-0.6B --as-released authors

Outcome-grounded Advantage Reshaping (arXiv 2601.07408) measures how far the answer's distribution
moves when we replace token t (OAR-P). OAR-G estimates this by a gradient at a noised embedding.
saliency.py computes both signals s_t. The weights have two tiers, within one completion:

    z_t = log(1 + s_t),   n_t = (z_t - min z) / (max z - min z)
    tau = the q-quantile of n           q is a level, tau a value; one description mixes them up
    w_t = max(n_t / tau, 0.1)                       where n_t <  tau: suppressed
    w_t = 1 + beta (n_t - tau) / (1 - tau)          where n_t >= tau: boosted
    w_t <- w_t T / sum w                            T tokens: mean 1, so the step keeps its size

All weights are 1 if the signal has no information: no box, an empty box, fewer than 2 tokens before
it, or a flat signal (range below 1e-6 of its largest value, or not finite). Beware of ties: if more
than a share q of the tokens tie at the minimum, tau is 0 and no token is suppressed. Advantages of
both signs are reshaped. We have not seen the paper's full text. Two public sources disagree;
released.py compares them with this file, and --as-released gives the weights of either. For the
rest of their recipes, as far as they are public, add

    --as-released authors --loss sequence --clip-high 0.2      (they do not give their clip width)
    --as-released reproduction --loss constant --num-iterations 4 --mask-truncated

Draws of noise: on the embedded model in fp32, the ranks from two seeds correlate at 0.78 with 1
draw, 0.94 with 4, 0.99 with 16 (examples/fidelity.py). On a card, bf16 rounding is almost as large
as the noise. A warning: behind a norm, as in a pre-norm transformer's first layer, the length of
e_t has no effect. There <dK/de_t, e_t> sees nothing (examples/fidelity.py --toy).

What we left out, on purpose: KL to a reference in the loss (theirs has none either), weights for
spans of tokens, scoring against the gold answer.
"""
import functools

import torch

import released
import saliency
from engine import perturb
from engine.errors import BadInput, run_cli
from engine.flags import flags, parse
from grpo import train
from logprobs import to_device


def oar_credit(s, scored, mask, q=0.25, beta=1.0, floor=0.1):
    """Signal -> token weights: (weights (B, T) fp32, fell_back (B,) bool). It needs only tensors.

    s (B, T) signal, negative values count as 0. scored (B, T) bool: the tokens that have a signal.
    All other tokens of mask (B, T) get 1, padding 0. The scored tokens' weights have mean 1. Rows
    with fewer than 2 scored tokens, or a flat or non-finite signal, fall back to 1 everywhere.
    """
    scored = scored & mask                                             # (B, T)
    n = scored.sum(1, keepdim=True)                                    # (B, 1)
    finite = (s.isfinite() | ~scored).all(1, keepdim=True)             # (B, 1)
    s = torch.where(scored & finite, s, 0.0).clamp(min=0)              # (B, T)

    # Scale to [0, 1] within each completion, in float64: log(1 + 1e-9) is 0 in fp32.
    z = s.double().log1p()                                             # (B, T)
    high = z.masked_fill(~scored, -torch.inf).amax(1, keepdim=True)    # (B, 1)
    low = z.masked_fill(~scored, torch.inf).amin(1, keepdim=True)      # (B, 1)
    flat = ~(high - low > 1e-6 * high)                                 # (B, 1)
    fell_back = (n < 2) | flat | ~finite                               # (B, 1)
    z = torch.where(fell_back, 0.0, (z - low) / (high - low))          # (B, T)

    ordered = z.masked_fill(~scored, torch.nan)                        # (B, T)
    tau = ordered.nanquantile(q, dim=1, keepdim=True)                  # (B, 1)
    suppressed = (z / (tau + 1e-8)).clamp(min=floor)                   # (B, T)
    boosted = 1 + beta * (z - tau) / (1 - tau + 1e-8)                  # (B, T)
    w = torch.where(z < tau, suppressed, boosted) * scored             # (B, T)
    w = w * n / (w.sum(1, keepdim=True) + 1e-8)                        # (B, T)
    w = torch.where(scored & ~fell_back, w, 1.0) * mask                # (B, T)
    return w.float(), fell_back[:, 0]


def credit(config):
    """The credit function for `grpo.train`: Forward -> weights (b, T)."""
    if config.as_released == "reproduction":
        return released.oar(config)
    if config.as_released == "authors":
        config = released.oar_authors(config)

    def signal(forward, spans):
        """OAR-G or OAR-P, (b, T)."""
        if config.signal == "gradient":
            return saliency.input_gradient(forward, spans, config.draws,
                                           seed=config.seed, outcome=config.outcome)
        shift = functools.partial(saliency.answer_shift, outcome=config.outcome)
        return perturb.perturbation(forward, spans, shift, config.replace, config.chunk)

    def weights(forward):
        mask = forward.completion_mask                       # (b, T)
        spans = saliency.answer_spans(forward)               # (b, 4) on the CPU
        # Skip rows with A = 0, which have no gradient, and rows with only one token before the
        # box: one value has no spread.
        asked = torch.tensor(forward.signs) != 0             # (b,)
        asked = asked & (spans[:, 0] > 1)
        spans = spans.where(asked[:, None], -1)              # (b, 4)
        s = signal(forward, spans)                           # (b, T)
        spans = to_device(spans, mask.device)
        scored = saliency.before_answer(spans, mask.shape[1])  # (b, T)
        w, fell_back = oar_credit(s, scored, mask)           # (b, T), (b,)
        forward.metrics["fallback"] = fell_back
        return w

    return weights


def main(argv=None):
    parser = flags("oar", __doc__.split("\n")[0])
    add = parser.add_argument
    add("--signal", default="gradient", choices=["gradient", "perturbation"], help="OAR-G or OAR-P")
    add("--outcome", default="mean", choices=["mean", "each", "first", "likelihood"],
        help="how to measure the answer's shift, see saliency.answer_shift")
    add("--draws", type=int, default=4, help="OAR-G: draws of noise to average")
    add("--replace", default="pad", choices=["pad", "mean"], help="OAR-P: the replacement token")
    add("--chunk", type=int, default=0, help="OAR-P: copies held at a time; 0: 16,384 tokens")
    add("--as-released", default="no", choices=["no", "authors", "reproduction"],
        help="weights of a public source, see released.py; it sets --outcome, --draws, --replace")
    config = parse(parser, argv)
    if config.draws < 1:
        raise BadInput(f"--draws {config.draws}: must be at least 1.")
    if config.chunk < 0 or config.chunk == 1:
        raise BadInput(f"--chunk {config.chunk}: 0, or at least 2, because one copy is unchanged.")
    train(config, credit(config))


if __name__ == "__main__":
    run_cli(main)
