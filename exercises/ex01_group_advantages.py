"""Exercise 1, ten minutes: who did better than their group?

GRPO asks a problem G times and rewards each completion. There is no value network: a completion's
advantage is how far it is above the mean of its own group,

    A = r - mean of the group           and, if asked,   A / (population std of the group + 1e-6)

Mean and std are those of the completion's own group; the population std divides by G, not G - 1. A
group with equal rewards has no signal. It gets exactly 0, not almost 0 and not NaN, and the other
groups make no difference. Do not change the rewards.

    python -m pytest exercises -k ex01
"""
import torch  # noqa: F401  in case you need it


def group_advantages(rewards, scale_by_std=False):
    """rewards: float tensor (N, G), N problems and G completions each. Returns advantages (N, G).

    Example: [[1, 0, 0, 0]] gives [[0.75, -0.25, -0.25, -0.25]].
    """
    raise NotImplementedError


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex01")
