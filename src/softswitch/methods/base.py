"""Method: the base class of methods, with shared settings, the criterion and the decisions that methods share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from array_api_compat import array_namespace

from softswitch.methods.client_state import AtClients
from softswitch.methods.compression import Compression
from softswitch.methods.directions import Optimistic
from softswitch.methods.messages import Decision, LocalLoss, Reports
from softswitch.methods.weighting import Array, maximum, softmax_mean
from softswitch.problem.choices import CRITERIA
from softswitch.problem.parameters import Params
from softswitch.support import checks
from softswitch.support.checks import NONNEGATIVE, NUMBER, limits
from softswitch.support.function_equality import TracedSettings

Schedule = Callable[[Any], Any]
PAPER_SLACK = 10.0  # default of ``Method.slack``: A of λ = ε/(1 + 1/A), as in the paper's experiments


def differs(one: Any, other: Any) -> bool:
    """Return whether two settings, numbers, strings or arrays, differ."""
    return not np.array_equal(one, other) if hasattr(one, "shape") or hasattr(other, "shape") else bool(one != other)


@dataclass(frozen=True, kw_only=True)
class Method(TracedSettings, ABC):
    """Base class of methods, with the settings that all share. A subclass adds its own settings, and ``decide``.

    To write a method, subclass this class as a frozen dataclass:

        @dataclass(frozen=True, kw_only=True)
        class MyMethod(Method):
            sharpness: float       # a number: another value compiles nothing
            squared: bool = False  # a bool, a string or a function: part of the program

            def decide(self, state, reports):
                ...

    Attributes:
        tolerance: ε >= 0, in units of g: the constraint is met if G(w) <= ε.
        step_size: η > 0, the server's step size: a number, or an optax schedule of the round. None only in
            ``Automatic``.
        threshold: λ, the threshold of the switch, in units of g. Default: λ = ε/(1 + 1/A), slightly below ε.
        slack: A >= 1 of that formula. Default: 10, as in the paper's experiments; the theorems use 1.
        local_step_size: γ > 0, the clients' step size: a number or a schedule of the round. Default: η/E with E local
            steps, as in the theorems.
        criterion: What the switch compares with λ: the ``"softmax"`` mean over clients, the ``"max"``, the ``"mean"``,
            or the ``"pooled"`` constraint of the clients' additive statistics. Default: that of the method. For a
            method without an α the softmax mean is the plain mean.
        optimizer: The server optimizer: a function from a step size to an optax transformation, such as ``optax.adam``.
            Default: ``optax.sgd``. It receives Σ r_i u_i as a gradient. An optimizer that needs a ``value``, such as
            ``optax.polyak_sgd``, receives Σ r_i f_i in an objective round, and the criterion minus λ in a constraint
            round; give it an ``f_min`` slightly below 0 then.
        robust: b, the number of clients that may be Byzantine: the b largest and smallest reports are trimmed, weights
            are at most 1/(2b+1), or 1/(3b+1) after 20 infeasible rounds without progress, and distant directions are
            clipped. The b worst-off honest clients lose the protection of the maximum. At least 2b + 1 clients must
            take part in a round. None: all are trusted.
        direction: ``Optimistic`` extrapolates the weighted direction before the optimizer. None: no extrapolation.
        at_clients: State that clients keep between rounds: ``ControlVariates``, ``Consensus``, or ``Compression`` of
            messages. None: no state.
    """

    tolerance: float = field(metadata=NONNEGATIVE)
    step_size: float | Schedule | None = field(metadata=limits(above=0, optional=True, schedule=True))
    threshold: float | None = field(default=None, metadata=NUMBER)
    slack: float | None = field(default=None, metadata=limits(minimum=1))
    local_step_size: float | Schedule | None = field(default=None, metadata=limits(above=0, schedule=True))
    criterion: str | None = None
    optimizer: Callable[[Any], optax.GradientTransformation] | None = None
    robust: int | None = None
    direction: Optimistic | None = None
    at_clients: AtClients | None = None

    own_criterion: ClassVar[str] = "mean"
    """Criterion of the method if ``criterion`` is None: one of ``CRITERIA``."""
    aims_at: ClassVar[str] = "mean"
    """Aggregate of the clients' objectives that the method minimises: ``"mean"`` or ``"max"``."""
    goes_on: ClassVar[bool] = False
    """Whether a restart of an automatic run keeps the state of the method. False: it begins with ``init`` again."""
    switches: ClassVar[bool] = True
    """Whether a round descends either on the objective or on the constraint, never on both."""
    knows_clients: ClassVar[bool] = False
    """Whether the method keeps a state of each client, and needs their indices in ``Reports.clients``."""
    compares: ClassVar[bool] = False
    """Whether the method needs ``Reports.earlier``: reports of the same batches at the previous iterate."""
    draws_clients: ClassVar[bool] = False
    """Whether the method draws the clients that compute updates, with the random key ``Reports.key``."""
    needs_derivatives: ClassVar[bool] = False
    """Whether the method needs gradients and Hessians of all clients instead of reports and updates."""
    sees_each: ClassVar[bool] = False
    """Whether the method aggregates the clients' directions by ``combine`` instead of a weighted sum."""

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, optax.GradientTransformation):
            given = f"is a finished transformation; pass optax.adam, not optax.adam(0.001). Got {self.optimizer!r}"
            raise TypeError(f"optimizer must be a function from a step size to an optax transformation, but {given}")
        if self.optimizer is not None:
            checks.check_callable("optimizer", self.optimizer, "from a step size to an optax transformation")
        super().__post_init__()
        checks.check_given(self, checks.check_choice, "criterion", choices=CRITERIA)
        checks.check_given(self, checks.check_instance, "direction", cls=Optimistic)
        checks.check_given(self, checks.check_instance, "at_clients", cls=AtClients)
        if self.robust is not None and not checks.is_array(self.robust):  # a traced value was checked before
            byzantine = checks.check_integer("robust", self.robust, minimum=0)
            object.__setattr__(self, "robust", byzantine or None)
            if byzantine and self.switches_on == "pooled":
                reason = "criterion is 'pooled': a false term of a sum over all clients cannot be detected"
                raise ValueError(f"robust={byzantine} needs the criterion 'softmax', 'max' or 'mean', but {reason}")

    def __str__(self) -> str:
        """Return the method's name and the settings that differ from their defaults."""
        changed = [
            f"{setting.name}={getattr(value, '__name__', None) or repr(value)}"
            for setting in fields(self)
            if differs(value := getattr(self, setting.name), None if setting.default is MISSING else setting.default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    @property
    def switch_at(self) -> Any:
        """Threshold λ of the switch, in units of g: a round is feasible if its criterion is at most λ."""
        if self.threshold is not None:
            return self.threshold
        return self.tolerance / (1 + 1 / (PAPER_SLACK if self.slack is None else self.slack))

    @property
    def switches_on(self) -> str:
        """Name of the criterion that the switch uses: ``criterion``, or the default of the method."""
        return self.own_criterion if self.criterion is None else self.criterion

    @property
    def rest(self) -> int:
        """Number of rounds in which a client just selected cannot be selected by value: 1 if ``robust``, else 0."""
        return 0 if self.robust is None else 1

    @property
    def server_optimizer(self) -> Callable[[Any], optax.GradientTransformation]:
        """Function from a step size to the optax transformation of the server. Default: ``optax.sgd``."""
        return optax.sgd if self.optimizer is None else self.optimizer

    def step_size_at(self, k: int | Array) -> float | Array:
        """Return the server's step size η in round k; raise ValueError if the method has none.

        Args:
            k: Number of the round, from 0.
        """
        if self.step_size is None:
            raise ValueError(f"step_size must be given unless it is chosen during a run, but {self} has none")
        return self.step_size(k) if callable(self.step_size) else self.step_size

    def local_step_size_at(self, k: int | Array, local_steps: int = 1) -> float | Array:
        """Return the clients' step size γ in round k.

        Args:
            k: Number of the round, from 0.
            local_steps: Number of local steps E >= 1.
        """
        if self.local_step_size is None:
            return self.step_size_at(k) / local_steps if local_steps > 1 else self.step_size_at(k)
        return self.local_step_size(k) if callable(self.local_step_size) else self.local_step_size

    def init(self, clients: int, constraints: int) -> Any:
        """Return the state of the method before the first round, a pytree of arrays. Default: ``()``, no state.

        Args:
            clients: Number of clients n.
            constraints: Number of constraints of each client.
        """
        return ()

    def combine(self, k: int | Array, reports: Reports, decision: Decision, directions: Params) -> Params:
        """Return the server's direction from those of the participants. Called only if ``sees_each`` is True.

        Args:
            k: Number of the round, from 0.
            reports: Reports of the m participants.
            decision: Result of ``decide`` on these reports.
            directions: u_i in the structure of the parameters; the first axis of every array is the participants.
        """
        raise NotImplementedError(f"{type(self).__name__} has sees_each=True, but does not implement combine")

    @abstractmethod
    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Return the decision on a round's reports, and the next state of the method.

        Args:
            state: State of the method: the result of ``init``, or of the last ``decide``.
            reports: Reports of the m participants.
        """

    def passes(self, criterion: Array, reports: Reports) -> Array:
        """Return the switch bit 1_k = [G_k <= λ], or ``reports.bit`` if it is set. It is False if ``reports.void``.

        Args:
            criterion: G_k, a scalar in units of g.
            reports: Reports of the m participants.
        """
        if reports.bit is not None:
            return reports.bit
        return (criterion <= self.switch_at) & ~reports.void

    def measure(self, reports: Reports, alpha: float | Array = 0.0) -> Array:
        """Return the criterion G_k, a scalar in units of g: the aggregate of the reported constraints.

        Args:
            reports: Reports of the m participants.
            alpha: α of the softmax criterion, per unit of g; other criteria ignore it.
        """
        values, reported = reports.pairs
        if self.switches_on == "softmax":
            return softmax_mean(values, alpha, reported)
        if self.switches_on == "max":
            return maximum(values, reported)
        if self.switches_on == "mean":
            return softmax_mean(values, 0.0, reported)
        if reports.pooled is None:
            needed = "a constraint given as PooledConstraint(statistics, value)"
            raise ValueError(f"criterion='pooled' needs {needed}, but this problem's constraint is a plain function")
        return array_namespace(reports.pooled).max(reports.pooled)


@dataclass(frozen=True, kw_only=True)
class ComparisonMethod(Method):
    """Base class of methods that do not switch between objective and constraint."""

    switches: ClassVar[bool] = False


def check_over_network(method: Method) -> None:
    """Raise ValueError if a method needs more of clients over a network than reports and a direction."""
    needs = {
        "at_clients": method.at_clients is not None and not isinstance(method.at_clients, Compression),
        "reports at two iterates": method.compares,
        "a choice of clients of its own": method.draws_clients,
        "a memory of each client": method.knows_clients,
        "every direction by itself": method.sees_each,
        "second derivatives": method.needs_derivatives,
    }
    needed = [name for name, needs_it in needs.items() if needs_it]
    if needed:
        reason = "which clients over a network do not send; run it with the compiled engine"
        raise ValueError(f"{type(method).__name__} needs {' and '.join(needed)}, {reason}")


def switch(
    method: Method, reports: Reports, criterion: Array, objective_weights: Array, pair_weights: Array
) -> Decision:
    """Return the decision to descend on the objective if the criterion is at most λ, else on the constraint.

    1_k = [G_k <= λ];  r = p if 1_k, else r_i = Σ_c q_ic;  local loss f_i if 1_k, else Σ_c (q_ic/r_i)·g_ic.

    Args:
        method: The method, for its λ and ε.
        reports: Reports of the m participants.
        criterion: G_k, a scalar in units of g.
        objective_weights: p, one weight for each participant; they sum to 1.
        pair_weights: q of shape (participants, constraints); they sum to 1.
    """
    xp = array_namespace(reports.objective)
    feasible = method.passes(criterion, reports)
    constraint_weights = xp.sum(pair_weights, axis=1)
    # A client of weight 0 contributes nothing; its local loss is the mean of its constraints.
    counted = constraint_weights[:, None] > 0
    share = xp.where(counted, constraint_weights[:, None], xp.ones_like(pair_weights))
    even = xp.full(pair_weights.shape, 1 / pair_weights.shape[1], dtype=pair_weights.dtype)
    mix = xp.where(counted, pair_weights / share, even)
    bit = xp.astype(feasible, reports.objective.dtype)
    return Decision(
        criterion=criterion,
        feasible=feasible,
        weights=xp.where(feasible, objective_weights, constraint_weights),
        local_loss=LocalLoss(bit, (1 - bit) * mix, 0.0, method.tolerance),
    )


def descend(method: Method, reports: Reports, weights: Array, constraint: Any = None, penalty: Any = 0.0) -> Decision:
    """Return the decision to descend on f_i + <b_i, g_i> + c·Σ max(0, g_i − ε): b = ``constraint``, c = ``penalty``."""
    criterion = method.measure(reports)
    if constraint is None:
        constraint = array_namespace(reports.constraint).zeros_like(reports.constraint)
    loss = LocalLoss(1.0, constraint, penalty, method.tolerance)
    return Decision(criterion, method.passes(criterion, reports), weights, loss)


def descend_on_both(method: Method, reports: Reports, criterion: Any, objective: Array, constraint: Array) -> Decision:
    """Return the decision to descend along Σ_i P_i u_i(f_i) + Σ_ic Q_ic u_i(g_ic), with P and Q >= 0.

    P is ``objective``, one weight per participant; Q is ``constraint`` of shape (participants, constraints).
    r_i = (P_i + Σ_c Q_ic)/T with T the sum of all;  local loss (P_i/r_i)·f_i + Σ_c (Q_ic/r_i)·g_ic.
    """
    xp = array_namespace(reports.objective)
    shares = objective + xp.sum(constraint, axis=1)
    total = xp.sum(shares)
    weights = shares / xp.where(total > 0, total, xp.ones_like(total))
    divisor = xp.where(weights > 0, weights, xp.ones_like(weights))
    loss = LocalLoss(objective / divisor, constraint / divisor[:, None], 0.0, method.tolerance)
    return Decision(criterion, method.passes(criterion, reports), weights, loss)


def of_participants(state: Any, reports: Reports) -> Any:
    """Return the rows of the participants from arrays with one row per client."""
    return jax.tree.map(lambda every: every[reports.clients], state)


def update_entries(state: Any, reports: Reports, new: Any, mask: Array) -> Any:
    """Return the arrays of all clients with the rows of the participants replaced by ``new`` where ``mask`` is True."""

    def update(every: Array, new: Array) -> Array:
        updated = jnp.where(mask, new, every[reports.clients])
        return every.at[reports.clients].set(updated.astype(every.dtype))

    return jax.tree.map(update, state, new)
