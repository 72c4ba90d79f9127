"""The history of a run, round by round, and the records of rounds that engines write."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from softswitch.methods.compressors import join_byte_counts
from softswitch.oracles.evaluation import ClientSummary
from softswitch.support.files import read_npz, wrap_read_errors, write_atomically

REPORTED = ("objective", "constraint", "criterion", "feasible", "worst_client", "absent")


class ClientOutcome(IntEnum):
    """The outcome of a round for one client, if clients can be lost.

    EMPTY: no client, because the round had fewer participants than others. COUNTED: its update was applied. NO_REPORT
    and NO_UPDATE: it was lost before its report, or after it and before its update. BAD_REPORT and BAD_UPDATE: that was
    rejected. REFUSED: it refused to participate. VOID: it completed the round, but too few clients did.
    """

    EMPTY = 0
    COUNTED = 1
    NO_REPORT = 2
    BAD_REPORT = 3
    REFUSED = 4
    NO_UPDATE = 5
    BAD_UPDATE = 6
    VOID = 7

    @property
    def label(self) -> str:
        """The name in lower case with spaces."""
        return self.name.lower().replace("_", " ")


class ClientHistory(NamedTuple):
    """The reports of the participants of one round, or of all rounds: arrays then begin with the rounds.

    Attributes:
        clients: Indices of the participants I_k; m. −1 is an empty place.
        objective: f_i of each; m. NaN if it did not report.
        constraint: g_i of each; m × constraints.
        metrics: Further reported numbers, by name; m.
        outcomes: The ``ClientOutcome`` of each; None if clients cannot be lost.
        epsilon: ε spent by each after the round, without the evaluation of the answer; m. Only over Flower, as reported
            by the client and including earlier runs; NaN if it reported none. None if no client reports it, and in
            simulations, whose ε is in ``result.privacy``.
    """

    clients: Any
    objective: Any
    constraint: Any
    metrics: dict[str, Any]
    outcomes: Any = None
    epsilon: Any = None


class Record(NamedTuple):
    """One round of a history; see ``History``.

    ``full`` is NaN if w_k was not evaluated on all rows. ``rows`` is the number of rows of the participants, if a batch
    is all of them, and ``values`` the number of rows of values, if it differs from the oracle's cost. ``traffic`` has
    the bytes sent up and down, if messages are compressed, in the form that ``compressors.join_byte_counts`` reads.
    """

    objective: Float[Array, ""]
    constraint: Float[Array, ""]
    criterion: Float[Array, ""]
    feasible: Bool[Array, ""]
    worst_client: Int[Array, ""]
    full: ClientSummary
    held_out: ClientSummary | None
    absent: Int[Array, ""]
    rows: Int[Array, ""] | None
    clients: ClientHistory | None
    unheard: Int[Array, ""] | None = None
    oldest: Int[Array, ""] | None = None
    values: Int[Array, ""] | None = None
    traffic: Int[Array, "2 2"] | None = None


def join(records: Sequence[Record], rounds: int) -> Record:
    """Concatenate chunks of records on the host and keep the first ``rounds`` rounds."""
    joined: Record = jax.tree.map(lambda *parts: np.concatenate(list(map(np.asarray, parts)))[:rounds], *records)
    return joined


@dataclass(frozen=True)
class History:
    """Arrays with one entry per round. "Sampled" values are reported by the round's participants on their batches.

    Attributes:
        objective: Sampled F, max_i f_i.
        constraint: Sampled G, max_i g_i.
        criterion: The value that the switch compared with λ.
        feasible: Whether the criterion was at most λ. A switching method then improves the objective.
        worst_client: Index of the client that reported the largest f_i.
        value_evaluations: Cumulative number of rows on which f and g were evaluated.
        gradient_evaluations: Cumulative number of rows on which gradients were computed, m·E·B_g per round.
        full_rounds: The rounds in which w_k was evaluated on all clients' data, before the step.
        full: Worst and mean client in those rounds: ``full.objective`` is F(w_k), ``full.constraint`` G(w_k),
            ``full.mean_objective`` and ``full.mean_constraint`` are the clients' means.
        held_out: The same on held-out data, if any; else None.
        absent: Number of participants without an objective or without some constraint.
        per_client: The participants' reports, if they were recorded; else None.
        unheard: Number of clients that have not reported yet, if the server has a memory; else None.
        oldest: Age of the oldest remembered report in rounds, if the server has a memory; else None.
        bytes_up: Bytes of the clients' updates, if messages are compressed; else None.
        bytes_down: Bytes of the parameters or their changes, if messages are compressed; else None.
    """

    objective: np.ndarray
    constraint: np.ndarray
    criterion: np.ndarray
    feasible: np.ndarray
    worst_client: np.ndarray
    value_evaluations: np.ndarray
    gradient_evaluations: np.ndarray
    full_rounds: np.ndarray
    full: ClientSummary
    absent: np.ndarray
    held_out: ClientSummary | None = None
    per_client: ClientHistory | None = None
    unheard: np.ndarray | None = None
    oldest: np.ndarray | None = None
    bytes_up: np.ndarray | None = None
    bytes_down: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.objective)

    def __repr__(self) -> str:
        return f"History({len(self)} rounds, {self.switch_share:.0%} feasible)"

    @property
    def void(self) -> np.ndarray:
        """The rounds without any objective or without any constraint, which change nothing."""
        return np.isneginf(self.objective) | np.isneginf(self.constraint)

    @property
    def lost_share(self) -> float:
        """The share of participants, over all rounds, that did not complete the round."""
        outcomes = None if self.per_client is None else self.per_client.outcomes
        if outcomes is None or not (participated := int(np.sum(outcomes != ClientOutcome.EMPTY))):
            return 0.0
        completed = np.isin(outcomes, (ClientOutcome.COUNTED, ClientOutcome.VOID)).sum()
        return float((participated - completed) / participated)

    @property
    def feasible_rounds(self) -> int:
        """|S|, the number of feasible rounds."""
        return int(np.sum(self.feasible))

    @property
    def switch_share(self) -> float:
        """κ = |S|/K, the share of feasible rounds among those that are not void; NaN if all are void."""
        counted = len(self) - int(self.void.sum())
        return self.feasible_rounds / counted if counted else float("nan")

    @classmethod
    def from_records(cls, oracle: Any, records: Sequence[Record], rounds: int, first: int = 0) -> History:
        """Concatenate chunks of records, the first of which begins with round ``first``, and keep some ``rounds``.

        ``oracle`` is an ``Oracle``, or has its ``cost``.
        """
        joined: Any = join(records, rounds)
        costs = oracle.cost(None if joined.rows is None else joined.rows.astype(np.int64))
        values, gradients = (
            np.cumsum(np.broadcast_to(cost, rounds), dtype=np.int64)
            for cost in (costs[0] if joined.values is None else joined.values, costs[1])
        )
        evaluated = np.flatnonzero(~np.isnan(joined.full.objective))
        full, held_out = (s and ClientSummary(*(part[evaluated] for part in s)) for s in (joined.full, joined.held_out))
        up, down = (None, None) if joined.traffic is None else (join_byte_counts(joined.traffic[:, i]) for i in (0, 1))
        clients = joined.clients
        if clients is not None and clients.epsilon is not None and np.isnan(clients.epsilon).all():
            clients = clients._replace(epsilon=None)
        return cls(
            **{name: getattr(joined, name) for name in (*REPORTED, "unheard", "oldest")},
            value_evaluations=values,
            gradient_evaluations=gradients,
            full_rounds=first + evaluated,
            full=full,
            held_out=held_out,
            per_client=clients,
            bytes_up=up,
            bytes_down=down,
        )

    def since(self, first: int) -> History:
        """Return the reports, criterion and switch of the rounds from ``first`` on, without evaluations."""
        names = (*REPORTED, "value_evaluations", "gradient_evaluations")
        kept = {name: getattr(self, name)[first:] for name in names}
        return History(**kept, full_rounds=self.full_rounds[:0], full=ClientSummary(*(part[:0] for part in self.full)))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return all values as arrays, by names such as ``full.objective``."""

        def flatten(name: str, value: Any) -> dict[str, np.ndarray]:
            if isinstance(value, ClientSummary | ClientHistory):
                value = value._asdict()
            if isinstance(value, dict):
                return {key: part for n, v in value.items() for key, part in flatten(f"{name}.{n}", v).items()}
            return {} if value is None else {name: np.asarray(value)}

        return {key: part for name, value in vars(self).items() for key, part in flatten(name, value).items()}

    def save(self, file: Path) -> None:
        """Write an .npz file atomically."""
        stream = io.BytesIO()
        np.savez_compressed(stream, **self.to_arrays())  # type: ignore[arg-type]
        write_atomically(file, stream.getvalue(), durable=False)

    @classmethod
    def load(cls, file: Path) -> History:
        """Read a file that ``save`` wrote, and check that its arrays have consistent lengths."""
        arrays = read_npz(file)
        with wrap_read_errors(file):
            parts: dict[str, Any] = {}
            for name, array in arrays.items():
                *path, last = name.split(".", 2)  # the name of a metric may have dots
                part = parts
                for key in path:
                    part = part.setdefault(key, {})
                part[last] = array
            known = {entry.name: parts[entry.name] for entry in fields(cls) if entry.name in parts}
            known |= {name: ClientSummary(**known[name]) for name in ("full", "held_out") if name in known}
            if "per_client" in known:
                known["per_client"] = ClientHistory(**{"metrics": {}, **known["per_client"]})
            history = cls(**known)
            for name, array in arrays.items():
                length = len(history.full_rounds if name.startswith(("full", "held_out")) else history.objective)
                if array.shape[:1] != (length,):
                    raise ValueError(f"{name} must have {length:,} entries, but has the shape {array.shape}")
            return history
