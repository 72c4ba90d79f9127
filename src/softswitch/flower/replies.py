"""Readers of the clients' replies in a round: reports and directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flwr.app import RecordDict

from softswitch.flower import messages as wire
from softswitch.flower.client import clip_direction
from softswitch.flower.compression import parse_direction
from softswitch.flower.exchange import NoReply, Reply, log_event
from softswitch.flower.remote import RemoteClients, pool_statistics
from softswitch.flower.secure_aggregation import MaskedUpdate, parse_key
from softswitch.methods.compressors import Compressor
from softswitch.methods.memory import Memory
from softswitch.methods.messages import Reports
from softswitch.results.history import ClientOutcome


def no_reports(clients: int, constraints: int, dtype: Any, pools: bool) -> Reports:
    """Return the reports of a round in which no client reported."""
    objective, constraint = (jnp.full(shape, -jnp.inf, dtype) for shape in (clients, (clients, constraints)))
    return Reports(objective, constraint, jnp.zeros(constraints, dtype) if pools else None, jnp.zeros(clients, bool))


class ReplyReader:
    """Converts the replies of rounds to reports and directions, and logs the clients that fail.

    ``epsilon`` has the spent budgets in the present round by place, or NaN.
    """

    def __init__(
        self,
        clients: RemoteClients,
        shapes: Mapping[str, wire.ArraySpec],
        dtype: np.dtype,
        up: Compressor | None = None,
        read_masked: Callable[[RecordDict], MaskedUpdate] | None = None,
    ) -> None:
        self._clients, self._roster, self._settings = clients, clients.roster, clients.settings
        self._shapes, self._dtype, self._up, self._read_masked = shapes, dtype, up, read_masked
        memory = clients.settings.memory
        self._reads_earlier = isinstance(memory, Memory) and memory.corrected
        self.epsilon = np.zeros(0)

    def read_reports(self, clients: list[int], replies: Sequence[Reply]) -> tuple[Reports, np.ndarray]:
        """Return the reports of a round and the outcome of each client."""
        pooled, count = self._settings.pooled, len(clients)
        void = no_reports(count, self._clients.constraints, self._dtype, pooled is not None)
        outcomes = np.zeros(count, np.int32)
        self.epsilon = np.full(count, np.nan)
        failures = ClientOutcome.NO_REPORT, ClientOutcome.BAD_REPORT
        read = {
            place: self._read(index, reply, place, outcomes, failures, self._read_report)
            for place, (index, reply) in enumerate(zip(clients, replies, strict=True))
        }
        reported = {place: values for place, values in read.items() if values is not None}
        values = {place: now for place, (now, _) in reported.items()}
        mask = jnp.asarray(np.isin(np.arange(count), list(reported)))
        reports = Reports(*self._stack(count, values, -np.inf), void.pooled, mask)
        if self._reads_earlier:
            earlier = {place: before for place, (_, before) in reported.items() if before is not None}
            reports = reports._replace(earlier=(*self._stack(count, earlier, np.nan), None))
        if pooled is None or not reported:
            return reports, outcomes
        sums = [self._roster.rows(clients[place]) * np.asarray(now.statistics) for place, now in values.items()]
        constraint = pool_statistics(pooled, sums)
        if constraint is None:
            return void, np.where(outcomes == ClientOutcome.COUNTED, ClientOutcome.VOID, outcomes)
        return reports._replace(pooled=jnp.asarray(constraint, self._dtype)), outcomes

    def _stack(self, count: int, values: Mapping[int, wire.Values], missing: float) -> tuple[Any, Any]:
        """Return f and g by place."""
        objective = np.full(count, missing, self._dtype)
        constraint = np.full((count, self._clients.constraints), missing, self._dtype)
        for place, reported in values.items():
            objective[place], constraint[place] = reported.objective, reported.constraint
        return jnp.asarray(objective), jnp.asarray(constraint)

    def read_updates(self, clients: list[int], replies: Mapping[int, Reply], outcomes: np.ndarray) -> dict[int, Any]:
        """Return the usable directions, masked with secure aggregation, by place; update ``outcomes`` for all."""
        failures, read = (ClientOutcome.NO_UPDATE, ClientOutcome.BAD_UPDATE), self._read_masked or self._read_direction
        updates = {
            place: self._read(clients[place], reply, place, outcomes, failures, read)
            for place, reply in replies.items()
        }
        return {place: update for place, update in updates.items() if update is not None}

    def _read(
        self,
        index: int,
        reply: Reply,
        place: int,
        outcomes: np.ndarray,
        failures: tuple[ClientOutcome, ClientOutcome],
        read: Callable[[RecordDict], Any],
    ) -> Any:
        """Return what ``read`` makes of a reply, or None if it is not usable; record the client's outcome.

        ``failures`` are the outcomes of a client without a reply and of one with an invalid reply.
        """
        name, content, events = self._roster.names[index], None, self._clients.events
        missing, invalid = failures
        if isinstance(reply, NoReply):
            outcomes[place] = missing
            log_event(events, "lost", f"{missing.label}: {reply}", client=name)
            return None
        if (reason := wire.read_refusal(reply.content)) is not None:
            outcomes[place] = ClientOutcome.REFUSED
            log_event(events, "refused", reason, client=name)
            return None
        try:
            content = read(reply.content)
            if (epsilon := self._clients.privacy.read(name, reply.content)) is not None:
                self.epsilon[place] = epsilon
        except wire.InvalidMessageError as error:
            outcomes[place] = invalid
            log_event(events, "rejected", f"{invalid.label}: {error}", client=name)
            return None
        outcomes[place] = ClientOutcome.COUNTED
        return content

    def _read_report(self, content: RecordDict) -> tuple[wire.Values, wire.Values | None]:
        """Return a client's report, and that of its batch at the previous iterate if it is wanted and present."""
        if self._read_masked is not None:
            parse_key(content)  # raises for a client that could not take part in the second exchange
        has_earlier = self._reads_earlier and wire.PREVIOUS_VALUES in content
        earlier = self._clients.read_values(content, wire.PREVIOUS_VALUES) if has_earlier else None
        return self._clients.read_values(content), earlier

    def _read_direction(self, content: RecordDict) -> wire.Arrays:
        record, clip_norm = content.get(wire.DIRECTION), self._settings.clip_norm
        if self._up is None:
            direction = wire.parse_arrays(record, self._shapes)
        else:
            direction = parse_direction(record, self._up, self._shapes)
        return direction if clip_norm is None else clip_direction(direction, clip_norm)
