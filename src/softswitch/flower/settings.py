"""The settings of a run over Flower."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from softswitch.engine.request import AUTOMATIC_AVERAGE
from softswitch.flower.membership import AllowedClient, check_distinct_names, confusable_key, parse_allow_list
from softswitch.flower.secure_aggregation import SecureAggregation
from softswitch.methods.memory import Memory
from softswitch.oracles.options import Logging, Sampling
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
        pooled: The ``value`` function of a ``PooledConstraint``, if the clients' constraint is one.
        min_clients: A round with fewer clients in either exchange is void: it changes nothing.
        wait: Seconds to wait for ``min_clients`` clients before a round, and for all clients before the evaluation of
            the answer.
        report_timeout, update_timeout: Timeouts of the first exchange and of evaluations, and of the second exchange,
            in seconds.
        resend_params: Send the parameters again in the second exchange, for clients that may restart between the two.
        clip_norm: Largest norm of a client's direction; clients and server clip longer ones.
        largest_number, largest_rows: Reports and directions with a larger absolute value are rejected, and clients
            with more rows are turned away.
        objective_range, constraint_range: (low, high) of f and g on a single row; one range for all constraints, or one
            each. Reports and intervals outside are rejected.
        statistics_range: The same for a pooled constraint's statistics, which are means over a client's rows.
        constraints, statistics: Numbers of constraints, and of additive statistics of a pooled constraint. Default:
            those of most clients. Other clients are turned away.
        patience: Maximum number of void rounds in a row; after them the run ends.
        callbacks: Functions that are called with a ``Chunk`` after every round; a true return value ends the run.
        checkpoints: Folder to save the run's state in, and to resume it from.
        memory: The server's memory of every client's reports; None as in the paper. "auto" uses one if the method is
            ``Automatic`` and clients are sampled or report on batches.
        robust: Number of Byzantine clients to tolerate, in place of the method's ``robust``. At least 2·robust + 1
            clients must then report in a round.
        secure: Secure aggregation of directions: the server sees only their sum. It needs ``clip_norm``, and excludes
            ``robust``, compression and ``resend_params``.
        names: The clients' names in the wanted order, if known. The first round waits for all of them, up to ``wait``
            seconds.
        clients: The clients that may take part: the public key of each by its name, as text (OpenSSH or PEM), path of
            its file or ``AllowedClient``. A node is identified by its key, and other nodes are turned away. It replaces
            ``names``.
        exclude: Names of clients to exclude, also from a resumed run. They are not asked, evaluated or certified.
        quorum: A round continues after this many replies: an integer, or a share of the clients below 1. At least
            ``min_clients`` replies are awaited, and b more if b clients may be Byzantine. Default: wait for all.
        events: File to which to append all events, one JSON object per line.
    """

    local_steps: int = 1
    participation: float = 1.0
    seed: int = 0
    average_last: float | None = None
    answer: str = "auto"
    eval_every: int = 0
    domain: Domain | None = None
    pooled: Callable[[Any], Any] | None = None
    min_clients: int = 1
    wait: float = 60.0
    report_timeout: float = 600.0
    update_timeout: float = 600.0
    resend_params: bool = False
    clip_norm: float | None = None
    largest_number: float = 1e12
    largest_rows: int = 10**8
    objective_range: Range | None = None
    constraint_range: Range | Sequence[Range | None] | None = None
    statistics_range: Range | Sequence[Range | None] | None = None
    constraints: int | None = None
    statistics: int | None = None
    patience: int = 10
    callbacks: Sequence[Callback] = ()
    checkpoints: Checkpoints | None = None
    memory: Memory | str | None = "auto"
    robust: int | None = None
    secure: SecureAggregation | None = None
    names: Sequence[str] = ()
    clients: Mapping[str, str | Path | AllowedClient] = field(default_factory=dict)
    exclude: Sequence[str] = ()
    quorum: float | None = None
    events: str | Path | None = None

    def __post_init__(self) -> None:
        Sampling(local_steps=self.local_steps, participation=self.participation, memory=self.memory)
        Logging(eval_every=checks.check_integer("eval_every", self.eval_every, minimum=0))
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        given = {f.name: values[f.name] for f in fields(self) if not (f.default is None and values[f.name] is None)}
        minima = {"min_clients": 1, "patience": 1, "largest_rows": 1, "robust": 0, "constraints": 1, "statistics": 1}
        for name, minimum in minima.items():
            if name in given:
                checks.check_integer(name, given[name], minimum=minimum)
        maxima = {"report_timeout": None, "update_timeout": None, "largest_number": None, "clip_norm": None}
        for name, maximum in {**maxima, "average_last": 1}.items():
            if name in given:
                checks.check_real(name, given[name], above=0, maximum=maximum)
        checks.check_real("wait", self.wait, minimum=0)
        checks.check_seed("seed", self.seed)
        checks.check_choice("answer", self.answer, ANSWERS)
        check_range("objective_range", self.objective_range)
        check_ranges(self.constraint_range)
        check_ranges(self.statistics_range, "statistics_range")
        if self.quorum is not None and not (isinstance(self.quorum, float) and 0 < self.quorum < 1):
            checks.check_integer("quorum", self.quorum, minimum=1)
        for name, kind in (("checkpoints", Checkpoints), ("secure", SecureAggregation)):
            if name in given:
                checks.check_instance(name, given[name], kind)
        if self.pooled is not None:
            checks.check_callable("pooled", self.pooled, "(summed statistics) -> scalar or vector")
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
        if self.secure is None:
            return
        if self.clip_norm is None:
            raise ValueError("secure needs clip_norm: masked directions are integers of a known range")
        if self.robust is not None:
            raise ValueError(f"robust={self.robust} compares single directions, which secure hides: use one of the two")
        if self.resend_params:
            raise ValueError("resend_params must be False with secure: clients that restart lose their keys")
        smallest, count = self.secure.min_clients, len(self.expected)
        if 0 < count < smallest:
            raise ValueError(f"secure hides a client among {smallest} (min_clients), but {count} take part")

    @property
    def expected(self) -> tuple[str, ...]:
        """The names of the clients that are known to take part."""
        excluded = {confusable_key(name) for name in self.exclude}
        return tuple(name for name in (self.clients or self.names) if confusable_key(name) not in excluded)

    @property
    def listed(self) -> dict[str, AllowedClient]:
        """The clients that may take part, if there is a list of their keys."""
        return parse_allow_list(self.clients)

    def required_replies(self, messages: int) -> int | None:
        """Return the number of replies to wait for; None means all.

        Args:
            messages: Number of messages sent.
        """
        if self.quorum is None:
            return None
        wanted = math.ceil(self.quorum * messages) if self.quorum < 1 else int(self.quorum)
        return min(messages, max(wanted, self.min_clients + (self.robust or 0)))

    def average_share(self, *, automatic: bool) -> float:
        """Return the share of the last rounds whose iterates are averaged.

        Args:
            automatic: Whether the run is automatic; the share is then one of each cycle.
        """
        default = AUTOMATIC_AVERAGE if automatic else 1.0
        return default if self.average_last is None else self.average_last


def with_changes(settings: StrategySettings | None, changes: Mapping[str, Any]) -> StrategySettings:
    """Return the settings with some changed, or raise if a name is unknown."""
    if settings is not None:
        checks.check_instance("settings", settings, StrategySettings)
    known = [entry.name for entry in fields(StrategySettings)]
    for name in changes:
        if name not in known:
            raise TypeError(f"{name} is not a setting of SwitchingStrategy; the settings are {', '.join(known)}")
    return replace(settings or StrategySettings(), **changes)
