r"""The arms of the study: methods, controls, and GRAIL with one choice changed.

    python results/study.py --arms grail,shuffled,level --seeds 3

Two controls of GRAIL test whether the positions of its weights matter. `shuffled` permutes them
inside each completion: the sizes stay, the positions mean nothing. `level` gives every token the
mean weight of its completion, which is the mean over all shuffles: a completion counts as much as
under GRAIL, and all its tokens count the same. `random` tests if the verdict matters: it tosses a
coin for each reward.
`grail-rounding` is GRAIL with smaller micro-batches, so it should differ only by rounding.

Two arms know more than a method can. `oracle` blames only the first wrong line of a wrong
completion. `vine` samples how each line changed the chance of success, which takes time. `entropy`
knows less: its weight is the token's own entropy.

The two arms of RECIPE train as the release of GRAIL does: the constant loss, four passes over each
batch, truncated rows masked. From the second pass on the policy has moved, and the clip can act.

What we left out, on purpose: shuffled OAR and DelTA (add a line), other orders of the same weights.
"""
import functools
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import delta
import grail
import grpo
import oar
import released
import scrl
import vine
from grail import grail_credit
from saliency import before_answer


def level(config):
    """Control for the size of the step: each token gets its completion's mean GRAIL weight."""
    credit = grail.credit(config)

    def weights(forward):
        w, mask = credit(forward), forward.completion_mask                    # (b, T) each
        return mask * (w * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)  # (b, T)
    return weights


def without_boost(s, mask, spans, *rest):
    """grail_credit with 1, not 5, on the content of the box."""
    start, _, _, end = spans.T                                # (b,) each
    return grail_credit(s, mask, torch.stack([start, start, start, end], 1), *rest)


def boost_everywhere(s, mask, spans, *rest):
    """grail_credit with 5 on the content of every box, right ones, too, as in the release."""
    _, content, close, _ = spans.T[:, :, None]                # (b, 1) each
    t = torch.arange(s.shape[1], device=s.device)             # (T,)
    w = grail_credit(s, mask, spans, *rest)                   # (b, T)
    return torch.where((t >= content) & (t < close), 5.0, w)  # (b, T)


def over_all_tokens(s, mask, spans, *rest):
    """grail_credit with mean and std over all tokens, as in the release. Tokens after the box have
    saliency 0, which makes the other weights more alike. From the box on the weights stay."""
    T = s.shape[1]
    beyond = torch.where(spans >= 0, T, -1)                   # (b, 4)
    everywhere = grail_credit(s, mask, beyond, *rest)         # (b, T)
    return torch.where(before_answer(spans, T), everywhere,
                       grail_credit(s, mask, spans, *rest))   # (b, T)


# The release's training, for GRPO and GRAIL. We leave out that it computes the weights again in
# each pass, samples with top-k 50 and corrects for its sampler. Its learning rate of 1e-6 is for a
# model 5,000 times as large.
RECIPE = "--loss constant --num-iterations 4 --mask-truncated"

# Name -> (script, its flags, the credit in place of grail.py's own if any).
ARMS = {
    "grpo": (grpo, ""), "grail": (grail, ""), "grail-released": (grail, "--as-released"),
    "oar-g": (oar, ""), "oar-p": (oar, "--signal perturbation"), "delta": (delta, ""),
    "scrl": (scrl, ""), "grpo-std": (grpo, "--scale-by-std"),
    "shuffled": (grail, "--credit shuffled"), "level": (grail, "", level),
    "random": (grpo, "--reward random"),
    "oracle": (grpo, "--credit oracle"), "entropy": (grpo, "--credit entropy"), "vine": (vine, ""),
    "grpo-release-recipe": (grpo, RECIPE),
    "grail-release-recipe": (grail, f"--as-released {RECIPE}"),
}
ABLATIONS = {
    "grail-predictor": (grail, "", functools.partial(
        grail.credit, signal=released.gradient_activation)),
    "grail-all-tokens": (grail, "", functools.partial(grail.credit, credit_fn=over_all_tokens)),
    "grail-no-boost": (grail, "", functools.partial(grail.credit, credit_fn=without_boost)),
    "grail-boost-all": (grail, "", functools.partial(grail.credit, credit_fn=boost_everywhere)),
    "grail-correct": (grail, "--reweight correct"), "grail-both": (grail, "--reweight both"),
    # No grail-middle: of the embedded model's 3 blocks it takes number 3 // 2 = 1, the first.
    "grail-first": (grail, "--activation first"), "grail-last": (grail, "--activation last"),
    "correct-level": (grail, "--reweight correct", level),  # as level is to grail
    "grail-rounding": (grail, "--tokens-per-microbatch 1280"),  # a sixth of its default
}
