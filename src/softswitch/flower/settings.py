"""The settings of a run over Flower."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from softswitch.engine.defaults import AUTOMATIC_AVERAGE
from softswitch.flower.membership import AllowedClient, check_distinct_names, confusable_key, parse_allow_list
from softswitch.flower.secure_protocol import SecureAggregation
from softswitch.methods.memory import Memory
from softswitch.problem.choices import ANSWERS
from softswitch.problem.domains import Domain
from softswitch.problem.ranges import Range, checked_range, checked_ranges
from softswitch.results.callbacks import Callback, check_callbacks
from softswitch.results.checkpoints import Checkpoints
from softswitch.support import checks

LARGEST_NUMBER = 1e12
"""By default a number of larger size is absurd."""
LARGEST_ROWS = 10**8
"""By default no client has more rows."""


@dataclass(frozen=True, kw_only=True)
class StrategySettings:
    """What ``SwitchingStrategy`` can be told beside its rule.

    Attributes:
        local_steps: E.
        participation: the share of the connected clients drawn for each round, from a generator of its own.
        seed: of the sampling, and of the clients' batches.
        average_last: average over the feasible rounds of this last share of the rounds only. Left out: of all of them,
            or half of a cycle's where the rule has no step size.
        answer: which iterate is the answer: "average", "last" or "best". "auto": the one that is best on all clients'
            data, where the rule has no step size; else the average.
        eval_every: rounds from one evaluation of F and G on all clients' data to the next, an exchange of its own each
            time; 0: only at the end.
        domain: Θ to project onto after every server step: ``Ball``, ``Box``, anything with a ``project``, or None. The
            server's parameters are a dict of arrays by name, and that is what ``project`` is given.
        pooled: the ``value`` of a ``PooledConstraint``, where the clients' constraint is one.
        min_clients: with fewer clients in either exchange a round is void: it changes nothing.
        wait: seconds to wait for so many clients before a round, and for all of them before the answer is judged.
        report_timeout: seconds to wait in the first exchange, and wherever else clients are asked for numbers,
        update_timeout: and in the second.
        resend_params: send w again in the second exchange, for clients that may be started anew in between.
        clip_norm: the largest norm of a client's direction; longer ones are shortened by the client, and by the server.
        largest_number: a number of larger size in a report or a direction is absurd, and rejected.
        largest_rows: a client that says that it has more rows is turned away; by default a hundred million.
        objective_range: (low, high) if the objective on a single row lies between them: reports outside are rejected,
            and so are intervals of a certificate,
        constraint_range: likewise of the constraint; one for all constraints, or one each.
        statistics_range: likewise of a pooled constraint's statistics, which are means over a client's rows.
        constraints: how many a client has; by default as many as most of those first met. Others are turned away.
        statistics: how many additive statistics a client of a pooled constraint reports; by default likewise.
        patience: so many void rounds in a row end the run.
        callbacks: each is called with a ``Chunk`` after every round; one that returns anything true ends the run.
        checkpoints: keep the run's standing in a folder, and go on from where it stands there.
        memory: let the server remember every client's reports, by its name; ``Memory()``. None is the paper's method.
            "auto": where the rule has no step size and not everyone takes part, or reports are of some rows only and
            all clients can make them at two iterates, for a memory that is corrected.
        robust: how many clients may lie without ruining the others, in place of the rule's own ``robust``; at least
            2·robust + 1 must then report in a round for it to count. None: as the rule has it.
        secure: let clients mask their directions, so that the server sees their sum only; ``SecureAggregation()``. It
            needs ``clip_norm``, and does not go with ``robust``, compression or ``resend_params``. None: it sees each.
        names: the clients' labels in the order wanted, where they are known beforehand; the first round then waits for
            all of them, as long as ``wait`` allows. By default they are met as they come.
        clients: those who may take part, each one's public key by its name: the text of the key (OpenSSH or PEM), the
            path of its file, or a ``AllowedClient``, which can also say how many rows it has at most. A node is the
            client that its key says, and nobody else can take part. Instead of ``names``.
        exclude: names of clients to go on without, also in a run that is resumed: they are not asked, not judged and
            not in the certificate, and the result says so.
        quorum: a round goes on as soon as so many of those asked have answered, a whole number, or a share of them
            below 1; the others' answers are not waited for. At least ``min_clients``, and b more where b may lie: what
            liars send at once may have to be rejected. By default all are waited for.
        events: a file to append everything to that happens to clients, one JSON object a line.
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
    largest_number: float = LARGEST_NUMBER
    largest_rows: int = LARGEST_ROWS
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
        for name, least in {"local_steps": 1, "eval_every": 0, "min_clients": 1, "patience": 1}.items():
            checks.whole_number(name, getattr(self, name), at_least=least)
        for name in ("report_timeout", "update_timeout", "largest_number"):
            checks.real_number(name, getattr(self, name), above=0)
        for name in ("participation", "average_last"):
            if name == "participation" or self.average_last is not None:
                checks.real_number(name, getattr(self, name), above=0, at_most=1)
        checks.real_number("wait", self.wait, at_least=0)
        checks.seed("seed", self.seed)
        checks.one_of("answer", self.answer, ANSWERS)
        if self.clip_norm is not None:
            checks.real_number("clip_norm", self.clip_norm, above=0)
        if self.robust is not None:
            checks.whole_number("robust", self.robust, at_least=0)
        for name in ("constraints", "statistics"):
            if getattr(self, name) is not None:
                checks.whole_number(name, getattr(self, name), at_least=1)
        checks.whole_number("largest_rows", self.largest_rows, at_least=1)
        checked_range("objective_range", self.objective_range)
        checked_ranges(self.constraint_range)
        checked_ranges(self.statistics_range, "statistics_range")
        if self.quorum is not None and not (isinstance(self.quorum, float) and 0 < self.quorum < 1):
            checks.whole_number("quorum", self.quorum, at_least=1)
        if self.checkpoints is not None:
            checks.expect("checkpoints", self.checkpoints, Checkpoints)
        if self.memory not in (None, "auto"):
            checks.expect("memory", self.memory, Memory)
        if self.pooled is not None:
            checks.function("pooled", self.pooled, "(summed statistics) -> scalar or vector")
        for name in ("names", "exclude"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be a list of labels, but is {getattr(self, name)!r}")
        if self.domain is not None and not isinstance(self.domain, Domain):
            raise TypeError(f"domain must be a Ball, a Box, anything with project(params), or None: {self.domain!r}")
        object.__setattr__(self, "callbacks", check_callbacks(self.callbacks))
        object.__setattr__(self, "names", check_distinct_names("names", map(str, self.names)))
        object.__setattr__(self, "exclude", check_distinct_names("exclude", map(str, self.exclude)))
        object.__setattr__(self, "clients", parse_allow_list(self.clients))
        if self.names and self.clients:
            raise ValueError("clients has all names, in the order wanted: leave names out")
        if self.secure is not None:
            self._check_secure()

    def _check_secure(self) -> None:
        """Raise where settings do not go with sums of masked directions."""
        checks.expect("secure", self.secure, SecureAggregation)
        assert self.secure is not None
        least = self.secure.min_clients
        if self.clip_norm is None:
            raise ValueError("secure needs clip_norm: masked directions are whole numbers of a known range")
        if self.robust is not None:
            raise ValueError(f"robust={self.robust} compares single directions, which secure hides: leave one out")
        if self.resend_params:
            raise ValueError(
                "resend_params is for clients that were started anew between the exchanges; with secure these have "
                "lost their key too: leave it out"
            )
        if self.expected and len(self.expected) < least:
            raise ValueError(f"secure hides a client among {least} (min_clients), but {len(self.expected)} take part")

    @property
    def expected(self) -> tuple[str, ...]:
        """The names of those who are known beforehand to take part."""
        left_out = {confusable_key(name) for name in self.exclude}
        return tuple(name for name in (self.clients or self.names) if confusable_key(name) not in left_out)

    @property
    def listed(self) -> dict[str, AllowedClient]:
        """The list of clients, where there is one."""
        return parse_allow_list(self.clients)

    def enough(self, asked: int) -> int | None:
        """How many of those asked must have answered, so that the others are not waited for; None: all.

        Args:
            asked: how many were asked.
        """
        if self.quorum is None:
            return None
        wanted = math.ceil(self.quorum * asked) if self.quorum < 1 else int(self.quorum)
        return min(asked, max(wanted, self.min_clients + (self.robust or 0)))

    def average_share(self, *, chosen: bool) -> float:
        """The share of the rounds that may join the average, of a run, or of a cycle of one that chooses.

        Args:
            chosen: whether the run goes in cycles that choose their own steps.
        """
        if self.average_last is None:
            return AUTOMATIC_AVERAGE if chosen else 1.0
        return self.average_last


def with_changes(settings: StrategySettings | None, changes: Mapping[str, Any]) -> StrategySettings:
    """The settings with some changed, or raise where one is none."""
    if settings is not None:
        checks.expect("settings", settings, StrategySettings)
    known = [entry.name for entry in fields(StrategySettings)]
    for name in changes:
        if name not in known:
            raise TypeError(f"{name} is not a setting of SwitchingStrategy; there are {', '.join(known)}")
    return replace(settings or StrategySettings(), **changes)
