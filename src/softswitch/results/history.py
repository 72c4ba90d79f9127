"""What happened, round by round."""

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
    """What tells the cost of a round; see ``softswitch.oracles.base.Oracle``."""

    def cost(self, row_count: Any) -> tuple[Any, Any]:
        """How many rows a round evaluates values on, and how many it evaluates gradients on."""
        ...


class ClientOutcome(IntEnum):
    """What became of a client in a round, where clients can be lost."""

    EMPTY = 0
    """An empty place: fewer clients were asked in this round than in others."""
    COUNTED = 1
    """It reported, and its direction was applied, with whatever weight."""
    NO_REPORT = 2
    """It was lost before its report."""
    BAD_REPORT = 3
    """Its report was rejected."""
    REFUSED = 4
    """It said that it would not take part."""
    NO_UPDATE = 5
    """It reported, and was lost before its direction."""
    BAD_UPDATE = 6
    """It reported, and its direction was rejected."""
    VOID = 7
    """It did its part, but too few did, and the round was void."""

    @property
    def label(self) -> str:
        """Its name, to be read."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True)
class ClientHistory:
    """What each sampled client reported, round by round.

    Attributes:
        clients: I_k, as indices of clients; rounds × m. −1 is an empty place.
        objective: f_i of each; rounds × m. NaN where it did not report.
        constraint: g_i of each; rounds × m × constraints.
        metrics: further numbers that each told, by name; rounds × m.
        outcomes: what became of each, by the numbers of ``ClientOutcome``; None where no client can be lost.
        epsilon: ε that each has spent after the round, the judging of the answer aside, where rows are kept private;
            rounds × m. Over Flower by its own word, earlier runs included; NaN where it told nothing of it. Else None.
    """

    clients: np.ndarray
    objective: np.ndarray
    constraint: np.ndarray
    metrics: dict[str, np.ndarray]
    outcomes: np.ndarray | None = None
    epsilon: np.ndarray | None = None


@dataclass(frozen=True)
class History:
    """One entry a round. "Sampled" is what the round's participants reported on their batches.

    Attributes:
        objective: sampled F, max_i f_i.
        constraint: sampled G, max_i g_i.
        criterion: what the switch compared with λ.
        feasible: the switch bit: whether the criterion was at most λ. A switching rule then improves the objective.
        worst_client: the index of the client that reported the largest f_i.
        value_evaluations: rows on which f and g were evaluated so far, this round included.
        gradient_evaluations: rows on which gradients were, m·E·B_g a round.
        full_rounds: the rounds in which w_k was evaluated on all clients' data, before the step.
        full: the worst and the mean client in those rounds: ``full.objective`` is F(w_k), ``full.constraint`` G(w_k),
            ``full.mean_objective`` and ``full.mean_constraint`` the clients' means.
        held_out: the same on held-out data, where it was given; else None.
        absent: how many participants had no objective or lacked a constraint, each round.
        per_client: what each participant reported, where it was asked for.
        unheard: how many clients the server had not heard yet, where it remembers its clients; else None.
        oldest: how many rounds old the oldest report was that it remembered; else None.
        bytes_up: how many bytes the clients' directions took in each round, where messages are compressed; else None,
        bytes_down: and how many the parameters, or their changes, took for all participants.
        stationarity: with a proximal centre, how far it moved at the end of a stage, times ρ; NaN in the rounds that
            end no stage, ∞ where the stage had no feasible round. Else None.
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
    stationarity: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.objective)

    def __repr__(self) -> str:
        return f"History({len(self)} rounds, {self.switch_share:.0%} feasible)"

    @property
    def void(self) -> np.ndarray:
        """The rounds in which no participant had an objective, or none a constraint: they change nothing."""
        return np.isneginf(self.objective) | np.isneginf(self.constraint)

    @property
    def lost_share(self) -> float:
        """The share of clients asked, over all rounds, that did not do their part; 0 where none can be lost."""
        outcomes = None if self.per_client is None else self.per_client.outcomes
        if outcomes is None or not (outcomes != ClientOutcome.EMPTY).any():
            return 0.0
        asked, good = outcomes != ClientOutcome.EMPTY, np.isin(outcomes, (ClientOutcome.COUNTED, ClientOutcome.VOID))
        return float((asked & ~good).sum() / asked.sum())

    @property
    def stages(self) -> np.ndarray:
        """The stationarity measures of the stages that are over, in their order; none without a proximal centre."""
        measured = np.empty(0) if self.stationarity is None else self.stationarity
        return measured[~np.isnan(measured)]

    @property
    def feasible_rounds(self) -> int:
        """|S|, how many rounds were feasible."""
        return int(np.sum(self.feasible))

    @property
    def switch_share(self) -> float:
        """κ = |S|/K, the share of rounds that were feasible, void ones left out; NaN where none counts."""
        counted = len(self) - int(self.void.sum())
        return self.feasible_rounds / counted if counted else float("nan")

    @classmethod
    def from_records(cls, oracle: CountsRows, records: Sequence[Record], rounds: int, first: int = 0) -> History:
        """Put chunks of records together, from round ``first`` on and so many rounds.

        The oracle tells what a round costs.

        Args:
            oracle: the clients: it tells how many rows a round costs.
            records: chunks of rounds, in order; the last may be longer than is asked for.
            rounds: how many rounds to keep.
            first: the number of the first of them.
        """
        joined: Any = join(records, rounds)
        held = None if joined.rows is None else joined.rows.astype(np.int64)
        of_values, of_gradients = oracle.cost(held)
        if joined.gradients is not None:
            of_gradients = joined.gradients
        if joined.values is not None:
            of_values = joined.values
        values, gradients = (
            np.cumsum(np.broadcast_to(rows, rounds), dtype=np.int64) for rows in (of_values, of_gradients)
        )
        evaluated = np.flatnonzero(~np.isnan(joined.full.objective))
        return cls(
            objective=joined.objective,
            constraint=joined.constraint,
            criterion=joined.criterion,
            feasible=joined.feasible,
            worst_client=joined.worst_client,
            value_evaluations=values,
            gradient_evaluations=gradients,
            full_rounds=first + evaluated,
            absent=joined.absent,
            full=ClientSummary(*(values[evaluated] for values in joined.full)),
            held_out=None
            if joined.held_out is None
            else ClientSummary(*(values[evaluated] for values in joined.held_out)),
            per_client=None if joined.clients is None else _told_by_clients(joined.clients),
            unheard=joined.unheard,
            oldest=joined.oldest,
            bytes_up=None if joined.traffic is None else in_one(joined.traffic[:, 0]),
            bytes_down=None if joined.traffic is None else in_one(joined.traffic[:, 1]),
            stationarity=joined.stationarity,
        )

    def since(self, first: int) -> History:
        """Reports, criterion and switch of the rounds from ``first`` on; of evaluations none.

        Args:
            first: the first round to keep, counted from 0.
        """
        plain = ("objective", "constraint", "criterion", "feasible", "worst_client", "absent")
        counts = ("value_evaluations", "gradient_evaluations")
        return History(
            **{name: getattr(self, name)[first:] for name in (*plain, *counts)},
            full_rounds=self.full_rounds[:0],
            full=ClientSummary(*(values[:0] for values in self.full)),
        )

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything as arrays by name, for a file."""
        arrays: dict[str, np.ndarray] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, ClientSummary):
                arrays |= {f"{entry.name}.{name}": part for name, part in value._asdict().items()}
            elif isinstance(value, ClientHistory):
                further = tuple(name for name in ("outcomes", "epsilon") if getattr(value, name) is not None)
                plain = ("clients", "objective", "constraint", *further)
                arrays |= {f"{entry.name}.{name}": getattr(value, name) for name in plain}
                arrays |= {f"{entry.name}.metrics.{name}": part for name, part in value.metrics.items()}
            elif value is not None:
                arrays[entry.name] = value
        return {name: np.asarray(array) for name, array in arrays.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> History:
        """From ``to_arrays``.

        Args:
            arrays: what ``to_arrays`` gave.
        """

        def part(name: str) -> dict[str, np.ndarray]:
            return {key.removeprefix(f"{name}."): array for key, array in arrays.items() if key.startswith(f"{name}.")}

        plain = {entry.name: arrays[entry.name] for entry in fields(cls) if entry.name in arrays}
        own, held_out = part("per_client"), part("held_out")
        metrics = {key.removeprefix("metrics."): own[key] for key in own if key.startswith("metrics.")}
        return cls(
            **plain,
            full=ClientSummary(**part("full")),  # type: ignore[arg-type]
            held_out=ClientSummary(**held_out) if held_out else None,  # type: ignore[arg-type]
            per_client=ClientHistory(
                own["clients"], own["objective"], own["constraint"], metrics, own.get("outcomes"), own.get("epsilon")
            )
            if own
            else None,
        )


def _told_by_clients(told: Any) -> ClientHistory:
    """What clients told; nothing of ε where none keeps count."""
    history = ClientHistory(*told)
    counts = history.epsilon is not None and not np.isnan(history.epsilon).all()
    return history if counts else replace(history, epsilon=None)
