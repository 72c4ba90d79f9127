"""The paper's theorems as functions from settings to error bounds. All logarithms are natural.

Theorem 1 covers full participation with one local step, Theorem 2 several local steps, Theorem 3 partial participation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.stats.distributions import rv_frozen

from softswitch.support import checks

UNIFORM = stats.uniform()  # distribution of Z in Theorem 3


@dataclass(frozen=True)
class Constants:
    """Constants of a problem that the theorems take as known.

    Attributes:
        diameter: D > 0, the diameter of the domain Θ.
        lipschitz: L > 0, the Lipschitz constant of every f_i and g_i on Θ.
        gradient_noise: σ_g >= 0, the sub-Gaussian norm of one row's gradient around its client's mean. Default: 0.
        value_noise: σ_ζ >= 0, the sub-Gaussian norm of one row's value of f or g around its client's mean. Default: 0.
        heterogeneity: σ >= 0, the scale of the clients' gaps to the worst client, by ``heterogeneity(values)``. It
            matters with partial participation only. Default: 0.
    """

    diameter: float = field(metadata=checks.POSITIVE)
    lipschitz: float = field(metadata=checks.POSITIVE)
    gradient_noise: float = field(default=0.0, metadata=checks.NONNEGATIVE)
    value_noise: float = field(default=0.0, metadata=checks.NONNEGATIVE)
    heterogeneity: float = field(default=0.0, metadata=checks.NONNEGATIVE)

    def __post_init__(self) -> None:
        checks.check_limits(self)


@dataclass(frozen=True)
class Setting:
    """Settings of a run to which the theorems apply, with one constraint per client.

    Attributes:
        clients: Number of clients n.
        participants: Number of clients m <= n in a round.
        rounds: Number of rounds K.
        local_steps: Number of local steps E. Default: 1.
        batch_size: Number of rows B_g of a gradient. Default: 32.
        value_batch_size: Number of rows B_ζ of a report. Default: 32.
        delta: δ in (0, 1); the bounds hold with probability at least 1 − δ. Default: 0.05.
    """

    clients: int
    participants: int
    rounds: int
    local_steps: int = 1
    batch_size: int = 32
    value_batch_size: int = 32
    delta: float = 0.05

    def __post_init__(self) -> None:
        for name in ("clients", "participants", "rounds", "local_steps", "batch_size", "value_batch_size"):
            checks.check_integer(name, getattr(self, name), minimum=1)
        if self.participants > self.clients:
            raise ValueError(f"participants must be at most clients = {self.clients}, but is {self.participants}")
        checks.check_probability("delta", self.delta)

    @property
    def samples(self) -> int:
        """Number of rows that the run evaluates, K·m·(B_ζ + E·B_g)."""
        return self.rounds * self.participants * (self.value_batch_size + self.local_steps * self.batch_size)


@dataclass(frozen=True)
class Bound:
    """Error bounds of a theorem, and the step sizes and α for which they hold.

    With probability at least 1 − δ:  F(w̄) − F* <= epsilon  and  G(w̄) <= epsilon (see ``constraint_bound``).

    Attributes:
        theorem: Number of the theorem: 1, 2 or 3.
        optimization: ε', the error of finitely many rounds, in units of f and g like the other errors.
        estimation: Error of values estimated on batches.
        sampling: Error of partial participation.
        step_size: Step size η of the server.
        local_step_size: Step size γ of the clients.
        alpha: Smallest softmax sharpness α that the theorem allows, per unit of f and g.
    """

    theorem: int
    optimization: float
    estimation: float
    sampling: float
    step_size: float
    local_step_size: float
    alpha: float

    @property
    def epsilon(self) -> float:
        """Total error ε: the sum of the three errors."""
        return self.optimization + self.estimation + self.sampling

    @property
    def threshold(self) -> float:
        """Threshold λ = ε/2 of the switch, for which the theorem holds."""
        return self.epsilon / 2

    @property
    def dominant(self) -> str:
        """Name of the largest error: "optimization", "estimation" or "sampling"."""
        return max(("optimization", "estimation", "sampling"), key=lambda name: float(getattr(self, name)))


def bound(constants: Constants, setting: Setting) -> Bound:
    """Return the bound of the applicable theorem: 3 if m < n, otherwise 1 if E = 1, otherwise 2.

    Args:
        constants: Constants of the problem.
        setting: Settings of the run.
    """
    if setting.participants < setting.clients:
        return theorem_3(constants, setting)
    return theorem_1(constants, setting) if setting.local_steps == 1 else theorem_2(constants, setting)


def theorem_1(constants: Constants, setting: Setting) -> Bound:
    """Return the bound of Theorem 1, for full participation and one local step.

    η = γ = D/(2L√K);  ε' = (2DL/√K)·[1 + σ̄²(3 + 8 ln(8/δ)/K) + σ̄√(8 ln(8/δ))],  σ̄² = σ_g²/(B_g L²);
    estimation 4σ_ζ√(2 ln(12Kn/δ)/B_ζ);  α >= 2 ln(n)/ε'.

    Args:
        constants: Constants of the problem.
        setting: Settings of the run.
    """
    return _bound(1, constants, setting, 12 * setting.rounds * setting.clients, 0.0, setting.clients)


def theorem_2(constants: Constants, setting: Setting) -> Bound:
    """Return the bound of Theorem 2, for full participation and E >= 1 local steps.

    η = D/(L√(8K)), γ = η/E;  ε' = (DL/√(K/32))·[1 + 2σ̄²(3 + 8 ln(8/δ)/K) + σ̄√(8 ln(8/δ))(1 + E/√(6K))],
    σ̄² = σ_g²/(B_g L² E);  estimation and α as in Theorem 1.

    Args:
        constants: Constants of the problem.
        setting: Settings of the run.
    """
    return _bound(2, constants, setting, 12 * setting.rounds * setting.clients, 0.0, setting.clients)


def theorem_3(constants: Constants, setting: Setting) -> Bound:
    """Return the bound of Theorem 3, for partial participation with r = m/n.

    As Theorem 2, with estimation 4σ_ζ√(2 ln(24Km/δ)/B_ζ), sampling 4σ ln(32/δ)/(|ln(1−r)|n) (0 at r = 1) and
    α >= 2 ln(m)/ε'. The paper's proof gives smaller constants than its statement; this is the statement.

    2·``sampling_error`` at δ/8, the general bound inserted into the proof, may replace the sampling error. It grows
    with ln K and does not depend on κ. If K < 128/δ, it is smaller.

    Args:
        constants: Constants of the problem.
        setting: Settings of the run.
    """
    sampling = 4 * _sampling_unit(constants, setting) * math.log(32 / setting.delta)
    return _bound(3, constants, setting, 24 * setting.rounds * setting.participants, sampling, setting.participants)


def _bound(theorem: int, constants: Constants, setting: Setting, events: int, sampling: float, reporting: int) -> Bound:
    """Return the bound of a theorem, given ``events`` (for the union bound) and the number of reporting clients."""
    D, L, K = constants.diameter, constants.lipschitz, setting.rounds  # noqa: N806
    E = 1 if theorem == 1 else setting.local_steps  # noqa: N806
    noise = constants.gradient_noise / (L * math.sqrt(setting.batch_size * E))
    log = math.log(8 / setting.delta)
    variance, deviation = noise**2 * (3 + 8 * log / K), noise * math.sqrt(8 * log)
    if theorem == 1:
        step, optimization = D / (2 * L * math.sqrt(K)), 2 * D * L / math.sqrt(K) * (1 + variance + deviation)
    else:
        step, drift = D / (L * math.sqrt(8 * K)), 1 + E / math.sqrt(6 * K)
        optimization = D * L / math.sqrt(K / 32) * (1 + 2 * variance + deviation * drift)
    estimation = 4 * constants.value_noise * math.sqrt(2 * math.log(events / setting.delta) / setting.value_batch_size)
    return Bound(theorem, optimization, estimation, sampling, step, step / E, 2 * math.log(reporting) / optimization)


def _sampling_unit(constants: Constants, setting: Setting) -> float:
    """Return σ/(|ln(1−r)|n), the unit of sampling errors; 0 at r = 1."""
    n, m = setting.clients, setting.participants
    if m == n:
        return 0.0
    return constants.heterogeneity / (abs(math.log1p(-m / n)) * n)


def constraint_bound(constants: Constants, setting: Setting, switch_share: float) -> float:
    """Return the upper bound on G(w̄), in units of g, given the fraction κ of feasible rounds.

    It is ε with full participation. With partial participation it is ε + 4σ ln(1/(2κ))/(|ln(1−r)|n) by the theorem's
    statement, with 2σ for 4σ by its proof. For κ > ½ the logarithm is negative, and the larger of the two holds.

    Args:
        constants: Constants of the problem.
        setting: Settings of the run.
        switch_share: κ, the fraction of feasible rounds, in (0, 1].
    """
    kappa = checks.check_real("switch_share", switch_share, above=0, maximum=1)
    beyond = _sampling_unit(constants, setting) * math.log(1 / (2 * kappa))
    return bound(constants, setting).epsilon + max(4 * beyond, 2 * beyond)


def min_switch_share(constants: Constants, setting: Setting, slater: float) -> float:
    """Return a lower bound on the fraction κ of feasible rounds if some w in Θ has G(w) <= −ν (Slater's condition).

    κ >= max{1/K, ν/(ν + DL + ε)}, from 1/κ <= 1 + (F(w) − F(w̄) + ε)/ν and F(w) − F(w̄) <= DL. It holds with
    probability 1 − δ if w is the optimum, as in the paper, and together with the theorem's bound with probability
    1 − 2δ for any other w. DL is a worst case, so that on data the bound is often close to 1/K.

    Args:
        constants: Constants of the problem.
        setting: Settings of the run.
        slater: ν >= 0, the margin by which some w meets all constraints, in units of g; 0 if unknown, giving 1/K.
    """
    nu = checks.check_real("slater", slater, minimum=0)
    epsilon = bound(constants, setting).epsilon
    return max(1 / setting.rounds, nu / (nu + constants.diameter * constants.lipschitz + epsilon))


def effective_variance(constants: Constants, setting: Setting) -> float:
    """Return the relative gradient variance σ̄² = σ_g²/(B_g·E·L²).

    ε' keeps its rate DL/√K if σ̄² is at most about 1, that is, if B_g·E >= (σ_g/L)².

    Args:
        constants: Constants of the problem.
        setting: Settings of the run.
    """
    rows = setting.batch_size * setting.local_steps
    return (constants.gradient_noise / (constants.lipschitz * math.sqrt(rows))) ** 2


def min_gradient_rows(constants: Constants) -> int:
    """Return the smallest number of gradient rows B_g·E of a client and round with σ̄² <= 1: (σ_g/L)², rounded up.

    Args:
        constants: Constants of the problem.
    """
    return max(1, math.ceil((constants.gradient_noise / constants.lipschitz) ** 2 - 1e-9))


def max_local_steps(rounds: int) -> int:
    """Return the number of local steps up to which ε' keeps its rate: √K, rounded down.

    ε' contains E as the factor 1 + E/√(6K).

    Args:
        rounds: Number of rounds K.
    """
    return math.isqrt(checks.check_integer("rounds", rounds, minimum=1))


def general_threshold(error: float, threshold: float, switch_share: float) -> tuple[float, float]:
    """Return upper bounds on F(w̄) − F* and on G(w̄) for any threshold λ >= Δ/2 of the switch.

    F(w̄) − F* <= (Δ/2 + λ) − (λ − Δ/2)/κ  and  G(w̄) <= Δ/2 + λ.

    Args:
        error: Δ >= 0, the sum of the three errors (``Bound.epsilon``).
        threshold: λ, at least Δ/2.
        switch_share: κ, the fraction of feasible rounds, in (0, 1].
    """
    error = checks.check_real("error", error, minimum=0)
    threshold = checks.check_real("threshold", threshold, minimum=error / 2)
    kappa = checks.check_real("switch_share", switch_share, above=0, maximum=1)
    constraint = error / 2 + threshold
    return constraint - (threshold - error / 2) / kappa, constraint


def heterogeneity(values: ArrayLike, gap: rv_frozen = UNIFORM) -> float:
    """Return the scale of the clients' gaps: the smallest σ with (1/n)#{i: max x − x_i >= t} <= P(σZ >= t) for all t.

    In order statistics x_(1) <= … <= x_(n):  σ = max over i < n of (x_(n) − x_(i))/Q_Z(1 − i/n), which is
    (x_(n) − x_(i))/(1 − i/n) for the uniform distribution. (The paper has 1 − (i−1)/n, which is off by one:
    x = (0, 1) needs σ = 2.)

    Args:
        values: x, one finite value per client.
        gap: Distribution of Z >= 0, such as ``scipy.stats.halfnorm()``. Default: uniform on [0, 1].
    """
    ordered = np.sort(np.asarray(values, dtype=float).ravel())
    n = len(ordered)
    if n == 0 or not np.isfinite(ordered).all():
        raise ValueError(f"values must be one or more finite numbers, but is {values!r}")
    quantiles = gap.ppf(1 - np.arange(1, n) / n)
    return float(((ordered[-1] - ordered[:-1]) / quantiles).max(initial=0.0))


def sampling_error(heterogeneity: float, setting: Setting, gap: rv_frozen = UNIFORM) -> float:
    """Return the sampling error if client gaps are dominated by σZ: σ·Q_Z(min{1 − r, ln(K/δ)/(n|ln(1−r)|)}).

    Args:
        heterogeneity: Scale σ >= 0 of the clients' gaps to the worst client, in units of f and g.
        setting: Settings of the run; n, m, K and δ are used.
        gap: Distribution of Z >= 0, such as ``scipy.stats.halfnorm()``. Default: uniform on [0, 1].
    """
    scale = checks.check_real("heterogeneity", heterogeneity, minimum=0)
    r = setting.participants / setting.clients
    if r == 1:
        return 0.0
    level = math.log(setting.rounds / setting.delta) / (setting.clients * abs(math.log1p(-r)))
    return scale * float(gap.ppf(min(1 - r, level)))
