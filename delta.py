r"""DelTA: tokens that tell good completions from bad ones get more of the advantage.

    python delta.py                                 # CPU, 70 s: a tiny model learns to think
    python delta.py --gradient lm-head              # the exact gradient of the LM head
    python delta.py --model Qwen/Qwen3-0.6B

Let v be a token's score vector, the gradient of its log-probability. GRPO's update is the sum of v
over completions with A > 0, minus that over A < 0, each weighted by |A|. Tokens that both sides
share bring the two means close together. DelTA (arXiv 2605.21467) raises tokens that are near their
own side's mean and far from the other's. It looks at the whole batch:

    v_t    = (1 - p_t) h_t              h: what the LM head reads, p: the token's own probability
    mu+-   = sum |A| v / sum |A|                             over the tokens of that side
    m_t    = |v_t - mu-|^2 - |v_t - mu+|^2  =  2 (<W, v_t> + b)
             W = mu+ - mu-,  b = (|mu-|^2 - |mu+|^2) / 2     on the side of A < 0: minus this
    gamma+-= std of m over the tokens of that side
    alpha_t= sigmoid(m_t / gamma)       then K times: mu, m and alpha again, |A| alpha for |A|
    w_t    = 0.8 + 0.4 alpha_t, then divided by the mean of w

This v approximates the gradient with respect to the LM head, (onehot(y_t) - pi_t) h_t'. It keeps
the row of the sampled token, but not which row that was. So two tokens at one position differ only
in their probability. --gradient lm-head keeps the whole (V, H) matrix. It is exact, costs one more
LM head per token and pass, and is meant for small models.

We have read the released code and notes of the paper, not its body. --as-released gives the code's
weights, see released.py. Of its other training settings we have `--scale-by-std`. We do not have
the rest: four optimizer steps on quarters of a batch, weight decay, a penalty on length.

The hidden states come from an extra pass without gradient: our loop has no pass for old log-probs.

What we left out, on purpose: its diagonal scaling and its cross-side factor. The released code
switches both off.
"""
import torch

import released
from engine.errors import BadInput, run_cli
from engine.flags import flags, parse
from grpo import train


def head_row(hidden, logprobs, mask):
    """DelTA's v = (1 - p) h: (centroid, inner). hidden (B, T, H), logprobs and mask (B, T).

    centroid(w): sum of w v over all tokens, (H,), with w (B, T). inner(d): <v_t, d>, (B, T). No
    (B, T, H) of differences is made. hidden may stay in bf16, because one row at a time becomes
    float64. Values of hidden and logprobs outside the mask are ignored.
    """
    rows = [torch.where(on[:, None], h, 0.0) for h, on in zip(hidden, mask)]  # B x (T, H)
    surprise = 1 - logprobs.double().exp()                           # (B, T)
    surprise = torch.where(mask, surprise, 0.0)

    def centroid(w):
        return sum(c @ row.double() for c, row in zip(w * surprise, rows))  # (H,)

    def inner(d):
        products = [row.double() @ d for row in rows]                # B x (T,)
        return surprise * torch.stack(products)                      # (B, T)

    return centroid, inner


def lm_head(hidden, head, ids, mask, temperature=1.0):
    """The exact gradient of log pi(y_t) in the LM head, (onehot - pi) h': (centroid, inner).

    As head_row, but centroid(w) is (V, H) fp32: each of four takes 0.6 GB if V = 151,936 and
    H = 1024. Memory holds one row of (T, V) at a time. The factor 1 / temperature is left out,
    because it does not change the weights. If the model scales or caps its logits, onehot - pi is
    the gradient after that, so it is propagated back to the output of the LM head's matrix.
    """
    rows = [torch.where(on[:, None], h, 0.0) for h, on in zip(hidden, mask)]  # B x (T, H)
    ids = torch.where(mask, ids, 0)                                  # (B, T)

    def error(row, y):
        """onehot(y_t) - pi_t, (T, V), propagated back through the logits' cap if there is one."""
        logits = head(row.float()).float()                           # (T, V)
        ones = torch.ones(len(y), 1, device=y.device)                # (T, 1)
        off = (-(logits / temperature).softmax(-1)).scatter_add(1, y[:, None], ones)
        return off * head.slope(logits) if hasattr(head, "slope") else off

    def centroid(w):
        return sum((c[:, None] * error(row, y)).T @ row.float()
                   for c, row, y in zip(w.float(), rows, ids))       # (V, H)

    def inner(d):
        products = [((row.float() @ d.T) * error(row, y)).sum(-1)
                    for row, y in zip(rows, ids)]                    # B x (T,)
        return torch.stack(products).double()                        # (B, T)

    return centroid, inner


def delta_weights(centroid, inner, advantages, mask, refinements=1, low=0.8, high=1.2):
    """DelTA's weights: (weights (B, T) fp32, fell_back, a bool () on the same device).

    centroid, inner: from head_row or lm_head. advantages (B,). mask (B, T) bool: weights outside it
    are 0. Tokens with A != 0 have weights of mean 1. Tokens with A = 0 have no gradient and get 1.
    If no token has A > 0, or none has A < 0, all weights are 1.
    """
    A = advantages[:, None].double()                          # (B, 1)
    good = (mask & (A > 0)).double()                          # (B, T)
    bad = (mask & (A < 0)).double()                           # (B, T)

    def margins(alpha):
        """How much nearer a token is to its own side's mean than to the other's, (B, T)."""
        share = A.abs() * alpha                               # (B, T)
        mu = centroid(share * good) / (share * good).sum().clamp(min=1e-8)
        nu = centroid(share * bad) / (share * bad).sum().clamp(min=1e-8)
        b = (nu.square().sum() - mu.square().sum()) / 2
        m = 2 * (inner(mu - nu) + b)                          # (B, T)
        return torch.where(mask, m * A.sign(), 0.0)

    def spread(m):
        """Standard deviation of m over the tokens of the row's own side, (B, 1).

        Subtract the mean first, in float64: E[m^2] - E[m]^2 loses digits if margins are large.
        """
        stds = []
        for side in (good, bad):
            n = side.sum().clamp(min=1)
            centred = (m - (m * side).sum() / n) * side       # (B, T)
            variance = centred.square().sum() / n
            stds.append(variance.clamp(min=1e-8).sqrt())
        return torch.where(A > 0, stds[0], stds[1])

    m = margins(torch.ones_like(good))                        # (B, T)
    gamma = spread(m)                                         # (B, 1)
    for _ in range(refinements):
        alpha = (m / gamma).sigmoid()                         # (B, T)
        gamma = spread(m)  # of these margins, not the next: gamma lags by one
        m = margins(alpha)

    w = (low + (high - low) * (m / gamma).sigmoid()) * (good + bad)  # (B, T)
    w = w * (w > 0).sum() / w.sum().clamp(min=1e-8)           # (B, T)
    w = torch.where(mask & (A == 0), 1.0, w)                  # (B, T)
    fell_back = ~((good > 0).any() & (bad > 0).any())         # ()
    return torch.where(fell_back, mask, w).float(), fell_back


def whole_batch(config):
    """The `whole_batch` function for `grpo.train`: it sees the whole batch first, see grpo.update.

    It keeps the hidden states, B T H numbers of 2 bytes on a card: 0.13 GB for 64 completions of
    1,024 tokens at H = 1024. It needs the same again while it computes the weights.
    """
    credit_fn = released.delta_weights if config.as_released else delta_weights

    def look(forwards, advantages, mask):
        hidden, logprobs, ids, last = collect(forwards, mask)
        if config.gradient == "lm-head":
            geometry = lm_head(hidden, last.head, ids, mask, last.temperature)
        else:
            geometry = head_row(hidden, logprobs, mask)
        w, fell_back = credit_fn(*geometry, advantages, mask, config.refinements)  # (B, T), ()
        good = mask & (advantages[:, None] > 0)                                    # (B, T)
        mean_good = (w * good).sum() / good.sum()
        mean_good = torch.where(good.any(), mean_good, 1.0)

        def weights(forward):
            b, t = forward.logprobs.shape
            forward.metrics["fallback"] = fell_back.expand(b)
            forward.metrics["weight_good"] = mean_good.expand(b)
            return w[forward.rows, :t]

        return weights

    return look


def collect(forwards, mask):
    """The batch's hidden states (B, T, H), log-probs (B, T) and ids (B, T), and the last Forward.

    forwards: one Forward of b rows at a time. Rows that are in no Forward get zeros.
    """
    B, T = mask.shape
    logprobs = torch.zeros(B, T, device=mask.device)                    # (B, T)
    ids = torch.zeros(B, T, dtype=torch.int64, device=mask.device)      # (B, T)
    hidden, forward = None, None
    for forward in forwards:
        b, t, H = forward.hidden.shape
        if hidden is None:
            kind = torch.bfloat16 if mask.is_cuda else forward.hidden.dtype
            hidden = torch.zeros(B, T, H, dtype=kind, device=mask.device)  # (B, T, H)
        hidden[forward.rows, :t] = forward.hidden.to(kind)
        logprobs[forward.rows, :t] = forward.logprobs
        ids[forward.rows, :t] = forward.completion_ids
    return hidden, logprobs, ids, forward


def main(argv=None):
    parser = flags("delta", __doc__.split("\n")[0])
    add = parser.add_argument
    add("--gradient", default="head-row", choices=["head-row", "lm-head"],
        help="a token's score vector: (1 - p) h, or the LM head's exact gradient")
    add("--refinements", type=int, default=1, help="K, how often to compute the two means again")
    add("--as-released", action="store_true",
        help="the released code's weights, see released.py; not with --gradient lm-head")
    config = parse(parser, argv)
    if config.refinements < 0:
        raise BadInput(f"--refinements {config.refinements}: must be at least 0.")
    if config.as_released and config.gradient == "lm-head":
        raise BadInput("--gradient lm-head: the released code's weights are made of (1 - p) h; "
                       "leave out --gradient or --as-released.")
    train(config, whole_batch=whole_batch(config))


if __name__ == "__main__":
    run_cli(main)
