"""ClientPolicy: the rules by which a client decides which requests to answer."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from flwr.app import ConfigRecord, Context

from softswitch.flower import messages as wire
from softswitch.flower.local_client import LocalOracle, RefusalError, Task
from softswitch.support import checks
from softswitch.support.files import write_atomically

Classes = Any
"""A column name, a tuple of column names (all combinations of their values), one label per row, or None."""
REPLY_COUNTS = "reply_counts"
"""The record in Flower's context with the number of replies so far."""
MIN_ROWS = 10
SECRET_SEED_BITS = 96
COUNTERS = {
    wire.REPORT: "reports",
    wire.UPDATE: "updates",
    wire.EVALUATE: "evaluations",
    wire.CERTIFY: "evaluations",
}


class RowClasses:
    """The class labels of a client's training rows and held-out rows, or None for labels that are not known."""

    def __init__(self, training: np.ndarray | None, held_out: np.ndarray | None) -> None:
        self._training, self._held_out = training, held_out

    @classmethod
    def from_arguments(
        cls,
        classes: Classes,
        held_out_classes: Classes,
        columns: Sequence[Mapping[str, Any] | None],
        rows: Sequence[int],
    ) -> RowClasses:
        """Build the labels from a client's arguments; columns and row counts are for training and held-out rows."""
        if held_out_classes is None and _are_column_names(classes):
            held_out_classes = classes
        return cls(
            _row_labels("classes", classes, columns[0], rows[0]),
            _row_labels("held_out_classes", held_out_classes, columns[1], rows[1]) if rows[1] else None,
        )

    @property
    def rows(self) -> dict[str, int] | None:
        """Number of training rows of each class."""
        return None if self._training is None else _count_labels(self._training)

    @property
    def held_out_rows(self) -> dict[str, int] | None:
        """Number of held-out rows of each class."""
        return None if self._held_out is None else _count_labels(self._held_out)

    def select_rows(self, min_rows: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return masks of the training and held-out rows whose class has at least ``min_rows`` rows.

        A class with too few training rows is excluded from the held-out rows too.
        """
        assert self._training is not None
        small = [name for name, count in _count_labels(self._training).items() if count < min_rows]
        selected = ~np.isin(self._training, small)
        if self._held_out is None:
            return selected, None
        small += [name for name, count in _count_labels(self._held_out).items() if count < min_rows]
        return selected, ~np.isin(self._held_out, small)

    def arguments(self, rows: np.ndarray, held_out: np.ndarray | None) -> dict[str, Any]:
        """Return the arguments about classes of a client with the selected rows only."""
        labels = {"classes": (self._training, rows), "held_out_classes": (self._held_out, held_out)}
        return {
            name: values if values is None or selected is None or not selected.any() else values[selected]
            for name, (values, selected) in labels.items()
        }


def take_rows(columns: Mapping[str, Any] | None, selected: np.ndarray | None) -> Any:
    """Return the selected rows of columns, or None if there are none; a mask of None selects all rows."""
    if columns is None or selected is None:
        return columns
    return {key: np.asarray(column)[selected] for key, column in columns.items()} if selected.any() else None


def min_class_rows_in_batch(class_rows: Mapping[str, int], batch: int) -> int:
    """Return the expected number of rows of the rarest class in a batch, rounded down."""
    rows = sum(class_rows.values())
    return min(batch, rows) * min(class_rows.values()) // rows


def _are_column_names(classes: Classes) -> bool:
    names = (classes,) if isinstance(classes, str) else classes
    return isinstance(names, tuple) and bool(names) and all(isinstance(name, str) for name in names)


def _row_labels(argument: str, classes: Classes, columns: Mapping[str, Any] | None, rows: int) -> np.ndarray | None:
    if classes is None:
        return None
    parts = [] if _are_column_names(classes) else [np.asarray(classes)]
    for name in ((classes,) if isinstance(classes, str) else classes) if not parts else ():
        if columns is None or name not in columns:
            known = "has no named columns" if columns is None else f"has the columns {', '.join(columns)}"
            raise ValueError(f"{argument} must name columns of the client, which {known}, but names {name!r}")
        parts.append(np.asarray(columns[name]))
    if any(part.shape != (rows,) for part in parts):
        raise ValueError(f"{argument} must have one label for each of {rows} rows, but has shape {parts[0].shape}")
    values, codes = zip(*(np.unique(part, return_inverse=True) for part in parts), strict=True)
    combinations, index = np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)
    labels = [" × ".join(str(part[code]) for part, code in zip(values, row, strict=True)) for row in combinations]
    return np.array(labels)[index.reshape(-1)]


def _count_labels(labels: np.ndarray) -> dict[str, int]:
    values, counts = np.unique(labels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class ClientPolicy:
    """Rules that a client applies to every request, as in ``client_app(factory, ClientPolicy(min_rows=50))``.

    By default a client computes nothing on a class, batch or table of fewer than ten rows, because values and gradients
    of a single row reveal its features. Rows of smaller classes are excluded. Functions of an excluded class are −∞,
    which is ignored in aggregation, and the server learns the number of excluded classes. If rows cannot be excluded,
    or too few remain, the client refuses. This is not a privacy guarantee; use ``PrivateClient`` for one.

    A request that violates a rule is refused with the reason. The rules bind only this package: they do not restrict
    other code that runs on the same node.

    Attributes:
        runs: The runs to participate in: a set of Flower's run ids, or a function of Flower's ``Context`` that returns
            a bool. Default: all.
        min_rows: Minimum number of training rows, of held-out rows if there are any, and of rows in a batch.
        min_class_rows: Minimum number of rows of a class, and of the expected rows of each class in a batch. The client
            must declare its classes: with ``classes=``, or with an attribute ``class_rows``, such as
            ``{"sick": 120, "well": 800}``. Set this to 1 if no function depends on a class. A ``PrivateClient``
            excludes no class, because its noise covers single rows of every class.
        secret_batches: Draw batches with a secret seed instead of the run's seed, which the server knows. Otherwise the
            server can solve for single rows from many batches at the same parameters. Runs are then not reproducible.
        min_secure_clients: Minimum effective number of clients in secure aggregation (``SecureAggregation``). Default:
            directions are also sent without it.
        max_rounds: Maximum number of rounds of a run to participate in. Default: no maximum.
        max_evaluations: Maximum number of evaluations and certificates in a run. Default: no maximum.
        counter_file: File that counts rounds and evaluations across runs and restarts. Default: they are counted in
            Flower's context, for each run.
    """

    runs: Collection[int] | Callable[[Context], bool] | None = None
    min_rows: int = MIN_ROWS
    min_class_rows: int = MIN_ROWS
    secret_batches: bool = False
    min_secure_clients: int | None = None
    max_rounds: int | None = None
    max_evaluations: int | None = None
    counter_file: str | Path | None = None

    def __post_init__(self) -> None:
        checks.check_instance("secret_batches", self.secret_batches, bool)
        for name in ("min_rows", "min_class_rows", "min_secure_clients", "max_rounds", "max_evaluations"):
            if getattr(self, name) is not None:
                checks.check_integer(name, getattr(self, name), minimum=0)
        if self.runs is not None and not callable(self.runs):
            runs = frozenset(checks.check_integer("runs", run, minimum=0) for run in self.runs)
            object.__setattr__(self, "runs", runs)

    @classmethod
    def for_simulations(cls) -> ClientPolicy:
        """Return a policy without minimum sizes, for simulations in which all data is on one machine."""
        return cls(min_rows=1, min_class_rows=1)

    def restrict(self, client: LocalOracle) -> LocalOracle:
        """Return the client without the rows of small classes, or raise ``RefusalError``.

        Args:
            client: The client with all of its rows.
        """
        min_rows = self.min_class_rows
        if min_rows <= 1 or hasattr(client, "privacy_report"):
            return client
        class_rows: Any = getattr(client, "class_rows", None)
        if class_rows is None:
            raise RefusalError(
                f"its policy requires {min_rows} rows of each class, but its classes are not declared: set classes or "
                "class_rows, or min_class_rows=1 if no function depends on a class"
            )
        sizes = [int(size) for size in (class_rows.values() if isinstance(class_rows, Mapping) else class_rows)]
        classes = getattr(client, "classes", None)
        if not isinstance(classes, RowClasses) or classes.rows is None:
            if min(sizes, default=0) < min_rows:
                raise RefusalError(
                    f"it has a class of fewer than {min_rows} rows (client policy), and cannot exclude these rows"
                )
            return client
        rows, held_out = classes.select_rows(min_rows)
        excluded = f"without classes of fewer than {min_rows} rows (client policy)"
        if rows.sum() < max(1, self.min_rows):
            raise RefusalError(f"{excluded} it has {rows.sum()} rows left")
        if not rows.all() or (held_out is not None and not held_out.all()):
            try:
                client = client.restrict(rows, held_out)  # type: ignore[attr-defined]
            except ValueError as error:
                raise RefusalError(f"{excluded} it cannot continue: {error}") from error
            client.excluded_classes = sum(size < min_rows for size in sizes)  # type: ignore[attr-defined]
        return client

    def seed_batches(self, task: Task) -> Task:
        """Return the task with the seed by which the client draws its batches.

        Args:
            task: The task from the server.
        """
        return task._replace(seed=secrets.randbits(SECRET_SEED_BITS)) if self.secret_batches else task

    def admit(self, client: LocalOracle, kind: str, context: Context) -> None:
        """Raise ``RefusalError`` if a request must not be answered.

        Args:
            client: The client that would answer.
            kind: The type of the message.
            context: Flower's context.
        """
        if self.runs is not None:
            participates = self.runs(context) if callable(self.runs) else context.run_id in self.runs
            if not participates:
                raise RefusalError(f"it does not participate in run {context.run_id} (client policy)")
        for attribute in ("rows", "held_out_rows", "value_rows", "gradient_rows"):
            rows = int(getattr(client, attribute))
            if rows < self.min_rows and (rows or attribute != "held_out_rows"):
                name = attribute.replace("_", " ")
                raise RefusalError(f"it has {rows} {name}, but its policy requires {self.min_rows}")
        per_batch = getattr(client, "class_rows_per_batch", None)
        if per_batch is not None and per_batch < self.min_class_rows:
            raise RefusalError(
                f"its batches have {per_batch} rows of its rarest class, but its policy requires "
                f"{self.min_class_rows}: increase batch_size, or use all rows (batch_size=None)"
            )
        if kind == wire.CERTIFY and client.held_out_rows and self.min_class_rows > 1:
            classes = getattr(client, "classes", None)
            if isinstance(classes, RowClasses) and classes.rows is not None and classes.held_out_rows is None:
                raise RefusalError(
                    f"its policy requires {self.min_class_rows} rows of each class, but the classes of its held-out "
                    "rows are not declared: set held_out_classes"
                )

    def count(self, kind: str, context: Context) -> None:
        """Count a request that is about to be answered, or raise ``RefusalError`` if the maximum is reached.

        Args:
            kind: The type of the message.
            context: Flower's context.
        """
        name = COUNTERS[kind]
        maximum = self.max_evaluations if name == "evaluations" else self.max_rounds
        if maximum is None:
            return
        file = None if self.counter_file is None else Path(self.counter_file).expanduser()
        with nullcontext() if file is None else FileLock(file.with_name(f".{file.name}.lock")):
            counts = _read_counts(file, context)
            count = counts.get(name, 0)
            if count >= maximum:
                raise RefusalError(f"it has answered {count} {name}, and its policy allows {maximum}")
            counts[name] = count + 1
            if file is None:
                context.state[REPLY_COUNTS] = ConfigRecord(dict(counts))
            else:
                write_atomically(file, json.dumps(counts).encode())


def _read_counts(file: Path | None, context: Context) -> dict[str, int]:
    if file is None:
        record: Any = context.state.get(REPLY_COUNTS) or {}
        return {str(name): int(count) for name, count in record.items()}
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        return {}
    try:
        return {str(name): int(count) for name, count in json.loads(file.read_text(encoding="utf-8")).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise RefusalError(f"its counter_file cannot be read: {file.name}") from error
