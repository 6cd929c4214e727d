"""Marks exercise 8."""
import torch


def weights(attempt, scores, q=0.25, beta=1.0):
    return attempt(torch.tensor(scores, dtype=torch.float64), q, beta).double()


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected).double(), atol=1e-5, rtol=0)


def scores_of(z):
    """Scores whose log(1 + I) is z."""
    return torch.expm1(torch.tensor(z, dtype=torch.float64)).tolist()


def test_five_even_steps(attempt):
    """n = 0, .25, .5, .75, 1; tau = .25; w = .1, 1, 4/3, 5/3, 2, of sum 6.1."""
    close(weights(attempt, scores_of([0.0, 1.0, 2.0, 3.0, 4.0])),
          [.081967, .819672, 1.092896, 1.366120, 1.639344])


def test_another_quantile_and_boost(attempt):
    """q = .4, beta = 2: tau = .4, between two tokens; w = .1, .625, 4/3, 13/6, 3, of sum 7.225."""
    close(weights(attempt, scores_of([0.0, 1.0, 2.0, 3.0, 4.0]), 0.4, 2.0),
          [.069204, .432526, .922722, 1.499423, 2.076125])


def test_scores_of_very_unequal_size(attempt):
    """tau is a quantile of n, .00688 here; taken as the number .25 it would suppress 6 of 10."""
    close(weights(attempt, [0.0, .01, .02, .05, .1, .2, .5, 1.0, 5.0, 50.0]),
          [.100178, .368512, .733393, 1.007362, 1.019297, 1.041620, 1.098868, 1.172674, 1.454527,
           2.003569])


def test_equal_scores_and_a_single_token_keep_weight_one(attempt):
    close(weights(attempt, [.7] * 4), [1.0] * 4)
    close(weights(attempt, [3.0]), [1.0])
    close(weights(attempt, [0.0] * 3), [1.0] * 3)


def test_many_at_the_minimum_means_nothing_is_suppressed(attempt):
    """tau = 0: w = 1, 1, 1, 2."""
    close(weights(attempt, [0.0, 0.0, 0.0, 1.0]), [.8, .8, .8, 1.6])


def test_tau_may_be_one(attempt):
    """w = .1, 1, 1, 1."""
    close(weights(attempt, [0.0, 1.0, 1.0, 1.0], q=0.5), [.129032, 1.290323, 1.290323, 1.290323])


def test_order_does_not_matter_and_mass_is_kept(attempt):
    scores, order = [0.3, 0.0, 2.0, 0.05, 0.7], [4, 2, 0, 1, 3]
    w = weights(attempt, scores)
    close(w, [1.044215, .086769, 1.735385, .867693, 1.265938])
    close(weights(attempt, [scores[i] for i in order]), w[order].tolist())
    assert abs(w.sum().item() - 5) < 1e-5
