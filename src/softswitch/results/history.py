"""The history of a run, one entry per round, and the records of rounds from which it is made."""

from __future__ import annotations

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
from softswitch.support.files import open_atomically, read_npz, wrap_read_errors

EMPTY_PLACE = {"clients": -1, "objective": np.nan, "constraint": np.nan, "outcomes": 0, "epsilon": np.nan}
"""The entries of a round's record at a place without a client."""
REPORTED = ("objective", "constraint", "criterion", "feasible", "worst_client", "absent")  # copied from records


class ClientOutcome(IntEnum):
    """The outcome of a round over Flower for one participant.

    Attributes:
        EMPTY: No client: the round had fewer participants than another.
        COUNTED: Its update was applied.
        NO_REPORT: It was lost before its report arrived.
        BAD_REPORT: Its report was rejected.
        REFUSED: It refused to participate.
        NO_UPDATE: It was lost after its report and before its update arrived.
        BAD_UPDATE: Its update was rejected.
        VOID: It completed the round, but too few clients did, and no update was applied.
    """

    EMPTY, COUNTED, NO_REPORT, BAD_REPORT, REFUSED, NO_UPDATE, BAD_UPDATE, VOID = range(8)

    @property
    def label(self) -> str:
        """The name in lower case with spaces, such as "no report"."""
        return self.name.lower().replace("_", " ")


class ClientHistory(NamedTuple):
    """The reports of the m participants of a round. In a ``History``, arrays have the rounds as their first axis.

    Attributes:
        clients: Indices of the participants, shape (m,); −1 for an empty place.
        objective: f_i of each participant on its batch, shape (m,); NaN if it did not report.
        constraint: g_i of each participant, m × constraints; NaN if it did not report.
        metrics: Further reported numbers by name, each of shape (m,).
        outcomes: ``ClientOutcome`` of each participant, shape (m,); None except over Flower.
        epsilon: Differential privacy ε that each participant has spent up to this round, as it reported, including
            earlier runs, shape (m,); NaN if it reported none. None if no client reports it, and in simulations, whose ε
            is in ``result.privacy``. The evaluation of the answer is not included.
    """

    clients: Any
    objective: Any
    constraint: Any
    metrics: dict[str, Any]
    outcomes: Any = None
    epsilon: Any = None


class Record(NamedTuple):
    """One round, as an engine records it. Fields without a comment are those of ``History``."""

    objective: Float[Array, ""]
    constraint: Float[Array, ""]
    criterion: Float[Array, ""]
    feasible: Bool[Array, ""]
    worst_client: Int[Array, ""]
    full: ClientSummary  # NaN if w_k was not evaluated on all rows
    held_out: ClientSummary | None
    absent: Int[Array, ""]
    rows: Int[Array, ""] | None  # number of rows of the participants, for ``Oracle.cost``; None if it needs none
    clients: ClientHistory | None  # the participants' reports; None if they are not recorded
    unheard: Int[Array, ""] | None = None
    oldest: Int[Array, ""] | None = None
    values: Int[Array, ""] | None = None  # number of rows on which f and g were evaluated; None: ``Oracle.cost``
    traffic: Int[Array, "2 2"] | None = None  # bytes up and down, as ``split_byte_counts`` writes them


def join(records: Sequence[Record], rounds: int) -> Record:
    """Join records on the host and keep the first ``rounds`` rounds; those with fewer clients get empty places."""
    width = max(0 if record.clients is None else record.clients.clients.shape[1] for record in records)
    records = [_widen(record, width) for record in records]
    joined: Record = jax.tree.map(lambda *parts: np.concatenate(list(map(np.asarray, parts)))[:rounds], *records)
    return joined


def _widen(record: Record, width: int) -> Record:
    if record.clients is None or (missing := width - record.clients.clients.shape[1]) == 0:
        return record
    places = [(0, 0), (0, missing), (0, 0)]

    def pad(part: Any, fill: float = np.nan) -> Any:
        return np.pad(part, places[: np.ndim(part)], constant_values=fill)

    parts = record.clients._asdict()
    padded = {name: pad(parts[name], fill) for name, fill in EMPTY_PLACE.items() if parts[name] is not None}
    metrics = {name: pad(part) for name, part in record.clients.metrics.items()}
    return record._replace(clients=record.clients._replace(**padded, metrics=metrics))


def keep_clients(record: Any, kept: Sequence[int], clients: int) -> Record:
    """Return a record of several rounds with some of its ``clients`` only; F, G and the switch stay as they were."""
    new_indices = np.full(clients + 1, -1, np.int32)  # the last entry is for index −1
    new_indices[list(kept)] = np.arange(len(kept))
    parts = record.clients._asdict()
    places = {name: np.array(parts[name]) for name in EMPTY_PLACE if parts[name] is not None}
    places["clients"] = new_indices[places["clients"]]
    for name, part in places.items():
        part[places["clients"] < 0] = EMPTY_PLACE[name]
    worst: Any = new_indices[record.worst_client]
    return record._replace(worst_client=worst, clients=record.clients._replace(**places))


@dataclass(frozen=True)
class History:
    """The rounds of a run: arrays of shape (K,), one entry per round, unless stated otherwise.

    "Sampled" values are those that the round's participants reported on their batches.

    Attributes:
        objective: Sampled F = max_i f_i at w_k, before the step; −∞ if no participant has an objective. F and G are
            trimmed if the method is robust.
        constraint: Sampled G = max_i g_i at w_k; −∞ if no participant has a constraint.
        criterion: The value that the switch compared with the threshold λ.
        feasible: Whether the criterion was at most λ (bool). A switching method then improves the objective.
        worst_client: Index of the client that reported the largest f_i; −1 in a void round over Flower.
        value_evaluations: Cumulative number of rows on which f and g were evaluated.
        gradient_evaluations: Cumulative number of rows on which gradients were computed, m·E·B_g per round.
        full_rounds: Indices of the rounds in which w_k was evaluated on all clients' data, shape (evaluations,).
        full: Worst and mean client in ``full_rounds``: ``full.objective`` is F(w_k), ``full.constraint`` G(w_k),
            ``full.mean_objective`` and ``full.mean_constraint`` are the clients' means; each of shape (evaluations,).
        held_out: The same on held-out data; None if there is none.
        absent: Number of participants without an objective or without some constraint.
        per_client: The participants' reports; None if they were not recorded.
        unheard: Number of clients that have not reported yet; None if the server has no memory.
        oldest: Age in rounds of the oldest remembered report; None if the server has no memory.
        bytes_up: Bytes of the participants' updates; None if messages are not compressed.
        bytes_down: Bytes of the parameters, or of their changes; None if messages are not compressed.
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
        """Mask of shape (K,) of the rounds in which no participant had an objective, or none a constraint."""
        return np.isneginf(self.objective) | np.isneginf(self.constraint)

    @property
    def lost_share(self) -> float:
        """Share, in [0, 1], of all rounds' participants that did not complete their round; 0 if none can be lost."""
        outcomes = None if self.per_client is None else self.per_client.outcomes
        if outcomes is None or not (participated := int(np.sum(outcomes != ClientOutcome.EMPTY))):
            return 0.0
        completed = np.isin(outcomes, (ClientOutcome.COUNTED, ClientOutcome.VOID)).sum()
        return float((participated - completed) / participated)

    @property
    def feasible_rounds(self) -> int:
        """Number of feasible rounds."""
        return int(np.sum(self.feasible))

    @property
    def switch_share(self) -> float:
        """Share κ of feasible rounds, in [0, 1], among those that are not void; NaN if all are void."""
        counted = len(self) - int(self.void.sum())
        return self.feasible_rounds / counted if counted else float("nan")

    @classmethod
    def from_records(cls, oracle: Any, records: Sequence[Record], rounds: int, first: int = 0) -> History:
        """Make a history of the first ``rounds`` rounds of several records; the first of them is round ``first``.

        ``oracle`` is an ``Oracle``, or has its ``cost``.
        """
        joined: Any = join(records, rounds)
        values, gradients = oracle.cost(None if joined.rows is None else joined.rows.astype(np.int64))
        costs = (values if joined.values is None else joined.values, gradients)
        values, gradients = (np.cumsum(np.broadcast_to(cost, rounds), dtype=np.int64) for cost in costs)
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

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by names such as ``full.objective``; attributes that are None are omitted."""

        def flatten(name: str, value: Any) -> dict[str, np.ndarray]:
            if isinstance(value, ClientSummary | ClientHistory):
                value = value._asdict()
            if isinstance(value, dict):
                return {key: part for n, v in value.items() for key, part in flatten(f"{name}.{n}", v).items()}
            return {} if value is None else {name: np.asarray(value)}

        return {key: part for name, value in vars(self).items() for key, part in flatten(name, value).items()}

    def save(self, file: Path) -> None:
        """Write the history to an .npz file, atomically."""
        with open_atomically(file, durable=False) as stream:
            np.savez_compressed(stream, **self.to_arrays())  # type: ignore[arg-type]

    @classmethod
    def load(cls, file: Path) -> History:
        """Read a file that ``save`` wrote. Raise ValueError if its arrays have inconsistent lengths."""
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
