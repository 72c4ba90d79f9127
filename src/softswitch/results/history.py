"""The history of a run, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, Protocol

import numpy as np

from softswitch.methods.compressors import in_one
from softswitch.oracles.evaluation import ClientSummary
from softswitch.results.record import Record, join


class CountsRows(Protocol):
    """An object that knows the cost of a round; see ``softswitch.oracles.base.Oracle``."""

    def cost(self, row_count: Any) -> tuple[Any, Any]:
        """Return the number of rows on which a round evaluates values and gradients."""
        ...


class ClientOutcome(IntEnum):
    """The outcome of a round for one client, if clients can be lost."""

    EMPTY = 0
    """No client: the round had fewer participants than others."""
    COUNTED = 1
    """The client reported, and its update was applied."""
    NO_REPORT = 2
    """The client was lost before its report."""
    BAD_REPORT = 3
    """The client's report was rejected."""
    REFUSED = 4
    """The client refused to participate."""
    NO_UPDATE = 5
    """The client reported and was lost before its update."""
    BAD_UPDATE = 6
    """The client reported and its update was rejected."""
    VOID = 7
    """The client completed the round, but too few clients did, and the round was void."""

    @property
    def label(self) -> str:
        """The name in lower case with spaces."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True)
class ClientHistory:
    """The reports of each participant, round by round.

    Attributes:
        clients: Indices of the participants I_k; rounds × m. −1 is an empty place.
        objective: f_i of each; rounds × m. NaN if it did not report.
        constraint: g_i of each; rounds × m × constraints.
        metrics: Further reported numbers, by name; rounds × m.
        outcomes: The ``ClientOutcome`` of each; None if clients cannot be lost.
        epsilon: ε spent by each after the round, without the evaluation of the answer; rounds × m. Over Flower as
            reported by the client, including earlier runs; NaN if it reported none. None if rows are not private.
    """

    clients: np.ndarray
    objective: np.ndarray
    constraint: np.ndarray
    metrics: dict[str, np.ndarray]
    outcomes: np.ndarray | None = None
    epsilon: np.ndarray | None = None


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
        if outcomes is None or not (outcomes != ClientOutcome.EMPTY).any():
            return 0.0
        participated = outcomes != ClientOutcome.EMPTY
        completed = np.isin(outcomes, (ClientOutcome.COUNTED, ClientOutcome.VOID))
        return float((participated & ~completed).sum() / participated.sum())

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
    def from_records(cls, oracle: CountsRows, records: Sequence[Record], rounds: int, first: int = 0) -> History:
        """Concatenate chunks of records.

        Args:
            oracle: The clients, which know the cost of a round.
            records: Chunks of rounds, in order. The last may be longer than needed.
            rounds: Number of rounds to keep.
            first: Number of the first round.
        """
        joined: Any = join(records, rounds)
        costs = oracle.cost(None if joined.rows is None else joined.rows.astype(np.int64))
        values, gradients = (
            np.cumsum(np.broadcast_to(cost, rounds), dtype=np.int64)
            for cost in (costs[0] if joined.values is None else joined.values, costs[1])
        )
        evaluated = np.flatnonzero(~np.isnan(joined.full.objective))
        full, held_out = (
            None if summary is None else ClientSummary(*(part[evaluated] for part in summary))
            for summary in (joined.full, joined.held_out)
        )
        assert full is not None
        same = (*_REPORTED, "unheard", "oldest")
        return cls(
            **{name: getattr(joined, name) for name in same},
            value_evaluations=values,
            gradient_evaluations=gradients,
            full_rounds=first + evaluated,
            full=full,
            held_out=held_out,
            per_client=None if joined.clients is None else _drop_unknown_epsilon(ClientHistory(*joined.clients)),
            bytes_up=None if joined.traffic is None else in_one(joined.traffic[:, 0]),
            bytes_down=None if joined.traffic is None else in_one(joined.traffic[:, 1]),
        )

    def since(self, first: int) -> History:
        """Return the reports, criterion and switch of the rounds from ``first`` on, without evaluations.

        Args:
            first: The first round to keep, counted from 0.
        """
        names = (*_REPORTED, "value_evaluations", "gradient_evaluations")
        return History(
            **{name: getattr(self, name)[first:] for name in names},
            full_rounds=self.full_rounds[:0],
            full=ClientSummary(*(values[:0] for values in self.full)),
        )

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return all values as arrays by name, for a file."""
        arrays: dict[str, Any] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, ClientSummary):
                arrays |= {f"{entry.name}.{name}": part for name, part in value._asdict().items()}
            elif isinstance(value, ClientHistory):
                parts = {name: getattr(value, name) for name in ("clients", "objective", "constraint")}
                parts |= {"outcomes": value.outcomes, "epsilon": value.epsilon}
                parts |= {f"metrics.{name}": part for name, part in value.metrics.items()}
                arrays |= {f"{entry.name}.{name}": part for name, part in parts.items()}
            else:
                arrays[entry.name] = value
        return {name: np.asarray(array) for name, array in arrays.items() if array is not None}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> History:
        """Restore a history from ``to_arrays``.

        Args:
            arrays: The output of ``to_arrays``.
        """

        def part(name: str, entries: Mapping[str, np.ndarray] = arrays) -> dict[str, Any]:
            prefix = f"{name}."
            return {key.removeprefix(prefix): array for key, array in entries.items() if key.startswith(prefix)}

        client, held_out = part("per_client"), part("held_out")
        per_client = None
        if client:
            required = (client["clients"], client["objective"], client["constraint"])
            optional = (client.get("outcomes"), client.get("epsilon"))
            per_client = ClientHistory(*required, part("metrics", client), *optional)
        return cls(
            **{entry.name: arrays[entry.name] for entry in fields(cls) if entry.name in arrays},
            full=ClientSummary(**part("full")),
            held_out=ClientSummary(**held_out) if held_out else None,
            per_client=per_client,
        )


_REPORTED = ("objective", "constraint", "criterion", "feasible", "worst_client", "absent")


def _drop_unknown_epsilon(history: ClientHistory) -> ClientHistory:
    is_unknown = history.epsilon is not None and np.isnan(history.epsilon).all()
    return replace(history, epsilon=None) if is_unknown else history
