"""What a client takes part in: its own rules, whatever the server asks for."""

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
"""A column's name, a tuple of names (all combinations of their values), or one label a row; None: not told."""


class RowClasses:
    """The classes of a client's rows, those to train on and those held out.

    Args:
        own: one label a row; None: not told.
        held_out: likewise of the rows held out.
    """

    def __init__(self, own: np.ndarray | None, held_out: np.ndarray | None) -> None:
        self._own, self._held_out = own, held_out

    @classmethod
    def told(
        cls,
        classes: Classes,
        held_out_classes: Classes,
        columns: Sequence[Mapping[str, Any] | None],
        rows: Sequence[int],
    ) -> RowClasses:
        """What a client's arguments say.

        Args:
            classes: of the rows to train on.
            held_out_classes: of those held out; None: the same columns, where ``classes`` names some.
            columns: those of the rows to train on, and of those held out; None where they have no names.
            rows: how many there are of either.
        """
        if held_out_classes is None and _named(classes):
            held_out_classes = classes
        return cls(
            _labels("classes", classes, columns[0], rows[0]),
            _labels("held_out_classes", held_out_classes, columns[1], rows[1]) if rows[1] else None,
        )

    @property
    def rows(self) -> dict[str, int] | None:
        """How many rows to train on each class has; None: not told."""
        return None if self._own is None else _counted(self._own)

    @property
    def held_out_rows(self) -> dict[str, int] | None:
        """How many rows held out each has; None: not told."""
        return None if self._held_out is None else _counted(self._held_out)

    def kept(self, least: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Which rows are of a class that has enough of them: to train on, and held out, where those are told.

        A class that has too few rows to train on is left out of those held out too.

        Args:
            least: so many rows are enough.
        """
        assert self._own is not None
        small = [name for name, many in _counted(self._own).items() if many < least]
        kept = ~np.isin(self._own, small)
        if self._held_out is None:
            return kept, None
        small += [name for name, many in _counted(self._held_out).items() if many < least]
        return kept, ~np.isin(self._held_out, small)

    def of(self, rows: np.ndarray, held_out: np.ndarray | None) -> dict[str, Any]:
        """A client's arguments about classes for some of its rows.

        Args:
            rows: which of those to train on,
            held_out: and which of those held out; None: all.
        """
        both = {"classes": (self._own, rows), "held_out_classes": (self._held_out, held_out)}
        return {
            name: labels if labels is None or kept is None or not kept.any() else labels[kept]
            for name, (labels, kept) in both.items()
        }


def part_of(columns: Mapping[str, Any] | None, kept: np.ndarray | None) -> Any:
    """Columns of some rows; None where there are none.

    Args:
        columns: of all rows.
        kept: which; None: all.
    """
    if columns is None or kept is None:
        return columns
    return {key: np.asarray(column)[kept] for key, column in columns.items()} if kept.any() else None


def min_class_rows_in_batch(class_rows: Mapping[str, int], batch: int) -> int:
    """How many rows of its rarest class a batch drawn from all rows has, as a rule.

    Args:
        class_rows: how many each class has.
        batch: how many rows are drawn.
    """
    rows = sum(class_rows.values())
    return min(batch, rows) * min(class_rows.values()) // rows


def _named(classes: Classes) -> bool:
    """Whether classes are told by names of columns."""
    names = (classes,) if isinstance(classes, str) else classes
    return isinstance(names, tuple) and bool(names) and all(isinstance(name, str) for name in names)


def _labels(argument: str, given: Classes, columns: Mapping[str, Any] | None, rows: int) -> np.ndarray | None:
    """One text a row that says its class; None where nothing is told."""
    if given is None:
        return None
    parts = [np.asarray(given)] if not _named(given) else []
    for name in ((given,) if isinstance(given, str) else given) if not parts else ():
        if columns is None or name not in columns:
            known = "none by name" if columns is None else ", ".join(columns)
            raise ValueError(f"{argument} names {name!r}, which is no column of the client's; there are {known}")
        parts.append(np.asarray(columns[name]))
    if any(part.shape != (rows,) for part in parts):
        raise ValueError(f"{argument} must have one label for each of {rows} rows, but has shape {parts[0].shape}")
    values, codes = zip(*(np.unique(part, return_inverse=True) for part in parts), strict=True)
    found, which = np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)
    texts = [" × ".join(str(own[code]) for own, code in zip(values, row, strict=True)) for row in found]
    return np.array(texts)[which.reshape(-1)]


def _counted(labels: np.ndarray) -> dict[str, int]:
    """How many rows have which label."""
    found, many = np.unique(labels, return_counts=True)
    return dict(zip(found.tolist(), many.tolist(), strict=True))


COUNTED = "answers so far"
"""The record in Flower's context that holds how often a client answered."""
FEWEST_ROWS = 10
"""By default a client answers on no class, batch or table of fewer rows."""
SECRET_BITS = 96
"""Of a seed that nobody can guess."""
KINDS = {wire.REPORT: "reports", wire.UPDATE: "updates", wire.EVALUATE: "evaluations", wire.CERTIFY: "evaluations"}


@dataclass(frozen=True, kw_only=True)
class ClientPolicy:
    """Rules of a client's own; for ``client_app(factory, policy=ClientPolicy(min_rows=50))``.

    By default a client answers on no class or group of fewer than ten rows, nor on a batch that small: of a single row
    the server could read every feature. Rows of a smaller class are left out before anything is computed, as if the
    client had none: functions of that class are then −∞, which counts nowhere, and the server is told how many classes
    were left out. Where rows cannot be left out, or too few would be left, the client stays away. That alone is not
    privacy: ten rows are ten people.

    What these rules do not allow is refused with the reason, and the server writes that down. They bind a client of
    this package only: whoever may start other code at a node is not bound by them.

    Attributes:
        runs: which runs it takes part in: a set of Flower's run ids, or a function of Flower's ``Context`` that says
            whether; None: in all.
        min_rows: it does not take part where it trains on fewer rows, holds out fewer (but for none), or where a
            report or a gradient is of fewer.
        min_class_rows: classes and groups of fewer rows are left out; and it does not take part where a batch has,
            as a rule, fewer rows of some class. The client must tell its classes (``classes=``, of the ready ones; one
            of your own by an attribute ``class_rows``, such as ``{"sick": 120, "well": 800}``: it stays away where one
            is too small). 1: nothing need be told, for functions of all rows alike. A ``PrivateClient`` leaves none
            out: its noise hides single rows of any class.
        secret_batches: it draws the rows of its batches by chance of its own, and not by the run's seed, which the
            server knows: else many batches at one place are equations for single rows. A run then cannot be repeated
            to the bit.
        min_secure_clients: it tells directions only as part of a secure sum (``SecureAggregation``), and only where
            the effective number of clients in it is at least so many; None: also by themselves.
        max_rounds: it reports, and returns directions, in at most so many rounds of a run.
        max_evaluations: it tells its values on all rows, or intervals, at most so many times in a run.
        counter_file: a file to count them in: then a restart of the node does not begin anew, and all runs count
            together, also those that are resumed under another id. Without it Flower's context of the run counts.
    """

    runs: Collection[int] | Callable[[Context], bool] | None = None
    min_rows: int = FEWEST_ROWS
    min_class_rows: int = FEWEST_ROWS
    secret_batches: bool = False
    min_secure_clients: int | None = None
    max_rounds: int | None = None
    max_evaluations: int | None = None
    counter_file: str | Path | None = None

    def __post_init__(self) -> None:
        checks.expect("secret_batches", self.secret_batches, bool)
        for name in ("min_rows", "min_class_rows", "min_secure_clients", "max_rounds", "max_evaluations"):
            if getattr(self, name) is not None:
                checks.whole_number(name, getattr(self, name), at_least=0)
        if self.runs is not None and not callable(self.runs):
            object.__setattr__(
                self, "runs", frozenset(checks.whole_number("runs", own, at_least=0) for own in self.runs)
            )

    @classmethod
    def for_simulations(cls) -> ClientPolicy:
        """One that answers on a single row: where all rows lie on one machine anyway."""
        return cls(min_rows=1, min_class_rows=1)

    def part_of(self, client: LocalOracle) -> LocalOracle:
        """The client with the rows that it answers on, or raise ``RefusalError`` where it answers on none.

        Args:
            client: with all of its rows.
        """
        least = self.min_class_rows
        if least <= 1 or hasattr(
            client, "privacy_report"
        ):  # noise as large as a row hides the rows of a small class too
            return client
        sizes = _sizes(getattr(client, "class_rows", None))
        if sizes is None:
            raise RefusalError(
                f"its policy answers on no class of fewer than {least} rows, and it does not tell its classes "
                "(classes=, or class_rows); where its functions are of all rows alike, set min_class_rows=1"
            )
        few = f"of fewer than {least} rows (its own policy)"
        classes = getattr(client, "classes", None)
        if not isinstance(classes, RowClasses) or classes.rows is None:
            if min(sizes, default=0) < least:
                raise RefusalError(f"it has a class {few}, whose rows it cannot leave out")
            return client
        rows, held_out = classes.kept(least)
        small = sum(size < least for size in sizes)
        if rows.sum() < max(1, self.min_rows):
            raise RefusalError(f"without its classes {few} it has {rows.sum()} rows left")
        if not rows.all() or (held_out is not None and not held_out.all()):
            try:
                client = client.only(rows, held_out)  # type: ignore[attr-defined]
            except ValueError as error:
                raise RefusalError(f"without its classes {few} it cannot go on: {error}") from error
            client.excluded_classes = small  # type: ignore[attr-defined]
        return client

    def drawing(self, task: Task) -> Task:
        """The round's task, with the seed that batches are drawn by.

        Args:
            task: as the server asks for it.
        """
        return task._replace(seed=secrets.randbits(SECRET_BITS)) if self.secret_batches else task

    def admit(self, client: LocalOracle, kind: str, context: Context) -> None:
        """Count a question, or raise ``RefusalError`` where it is not to be answered.

        Args:
            client: whose data it is about.
            kind: of the message.
            context: Flower's.
        """
        self._check_run(context)
        self._check_rows(client)
        if kind == wire.CERTIFY and client.held_out_rows:
            self._check_held_out(client)
        if kind in KINDS:
            self._count(KINDS[kind], context)

    def _check_run(self, context: Context) -> None:
        if self.runs is None:
            return
        takes_part = self.runs(context) if callable(self.runs) else context.run_id in self.runs
        if not takes_part:
            raise RefusalError(f"it does not take part in run {context.run_id} (its own policy)")

    def _check_rows(self, client: LocalOracle) -> None:
        for what in ("rows", "held_out_rows", "value_rows", "gradient_rows"):
            has = int(getattr(client, what))
            if has < self.min_rows and (has or what != "held_out_rows"):
                named = what.replace("_", " ")
                raise RefusalError(f"it has {has} {named}, and answers only where there are {self.min_rows}")
        in_a_batch = getattr(client, "class_rows_per_batch", None)
        if in_a_batch is not None and in_a_batch < self.min_class_rows:
            raise RefusalError(
                f"its batches have {in_a_batch} rows of its rarest class, and it answers only where there are "
                f"{self.min_class_rows}: let it take more rows, or all of them (batch_size=None)"
            )

    def _check_held_out(self, client: LocalOracle) -> None:
        """Raise where intervals would be asked for of rows whose classes nobody told."""
        classes = getattr(client, "classes", None)
        if self.min_class_rows <= 1 or not isinstance(classes, RowClasses) or classes.rows is None:
            return
        if classes.held_out_rows is None:
            raise RefusalError(
                f"it answers on no class of fewer than {self.min_class_rows} rows, and does not tell those of the "
                "rows that it holds out (held_out_classes)"
            )

    def _count(self, what: str, context: Context) -> None:
        most = self.max_evaluations if what == "evaluations" else self.max_rounds
        if most is None:
            return
        file = None if self.counter_file is None else Path(self.counter_file).expanduser()
        with nullcontext() if file is None else FileLock(file.with_name(f".{file.name}.lock")):
            so_far = self._so_far(file, context)
            given = so_far.get(what, 0)
            if given >= most:
                raise RefusalError(f"it has given {given} {what}, and gives {most} at most")
            so_far[what] = given + 1
            if file is None:
                context.state[COUNTED] = ConfigRecord(dict(so_far))
            else:
                write_atomically(file, json.dumps(so_far).encode())

    def _so_far(self, file: Path | None, context: Context) -> dict[str, int]:
        if file is None:
            told = context.state.get(COUNTED)
            return {} if told is None else {str(name): int(many) for name, many in dict(told).items()}  # type: ignore
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            return {}
        try:
            return {str(name): int(many) for name, many in json.loads(file.read_text(encoding="utf-8")).items()}
        except (ValueError, AttributeError, TypeError) as error:
            raise RefusalError(f"the file that counts its answers cannot be read: {file.name}") from error


def _sizes(told: Any) -> list[int] | None:
    """How many rows each class has, by name or in a list; None where it is not told."""
    if told is None:
        return None
    return [int(size) for size in (told.values() if isinstance(told, Mapping) else told)]
