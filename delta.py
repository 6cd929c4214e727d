r"""DelTA: tokens that tell good completions from bad ones get more of the advantage.

    python delta.py                                 # CPU, 70 s: a tiny model learns to think
    python delta.py --gradient lm-head              # the exact gradient of the LM head
    python delta.py --model Qwen/Qwen3-0.6B

GRPO moves along M+ mu+ - M- mu-: the |A|-weighted means of the tokens' score vectors v, on either
side of A = 0, so tokens that both sides share pull both means to one place. DelTA (arXiv
2605.21467) raises the tokens that are near their own side's mean and far from the other's, over the
whole batch:

    v_t    = (1 - p_t) h_t              h: what the LM head reads, p: the token's own probability
    mu+-   = sum |A| v / sum |A|                             over the tokens of that side
    m_t    = |v_t - mu-|^2 - |v_t - mu+|^2  =  2 (<W, v_t> + b)
             W = mu+ - mu-,  b = (|mu-|^2 - |mu+|^2) / 2     on the side of A < 0: minus this
    gamma+-= std of m over the tokens of that side
    alpha_t= sigmoid(m_t / gamma)       K times: mu again with |A| alpha for |A|, m, alpha again
    w_t    = 0.8 + 0.4 alpha_t, then over the mean of w

v is a stand-in for the gradient of the LM head, (onehot(y_t) - pi_t) h_t': its row of the sampled
token, and then it forgets which row that was, so it cannot tell two alternatives at a fork apart
but by their probability. --gradient lm-head keeps the whole (V, H) matrix, exactly, at the price of
one more LM head a token and pass: for small models.

The released code (RUCBM/DelTA, cf048bd) beside ours:

                                default                        --as-released
    gamma of refinement k       lags: of the margins before    the same
    completions of A = 0        not counted                    w = 0.8, counted in the mean: the
                                                               others rise above 1
    all A of one sign           all ones                       the missing mean is the zero vector
    hidden states               kept from one pass             the same (theirs: K + 2 passes)

The pass is an extra one without gradient here, for our loop has no pass for old log-probs.

What we left out, on purpose: its diagonal scaling and its cross-side factor, which are switched off
in the code.
"""
import torch

from engine.errors import BadInput, run_cli
from engine.flags import flags, parse
from grpo import train


def head_row(hidden, logprobs):
    """DelTA's stand-in (1 - p) h: (centroid, inner). hidden (B, T, H), logprobs (B, T).

    centroid(w): sum of w v over all tokens, (H,), for w (B, T); inner(d): <v_t, d>, (B, T). No
    (B, T, H) of differences is made, and hidden may stay in bf16: each row is widened on its own.
    """
    surprise = 1 - logprobs.double().exp()  # (B, T)

    def centroid(w):
        return sum(row_w @ row.double() for row_w, row in zip(w * surprise, hidden))  # (H,)

    def inner(d):
        return surprise * torch.stack([row.double() @ d for row in hidden])  # (B, T)
    return centroid, inner


def lm_head(hidden, head, ids, temperature=1.0):
    """The exact gradient of log pi(y_t) in the LM head, (onehot - pi) h': (centroid, inner).

    As head_row, but centroid(w) is (V, H) fp32: 0.6 GB for each of four where V = 151,936 and
    H = 1024. One row of (T, V) is held at a time.
    """
    def error(row, y):
        minus_pi = -(head(row.float()).float() / temperature).softmax(-1)        # (T, V)
        return minus_pi.scatter_add(1, y[:, None], torch.ones(len(y), 1, device=y.device))

    def centroid(w):
        return sum((row_w.float()[:, None] * error(row, y)).T @ row.float()
                   for row_w, row, y in zip(w, hidden, ids))                     # (V, H)

    def inner(d):
        return torch.stack([((row.float() @ d.T) * error(row, y)).sum(-1)
                            for row, y in zip(hidden, ids)]).double()            # (B, T)
    return centroid, inner


def delta_weights(centroid, inner, advantages, mask, refinements=1, low=0.8, high=1.2,
                  zero="exclude", fall_back=True, fresh=False):
    """DelTA's weights: (weights (B, T) fp32, fell_back bool).

    centroid, inner: from head_row or lm_head. advantages (B,); mask (B, T) bool, off it weights are
    0. zero: completions of A = 0 get 1 and are left out of the mean ("exclude"), or enter it with
    `low` ("low") or 1 ("one") before it is divided by. fall_back: all ones where one side of A = 0
    has no token; else its mean is the zero vector. fresh: gamma of the last margins, not of those
    before. Over the tokens that enter the mean it is 1.
    """
    A = advantages[:, None].double()                                           # (B, 1)
    sides = {sign: (mask & (A * sign > 0)).double() for sign in (1, -1)}       # (B, T) each
    if fall_back and not all(on.any() for on in sides.values()):
        return mask.float(), True

    def means(alpha):
        parts = {s: A.abs() * alpha[s] * on for s, on in sides.items()}        # (B, T) each
        return {s: centroid(w) / w.sum().clamp(min=1e-8) for s, w in parts.items()}

    def margins(mu):
        b = (mu[-1].square().sum() - mu[1].square().sum()) / 2
        m = 2 * (inner(mu[1] - mu[-1]) + b)                                    # (B, T)
        return {s: s * m for s in sides}

    def spread(m):
        # Two passes in float64: E[m^2] - E[m]^2 loses its digits where margins are large.
        n = {s: on.sum().clamp(min=1) for s, on in sides.items()}
        centred = {s: (m[s] - (m[s] * on).sum() / n[s]) * on for s, on in sides.items()}
        return {s: (centred[s].square().sum() / n[s]).clamp(min=1e-8).sqrt() for s in sides}

    m = margins(means(dict.fromkeys(sides, 1.0)))                              # (B, T) a side
    gamma = spread(m)
    for _ in range(refinements):
        alpha = {s: (m[s] / gamma[s]).sigmoid() for s in sides}                # (B, T) each
        gamma = spread(m)
        m = margins(means(alpha))
    if fresh:
        gamma = spread(m)
    w = sum(on * (low + (high - low) * (m[s] / gamma[s]).sigmoid()) for s, on in sides.items())
    neither = (mask & (A == 0)).double()                                       # (B, T)
    w = w + neither * {"exclude": 0.0, "low": low, "one": 1.0}[zero]           # (B, T)
    w = w * (w > 0).sum() / w.sum().clamp(min=1e-8)                            # (B, T)
    return (w + neither if zero == "exclude" else w).float(), False


def batch_credit(config):
    """What `grpo.train` wants from a method that looks at the whole batch first, see grpo.update.

    Keeps the hidden states, B T H numbers, 2 bytes each on a card: 0.13 GB for 64 completions of
    1,024 tokens at H = 1024.
    """
    released = dict(zero="low", fall_back=False) if config.as_released else {}

    def look(forwards, advantages, mask):
        B, T = mask.shape
        hidden, logprobs, ids, last = None, torch.zeros(B, T, device=mask.device), None, None
        for last in forwards:
            b, t, H = last.hidden.shape
            if hidden is None:
                kind = torch.bfloat16 if mask.is_cuda else last.hidden.dtype
                hidden = torch.zeros(B, T, H, dtype=kind, device=mask.device)  # (B, T, H)
                ids = torch.zeros(B, T, dtype=torch.int64, device=mask.device)  # (B, T)
            hidden[last.rows, :t] = last.hidden.to(kind)
            logprobs[last.rows, :t], ids[last.rows, :t] = last.logprobs, last.completion_ids
        geometry = (lm_head(hidden, last.head, ids, last.temperature)
                    if config.gradient == "lm-head" else head_row(hidden, logprobs))
        all_weights, fell_back = delta_weights(*geometry, advantages, mask, config.refinements,
                                               **released)
        good = mask & (advantages[:, None] > 0)  # (B, T)
        mean_good = all_weights[good].mean() if good.any() else all_weights.new_tensor(1.0)

        def weights(forward):
            b, t = forward.logprobs.shape
            forward.metrics |= {"fallback": mean_good.new_full((b,), fell_back),
                                "weight_good": mean_good.expand(b)}
            return all_weights[forward.rows, :t]
        return weights
    return look


def main(argv=None):
    parser = flags("delta", __doc__.split("\n")[0])
    add = parser.add_argument
    add("--gradient", default="head-row", choices=["head-row", "lm-head"],
        help="a token's score vector: (1 - p) h, or the LM head's exact gradient")
    add("--refinements", type=int, default=1, help="K, times that the two means are taken again")
    add("--as-released", action="store_true", help="the released code, see the docstring")
    config = parse(parser, argv)
    if config.refinements < 0:
        raise BadInput(f"--refinements {config.refinements}: must be at least 0.")
    train(config, whole_batch=batch_credit(config))


if __name__ == "__main__":
    run_cli(main)
