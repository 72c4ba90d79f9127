"""The settings of a run over Flower."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from softswitch.flower.membership import check_distinct_names, confusable_key, parse_allow_list
from softswitch.flower.secure_aggregation import SecureAggregation
from softswitch.methods.memory import Memory
from softswitch.oracles.options import Logging, Output, Sampling
from softswitch.problem.choices import ANSWERS
from softswitch.problem.domains import Domain
from softswitch.problem.ranges import Range, check_range, check_ranges
from softswitch.results.callbacks import Callback, check_callbacks
from softswitch.results.checkpoints import Checkpoints
from softswitch.support import checks


@dataclass(frozen=True, kw_only=True)
class StrategySettings:
    """The settings of ``SwitchingStrategy`` apart from the method.

    Attributes:
        local_steps, participation: As in ``Sampling``; the participation is a share of the connected clients.
        seed: Seed of the client sampling and of the clients' batches.
        average_last, answer: As ``average_last`` and ``iterate`` of ``Output``.
        eval_every: Number of rounds between evaluations of F and G on all clients' data, which take an extra exchange.
            0 evaluates only the answer.
        domain: Θ, onto which to project after every server step: ``Ball``, ``Box``, any object with ``project``, or
            None. ``project`` gets the parameters as a dict of arrays by name.
        convex: Whether f, g and Θ are convex, for the optimality gap of ``SQP``; see ``Problem``. Default: unknown.
        lower_bound: Whether to bound the optimum at the end of ``SQP``, which takes about five more exchanges.
        pooled: The ``value`` function of a ``PooledConstraint``, if the clients' constraint is one. The server then
            has no memory.
        min_clients: A round with fewer clients in either exchange is void: it changes nothing.
        wait: Seconds to wait for ``min_clients`` clients before a round, and for all clients before the evaluation of
            the answer.
        report_timeout, update_timeout: Timeouts of the first exchange and of evaluations, and of the second exchange,
            in seconds.
        clip_norm: Largest norm of a client's direction; clients and server clip longer ones.
        objective_range, constraint_range: (low, high) of f and g on a single row; one range for all constraints, or one
            each. Reports and intervals outside are rejected.
        constraints: Number of constraints. Default: that of most clients. Other clients are turned away.
        patience: Maximum number of void rounds in a row; after them the run ends.
        callbacks: Functions that are called with a ``Chunk`` after every round; a true return value ends the run.
        checkpoints: Folder to save the run's state in, and to resume it from.
        memory: The server's memory of every client's reports; None as in the paper. "auto" uses one if the method is
            ``Automatic`` and clients are sampled or report on batches.
        secure: Secure aggregation of directions: the server sees only their sum. All clients of ``names`` or
            ``clients`` take part in every round, and report on all rows. It needs ``clip_norm``, and excludes a
            participation below 1, compression and a robust method.
        names: The clients' names in the wanted order, if known. The first round waits for all of them, up to ``wait``
            seconds. This is not an allow list: any node may join, and use a name that is not taken.
        clients: The clients that may take part: the public key of each by its name, as text (OpenSSH or PEM) or path
            of its file. A node is identified by its key, and other nodes are turned away. It replaces ``names``. A
            robust method and ``secure`` need it.
        simulation: Whether you run all clients yourself, so that a robust method and ``secure`` need no ``clients``.
        exclude: Names of clients to exclude, also from a resumed run. They are not asked, evaluated or certified.
        events: File to which to append all events, one JSON object per line.
    """

    local_steps: int = 1
    participation: float = 1.0
    seed: int = 0
    average_last: float | None = None
    answer: str = "auto"
    eval_every: int = 0
    domain: Domain | None = None
    convex: bool | None = None
    lower_bound: bool = True
    pooled: Callable[[Any], Any] | None = None
    min_clients: int = 1
    wait: float = 60.0
    report_timeout: float = 600.0
    update_timeout: float = 600.0
    clip_norm: float | None = None
    objective_range: Range | None = None
    constraint_range: Range | Sequence[Range | None] | None = None
    constraints: int | None = None
    patience: int = 10
    callbacks: Sequence[Callback] = ()
    checkpoints: Checkpoints | None = None
    memory: Memory | str | None = "auto"
    secure: SecureAggregation | None = None
    names: Sequence[str] = ()
    clients: Mapping[str, str | Path] = field(default_factory=dict)
    simulation: bool = False
    exclude: Sequence[str] = ()
    events: str | Path | None = None

    def __post_init__(self) -> None:
        Sampling(local_steps=self.local_steps, participation=self.participation, memory=self.memory)
        Logging(eval_every=checks.check_integer("eval_every", self.eval_every, minimum=0))
        Output(average_last=self.average_last)
        checks.check_choice("answer", self.answer, ANSWERS)
        checks.check_seed("seed", self.seed)
        checks.check_real("wait", self.wait, minimum=0)
        checks.check_given(self, checks.check_integer, "min_clients", "patience", "constraints", minimum=1)
        checks.check_given(self, checks.check_real, "report_timeout", "update_timeout", "clip_norm", above=0)
        checks.check_instance("simulation", self.simulation, bool)
        check_range("objective_range", self.objective_range)
        check_ranges(self.constraint_range)
        checks.check_given(self, checks.check_instance, "checkpoints", cls=Checkpoints)
        checks.check_given(self, checks.check_instance, "secure", cls=SecureAggregation)
        if self.pooled is not None:
            checks.check_callable("pooled", self.pooled, "(summed statistics) -> scalar or vector")
            if isinstance(self.memory, Memory):
                raise ValueError("memory must be None with pooled: over Flower no pooled constraint is remembered")
        if self.domain is not None and not isinstance(self.domain, Domain):
            raise TypeError(f"domain must be a Ball, a Box, an object with project(params), or None: {self.domain!r}")
        for name in ("names", "exclude"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be a list of names, but is {getattr(self, name)!r}")
            object.__setattr__(self, name, check_distinct_names(name, map(str, getattr(self, name))))
        object.__setattr__(self, "callbacks", check_callbacks(self.callbacks))
        object.__setattr__(self, "clients", parse_allow_list(self.clients))
        if self.names and self.clients:
            raise ValueError("names must be empty if clients is set: clients has all names, in the wanted order")
        if self.secure is not None:
            if self.clip_norm is None:
                raise ValueError("secure needs clip_norm: masked directions are integers of a known range")
            if self.participation != 1:
                reason = "sums over different clients reveal single directions"
                raise ValueError(f"participation must be 1 with secure, but is {self.participation:g}: {reason}")
            smallest, count = self.secure.min_clients, len(self.expected)
            if 0 < count < smallest:
                raise ValueError(f"secure hides a client among {smallest} (min_clients), but {count} take part")

    @property
    def expected(self) -> tuple[str, ...]:
        """The names of the clients that are known to take part."""
        excluded = {confusable_key(name) for name in self.exclude}
        return tuple(name for name in (self.clients or self.names) if confusable_key(name) not in excluded)


def with_changes(settings: StrategySettings | None, changes: Mapping[str, Any]) -> StrategySettings:
    """Return the settings with some changed."""
    if settings is not None:
        checks.check_instance("settings", settings, StrategySettings)
    return replace(settings or StrategySettings(), **changes)
