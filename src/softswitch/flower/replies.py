"""Reading what clients answered: what can be used, and what became of those whose answer cannot."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Message, MetricRecord, RecordDict

from softswitch.flower import messages as wire
from softswitch.flower.client import clip_direction
from softswitch.flower.codec import parse_direction
from softswitch.flower.exchange import Lost
from softswitch.flower.local_client import PREVIOUS_VALUES
from softswitch.flower.privacy_reports import ToldSpending
from softswitch.flower.reported_intervals import ValueLimits
from softswitch.flower.roster import Roster
from softswitch.flower.secure_protocol import parse_key
from softswitch.flower.secure_server import MaskedPart
from softswitch.flower.settings import StrategySettings
from softswitch.methods.compressors import Compressor, in_two_parts
from softswitch.methods.memory import Memory, Remembered
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.round import sound
from softswitch.oracles.evaluation import ClientSummary
from softswitch.results.events import EventLog
from softswitch.results.history import ClientOutcome
from softswitch.results.record import Record, RecordedClients


def no_reports(clients: int, constraints: int, dtype: Any, pools: bool) -> Reports:
    """So many clients, of whom nobody reported: the reports of a void round."""
    return Reports(
        jnp.full(clients, -jnp.inf, dtype),
        jnp.full((clients, constraints), -jnp.inf, dtype),
        jnp.zeros(constraints, dtype) if pools else None,
        jnp.zeros(clients, bool),
    )


def entry(
    clients: list[int],
    outcomes: np.ndarray,
    reports: Reports,
    decision: Decision | None,
    full: ClientSummary,
    rows: tuple[int, int],
    believed: Reports | None = None,
    traffic: tuple[int, int] | None = None,
    epsilon: np.ndarray | None = None,
) -> Record:
    """One round as a record of length 1.

    Args:
        clients: the indices of those who were asked.
        outcomes: what became of each.
        reports: what counted of theirs.
        decision: made of it; None in a void round.
        full: F and G on all data, where it was looked at.
        rows: on how many rows the reports were computed, and on how many a gradient.
        believed: the reports within what others say, where clients may lie; None: all are believed.
        traffic: how many bytes went up and down, where messages are compressed; else None.
        epsilon: ε that each says it has spent, NaN where it says nothing; None: nobody does.
    """
    objective, constraint, mask = (np.asarray(part) for part in (reports.objective, reports.constraint, reports.mask))
    heard = np.where(mask, objective, -np.inf), np.where(mask[:, None], constraint, -np.inf)
    if believed is not None:
        heard = (
            np.where(mask, believed.objective, -np.inf),
            np.where(mask[:, None], believed.constraint, -np.inf),
        )
    feasible = decision is not None and bool(decision.feasible & sound(reports, decision))
    lacking = np.isneginf(objective) | np.isneginf(constraint).any(axis=1)
    told = _recorded(
        np.asarray(clients, np.int32),
        np.where(mask, objective, np.nan).astype(objective.dtype),
        np.where(mask[:, None], constraint, np.nan).astype(objective.dtype),
        {},
        outcomes.astype(np.int32),
        np.full(len(clients), np.nan) if epsilon is None else epsilon,
    )
    parts: dict[str, Any] = {
        "objective": heard[0].max(initial=-np.inf).astype(objective.dtype),
        "constraint": heard[1].max(initial=-np.inf).astype(objective.dtype),
        "criterion": np.asarray(-np.inf if decision is None else decision.criterion, objective.dtype),
        "feasible": np.asarray(feasible),
        "worst_client": np.int32(clients[int(np.argmax(heard[0]))] if mask.any() else -1),
        "full": ClientSummary(*(np.asarray(part, np.float32) for part in full)),  # type: ignore[arg-type]
        "held_out": None,
        "absent": np.int32((mask & lacking).sum()),
        "rows": np.asarray(rows, np.int64),
        "clients": told,
        "traffic": None if traffic is None else np.array([in_two_parts(np.int64(each)) for each in traffic], np.int64),
    }
    record: Record = jax.tree.map(lambda part: np.asarray(part)[None], Record(**parts))
    return record


def with_memory(record: Record, remembered: Remembered | None, k: int) -> Record:
    """A round's entry with how many clients the server has not heard, and how old its oldest report is."""
    if remembered is None:
        return record
    heard = np.asarray(remembered.heard_at)
    oldest: Any = np.asarray([k - heard[heard >= 0].min(initial=k)], np.int32)
    unheard: Any = np.asarray([(heard == -1).sum()], np.int32)
    return record._replace(unheard=unheard, oldest=oldest)


def with_stage(record: Record, measure: Any) -> Record:
    """A round's entry with the measure of the stage that it ended, where there are stages."""
    return record if measure is None else record._replace(stationarity=np.asarray(measure)[None])  # type: ignore[arg-type]


def joined(before: Record, after: Record) -> Record:
    """Two stretches of rounds as one; the narrower gets empty places."""

    def width(record: Any) -> int:
        return int(record.clients.clients.shape[1])

    def widened(record: Any, to: int) -> Record:
        clients, objective, constraint, metrics, outcomes, epsilon = record.clients
        if clients.shape[1] == to:  # nearly always: the whole history is not copied once more
            return record
        more = [(0, 0), (0, to - clients.shape[1])]
        wide = _recorded(
            np.pad(clients, more, constant_values=-1),
            np.pad(objective, more, constant_values=np.nan),
            np.pad(constraint, [*more, (0, 0)], constant_values=np.nan),
            metrics,
            np.pad(outcomes, more),
            np.pad(epsilon, more, constant_values=np.nan),
        )
        widened: Record = record._replace(clients=wide)
        return widened

    widest = max(width(before), width(after))
    together: Record = jax.tree.map(
        lambda a, b: np.concatenate([a, b]), widened(before, widest), widened(after, widest)
    )
    return together


def _recorded(*parts: Any) -> RecordedClients:
    """NumPy's arrays, where the compiled engine has JAX's."""
    return RecordedClients(*parts)


logger = logging.getLogger("softswitch.flower")


def put_together(pooled: Callable[[Any], Any], sums: Sequence[np.ndarray] | np.ndarray) -> np.ndarray | None:
    """The constraint on all clients' data put together; None, and a word in the log, where it cannot be had."""
    try:
        value = np.atleast_1d(np.asarray(pooled(np.sum(sums, axis=0))))
        if not np.isfinite(value).all():
            raise ValueError(f"the pooled constraint is {value}")
    except Exception as error:
        logger.warning("statistics could not be put together: %s", error)
        return None
    return value


def _most_statistics(answers: Sequence[Message | Lost]) -> int | None:
    """How many statistics most of those who answered have told: whoever is read first does not decide it."""
    told = (answer.content.get(wire.VALUES) for answer in answers if isinstance(answer, Message))
    counts = Counter(
        len(record["statistics"]) if isinstance(record["statistics"], list) else 1
        for record in told
        if isinstance(record, MetricRecord) and "statistics" in record
    )
    most = counts.most_common(2)
    return None if not most or (len(most) > 1 and most[0][1] == most[1][1]) else most[0][0]


class _Said(Exception):  # noqa: N818
    """A client said that it would not take part."""


class Reader:
    """Turns answers into reports and directions, and names whoever fails in the log.

    Attributes:
        silent: the clients of whom nothing came in the present round,
        answered: and those who answered something.
        masked: reads a direction under masks, where they are masked; else None.
        epsilon: what those asked in the present round say they have spent, by place; NaN where one says nothing.
    """

    def __init__(
        self,
        roster: Roster,
        expected: Mapping[str, wire.ArraySpec],
        constraints: int,
        statistics: int | None,
        dtype: np.dtype,
        settings: StrategySettings,
        events: EventLog,
        spent: ToldSpending,
        up: Compressor | None = None,
    ) -> None:
        self._spent, self.epsilon = spent, np.zeros(0)
        self._up = up
        self.masked: Callable[[RecordDict], MaskedPart] | None = None
        self._roster = roster
        self._events = events
        ranges = settings.objective_range, settings.constraint_range, settings.statistics_range
        self._limits = ValueLimits(*ranges, constraints)
        self.silent: set[int] = set()
        self.answered: set[int] = set()
        self._expected = expected
        self._constraints = constraints
        self._dtype = dtype
        self._largest = settings.largest_number
        self._clip_norm = settings.clip_norm
        self._pooled = settings.pooled
        self._statistics = settings.statistics if statistics is None else statistics
        self._keeps_sums = statistics is not None
        self._again = isinstance(settings.memory, Memory) and settings.memory.corrected

    def reports(self, k: int, clients: list[int], answers: Sequence[Message | Lost]) -> tuple[Reports, np.ndarray]:
        """The reports of those asked, and the fate of each.

        A server that remembers gets each client's sums, and puts together those of all that it remembers.
        """
        nobody = no_reports(len(clients), self._constraints, self._dtype, self._pooled is not None)
        objective, constraint, mask = (np.array(part) for part in (nobody.objective, nobody.constraint, nobody.mask))
        outcomes, sums = np.zeros(len(clients), np.int32), {}
        earlier = dict[int, wire.Values]()
        self.silent, self.answered, self.epsilon = set(), set(), np.full(len(clients), np.nan)
        if self._pooled is not None and not self._statistics:
            self._statistics = _most_statistics(answers)
        for place, (index, answer) in enumerate(zip(clients, answers, strict=True)):
            both = self._usable(
                k, index, answer, place, outcomes, (ClientOutcome.NO_REPORT, ClientOutcome.BAD_REPORT), self._told
            )
            if both is None:
                continue
            values, before = both
            if before is not None:
                earlier[place] = before
            objective[place], constraint[place], mask[place] = values.objective, values.constraint, True
            if values.statistics is not None:
                sums[place] = self._roster.rows(index) * np.asarray(values.statistics)
        reports = Reports(jnp.asarray(objective), jnp.asarray(constraint), nobody.pooled, jnp.asarray(mask))
        if self._again:
            reports = reports._replace(earlier=self._earlier(clients, earlier))
        if self._keeps_sums:
            each = np.zeros((len(clients), self._statistics or 0), self._dtype)
            for place, own in sums.items():
                each[place] = own
            return reports._replace(sums=jnp.asarray(each)), outcomes
        if self._pooled is None or not sums:
            return reports, outcomes
        together = put_together(self._pooled, list(sums.values()))
        if together is None:
            return nobody, np.where(outcomes == ClientOutcome.COUNTED, ClientOutcome.VOID, outcomes)
        return reports._replace(pooled=jnp.asarray(together, self._dtype)), outcomes

    def directions(
        self, k: int, clients: list[int], updating: list[int], answers: Sequence[Message | Lost], outcomes: np.ndarray
    ) -> dict[int, wire.Arrays]:
        """The directions that can be used, by their place among the clients; ``outcomes`` tells of the others."""
        found = {}
        for place, answer in zip(updating, answers, strict=True):
            lost = (ClientOutcome.NO_UPDATE, ClientOutcome.BAD_UPDATE)
            direction = self._usable(k, clients[place], answer, place, outcomes, lost, self._direction)
            if direction is not None:
                found[place] = direction
        return found

    def masked_parts(
        self, k: int, clients: list[int], updating: list[int], answers: Sequence[Message | Lost], outcomes: np.ndarray
    ) -> dict[int, MaskedPart]:
        """The directions under masks that can be used, by place; ``outcomes`` tells of the others."""
        assert self.masked is not None
        found, lost = {}, (ClientOutcome.NO_UPDATE, ClientOutcome.BAD_UPDATE)
        for place, answer in zip(updating, answers, strict=True):
            part = self._usable(k, clients[place], answer, place, outcomes, lost, self.masked)
            if part is not None:
                found[place] = part
        return found

    def _usable(
        self,
        k: int,
        index: int,
        answer: Message | Lost,
        place: int,
        outcomes: np.ndarray,
        otherwise: tuple[ClientOutcome, ClientOutcome],
        read: Callable[[RecordDict], Any],
    ) -> Any:
        """What ``read`` makes of an answer, or None; the client's fate is noted either way."""
        name = self._roster.names[index]
        try:
            if isinstance(answer, Lost):
                raise answer
            if (why := wire.read_refusal(answer.content)) is not None:
                raise _Said(why)
            found = read(answer.content)
            if (spent := self._spent.note(name, answer.content)) is not None:
                self.epsilon[place] = spent
        except Lost as lost:
            outcomes[place] = otherwise[0]
            if lost.silent:
                self.silent.add(index)
            logger.warning("round %d: client %r is lost: %s", k, name, lost)
            self._events.record("lost", f"{otherwise[0].label}: {lost}", client=name)
            return None
        except _Said as said:
            outcomes[place] = ClientOutcome.REFUSED
            logger.warning("round %d: client %r refuses: %s", k, name, said)
            self._events.record("refused", str(said), client=name)
        except wire.InvalidMessageError as error:
            outcomes[place] = otherwise[1]
            logger.warning("round %d: what client %r sent is rejected: %s", k, name, error)
            self._events.record("rejected", f"{otherwise[1].label}: {error}", client=name)
        else:
            outcomes[place] = ClientOutcome.COUNTED
        self.answered.add(index)
        return found if outcomes[place] == ClientOutcome.COUNTED else None

    def _earlier(self, clients: list[int], told: Mapping[int, wire.Values]) -> tuple[Any, Any, Any]:
        """What clients tell of the iterate before, by their places; NaN for one that tells nothing of it."""
        objective = np.full(len(clients), np.nan, self._dtype)
        constraint = np.full((len(clients), self._constraints), np.nan, self._dtype)
        sums = np.full((len(clients), self._statistics or 0), np.nan, self._dtype) if self._keeps_sums else None
        for place, values in told.items():
            objective[place], constraint[place] = values.objective, values.constraint
            if sums is not None and values.statistics is not None:
                sums[place] = self._roster.rows(clients[place]) * np.asarray(values.statistics)
        return jnp.asarray(objective), jnp.asarray(constraint), None if sums is None else jnp.asarray(sums)

    def _told(self, content: RecordDict) -> tuple[wire.Values, wire.Values | None]:
        """A client's report, and what its batch gave at the iterate before, where that is asked for and it has it."""
        if self.masked is not None:
            parse_key(content)  # refuses one that cannot take part in the second exchange
        both = self._again and PREVIOUS_VALUES in content
        return self._values(content, wire.VALUES), self._values(content, PREVIOUS_VALUES) if both else None

    def _values(self, content: RecordDict, name: str) -> wire.Values:
        values = wire.parse_values(content, self._constraints, self._pooled is not None, self._largest, name)
        if values.statistics is not None and self._statistics is None:
            raise wire.InvalidMessageError("clients differ in how many statistics they report; set statistics")
        if values.statistics is not None and len(values.statistics) != self._statistics:
            raise wire.InvalidMessageError(
                f"it has {len(values.statistics)} statistics, where {self._statistics} are expected"
            )
        return self._limits.check(values)

    def _direction(self, content: RecordDict) -> wire.Arrays:
        sent = content.get(wire.DIRECTION)
        if self._up is None:
            direction = wire.parse_arrays(sent, self._expected, self._largest)
        else:
            direction = parse_direction(sent, self._up, self._expected, self._largest)
        return direction if self._clip_norm is None else clip_direction(direction, self._clip_norm)
