"""Limits of rates, bounded means and gaps: wrong no more often than they say, exactly and by simulation."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from softswitch.certification import limits
from softswitch.certification.certify import hochberg
from softswitch.certification.intervals import ErrorLevels, gap_interval, mean_interval, paired_differences
from softswitch.certification.limits import (
    BettingMean,
    BinomialRate,
    binomial_cdf,
    clopper_pearson_upper,
    rows_to_certify,
)

DRAWS = 2000
ERROR = 0.1


def kept(false, error=ERROR, draws=DRAWS):
    """Whether so many false claims agree with an error probability of at most ``error``, by a 99% binomial test."""
    return stats.binomtest(int(false), draws, error, alternative="greater").pvalue > 0.01


def test_rates_by_scipy():
    for count, rows, error in ((0, 10, 0.05), (4, 200, 0.0025), (20, 1000, 0.0025), (199, 200, 0.01)):
        exact = stats.binomtest(count, rows).proportion_ci(1 - 2 * error, method="exact").high
        assert clopper_pearson_upper(count, rows, error) == pytest.approx(exact, rel=1e-9)
        assert binomial_cdf(count, rows, 0.03) == pytest.approx(stats.binom.cdf(count, rows, 0.03), rel=1e-9)
    assert clopper_pearson_upper(10, 10, 0.05) == 1


@pytest.mark.parametrize("rows", [1, 2, 5, 12, 60])
def test_rates_are_covered_by_enumeration(rows):
    counts = np.arange(rows + 1)
    for error in (0.2, 0.05, 0.0025):
        limits = np.array([clopper_pearson_upper(count, rows, error) for count in counts])
        for rate in np.linspace(0.001, 0.999, 97):
            assert stats.binom.pmf(counts, rows, rate)[limits < rate].sum() <= error * (1 + 1e-9)


def test_what_is_said_of_counted_rows_is_exact():
    """Every count of n zeros and ones: p-values of both sides are binomial tails of n rows, not one more or less."""
    for rows, tolerance in ((7, 0.3), (40, 0.05)):
        levels = ErrorLevels(ERROR / 4, ERROR, tolerance)
        for count in range(rows + 1):
            found = mean_interval((np.arange(rows) < count).astype(float), levels, frozenset((0.0, 1.0)))
            assert BinomialRate(count, rows).p_value(tolerance) == pytest.approx(
                stats.binom.cdf(count, rows, tolerance)
            )
            assert found.meets_at == pytest.approx(stats.binom.cdf(count, rows, tolerance))
            assert found.violates_at == pytest.approx(stats.binom.sf(count - 1, rows, tolerance))
            exact = stats.binomtest(count, rows).proportion_ci(1 - 2 * levels.joint, method="exact")
            assert (found.lower, found.upper) == pytest.approx((exact.low, exact.high), abs=1e-9)


def every_p_value(values, chances, rows):
    """One p-value for each sequence of values, at their true mean, and how likely the sequence is."""
    mean = float(np.dot(values, chances))
    told, weight = [], []
    for picks in product(range(len(values)), repeat=rows):
        told.append(BettingMean(np.asarray(values)[list(picks)], 0.05).p_value(mean))
        weight.append(np.prod(np.asarray(chances)[list(picks)]))
    order = np.argsort(told)
    return np.asarray(told)[order], np.cumsum(np.asarray(weight)[order])


@pytest.mark.parametrize(
    ("values", "chances", "rows"),
    [
        ([0.0, 1.0], [0.5, 0.5], 10),
        ([0.0, 1.0], [0.2, 0.8], 12),
        ([0.0, 1.0], [0.95, 0.05], 11),
        ([0.0, 0.3, 1.0], [0.3, 0.3, 0.4], 6),
        ([0.4, 0.5, 1.0], [0.9, 0.05, 0.05], 6),
    ],
)
def test_betting_is_covered_by_enumeration(values, chances, rows):
    """All outcomes of few rows: the chance of a p-value up to p is at most p, for every p at once."""
    told, cumulative = every_p_value(values, chances, rows)
    last_of_its_kind = np.append(told[1:] > told[:-1], True)
    assert (cumulative <= told + 1e-9)[last_of_its_kind].all()
    assert told.min() < 0.9, "there is something to be wrong about"


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_no_bet_looks_at_the_value_it_is_made_on(rows):
    """Given what came before, the capital is a straight line in the present value; a bet that peeks bends it."""
    last = np.random.default_rng(rows).permutation(rows)[-1]
    mean = 0.97  # all values are below, so that the capital is largest at the end

    def capital(present):
        values = np.linspace(0.3, 0.5, rows)
        values[last] = present
        return np.exp(BettingMean(values, 0.05).log_capital(mean))

    ends, middle = [capital(0.1), capital(0.6)], capital(0.35)
    assert middle == pytest.approx(np.mean(ends), rel=1e-12)
    assert ends[0] > ends[1] > 1, "there is something to bend"


@pytest.mark.parametrize(("low", "chance"), [(0.0, 0.3), (0.2, 0.6)])
def test_the_capital_is_fair_at_the_true_mean(low, chance):
    """The mean of the last capital over all outcomes is 1: no bet knows anything of what comes."""
    rows, total = 8, 0.0
    mean = low * (1 - chance) + chance
    for picks in product((False, True), repeat=rows):
        dealt = np.where(picks, 1.0, low)
        shares = np.minimum(limits.bet_sizes(dealt, 0.8), limits.MAX_BET / (1 - mean))
        likely = np.prod(np.where(picks, chance, 1 - chance))
        total += likely * np.prod(1 - shares * (dealt - mean))
    assert total == pytest.approx(1, rel=1e-12)


SHAPES = {
    "beta": lambda g, size: (g.beta(0.5, 4.5, size), 0.1),
    "narrow": lambda g, size: (g.beta(20, 80, size), 0.2),
    "two points, rare and far": lambda g, size: (np.where(g.random(size) < 0.02, 1.0, 0.05), 0.02 + 0.98 * 0.05),
    "two points, near": lambda g, size: (np.where(g.random(size) < 0.5, 0.4, 0.6), 0.5),
    "ends": lambda g, size: ((g.random(size) < 0.3).astype(float), 0.3),
}


@pytest.mark.parametrize("above", [0.0, pytest.param(0.005, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rows", [3, pytest.param(40, marks=pytest.mark.slow), 300])
@pytest.mark.parametrize("shape", SHAPES)
def test_false_meets_of_betting(shape, rows, above):
    """The truth is at the bound, or just above it."""
    values, mean = SHAPES[shape](np.random.default_rng(rows), (DRAWS, rows))
    assert kept(sum(BettingMean(own, ERROR).p_value(mean - above) <= ERROR for own in values))


@pytest.mark.parametrize("above", [0.0, 0.005])
@pytest.mark.parametrize(("rows", "rate"), [(3, 0.4), (60, 0.05), (400, 0.02)])
def test_false_meets_of_rates(rows, rate, above):
    counts = np.random.default_rng(rows).binomial(rows, rate, DRAWS)
    assert kept(sum(binomial_cdf(count, rows, rate - above) <= ERROR for count in counts))


@pytest.mark.parametrize("draws", [DRAWS // 5, pytest.param(DRAWS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["rates", "betting", "tiny"])
def test_false_meets_of_gaps(kind, draws):
    """Groups of different sizes whose means are as far apart as the bound, in either direction."""
    generator = np.random.default_rng(7)
    sizes = {"rates": (600, 350), "betting": (60, 35), "tiny": (4, 3)}[kind]
    bounds = (0.0, 1.0) if kind == "betting" else frozenset((0.0, 1.0))
    false = {"meets": 0, "violates": 0}
    for draw in range(draws):
        means = (0.3, 0.15) if draw % 2 else (0.15, 0.3)
        if kind == "betting":
            groups = [generator.beta(8 * mean, 8 * (1 - mean), size) for mean, size in zip(means, sizes, strict=True)]
        else:
            groups = [(generator.random(n) < mean).astype(float) for mean, n in zip(means, sizes, strict=True)]
        just_below = gap_interval(*groups, ErrorLevels(ERROR / 5, ERROR, 0.15 - 1e-9), bounds)
        false["meets"] += just_below.meets_at <= ERROR
        false["violates"] += gap_interval(*groups, ErrorLevels(ERROR / 5, ERROR, 0.15), bounds).violates_at <= ERROR
    assert all(kept(count, draws=draws) for count in false.values()), false


def test_paired_differences():
    """Every value counts once, in blocks of nearly equal sizes, and the sign is that of first − second."""
    ones, eight = np.ones(3), 2.0 ** np.arange(8)
    differences = paired_differences(ones, eight)
    np.testing.assert_array_equal(paired_differences(eight, ones), -differences)
    sums = (1 - differences) * [2, 3, 3]
    assert sums == pytest.approx(np.round(sums))
    members = [format(round(total), "08b") for total in sums]  # as the sums of distinct powers of 2
    assert [member.count("1") for member in members] == [2, 3, 3]
    assert sums.sum() == pytest.approx(255)
    np.testing.assert_array_equal(np.sort(paired_differences(eight, np.zeros(8))), eight)


def test_gap_is_narrower_than_two_limits_at_half_the_error():
    generator, levels = np.random.default_rng(0), ErrorLevels(0.0025, 0.0025, 0.1)
    groups = [generator.beta(2, 4, size) for size in (200, 600)]
    limits = [BettingMean(values, 0.00125).upper(0.00125) for values in (groups[0], 1 - groups[1])]
    estimate = groups[0].mean() - groups[1].mean()
    found = gap_interval(*groups, levels, (0.0, 1.0))
    assert 0.5 < (found.marginal_upper - abs(estimate)) / (sum(limits) - 1 - estimate) < 0.75


def test_limits_and_p_values_agree():
    generator = np.random.default_rng(0)
    levels = ErrorLevels(0.01, 0.1, 0.3)
    for rows, bounds in ((generator.random(80) * 0.4, (0.0, 1.0)), ((generator.random(80) < 0.2) * 1.0, {0.0, 1.0})):
        kind = bounds if isinstance(bounds, tuple) else frozenset(bounds)
        found = mean_interval(rows, levels, kind)
        assert found.lower < found.estimate < found.marginal_upper < found.upper
        for limit, error in ((found.upper, levels.joint), (found.marginal_upper, levels.marginal)):
            assert mean_interval(rows, levels._replace(tolerance=limit), kind).meets_at == pytest.approx(
                error, rel=1e-4
            )
        at_lower = mean_interval(rows, levels._replace(tolerance=found.lower), kind)
        assert at_lower.violates_at == pytest.approx(levels.joint, rel=1e-4)
        wide = (-2.0, 3.0) if isinstance(bounds, tuple) else frozenset((-2.0, 3.0))
        scaled = mean_interval(5 * rows - 2, levels._replace(tolerance=-0.5), wide)
        assert scaled.upper == pytest.approx(5 * found.upper - 2)
        assert scaled.meets_at == pytest.approx(found.meets_at)


def test_the_order_of_rows_in_a_file_is_no_matter_of_luck():
    """Sorted rows are dealt anew: the limit is like that of any other order, and the same each time."""
    values = np.random.default_rng(0).beta(1, 9, 500)
    sorted_up, down = BettingMean(np.sort(values), 0.01), BettingMean(np.sort(values)[::-1], 0.01)
    plain = BettingMean(values, 0.01).upper(0.01)
    assert sorted_up.upper(0.01) == BettingMean(np.sort(values), 0.01).upper(0.01)
    assert sorted_up.upper(0.01) == pytest.approx(plain, rel=0.1)
    assert down.upper(0.01) == pytest.approx(plain, rel=0.1)


def test_betting_is_narrower_than_what_it_replaces():
    """Hoeffding's and the empirical Bernstein bound, the smaller of both at half the error."""
    generator = np.random.default_rng(3)
    for rows, (a, b) in product((50, 200, 2000), ((0.5, 5), (5, 20), (2, 2))):
        values = generator.beta(a, b, rows)
        log, error = np.log(2 / (0.0025 / 2)), 0.0025
        bernstein = np.sqrt(2 * values.var(ddof=1) * log / rows) + 7 * log / (3 * (rows - 1))
        before = min(bernstein, np.sqrt(np.log(2 / error) / (2 * rows)))
        assert BettingMean(values, error).upper(error) - values.mean() < 0.8 * before


@pytest.mark.parametrize("violating", [1, 2, 5])
def test_nobody_is_wrongly_said_to_meet(violating):
    """Clients at the bound have uniform p-values; whatever the others' are, any false claim is rare."""
    generator = np.random.default_rng(violating)
    false = every = 0
    for _ in range(4 * DRAWS):
        p = np.concatenate([generator.random(violating), generator.random(5 - violating) ** 8])
        said = hochberg(p.tolist(), ERROR)
        false += any(said[:violating])
        every += all(said)
    assert kept(false, draws=4 * DRAWS)
    assert kept(every, draws=4 * DRAWS)
    if violating == 1:
        assert false > 0.05 * 4 * DRAWS, "no price is paid for clients that meet"


def test_hochberg_by_hand():
    assert hochberg([0.04, 0.05, 0.049], 0.05) == [True, True, True]
    assert hochberg([0.04, 0.06, 0.03], 0.05) == [False, False, False]
    assert hochberg([0.02, 0.06, 0.025], 0.05) == [True, False, True]
    assert hochberg([0.04, None, 0.05], 0.05) == [True, False, True]
    assert hochberg([None], 0.05) == [False]


def test_rows_to_certify():
    assert rows_to_certify(0.05, 20) == 59
    assert rows_to_certify(0.05, 20, each=True) == 117
    assert rows_to_certify(0.05, 1) == rows_to_certify(0.05, 1, each=True) == 59
    for errors in (0, 1, 4):
        rows = rows_to_certify(0.1, confidence=0.9, errors=errors)
        assert clopper_pearson_upper(errors, rows, 0.1) <= 0.1 < clopper_pearson_upper(errors, rows - 1, 0.1)
    with pytest.raises(ValueError, match="bound must be"):
        rows_to_certify(0.0)


def test_more_rows_is_about_right():
    """With a fifth more rows than it says a client at its estimate is decided, with a third of them it is not."""
    generator = np.random.default_rng(1)
    for a, b, bound in ((1.0, 19.0, 0.07), (1.0, 19.0, 0.035), (4.0, 16.0, 0.22)):
        few = generator.beta(a, b, 20)
        mean, deviation = a / (a + b), float(np.sqrt(a * b / ((a + b) ** 2 * (a + b + 1))))
        total = 20 + limits.additional_mean_rows(len(few), mean, deviation, bound, 0.01)
        for rows, decided in ((int(1.3 * total), True), (total // 3, False)):
            values = generator.permutation(stats.beta(a, b).ppf((np.arange(rows) + 0.5) / rows))
            side, at = (
                (BettingMean(values, 0.01), bound) if mean < bound else (BettingMean(1 - values, 0.01), 1 - bound)
            )
            assert (side.p_value(at) <= 0.01) == decided, (bound, total, rows)
    total = 50 + limits.additional_rate_rows(50, 0.02, 0.05, 0.01)
    assert binomial_cdf(0.02 * total, total, 0.05) <= 0.01 < binomial_cdf(0.02 * (total - 1), total - 1, 0.05)
