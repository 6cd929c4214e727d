"""Marks exercise 1."""
import torch
from expected import expect, expect_unchanged

ROOT3 = 3 ** 0.5


def by_loops(rewards, scale_by_std):
    """The definition, a group at a time."""
    rows = []
    for group in rewards.double().tolist():
        mean = sum(group) / len(group)
        std = (sum((r - mean) ** 2 for r in group) / len(group)) ** 0.5
        divisor = std + 1e-6 if scale_by_std else 1.0
        rows.append([0.0 if len(set(group)) == 1 else (r - mean) / divisor for r in group])
    return torch.tensor(rows)


def test_above_and_below_the_mean_of_its_own_group(attempt):
    """Each completion is compared with its own group. The mean over the whole batch would punish
    every completion of a hard problem and praise every one of an easy problem."""
    rewards = torch.tensor([[1.0, 0, 0, 0], [1, 1, 0, 1]])
    expect(attempt(rewards.clone()), [[.75, -.25, -.25, -.25], [.25, .25, -.75, .25]], mistakes={
        "the mean is that of the whole batch": rewards - rewards.mean(),
        "the mean is taken along the wrong axis, over problems": rewards - rewards.mean(0),
        "the group's other completions alone are the baseline":
            (rewards - rewards.mean(1, keepdim=True)) * 4 / 3})


def test_divided_by_the_population_std(attempt):
    """The spread of 1, 0, 0, 0 around its mean is sqrt(3)/4 = 0.433 (divided by G = 4 before the
    root); torch.std divides by G - 1 unless told otherwise, and gives 0.5."""
    expect(attempt(torch.tensor([[1.0, 0, 0, 0]]), scale_by_std=True),
           [[ROOT3, -1 / ROOT3, -1 / ROOT3, -1 / ROOT3]], mistakes={
               "std divides by G - 1": [[1.5, -.5, -.5, -.5]],
               "nothing is divided though scale_by_std is True": [[.75, -.25, -.25, -.25]],
               "the variance, not its root, is divided by": [[4, -4 / 3, -4 / 3, -4 / 3]]})


def test_the_std_of_its_own_group(attempt):
    """Mean and std belong to the same group. With the std of the whole batch, what a completion
    earns depends on which other problems happened to be drawn."""
    rewards = torch.tensor([[1.0, 0, 0, 0], [1, 1, 0, 0]])
    centred = rewards - rewards.mean(1, keepdim=True)
    expect(attempt(rewards.clone(), scale_by_std=True),
           [[ROOT3, -1 / ROOT3, -1 / ROOT3, -1 / ROOT3], [1, 1, -1, -1]], mistakes={
               "the std is that of the whole batch": centred / rewards.std(unbiased=False),
               "the std is that of the whole batch, and divides by G - 1": centred / rewards.std()})


def test_a_group_of_equal_rewards_gets_exactly_zero(attempt):
    """A group of equal rewards has nothing to say, whatever the value. In fp32 the mean of seven
    times 0.1 is not 0.1; what is left over must not become an advantage. Ask whether all rewards of
    the group are equal, and put 0 there."""
    rewards = torch.tensor([[0.1] * 7, [0.0] * 7, [1.0] * 7])
    for scale_by_std in (False, True):
        expect(attempt(rewards.clone(), scale_by_std), torch.zeros(3, 7), tolerance=0)


def test_one_equal_group_among_others(attempt):
    """Whether a group is equal is asked of each group by itself: here only the first one is, and
    its zeros must not wait until all groups are equal."""
    rewards = torch.tensor([[0.1] * 7, [1.0] + [0.0] * 6])
    for scale_by_std in (False, True):
        yours = attempt(rewards.clone(), scale_by_std)
        expect(yours, by_loops(rewards, scale_by_std))
        expect(yours[0], torch.zeros(7), tolerance=0, about="row 0")


def test_the_rewards_are_left_as_they_were(attempt):
    """The loop logs the rewards after the advantages are made, so a function that subtracts in
    place (-=, sub_) falsifies the log."""
    for scale_by_std in (False, True):
        rewards = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
        right = by_loops(rewards, scale_by_std)
        expect(attempt(rewards, scale_by_std), right)
        expect_unchanged(rewards, torch.tensor([[1.0, 0.0], [0.5, 0.5]]), "rewards")


def test_any_number_of_problems_completions_and_rewards(attempt):
    """Rewards need not be 0 and 1, a group may have one member, and 1e-6 is added to the std, not
    to the variance: that shows where rewards are almost equal. Almost equal is not equal, so such a
    group does not get 0."""
    generator = torch.Generator().manual_seed(1)
    batches = [torch.tensor([[0.0, 2e-5], [3.0, 1.0]]), torch.tensor([[0.7], [0.2]]),
               torch.tensor([[0.5, 0.5 + 2 ** -18], [0.0, 5e-7]])]
    for N, G in ((1, 2), (3, 8), (5, 3), (2, 16)):
        binary = torch.randint(2, (N, G), generator=generator).float()
        batches += [binary, torch.randn(N, G, generator=generator) * 3 - 1]
    for rewards in batches:
        for scale_by_std in (False, True):
            expect(attempt(rewards.clone(), scale_by_std), by_loops(rewards, scale_by_std))


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex01")
