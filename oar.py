r"""OAR: tokens that move the answer get more of the advantage, tokens that do not get less.

    python oar.py                                   # CPU, two minutes: OAR-G on the tiny model
    python oar.py --signal perturbation             # OAR-P, three: what OAR-G stands in for
    python oar.py --model Qwen/Qwen3-0.6B --as-released authors

Outcome-grounded Advantage Reshaping (arXiv 2601.07408) asks how far the distribution of the answer
moves when token t is replaced (OAR-P), or by a gradient when its embedding is noised (OAR-G); see
saliency.py for the two signals. Weights follow in two tiers, within one completion:

    z_t = log(1 + s_t),   n_t = (z_t - min z) / (max z - min z)
    tau = the q-quantile of n           q is a level, tau a value: one description mixes them up
    w_t = max(n_t / tau, 0.1)                       where n_t <  tau: suppressed
    w_t = 1 + beta (n_t - tau) / (1 - tau)          where n_t >= tau: boosted
    w_t <- w_t n / sum w                            mean 1: credit moves, the step stays as large

All weights are 1 where the signal says nothing: no box or an empty one, fewer than 2 tokens before
it, or a flat signal (range below 1e-6 of its largest value, or not finite). Ties need no rule but
have a consequence: if more than a share q of the tokens tie at the minimum, tau is 0 and nothing is
suppressed. Advantages of either sign are reshaped. We have not seen the paper's full text; there
are two public sources, and they disagree:

                     default             --as-released authors   --as-released reproduction
    source                               the authors' fragment   declare-lab/grail, 749aa4c
    scored, noised   before the box      before the answer       the whole completion
    saliency of t    own embedding       own embedding           the position before it
    multiplied by    clean embedding     clean embedding         noisy embedding
    asked about      last box's content  last box's content      first box, marker and brace too
    read-out (G)     mean of logits      mean of logits          mean of logits
    read-out (P)     mean of logits      first answer position   (has no OAR-P)
    draws of noise   4                   1                       1
    q, beta          0.25, 1             0.25, 1                 0.4, 2
    quantile         interpolated        interpolated            sorted[floor(q n)]
    log(1 + s)       log1p, float64      log1p, float64          fp32: tiny s fall into steps

Draws: on the embedded model the ranks from two seeds correlate at 0.78 with 1 draw, 0.94 with 4 and
0.99 with 16 (examples/fidelity.py), in fp32; a card runs bf16, whose rounding is not far below the
noise. The authors score a text with a closing cue appended and, it seems, the reference answer;
ours is the completion as sampled, its own answer last. Both sources compute weights anew in every
inner pass; ours are kept from the first. And a warning: behind a norm, as in a pre-norm
transformer's first layer, the length of e_t does nothing, so there <dK/de_t, e_t> is blind
(examples/fidelity.py --toy).

What we left out, on purpose: KL to a reference in the loss (theirs has none either), spans of
tokens instead of tokens, answers scored on labels.
"""
import torch

import saliency
from engine.errors import BadInput, run_cli
from engine.flags import flags, parse
from grpo import train


def oar_credit(s, scored, mask, q=0.25, beta=1.0, floor=0.1, reproduced=False):
    """Signal -> token weights: (weights (B, T) fp32, fell_back (B,) bool). Needs tensors alone.

    s (B, T) signal, negative values count as 0; scored (B, T) bool: the tokens it is about, all
    other tokens of mask (B, T) get 1, padding 0. Weights of the scored tokens have mean 1. Rows
    with fewer than 2 scored tokens, a flat or a non-finite signal fall back to 1 everywhere.
    reproduced: fp32 logarithm and order statistic of declare-lab/grail.
    """
    scored = scored & mask                                                  # (B, T)
    n = scored.sum(1, keepdim=True)                                         # (B, 1)
    finite = (s.isfinite() | ~scored).all(1, keepdim=True)                  # (B, 1)
    s = torch.where(scored & finite, s, 0.0).clamp(min=0)                   # (B, T)
    z = (1 + s.float()).log().double() if reproduced else s.double().log1p()  # (B, T)
    high = z.masked_fill(~scored, -torch.inf).amax(1, keepdim=True)         # (B, 1)
    low = z.masked_fill(~scored, torch.inf).amin(1, keepdim=True)           # (B, 1)
    flat = ~(high - low > 1e-6 * high)                                      # (B, 1)
    fell_back = (n < 2) | flat | ~finite                                    # (B, 1)
    z = torch.where(fell_back, 0.0, (z - low) / (high - low))               # (B, T) in [0, 1]
    ordered = z.masked_fill(~scored, torch.inf).sort(1).values              # (B, T)
    place = q * (n if reproduced else n - 1)                                # (B, 1)
    below = place.floor().long().clamp(0, s.shape[1] - 1).minimum((n - 1).clamp(min=0))  # (B, 1)
    tau = ordered.gather(1, below)                                          # (B, 1)
    if not reproduced:
        above = (below + 1).minimum((n - 1).clamp(min=0))                   # (B, 1)
        tau = tau + (place - below) * (ordered.gather(1, above) - tau)      # (B, 1)
    suppressed = (z / (tau + 1e-8)).clamp(min=floor)                        # (B, T)
    boosted = 1 + beta * (z - tau) / (1 - tau + 1e-8)                       # (B, T)
    w = torch.where(z < tau, suppressed, boosted) * scored                  # (B, T)
    w = w * n / (w.sum(1, keepdim=True) + 1e-8)                             # (B, T)
    w = torch.where(scored & ~fell_back, w, 1.0) * mask                     # (B, T)
    return w.float(), fell_back[:, 0]


def credit(config):
    """The credit function that `grpo.train` wants: Forward -> weights (b, T)."""
    reproduced, draws = config.as_released == "reproduction", config.draws
    outcome, replace, settings = config.outcome, config.replace, {}
    if config.as_released != "no":
        draws, replace = 1, "pad"
        outcome = "first" if config.signal == "perturbation" else "mean"
    if reproduced:
        settings = dict(q=0.4, beta=2.0, reproduced=True)
        if config.signal == "perturbation":
            raise BadInput("--as-released reproduction: declare-lab/grail has no OAR-P; take "
                           "--as-released authors or --signal gradient.")

    def weights(forward):
        mask = forward.completion_mask  # (b, T)
        # A completion of advantage 0 has no gradient, so its weights do not matter.
        spans = [saliency.answer_span(forward.tokenizer, ids, text,
                                      "first" if reproduced else "last") if sign else None
                 for ids, text, sign in zip(forward.sampled, forward.texts, forward.signs)]
        if not reproduced:  # one token alone has no spread: it would fall back in any case
            spans = [span if span and span[0] > 1 else None for span in spans]
        if config.signal == "perturbation":
            s = saliency.perturbation(forward, spans, outcome, replace, config.chunk)
        else:
            s = saliency.input_gradient(forward, spans, draws, seed=config.seed, outcome=outcome,
                                        reproduced=reproduced)
        T = mask.shape[1]
        ends = torch.tensor([T if span and reproduced else span[0] if span else 0
                             for span in spans], device=mask.device)             # (b,)
        scored = torch.arange(T, device=mask.device) < ends[:, None]             # (b, T)
        w, forward.metrics["fallback"] = oar_credit(s, scored, mask, **settings)
        return w
    return weights


def main(argv=None):
    parser = flags("oar", __doc__.split("\n")[0])
    add = parser.add_argument
    add("--signal", default="gradient", choices=["gradient", "perturbation"], help="OAR-G or OAR-P")
    add("--outcome", default="mean", choices=["mean", "each", "first", "likelihood"],
        help="how the answer's shift is read, see saliency.answer_shift")
    add("--draws", type=int, default=4, help="OAR-G: draws of noise that are averaged")
    add("--replace", default="pad", choices=["pad", "mean"], help="OAR-P: token put in place")
    add("--chunk", type=int, default=0, help="OAR-P: copies held at a time; 0: 16,384 tokens")
    add("--as-released", default="no", choices=["no", "authors", "reproduction"],
        help="a public source's settings, see the docstring; overrides the flags above")
    config = parse(parser, argv)
    if config.draws < 1:
        raise BadInput(f"--draws {config.draws}: must be at least 1.")
    if config.chunk < 0 or config.chunk == 1:
        raise BadInput(f"--chunk {config.chunk}: 0, or at least 2, for one copy is unchanged.")
    train(config, credit(config))


if __name__ == "__main__":
    run_cli(main)
