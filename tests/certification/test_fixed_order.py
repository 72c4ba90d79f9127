"""Claims tested in a fixed order on the same rows: all that pass hold together."""

import numpy as np
import pytest
from scipy.stats import binom

from softswitch.certification.certify import fixed_sequence_test as in_order
from softswitch.certification.limits import binomial_cdf

ERROR, DRAWS, ROWS = 0.05, 2000, 150
BOUNDS = (0.3, 0.2, 0.15, 0.1, 0.08, 0.06)


@pytest.mark.parametrize("failing", range(5))
def test_nothing_behind_the_first_that_does_not_pass_is_asked(failing):
    asked = []

    def passes(claim):
        asked.append(claim)
        return claim != failing

    found = in_order(range(4), passes)
    assert asked == list(range(min(failing, 3) + 1))
    assert found == tuple(claim != failing for claim in asked)


def test_no_claims():
    assert in_order([], lambda _: pytest.fail("there is nothing to ask")) == ()


def false_claims(rates, alike, stops=True):
    """In how many draws a claim "the rate is below the bound" passed that is false.

    Args:
        rates: in units of the bounds; 1 and above count as false: at the bound itself a test is wrong most often.
        alike: whether all claims look at the same rows, or each at its own.
        stops: or goes on behind a claim that did not pass, which is not allowed.
    """
    generator = np.random.default_rng(0)
    wrong = 0
    for _ in range(DRAWS):
        rows = generator.random((1, ROWS)) if alike else generator.random((len(BOUNDS), ROWS))
        counts = (rows < np.array(BOUNDS)[:, None] * np.array(rates)[:, None]).sum(axis=1)

        def passes(i, counts=counts):
            return bool(binomial_cdf(counts[i], ROWS, BOUNDS[i]) <= ERROR)

        every = range(len(BOUNDS))
        found = in_order(every, passes) if stops else tuple(map(passes, every))
        wrong += any(passed and rates[i] >= 1 for i, passed in enumerate(found))
    return wrong


MOST = int(binom.ppf(0.99, DRAWS, ERROR))


@pytest.mark.parametrize("alike", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize(
    "rates",
    [
        (1, 1, 1, 1, 1, 1),
        (0.3, 0.4, 1, 1, 1, 1),  # the first false one is tested nearly always
        (0.3, 1, 0.3, 1, 0.3, 1),
        (0.2, 0.2, 0.2, 0.2, 0.1, 1.0),
        (1.2, 0.1, 0.1, 0.1, 0.1, 0.1),
    ],
)
def test_any_false_claim_is_as_rare_as_one(rates, alike):
    assert false_claims(rates, alike) <= MOST


def test_that_would_be_noticed():
    """Going on behind a claim that did not pass makes false ones too frequent."""
    assert false_claims((1, 1, 1, 1, 1, 1), alike=False, stops=False) > MOST
