"""What all rules share: the settings every method has, and the criterion of the switch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

import numpy as np
import optax
from array_api_compat import array_namespace

from softswitch.methods.client_state import AtClients
from softswitch.methods.compression import Compression
from softswitch.methods.directions import Direction
from softswitch.methods.messages import Decision, LocalLoss, Reports
from softswitch.methods.weighting import Array, maximum, softmax_mean
from softswitch.problem.choices import CRITERIA
from softswitch.problem.parameters import Params
from softswitch.support import checks
from softswitch.support.function_equality import traced_settings

Schedule = Callable[[Any], Any]
PAPER_SLACK = 10.0
"""A of λ = ε/(1 + 1/A) in the paper's experiments."""


def differs(one: Any, other: Any) -> bool:
    """Whether two settings differ; arrays are compared as a whole."""
    return not np.array_equal(one, other) if hasattr(one, "shape") or hasattr(other, "shape") else bool(one != other)


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """The settings that every method has; a method adds its own and says how it decides.

    A method of your own is a subclass, a frozen dataclass like this one:

        @dataclass(frozen=True, kw_only=True)
        class Mine(Rule):
            sharpness: float        # a number: another value compiles nothing anew
            careful: bool = False   # a truth value, a word, a function: part of the program

            def decide(self, state, reports):
                ...                 # what the files beside this one do

    Attributes:
        tolerance: ε: the constraint is met where G(w) <= ε. In units of g.
        step_size: η, the step of the server: a number, or an optax schedule of the round. None only in ``Automatic``.
        threshold: λ, the switch's threshold on the criterion. Default: λ = ε/(1 + 1/A), a little below ε.
        slack: A >= 1 of that formula; 10 by default, as in the paper's experiments. Its theorems have 1.
        local_step_size: γ, the step of the clients: a number or a schedule of the round. Default: η/E, as the theorems
            have it.
        criterion: what the switch compares with λ: the clients' ``"softmax"`` mean, their ``"max"``, their ``"mean"``,
            or the constraint ``"pooled"`` from all clients' additive statistics. By default the method's own. For a
            rule without an α the softmax mean is the plain mean.
        optimizer: the server optimiser: a function from a step size to an optax transformation, such as ``optax.adam``;
            ``optax.sgd`` by default where there is a step size. It is handed Σ r_i u_i as if it were a gradient. One
            that wants a ``value`` (``optax.polyak_sgd``, say) is handed that of what the round descends on: Σ r_i f_i
            in an objective round, how far the criterion is above λ in a constraint round. A Polyak step for a convex
            constraint never quite reaches λ then: give it an ``f_min`` a little below 0.
        robust: b, how many clients may lie without ruining the others: reports are trimmed by the b largest and
            smallest, no client weighs more than 1/(2b+1), and directions far from the others' are shortened. The b
            worst-off honest clients lose the full protection: they cannot be told from liars. At least 2b + 1 must take
            part in a round. None: all are trusted.
        direction: what the server makes of the clients' weighted direction before its optimiser takes it: an
            optimistic step (``Optimistic``). None: nothing.
        at_clients: what clients keep from round to round, and how they change their local steps by it:
            ``ControlVariates``, or ``Compression`` of what is sent. As many numbers a client as there are parameters.
    """

    tolerance: float
    step_size: float | Schedule | None
    threshold: float | None = None
    slack: float | None = None
    local_step_size: float | Schedule | None = None
    criterion: str | None = None
    optimizer: Callable[[Any], optax.GradientTransformation] | None = None
    robust: int | None = None
    direction: Direction | None = None
    at_clients: AtClients | None = None

    own_criterion: ClassVar[str] = "mean"
    """The criterion of a rule that is given none."""

    aims_at: ClassVar[str] = "mean"
    """What its steps make small: the ``"mean"`` of the clients' objectives, or their ``"max"``."""

    goes_on: ClassVar[bool] = False
    """Whether what it remembers is worth keeping where a run begins anew from its best answer so far."""

    switches: ClassVar[bool] = True
    """Whether the local loss is either f_i or a mix of client i's constraints, never both at once."""

    knows_clients: ClassVar[bool] = False
    """Whether it remembers something of each client: ``begin`` is told how many there are, reports whose they are."""

    compares: ClassVar[bool] = False
    """Whether it is also told what the same batches gave at the iterate before: twice the values."""

    draws_clients: ClassVar[bool] = False
    """Whether it draws the clients of the second exchange itself, with a key that it is told."""

    sees_each: ClassVar[bool] = False
    """Whether it makes the direction of each client's own (``combine``), which are then all kept at once."""

    def __init_subclass__(cls) -> None:
        """A method is a pytree: its numbers are traced, the rest is compiled in."""
        super().__init_subclass__()
        traced_settings(cls)

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, optax.GradientTransformation):
            raise TypeError(
                "optimizer must be a function from a step size to an optax transformation, such as optax.adam, "
                f"but is a finished transformation; pass optax.adam, not optax.adam(0.001). Got {self.optimizer!r}"
            )
        if self.optimizer is not None:
            checks.check_callable("optimizer", self.optimizer, "from a step size to an optax transformation")
        for name in ("step_size", "local_step_size"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                self._set(name, checks.check_real(name, value, above=0))
        self._set("tolerance", checks.check_real("tolerance", self.tolerance, minimum=0))
        if self.slack is not None:
            self._set("slack", checks.check_real("slack", self.slack, minimum=1))
        if self.threshold is not None:
            self._set("threshold", checks.check_real("threshold", self.threshold))
        if self.criterion is not None:
            checks.check_choice("criterion", self.criterion, CRITERIA)
        if self.direction is not None:
            checks.check_instance("direction", self.direction, Direction)
        if self.at_clients is not None:
            checks.check_instance("at_clients", self.at_clients, AtClients)
        if self.robust is not None and not checks.is_array(self.robust):  # an array was checked when it was a number
            liars = checks.check_integer("robust", self.robust, minimum=0)
            object.__setattr__(self, "robust", liars or None)
            if liars and self.switches_on == "pooled":
                raise ValueError(
                    f"robust={liars} needs a criterion of the clients' own numbers ('softmax', 'max' or 'mean'), but "
                    "criterion is 'pooled': what a liar adds to a sum of all clients cannot be told from the rest"
                )

    def _set(self, name: str, value: float) -> None:
        object.__setattr__(self, name, value)

    def _check(self, name: str, **bounds: float) -> None:
        """Raise unless a setting is a number within these bounds, or None."""
        value = getattr(self, name)
        if value is not None:
            self._set(name, checks.check_real(name, value, **bounds))

    def __str__(self) -> str:
        """Return the method's name and the settings that differ from their defaults and are set."""
        changed = [
            f"{field.name}={getattr(value, '__name__', None) or repr(value)}"
            for field in fields(self)
            if differs(value := getattr(self, field.name), None if field.default is MISSING else field.default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    @property
    def switch_at(self) -> Any:
        """λ: a round is feasible where its criterion is at most this."""
        if self.threshold is not None:
            return self.threshold
        return self.tolerance / (1 + 1 / (PAPER_SLACK if self.slack is None else self.slack))

    @property
    def switches_on(self) -> str:
        """The criterion's name."""
        return self.own_criterion if self.criterion is None else self.criterion

    @property
    def server_optimizer(self) -> Callable[[Any], optax.GradientTransformation]:
        """The server optimiser: a function from a step size to an optax transformation."""
        return optax.sgd if self.optimizer is None else self.optimizer

    def step_size_at(self, k: int | Array) -> float | Array:
        """η in round k.

        Args:
            k: the round, from 0.
        """
        if self.step_size is None:
            raise ValueError(f"step_size must be given where it is not chosen during a run, but {self} has none")
        return self.step_size(k) if callable(self.step_size) else self.step_size

    def local_step_size_at(self, k: int | Array, local_steps: int = 1) -> float | Array:
        """γ in round k, of a client that takes so many steps.

        Args:
            k: the round, from 0.
            local_steps: E, how many steps the client takes in it.
        """
        if self.local_step_size is None:
            return self.step_size_at(k) / local_steps if local_steps > 1 else self.step_size_at(k)
        return self.local_step_size(k) if callable(self.local_step_size) else self.local_step_size

    def init(self, constraints: int) -> Any:
        """What the rule remembers from round to round, before the first: nothing, unless a rule says otherwise.

        Args:
            constraints: how many constraints a client has.
        """
        return ()

    def begin(self, clients: int, constraints: int) -> Any:
        """The same for a rule that remembers something of each client; all others say what ``init`` says.

        Args:
            clients: n.
            constraints: how many constraints a client has.
        """
        return self.init(constraints)

    def combine(self, k: int | Array, reports: Reports, decision: Decision, directions: Params) -> Params:
        """The direction made of each client's own, for a rule that sees each.

        Args:
            k: the round.
            reports: what the participants reported.
            decision: what ``decide`` made of it.
            directions: u_i, the clients as the first axis of every array.
        """
        raise NotImplementedError(f"{type(self).__name__} sees each direction, but does not say what to make of them")

    @abstractmethod
    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """HostDraws a round's reports into a decision, and the rule's memory into the next round's.

        Args:
            state: what the rule remembers from the rounds before: what ``init`` gave, or the last ``decide``.
            reports: what the participants reported: f_i, g_i and who was there.
        """

    def passes(self, criterion: Array, reports: Reports) -> Array:
        """The switch bit 1_k = [G_k <= λ]. A void round is not feasible; one that is decided already stays so.

        Args:
            criterion: G_k, in units of the constraint.
            reports: the round's reports; they may say that the round is void, or decided already.
        """
        if reports.bit is not None:
            return reports.bit
        return (criterion <= self.switch_at) & ~reports.void

    def measure(self, reports: Reports, alpha: float | Array = 0.0) -> Array:
        """The criterion G_k by the rule's word for it; α is that of the constraint's softmax.

        Args:
            reports: the round's reports.
            alpha: sharpness of the softmax criterion, per unit of the constraint; other criteria do not use it.
        """
        values, reported = reports.pairs
        if self.switches_on == "softmax":
            return softmax_mean(values, alpha, reported)
        if self.switches_on == "max":
            return maximum(values, reported)
        if self.switches_on == "mean":
            return softmax_mean(values, 0.0, reported)
        if reports.pooled is None:
            raise ValueError(
                "criterion='pooled' needs a constraint given as PooledConstraint(statistics, value), "
                "but this problem's constraint is a plain function"
            )
        return array_namespace(reports.pooled).max(reports.pooled)


def check_over_network(method: Method) -> None:
    """Raise where a rule asks more of its clients than two numbers and a direction, which is all that is sent.

    Args:
        method: the method.
    """
    wants = {
        "at_clients": method.at_clients is not None and not isinstance(method.at_clients, Compression),
        "reports at two iterates": method.compares,
        "a choice of clients of its own": method.draws_clients,
        "a memory of each client": method.knows_clients,
        "every direction by itself": method.sees_each,
    }
    asked = [name for name, wanted in wants.items() if wanted]
    if asked:
        raise ValueError(
            f"{type(method).__name__} asks for {' and '.join(asked)}, which clients over a network do not send; it can "
            "be simulated: solve(…) without engine"
        )


def switch(
    method: Method, reports: Reports, criterion: Array, objective_weights: Array, pair_weights: Array
) -> Decision:
    """Improve the objective where the criterion is at most λ, else the constraint.

    1_k = [G_k <= λ];  r = p where 1_k, else r_i = Σ_c q_ic;  local loss f_i where 1_k, else Σ_c (q_ic/r_i)·g_ic.

    Args:
        method: the rule, for its λ and ε.
        reports: the round's reports.
        criterion: G_k.
        objective_weights: p, one weight a client.
        pair_weights: q, one weight a pair (client, constraint); all of them sum to 1.
    """
    xp = array_namespace(reports.objective)
    feasible = method.passes(criterion, reports)
    constraint_weights = xp.sum(pair_weights, axis=1)
    # A client of weight 0 adds nothing, whatever it minimises: let it be the mean of its constraints.
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
