"""Checkpoints: where a run stands, in files that are either whole or not there."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from softswitch.methods.round import State
from softswitch.problem.parameters import Params
from softswitch.support import checks
from softswitch.support.arrays import fingerprint, named, shaped
from softswitch.support.files import TENSORS, check_size, or_damaged, write_atomically
from softswitch.support.json_schema import Each, check_shape
from softswitch.support.processes import sole_use

KIND, FORMAT = "softswitch checkpoint", "softswitch checkpoint 5"
SUFFIX = ".safetensors"
DIGESTS = {
    "program": "what is computed (the functions, a schedule, the optimiser, or arrays that they close over)",
    "clients": "the clients' data",
    "start": "the start",
    "numbers": "a number of the rule, the domain or the memory",
}
"""What a request holds as a digest, in words."""


class Snapshot(NamedTuple):
    """Where a run stands after so many rounds.

    Attributes:
        state: all that the server keeps.
        record: the history so far, as one record.
        done: how many rounds.
        seconds: how long they took.
        names: the labels of the clients met so far, where they are not known beforehand.
        averaging_from: the first round that could join the average.
        best: the best answer so far, of a run that chooses for itself,
        journal: and what it chose.
    """

    state: Any
    record: Any
    done: int
    seconds: float
    averaging_from: int
    names: tuple[str, ...] = ()
    best: Params | None = None
    journal: str = ""

    def extended(self, rounds: int, averaging_from: int, first: State) -> Snapshot:
        """For a run of so many rounds that began with the state ``first``, exactly what it would have been.

        Raises:
            ValueError: it cannot be that.
        """
        self.at_most(rounds)
        if averaging_from == self.averaging_from:
            return self
        if averaging_from < self.done:
            raise ValueError(
                f"the average of {rounds} rounds is to begin with round {averaging_from}, but the checkpoint, after "
                f"{self.done} rounds, has averaged from {self.averaging_from} on; set rounds and average_last so that "
                f"the average begins with round {self.done} or later, or use another folder"
            )
        return self._replace(state=self.state._replace(average=first.average), averaging_from=averaging_from)

    def at_most(self, rounds: int) -> Snapshot:
        """The same, for a run of so many rounds; raise where it has done more."""
        if self.done > rounds:
            raise ValueError(
                f"rounds must be at least {self.done}, which the checkpoint has done already, but is {rounds}; use "
                "another folder"
            )
        return self


@dataclass
class Checkpoints:
    """Keeps a run's standing in a folder, so that it can go on after Ctrl-C, a kill or a power cut.

    Given to ``solve``, it saves after a chunk of rounds where ``every`` seconds have gone by, and at the end. Where the
    folder already holds a checkpoint of the same request, ``solve`` goes on from there, to exactly the result of a run
    that was never interrupted; asked for more rounds than before, it goes on to those. A checkpoint of another request
    is refused: other data, another start, seed or rule, other functions, also those that differ only in the arrays
    they close over.

    A file is written beside its place, flushed to the disk and then moved there, so that it is whole or not there; a
    digest of its contents tells a damaged one, and the one before is used. The two newest are kept. While a run has the
    folder, a second one is refused.

    Attributes:
        folder: where; made if need be.
        every: at least so many seconds from one to the next; 0: after every chunk.
    """

    folder: str | Path
    every: float = 10.0
    _last: float = field(default_factory=time.monotonic, repr=False)

    def __post_init__(self) -> None:
        self.folder = Path(self.folder)
        self.every = checks.real_number("every", self.every, at_least=0)

    def held(self) -> AbstractContextManager[None]:
        """Within, no other run has the folder; raise where one has."""
        return sole_use(Path(self.folder))

    def due(self) -> bool:
        """Whether it is time for another."""
        return time.monotonic() - self._last >= self.every

    def save(self, standing: Snapshot, request: Mapping[str, str]) -> Path:
        """Write where the run stands, and remove all but the two newest.

        Args:
            standing: where the run stands: state, record, rounds done.
            request: what was asked for, as digests by name: a checkpoint of another request is refused.
        """
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        arrays = named((standing.state, standing.record, standing.best))
        told = {
            "format": FORMAT,
            "request": json.dumps(request),
            "done": str(standing.done),
            "seconds": repr(standing.seconds),
            "averaging_from": str(standing.averaging_from),
            "names": json.dumps(standing.names),
            "journal": standing.journal,
            "digest": fingerprint(arrays),
        }
        told["words"] = _digest_of_words(told)
        file = folder / f"round-{standing.done:09d}{SUFFIX}"
        write_atomically(file, save(arrays, told))
        for old in self._files()[2:]:
            old.unlink(missing_ok=True)
        self._last = time.monotonic()
        return file

    def latest(
        self, request: Mapping[str, str], like: Callable[[], tuple[Any, Any]], best: Params | None = None
    ) -> Snapshot | None:
        """The newest that is sound, in the shape of what ``like`` gives; None where there is none.

        Args:
            request: what is asked for.
            like: gives a state and a record; it is not asked where there is no checkpoint.
            best: parameters, where a run's best answer so far is kept; else None.

        Raises:
            ValueError: it is of another request, or of another version of softswitch.
        """
        for file, told, arrays in self._sound():
            _refuse_other(file, _request(file, told), request)
            with or_damaged(file):
                state, record, found = shaped(arrays, (*like(), best))
                return Snapshot(
                    state,
                    record,
                    int(told["done"]),
                    float(told["seconds"]),
                    int(told["averaging_from"]),
                    tuple(json.loads(told["names"])),
                    found,
                    told.get("journal", ""),
                )
        return None

    def said(self, name: str) -> str | None:
        """What the newest that is sound says of its request under a name; None where it says nothing.

        Args:
            name: of an entry of the request.
        """
        for file, told, _ in self._sound():
            return _request(file, told).get(name)
        return None

    def _sound(self) -> Iterator[tuple[Path, dict[str, str], dict[str, np.ndarray]]]:
        """Those that are whole, the newest first: the file, its words, its arrays."""
        for file in self._files():
            try:
                told, arrays = _read(file)
            except (OSError, SafetensorError, _Damaged, KeyError, TypeError, RecursionError):
                continue  # cut short or damaged: the one before
            yield file, told, arrays

    def _files(self) -> list[Path]:
        """All, the newest first."""
        return sorted(Path(self.folder).glob(f"round-*{SUFFIX}"), reverse=True)


class _Damaged(Exception):  # noqa: N818
    """A file is not what it was when it was written."""


def _request(file: Path, told: Mapping[str, str]) -> dict[str, str]:
    """What a checkpoint says it was asked for."""
    with or_damaged(file):
        request = json.loads(told["request"])
        check_shape(request, Each(str), "request")
    return dict(request)


def _refuse_other(file: Path, there: Mapping[str, str], request: Mapping[str, str]) -> None:
    for name, asked in request.items():
        if there.get(name) == asked or name == "jax":
            continue
        other = f"its {name} is {there.get(name)}, but {asked} is asked for"
        if name in DIGESTS:
            other = f"{DIGESTS[name]} differs from what is asked for"
        if there.get("jax") != request.get("jax"):
            other += f" (it was written with JAX {there.get('jax')}; this is {request.get('jax')})"
        raise ValueError(f"{file} is of another request: {other}; use another folder")


def _digest_of_words(told: Mapping[str, str]) -> str:
    """A digest of all that is told beside the arrays; earlier checkpoints have none."""
    words = json.dumps({name: word for name, word in told.items() if name != "words"}, sort_keys=True)
    return hashlib.sha256(words.encode()).hexdigest()


def _read(file: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """A checkpoint's words and arrays; raises where it is damaged."""
    check_size(file, TENSORS)
    with safe_open(file, framework="numpy") as opened:
        told = opened.metadata() or {}
        if told.get("format", "").startswith(KIND) and told["format"] != FORMAT:
            raise ValueError(
                f"{file} was written by another version of softswitch ({told['format']!r}; this one reads {FORMAT!r}); "
                "go on with that version, or use another folder"
            )
        arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
    sound = told.get("format") == FORMAT and told["digest"] == fingerprint(arrays)
    if not sound or told.get("words", _digest_of_words(told)) != _digest_of_words(told):
        raise _Damaged(file)
    return told, arrays
