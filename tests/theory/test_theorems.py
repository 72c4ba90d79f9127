"""Formulas compared with independently computed numbers, and monotonicity in every argument."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import special, stats

from softswitch import theory
from softswitch.theory import Constants, Setting
from softswitch.theory.theorems import heterogeneity

CONSTANTS = Constants(diameter=4.0, lipschitz=2.0, gradient_noise=8.0, value_noise=0.5, heterogeneity=0.3)
SETTING = Setting(
    clients=20, participants=20, rounds=10_000, local_steps=1, batch_size=4, value_batch_size=100, delta=0.08
)
# ln(8/δ) = ln 100 = 4.605170186; σ̄ = 8/(2·√4) = 2 at E = 1.


def test_theorem_1():
    bound = theory.theorem_1(CONSTANTS, SETTING)
    # 2DL/√K = 0.16; 1 + 4·(3 + 36.84136149/10000) + 2·√36.84136149 = 1 + 12.01473654 + 12.13942 = 25.15415...
    bracket = 1 + 4 * (3 + 0.003684136149) + 2 * 6.069709
    assert bound.optimization == pytest.approx(0.16 * bracket, rel=1e-6)
    # 4·0.5·√(2 ln(12·10000·20/0.08)/100) = 2·√(0.02·17.2167079)
    assert bound.estimation == pytest.approx(2 * math.sqrt(0.02 * 17.2167079), rel=1e-6)
    assert bound.sampling == 0
    assert bound.step_size == bound.local_step_size == pytest.approx(4 / (2 * 2 * 100))
    assert bound.epsilon == pytest.approx(bound.optimization + bound.estimation)
    assert bound.threshold == pytest.approx(bound.epsilon / 2)
    assert bound.alpha == pytest.approx(2 * 2.995732274 / bound.optimization, rel=1e-8)


def test_theorem_2():
    bound = theory.theorem_2(CONSTANTS, replace(SETTING, local_steps=4))
    # σ̄² = 64/(4·4·4) = 1; DL/√(K/32) = 8/17.67766953; drift 1 + 4/√60000 = 1.016329932
    bracket = 1 + 2 * (3 + 0.003684136149) + 6.069709 * 1.016329932
    assert bound.optimization == pytest.approx(8 / 17.67766953 * bracket, rel=1e-6)
    assert bound.step_size == pytest.approx(4 / (2 * 282.8427125))
    assert bound.local_step_size == pytest.approx(bound.step_size / 4)
    assert bound.estimation == pytest.approx(2 * math.sqrt(0.02 * 17.2167079), rel=1e-6)


def test_theorem_3():
    setting = replace(SETTING, local_steps=4, participants=5)
    bound = theory.theorem_3(CONSTANTS, setting)
    # 24·10000·5/0.08 = 1.5e7, ln = 16.52356072; 4·0.3·ln(400)/(|ln 0.75|·20) = 1.2·5.991464547/(0.2876820724·20)
    assert bound.estimation == pytest.approx(2 * math.sqrt(0.02 * 16.52356072), rel=1e-6)
    assert bound.sampling == pytest.approx(1.2 * 5.991464547 / 5.753641449, rel=1e-8)
    assert bound.optimization == theory.theorem_2(CONSTANTS, replace(SETTING, local_steps=4)).optimization
    assert bound.alpha == pytest.approx(2 * 1.609437912 / bound.optimization, rel=1e-8)
    # κ = 1/8: 4σ ln 4/(|ln(1−r)|n) on top
    extra = 1.2 * 1.386294361 / 5.753641449
    assert theory.constraint_bound(CONSTANTS, setting, 1 / 8) == pytest.approx(bound.epsilon + extra, rel=1e-8)


def test_applicable_theorem_is_selected():
    assert theory.bound(CONSTANTS, SETTING).theorem == 1
    assert theory.bound(CONSTANTS, replace(SETTING, local_steps=2)).theorem == 2
    assert theory.bound(CONSTANTS, replace(SETTING, participants=19)).theorem == 3
    assert theory.constraint_bound(CONSTANTS, SETTING, 0.01) == theory.bound(CONSTANTS, SETTING).epsilon


def test_theorem_3_equals_theorem_2_at_full_participation():
    """At m = n the sampling error is zero, and only ln 24 and ln 12 in the estimation error differ."""
    constants = replace(CONSTANTS, value_noise=0.0)
    bound_3, bound_2 = theory.theorem_3(constants, SETTING), theory.theorem_2(constants, SETTING)
    assert replace(bound_3, theorem=2) == bound_2
    full = theory.theorem_3(CONSTANTS, SETTING).estimation / theory.theorem_2(CONSTANTS, SETTING).estimation
    assert full == pytest.approx(math.sqrt(1 + math.log(2) / math.log(12 * 10_000 * 20 / 0.08)))
    errors = [
        theory.theorem_3(CONSTANTS, Setting(10**6, m, 100)).sampling for m in (10**5, 9 * 10**5, 10**6 - 1, 10**6)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == 0


INCREASING = {"diameter", "lipschitz", "gradient_noise", "value_noise", "heterogeneity"}


@pytest.mark.parametrize("theorem", [theory.theorem_1, theory.theorem_2, theory.theorem_3])
@pytest.mark.parametrize("name", sorted(INCREASING))
def test_larger_constants_never_help(theorem, name):
    setting = replace(SETTING, participants=10) if theorem is theory.theorem_3 else SETTING
    errors = [theorem(replace(CONSTANTS, **{name: value}), setting).epsilon for value in (0.1, 0.4, 1.0, 5.0)]
    # A larger L reduces the relative noise, so ε may not increase with L; σ_g is set to 0 here.
    if name == "lipschitz":
        noiseless = replace(CONSTANTS, gradient_noise=0.0)
        errors = [theorem(replace(noiseless, lipschitz=value), setting).epsilon for value in (0.1, 0.4, 1.0, 5.0)]
    assert errors == sorted(errors)


@pytest.mark.parametrize("name", ["rounds", "batch_size", "value_batch_size", "participants", "delta"])
def test_larger_settings_help(name):
    values = {"participants": (2, 5, 10, 19), "delta": (0.001, 0.01, 0.1, 0.5)}.get(name, (100, 200, 1000, 9000))
    base = replace(SETTING, participants=10, value_batch_size=10_000)
    errors = [theory.theorem_3(CONSTANTS, replace(base, **{name: value})).epsilon for value in values]
    assert errors == sorted(errors, reverse=True)


def test_local_steps_average_gradient_noise():
    noise = [theory.theorem_2(CONSTANTS, replace(SETTING, local_steps=e)).optimization for e in (1, 2, 5, 10)]
    assert noise == sorted(noise, reverse=True)


def test_general_threshold():
    """Δ = 0.2, λ = 0.3, κ = 0.8: G <= 0.4, F − F* <= 0.4 − 0.2/0.8 = 0.15. At λ = Δ/2 both are Δ."""
    assert theory.general_threshold(0.2, 0.3, 0.8) == pytest.approx((0.15, 0.4))
    assert theory.general_threshold(0.2, 0.1, 0.3) == pytest.approx((0.2, 0.2))
    with pytest.raises(ValueError, match=r"threshold must be a finite number and >= 0\.1, but is 0\.05"):
        theory.general_threshold(0.2, 0.05, 1.0)


QUANTILES = {
    "uniform": (stats.uniform(), lambda p: p),
    "half-normal": (stats.halfnorm(), lambda p: math.sqrt(2) * special.erfinv(p)),
    "exponential": (stats.expon(), lambda p: -math.log1p(-p)),
    "half-cauchy": (stats.halfcauchy(), lambda p: math.tan(math.pi * p / 2)),
    "chi-square": (stats.chi2(3), lambda p: 2 * special.gammaincinv(1.5, p)),
    "beta": (stats.beta(2.0, 0.5), lambda p: special.betaincinv(2.0, 0.5, p)),
}


@pytest.mark.parametrize("gap", QUANTILES)
def test_general_sampling_error(gap):
    """n = 100, m = 30, K = 50, δ = 0.1: ρ = ln 500/(100·|ln 0.7|) = 6.2146081/35.6674944 = 0.17423730; 1 − r = 0.7."""
    distribution, quantile = QUANTILES[gap]
    setting = Setting(100, 30, 50, delta=0.1)
    assert theory.sampling_error(2.0, setting, distribution) == pytest.approx(2 * quantile(0.17423730), rel=1e-6)
    small_setting = Setting(4, 3, 50, delta=0.1)  # there 1 − r = 0.25 is the smaller
    assert theory.sampling_error(2.0, small_setting, distribution) == pytest.approx(2 * quantile(0.25), rel=1e-9)
    assert theory.sampling_error(2.0, Setting(100, 100, 50), distribution) == 0


def exceeds(x, t):
    """(1/n)#{i: max x − x_i >= t}."""
    return np.mean(x.max() - x >= t)


VALUES = hnp.arrays(np.float64, st.integers(1, 9), elements=st.integers(-6, 6).map(lambda k: k / 2))  # with ties


@given(VALUES)
def test_heterogeneity_is_smallest_sigma(x):
    """Brute force: the fraction jumps at the gaps, so only these values of t matter."""
    sigma = heterogeneity(x)
    gaps = np.unique(x.max() - x)
    gaps = gaps[gaps > 0]
    if len(gaps) == 0:
        assert sigma == 0
        return
    assert all(exceeds(x, t) <= max(0.0, 1 - t / sigma) + 1e-12 for t in gaps)
    smaller = sigma * (1 - 1e-6)
    assert any(exceeds(x, t) > max(0.0, 1 - t / smaller) for t in gaps), "a smaller σ must fail"


def test_heterogeneity_of_two_clients():
    assert heterogeneity([0, 1]) == 2
    assert heterogeneity([5.0]) == 0
    with pytest.raises(ValueError, match=r"values must be .*finite.*nan"):
        heterogeneity([1.0, np.nan])


def test_constraint_bound_is_larger_of_statement_and_proof():
    """n = 20, m = 10, σ = 0.3, κ = 1: −0.060 by the statement, −0.030 by the proof."""
    constants, setting = replace(CONSTANTS, heterogeneity=0.3), replace(SETTING, clients=20, participants=10)
    excess = 0.3 * math.log(0.5) / (math.log(2) * 20)
    assert (4 * excess, 2 * excess) == pytest.approx((-0.06, -0.03))
    epsilon = theory.bound(constants, setting).epsilon
    assert theory.constraint_bound(constants, setting, 1.0) == pytest.approx(epsilon + 2 * excess)
    assert theory.constraint_bound(constants, setting, 0.5) == pytest.approx(epsilon)
    assert theory.constraint_bound(constants, setting, 0.25) == pytest.approx(epsilon - 4 * excess)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constants(0, 1), "diameter must be a finite number and > 0, but is 0"),
        (lambda: Constants(1, 1, -1), "gradient_noise must be a finite number and >= 0, but is -1"),
        (lambda: Setting(5, 6, 1), "participants must be at most clients = 5, but is 6"),
        (lambda: Setting(5, 5, 1, delta=1.0), "delta must be a finite number and > 0 and < 1, but is 1.0"),
        (lambda: Setting(5, 5, 0), "rounds must be an integer >= 1, but is 0"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_slater_condition_bounds_feasible_share():
    """D = 4, L = 2: DL = 8. ν = 2 and ε = 2 for noiseless constants: κ >= 2/(2 + 8 + 2) = 1/6; ν = 0 leaves 1/K."""
    noiseless, setting = Constants(4.0, 2.0), Setting(20, 20, 64)  # 2DL/√K = 2
    assert theory.bound(noiseless, setting).epsilon == pytest.approx(2.0)
    assert theory.min_switch_share(noiseless, setting, 2.0) == pytest.approx(1 / 6)
    assert theory.min_switch_share(noiseless, setting, 0.0) == pytest.approx(1 / 64)
    assert theory.min_switch_share(noiseless, setting, 0.1) == pytest.approx(1 / 64), "0.1/10.1 is smaller"
    # The paper: ln(1/(2κ)) <= ln min(K/2, 1/2 + (DL + ε)/(2ν)) = ln min(32, 1/2 + 10/4) = ln 3
    assert math.log(1 / (2 * theory.min_switch_share(noiseless, setting, 2.0))) == pytest.approx(math.log(3))
    with pytest.raises(ValueError, match="slater must be a finite number and >= 0, but is -1"):
        theory.min_switch_share(noiseless, setting, -1)


def test_run_meets_bound_on_feasible_share():
    """Subgradient steps on f = −w, g = w − ½ over [−1, 1] (D = 2, L = 1, ν = 3/2 at w = −1)."""
    for rounds in (25, 100, 400):
        constants, setting = Constants(2.0, 1.0), Setting(1, 1, rounds)
        guarantee = theory.bound(constants, setting)
        for start in (-1.0, 0.0, 1.0):
            w, feasible = start, 0
            for _ in range(rounds):
                is_feasible = w - 0.5 <= guarantee.threshold
                feasible += is_feasible
                w = min(1.0, max(-1.0, w + (guarantee.step_size if is_feasible else -guarantee.step_size)))
            assert feasible / rounds >= theory.min_switch_share(constants, setting, 1.5)


def test_rules_of_thumb():
    """σ_g = 8, L = 2: (σ_g/L)² = 16 rows; B_g·E = 4·2 gives σ̄² = 64/(8·4) = 2. √90 = 9.49."""
    assert theory.min_gradient_rows(CONSTANTS) == 16
    assert theory.effective_variance(CONSTANTS, replace(SETTING, local_steps=2)) == pytest.approx(2.0)
    assert theory.effective_variance(CONSTANTS, replace(SETTING, local_steps=4)) == pytest.approx(1.0)
    assert theory.min_gradient_rows(replace(CONSTANTS, gradient_noise=0.0)) == 1
    assert theory.min_gradient_rows(replace(CONSTANTS, gradient_noise=8.1)) == 17  # 4.05² = 16.4
    assert [theory.max_local_steps(k) for k in (1, 90, 100)] == [1, 9, 10]


def quantile_bound(level, gap, shape):
    """Return the paper's upper bound on Q_Z(ρ) in elementary functions."""
    if gap == "uniform":
        return level
    if gap == "beta":
        a, b = shape
        factor = 1.0 if b > 1 else (a * float(special.beta(a, b))) ** (1 / a)
        return min(1.0, factor * level ** (1 / a))
    ratio = level / (1 - level)
    if gap == "chi-square":
        return 8 * shape[0] / math.e * ratio ** (2 / shape[0])
    return {"half-normal": math.sqrt(math.pi / 2), "exponential": 1.0, "half-cauchy": math.pi / 2}[gap] * ratio


@pytest.mark.parametrize("gap", QUANTILES)
def test_paper_bounds_on_quantiles(gap):
    """Compare with SciPy's inverse functions over all levels, and many shapes of chi-square and beta."""
    shapes = {
        "chi-square": [(k,) for k in (1, 2, 3, 10, 200)],
        "beta": [(a, b) for a in (0.3, 1, 2, 9) for b in (0.2, 0.5, 1, 1.5, 8)],
    }.get(gap, [()])
    levels = [1e-6, 1e-4, *np.linspace(0.01, 0.99, 33), 0.999, 1 - 1e-6]
    inverse = {
        "chi-square": lambda p, k: 2 * special.gammaincinv(k / 2, p),
        "beta": lambda p, a, b: special.betaincinv(a, b, p),
    }.get(gap, QUANTILES[gap][1])
    for shape in shapes:
        for level in levels:
            exact = inverse(level, *shape)
            assert exact <= quantile_bound(level, gap, shape) * (1 + 1e-9)


def test_quantile_bounds():
    """At ρ = ½ the odds are 1: √(π/2), 1, π/2, 8k/e. For beta(2, 1): C = (2·½)^½ = 1, and ρ^½."""
    at_half = {
        ("half-normal", ()): 1.2533141,
        ("exponential", ()): 1.0,
        ("half-cauchy", ()): 1.5707963,
        ("chi-square", (4,)): 11.7721421,
        ("beta", (2, 1)): 0.7071068,
        ("uniform", ()): 0.5,
    }
    for (gap, shape), expected in at_half.items():
        assert quantile_bound(0.5, gap, shape) == pytest.approx(expected, rel=1e-7)


def test_general_error_replaces_theorem_3():
    """n = 100, m = 30, K = 50, δ = 0.1: ρ = ln(8·50/0.1)/(100·|ln 0.7|) = 8.29404964/35.6674944 = 0.23253805."""

    def general(setting, *gap):
        return 2 * theory.sampling_error(0.5, replace(setting, delta=setting.delta / 8), *gap)

    setting, constants = Setting(100, 30, 50, delta=0.1), replace(CONSTANTS, heterogeneity=0.5)
    assert general(setting, stats.expon()) == pytest.approx(2 * 0.5 * -math.log1p(-0.23253805), rel=1e-6)
    assert general(setting) == pytest.approx(0.23253805, rel=1e-6)
    # 2σρ against 4σ ln(320)/(n|ln(1−r)|) of the theorem: K < 128/δ = 1280 decides.
    for rounds, smaller in ((1279, True), (1281, False)):
        large_setting = Setting(10**6, 1000, rounds, delta=0.1)
        assert (general(large_setting) < theory.bound(constants, large_setting).sampling) is smaller


@pytest.mark.parametrize("gap", [stats.uniform(), stats.halfnorm(), stats.beta(2.0, 3.0)])
def test_general_sampling_error_in_simulation(gap):
    """For random vectors of clients with their σ, the mean exceeds the bound in at most a share δ of 300 runs."""
    generator = np.random.default_rng(5)
    setting = Setting(30, 6, 20, delta=0.2)
    for _ in range(3):
        values = generator.gamma(1.0, size=30)
        error_bound = theory.sampling_error(heterogeneity(values, gap), setting, gap)
        samples = generator.permuted(np.broadcast_to(values, (300 * 20, 30)), axis=1)[:, :6]
        means = (values.max() - samples.max(axis=1)).reshape(300, 20).mean(axis=1)
        assert np.mean(means > error_bound) <= 0.2
        assert means.max() > error_bound / 20, "the bound is loose, but not by orders of magnitude"


@pytest.mark.parametrize("name", QUANTILES)
def test_heterogeneity_with_other_gaps_is_smallest_scale(name):
    gap, _ = QUANTILES[name]
    generator = np.random.default_rng(1)
    for _ in range(20):
        x = np.round(generator.exponential(size=7), 1)  # with ties
        sigma = heterogeneity(x, gap)
        gaps = np.unique(x.max() - x)[1:]
        assert all(exceeds(x, t) <= gap.sf(t / sigma) + 1e-9 for t in gaps)
        assert any(exceeds(x, t) > gap.sf(t / (sigma * (1 - 1e-5))) + 1e-12 for t in gaps), "a smaller σ must fail"
