"""Marks exercise 7."""
import torch

RISING = [0.01, 0.02, 0.04, 0.08]  # log s in even steps: z = -1.3416, -0.4472, 0.4472, 1.3416
W = [0.5, 0.776393, 1.223607, 1.670821]


def weights(attempt, s, span, A=-0.5, padding=0):
    n = len(s)
    mask = torch.tensor([[True] * n + [False] * padding])
    w = attempt(torch.tensor([s + [0.7] * padding]), mask, [span], torch.tensor([A]))
    return w[0].float()


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected), atol=1e-4, rtol=0)


def test_by_hand(attempt):
    """Four tokens, marker, content, brace, full stop. Those last zeros must not enter the mean."""
    close(weights(attempt, RISING + [0.5, 0.3, 0.0, 0.0], (4, 5, 6, 7)), W + [1, 5, 1, 1])


def test_the_scale_of_the_saliency_does_not_matter(attempt):
    close(weights(attempt, [1e-4 * x for x in RISING] + [0.0] * 3, (4, 5, 6, 7)), W + [1, 5, 1])
    close(weights(attempt, [1e4 * x for x in RISING] + [0.0] * 3, (4, 5, 6, 7)), W + [1, 5, 1])


def test_padding_gets_nothing_and_changes_nothing(attempt):
    close(weights(attempt, RISING + [0.0] * 3, (4, 5, 6, 7), padding=2), W + [1, 5, 1, 0, 0])


def test_rows_that_stay_as_they_are(attempt):
    assert weights(attempt, RISING, None).tolist() == [1.0] * 4
    assert weights(attempt, RISING, (1, 2, 3, 4)).tolist() == [1.0] * 4
    assert weights(attempt, RISING + [0.0] * 3, (4, 5, 6, 7), A=0.5).tolist() == [1.0] * 7
    assert weights(attempt, RISING, None, A=0.5, padding=1).tolist() == [1.0] * 4 + [0.0]


def test_advantage_zero_is_reweighted(attempt):
    """It did no better than its group."""
    close(weights(attempt, RISING + [0.0] * 3, (4, 5, 6, 7), A=0.0), W + [1, 5, 1])


def test_equal_saliencies_give_exactly_one(attempt):
    """In fp32 the mean of n equal logs is off in its last digit, and the spread is that digit."""
    for n in range(2, 40):
        w = weights(attempt, [0.05] * n + [0.0] * 3, (n, n + 1, n + 2, n + 3))
        assert w.tolist() == [1.0] * (n + 1) + [5.0, 1.0]


def test_a_token_that_the_answer_ignores(attempt):
    """log 0 is -inf; with the floor, z is (-sqrt 3, and 1/sqrt 3 three times)."""
    close(weights(attempt, [0.0, 0.3, 0.3, 0.3, 0.0, 0.0], (4, 5, 5, 6)),
          [0.5, 1.288675, 1.288675, 1.288675, 1, 1])


def test_one_token_may_have_all_the_rest(attempt):
    """100 tokens, one of them far out: z = 9.95, clipped to 5; the others 1 - 0.5 / sqrt(99)."""
    w = weights(attempt, [1e-3] * 99 + [1e3] + [0.0] * 2, (100, 101, 101, 102))
    close(w[:100], [1 - 0.5 / 99 ** 0.5] * 99 + [5.0])


def test_rows_do_not_mix(attempt):
    s = torch.tensor([RISING + [0.0] * 3, [9.0, 3.0, 1.0, 0.0, 0.0, 0.0, 0.0]])
    mask = torch.tensor([[True] * 7, [True] * 6 + [False]])
    w = attempt(s, mask, [(4, 5, 6, 7), (3, 4, 5, 6)], torch.tensor([-0.5, -0.1])).float()
    z = 0.5 * (3 / 2) ** 0.5
    close(w, [W + [1, 5, 1], [1 + z, 1, 1 - z if 1 - z > 0.5 else 0.5, 1, 5, 1, 0]])
