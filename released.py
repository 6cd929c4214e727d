r"""The exact weights of the published code of GRAIL, OAR and DelTA.

    python grail.py --as-released
    python oar.py --as-released authors             # or: reproduction
    python delta.py --as-released

grail.py, oar.py and delta.py are clean readings. This file computes what the public code computes,
and tests/test_{grail,oar,delta}.py check it on that code's outputs. A function has the same name
here and in its clean file, so that a diff shows the difference. The tables of differences:

GRAIL, declare-lab/grail, 749aa4c (w_min is the released configurations', 0.1 in the code):

                           grail.py                        here
    saliency of token t    its own embedding               the position before it, which predicts it
    mean and std over      the tokens before the box       all tokens; those after the box have
                                                           saliency 0, which flattens all others
    which box              the last, the one rewarded      the first
    box content = 5        in reweighted completions only  in every completion
    fewer than 2 tokens    all ones                        as any other
      before the box
    floor under the log    1e-8 of the row's largest s     1e-8

Neither file copies three things. With --num-iterations > 1 it computes the weights again in each
pass (ours keeps the first pass's). It finds the box by encoding the text again, which is off by
one token in common formats (ours uses the sampled ids). And it counts escaped braces, so that
\boxed{\{} never closes and is not a box (ours: a box).

OAR has two public sources: a fragment by the authors (Valsure/Outcome-Grounded-Advantage-
Reshaping, 8dbc478), and a reproduction in declare-lab/grail, 749aa4c, which finds boxes as GRAIL:

                       oar.py              authors                 reproduction
    scored, noised     before the box      before the answer       the whole completion
    saliency of t      own embedding       own embedding           the position before it
    multiplied by      clean embedding     clean embedding         noisy embedding
    asked about        last box's content  last box's content      first box, marker and brace too
    read-out (G)       mean of logits      mean of logits          mean of logits
    read-out (P)       mean of logits      first answer position   (has no OAR-P)
    draws of noise     4                   1                       1
    q, beta            0.25, 1             0.25, 1                 0.4, 2
    quantile           interpolated        interpolated            sorted[floor(q n)]
    log(1 + s)         log1p, float64      log1p, float64          fp32: tiny s fall into steps
    added to divisors  1e-8                1e-8                    1e-12
    almost flat signal all ones            stretched over [0, 1]   stretched over [0, 1]

"authors" only changes settings. It runs oar.py's functions, with their rule for flat signals. In
all three, an answer that moves by less than fp32 rounding gives ones here. The authors append a
closing cue to the text and, it seems, the reference answer. We score the completion as sampled,
with its own answer. Both sources compute the weights again in every pass over the batch. Ours keep
the first pass's.

DelTA, RUCBM/DelTA, cf048bd:

                                delta.py                       here
    gamma of refinement k       lags: of the margins before    the same
    completions of A = 0        not counted                    w = 0.8, counted in the mean: the
                                                               others rise above 1
    all A of one sign           all ones                       the missing mean is the zero vector
    hidden states               kept from one pass             the same (theirs: K + 2 passes)

What we left out, on purpose: their training recipes. The tops of grail.py, oar.py and delta.py
name the flags that come closest.
"""
from types import SimpleNamespace

import torch

import saliency
from engine.errors import BadInput
from logprobs import to_device

# ------------------------------------------------------------------------------ GRAIL


def grail_credit(s, mask, spans, advantages, reweight="wrong",
                 w_mean=1.0, w_std=0.5, w_min=0.5, w_max=5.0):
    """Saliency -> token weights, (B, T) fp32. Arguments as in grail.grail_credit.

    Padding gets 0, except on the box, which gets its weights even outside the mask. Raises
    ValueError for w_std = 0, as the release does, or an unknown `reweight`.
    """
    A = advantages[:, None]  # (B, 1)
    sides = {"wrong": A <= 0, "correct": A > 0, "both": torch.ones_like(A).bool()}
    if reweight not in sides or w_std is None or w_std <= 0:
        raise ValueError(f"reweight={reweight!r} must be wrong, correct or both; "
                         f"w_std={w_std!r} positive.")

    t = torch.arange(s.shape[1], device=s.device)     # (T,)
    start, content, close, end = spans.T[:, :, None]  # (B, 1) each
    boxed = start >= 0                                # (B, 1)
    n = mask.sum(1, keepdim=True).clamp(min=1)        # (B, 1)

    s = torch.where(mask, s.double(), 0.0)                                # (B, T)
    log_s = (s + 1e-8).log()                                              # (B, T)
    mean = (log_s * mask).sum(1, keepdim=True) / n                        # (B, 1)
    variance = ((log_s - mean).square() * mask).sum(1, keepdim=True) / n  # (B, 1)
    z = (log_s - mean) / (variance + 1e-8).sqrt()                         # (B, T)
    w = (w_mean + w_std * z).clamp(w_min, w_max)                          # (B, T)

    w = torch.where(sides[reweight] & boxed, w, 1.0) * mask  # (B, T)
    inside = (t >= content) & (t < close)                    # (B, T)
    delimiter = (t >= start) & (t < end) & ~inside           # (B, T)
    after = (t >= end) & mask & boxed                        # (B, T)
    w = torch.where(inside, w_max, w)
    return torch.where(delimiter | after, w_mean, w).float()  # (B, T)


def gradient_activation(forward, spans, activation="embeddings"):
    """As saliency.gradient_activation, (b, T), but read where token t is predicted: token t gets
    the saliency of token t - 1, and the first token that of the prompt's last."""
    J = saliency.answer_loss(forward, spans)
    if J is None:
        return torch.zeros_like(forward.logprobs)           # (b, T)
    activation = saliency.activations(forward, activation)  # (b, L, H)
    s = saliency.gradient_times_activation(J, activation)   # (b, L)
    s = s.gather(1, forward.position - 1)                   # (b, T)
    return torch.where(forward.completion_mask, s, 0.0)


def grail(config):
    """The credit function of grail.py --as-released."""
    signs = {"wrong": [-1], "correct": [1], "both": [-1, 1]}[config.reweight]

    def weights(forward):
        A = forward.advantages                                           # (b,)
        spans = saliency.answer_spans(forward, "first")                  # (b, 4) on the CPU
        asked = torch.tensor([sign in signs for sign in forward.signs])  # (b,)
        found = spans[:, 0] >= 0                                         # (b,)
        lost = torch.where(asked, ~found, torch.nan)                     # (b,) NaN: not counted
        forward.metrics["fallback"] = to_device(lost, A.device)
        wanted = spans.where((asked & found)[:, None], -1)           # (b, 4)
        s = gradient_activation(forward, wanted, config.activation)  # (b, T)
        spans = to_device(spans, A.device)
        return grail_credit(s, forward.completion_mask, spans, A, config.reweight)

    return weights


# ------------------------------------------------------------------------------ OAR


def oar_authors(config):
    """A copy of oar.py's settings, changed to those of the authors' fragment."""
    outcome = "mean"
    if config.signal == "perturbation":
        outcome = "first"
    theirs = {"draws": 1, "replace": "pad", "outcome": outcome}
    return SimpleNamespace(**vars(config) | theirs)


def oar_credit(s, scored, mask, q=0.4, beta=2.0, floor=0.1):
    """Signal -> (weights (B, T) fp32, fell_back (B,) bool), as the reproduction has it.

    Arguments as in oar.oar_credit. Rows get ones if no token is scored, if all signals are equal,
    or if one is not finite. The last rule is ours: the reproduction passes the NaN on.
    """
    scored = scored & mask                                  # (B, T)
    n = scored.sum(1, keepdim=True)                         # (B, 1)
    finite = (s.isfinite() | ~scored).all(1, keepdim=True)  # (B, 1)
    s = torch.where(scored & finite, s, 0.0).clamp(min=0)   # (B, T)

    z = (1 + s.float()).log().double()                                 # (B, T)
    high = z.masked_fill(~scored, -torch.inf).amax(1, keepdim=True)    # (B, 1)
    low = z.masked_fill(~scored, torch.inf).amin(1, keepdim=True)      # (B, 1)
    fell_back = (n == 0) | (high == low) | ~finite                     # (B, 1)
    z = torch.where(fell_back, 0.0, (z - low) / (high - low + 1e-12))  # (B, T)

    ordered = z.masked_fill(~scored, torch.inf).sort(1).values  # (B, T)
    index = (q * n).floor().long().minimum(n - 1).clamp(min=0)  # (B, 1)
    tau = ordered.gather(1, index)                              # (B, 1)
    suppressed = (z / (tau + 1e-12)).clamp(min=floor)           # (B, T)
    boosted = 1 + beta * (z - tau) / (1 - tau + 1e-12)          # (B, T)
    w = torch.where(z < tau, suppressed, boosted) * scored      # (B, T)
    w = w * n / (w.sum(1, keepdim=True) + 1e-8)                 # (B, T)
    w = torch.where(scored & ~fell_back, w, 1.0) * mask         # (B, T)
    return w.float(), fell_back[:, 0]


def input_gradient(forward, spans, sigma=1e-3, seed=0):
    """OAR-G as the reproduction has it, (b, T) fp32: saliency.input_gradient with one draw. The
    noise is on the positions that predict the tokens up to the box's end, and the tokens get those
    positions' scores. The gradient meets the noisy embeddings. K is about the whole box."""
    scores = torch.zeros_like(forward.logprobs)  # (b, T)
    asked = [(i, start, end) for i, (start, _, _, end) in enumerate(spans.tolist()) if start < end]
    if not asked:
        return scores
    boxes = [(i, t) for i, start, end in asked for t in range(start, end)]
    lengths = [end - start for _, start, end in asked]
    i, t = to_device(boxes, scores.device).T  # (K,) each
    clean = forward.embeddings.detach()       # (b, L, H)
    before_each = forward.position - 1        # (b, T)

    def answer_logits(hidden):
        """(K, H) -> a row's (K_i, V) each."""
        return forward.head(hidden.to(clean.dtype)).split(lengths)

    with torch.no_grad():
        before = answer_logits(forward.hidden[i, t])
    noise = torch.zeros(*scores.shape, clean.shape[2]).to(clean)  # (b, T, H)
    for row, _, end in asked:
        key = (seed, 0, forward.sampled[row])
        noise[row, :end] = sigma * saliency.normals(key, noise[row, :end])
    leaf = saliency.add_at(clean, before_each, noise).requires_grad_()  # (b, L, H)
    hidden = saliency.layers_again(forward, leaf)                       # (b, L, H)
    after = answer_logits(hidden[i, before_each[i, t]])
    K = sum(saliency.answer_shift(a, b, None) for a, b in zip(before, after))
    score = saliency.gradient_dot_activation(K, leaf, leaf.detach())  # (b, L)
    score = score.gather(1, before_each)                              # (b, T)
    for (row, _, end), a, b in zip(asked, before, after):
        scores[row, :end] = score[row, :end] * saliency.moved(a, b)
    return scores


def oar(config):
    """The credit function of oar.py --as-released reproduction. Raises BadInput for OAR-P."""
    if config.signal == "perturbation":
        raise BadInput("--as-released reproduction: declare-lab/grail has no OAR-P; take "
                       "--as-released authors or --signal gradient.")

    def weights(forward):
        mask = forward.completion_mask                        # (b, T)
        spans = saliency.answer_spans(forward, "first")       # (b, 4) on the CPU
        asked = torch.tensor(forward.signs) != 0              # (b,) no gradient at A = 0
        spans = spans.where(asked[:, None], -1)               # (b, 4)
        s = input_gradient(forward, spans, seed=config.seed)  # (b, T)
        boxed = to_device(spans[:, :1] >= 0, mask.device)     # (b, 1)
        w, fell_back = oar_credit(s, boxed & mask, mask)      # (b, T), (b,)
        forward.metrics["fallback"] = fell_back
        return w

    return weights


# ------------------------------------------------------------------------------ DelTA


def delta_weights(centroid, inner, advantages, mask, refinements=1, low=0.8, high=1.2,
                  zero="low", fresh=False):
    """DelTA's weights: (weights (B, T) fp32, fell_back, a bool () that is always False).

    Arguments as in delta.delta_weights. zero: completions of A = 0 count in the mean with `low`
    ("low", as released) or with 1 ("one"). fresh: gamma from the last margins, not the ones before.
    """
    A = advantages[:, None].double()  # (B, 1)
    good = (mask & (A > 0)).double()  # (B, T)
    bad = (mask & (A < 0)).double()   # (B, T)

    def margins(alpha):
        share = A.abs() * alpha  # (B, T)
        mu = centroid(share * good) / (share * good).sum().clamp(min=1e-8)
        nu = centroid(share * bad) / (share * bad).sum().clamp(min=1e-8)
        b = (nu.square().sum() - mu.square().sum()) / 2
        m = 2 * (inner(mu - nu) + b)  # (B, T)
        return torch.where(mask, m * A.sign(), 0.0)

    def spread(m):
        stds = []
        for side in (good, bad):
            n = side.sum().clamp(min=1)
            centred = (m - (m * side).sum() / n) * side  # (B, T)
            variance = centred.square().sum() / n
            stds.append(variance.clamp(min=1e-8).sqrt())
        return torch.where(A > 0, stds[0], stds[1])

    m = margins(torch.ones_like(good))  # (B, T)
    gamma = spread(m)                   # (B, 1)
    for _ in range(refinements):
        alpha = (m / gamma).sigmoid()  # (B, T)
        gamma = spread(m)
        m = margins(alpha)
    if fresh:
        gamma = spread(m)

    w = (low + (high - low) * (m / gamma).sigmoid()) * (good + bad)  # (B, T)
    w = torch.where(mask & (A == 0), {"low": low, "one": 1.0}[zero], w)
    w = w * (w > 0).sum() / w.sum().clamp(min=1e-8)  # (B, T)
    return w.float(), torch.zeros((), dtype=torch.bool, device=mask.device)
