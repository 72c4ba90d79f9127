"""Overfitting: training and held-out values of hand-made clients."""

import numpy as np
from scipy.stats import fisher_exact

from softswitch.results.diagnostics import _compare_rates, diagnose_overfitting


def errors(count, rows):
    return (np.arange(rows) < count).astype(float)


def diagnose(training, held_out, **options):
    return diagnose_overfitting("miss rate", training, held_out, **options)


def test_missed_in_training_and_on_held_out_rows():
    """9.5% of 84 training rows and 37% of 46 held-out rows."""
    (found,) = diagnose({"west": errors(8, 84)}, {"west": errors(17, 46)}, bound=0.1)
    assert found.code == "overfitted"
    assert "client 'west' is 9.52% on 84 training rows, but 37% on 46 held-out rows, with a bound of" in found.evidence


def test_the_client_with_the_clearest_difference_is_named():
    training = {"a": errors(10, 200), "b": errors(10, 200), "unseen": errors(1, 9)}
    held_out = {"a": errors(9, 100), "b": errors(40, 100), "none": errors(0, 0)}
    (found,) = diagnose(training, held_out)
    assert "'b'" in found.evidence


def test_differences_within_the_sampling_error():
    assert diagnose({"a": errors(2, 21)}, {"a": errors(3, 8)}) == []
    assert diagnose({"a": errors(10, 100)}, {"a": errors(8, 100)}) == []
    assert diagnose({"a": errors(1000, 100_000)}, {"a": errors(1500, 100_000)}) == [], "half a point"
    assert diagnose({}, {"a": errors(1, 2)}) == []


def test_small_differences_at_all_clients():
    """None is significant alone."""
    training, held_out = ({i: errors(count, 100) for i in range(10)} for count in (10, 18))
    (found,) = diagnose(training, held_out)
    assert "the mean miss rate over 10 clients is 10% on training rows, but 18% on held-out rows" in found.evidence


def test_losses():
    generator = np.random.default_rng(0)
    training = {"a": generator.exponential(0.1, 300)}
    (found,) = diagnose_overfitting("loss", training, {"a": generator.exponential(0.4, 100)})
    assert found.code == "overfitted"
    assert diagnose_overfitting("loss", training, {"a": generator.exponential(0.1, 100)}) == []
    assert diagnose_overfitting("loss", training, {"a": np.full(3, 0.12)}) == []


def test_p_value_matches_scipy():
    expected = fisher_exact([[17, 29], [8, 76]], alternative="greater").pvalue
    assert np.isclose(_compare_rates(errors(8, 84), errors(17, 46)), expected)


def test_same_distribution_is_rarely_diagnosed():
    """Both tests together err in at most 2% of the draws; a binomial test at 1% allows 16 of 400."""
    generator = np.random.default_rng(3)
    found = 0
    for _ in range(400):
        training, held_out = ({i: (generator.random(n) < 0.2) * 1.0 for i in range(5)} for n in (120, 40))
        found += bool(diagnose(training, held_out))
    assert found <= 16
