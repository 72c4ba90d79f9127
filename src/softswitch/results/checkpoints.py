"""Checkpoints of a run: snapshots of its state in files that are written atomically."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from softswitch.methods.state import State
from softswitch.problem.parameters import Params
from softswitch.support import checks
from softswitch.support.arrays import fingerprint, flatten_by_path, unflatten_by_path
from softswitch.support.files import MAX_TENSOR_BYTES, check_size, make_folder, wrap_read_errors, write_atomically
from softswitch.support.processes import lock_folder

KIND, FORMAT = "softswitch checkpoint", "softswitch checkpoint 7"
SUFFIX = ".safetensors"
DIGESTS = {  # entries of a run's identity that are digests -> their descriptions in error messages
    "program": "the computation (functions, a schedule, the optimiser, or arrays in their closures)",
    "clients": "the clients' data",
    "start": "the start",
    "numbers": "a number in the method, the domain or the memory",
}
VALUES = {"done": int, "seconds": float, "averaging_from": int, "names": [str], "journal": str}  # not arrays


class Snapshot(NamedTuple):
    """A run between two rounds: all that is needed to continue it."""

    state: Any  # state of the server
    record: Any  # the rounds so far, joined into one Record
    done: int  # number of completed rounds
    seconds: float  # wall time of these rounds
    averaging_from: int  # first round that may join the average
    names: tuple[str, ...] = ()  # clients so far; empty if all were known in advance
    best: Params | None = None  # best answer so far of an auto-tuned run; else None
    journal: str = ""  # choices of an auto-tuned run as JSON; else empty

    def extend(self, rounds: int, averaging_from: int, first: State) -> Snapshot:
        """Return the snapshot that a run of ``rounds`` rounds would have here, or raise ValueError if it is unknown.

        ``averaging_from`` is the first round that may join the average of that run, and ``first`` its first state.
        """
        self.check_rounds(rounds)
        if averaging_from == self.averaging_from:
            return self
        if averaging_from < self.done:
            raise ValueError(
                f"the average of {rounds} rounds must begin with round {averaging_from}, but the checkpoint after "
                f"{self.done} rounds has averaged from {self.averaging_from} on; choose rounds and average_last so "
                f"that the average begins with round {self.done} or later, or use another folder"
            )
        return self._replace(state=self.state._replace(average=first.average), averaging_from=averaging_from)

    def check_rounds(self, rounds: int) -> None:
        """Raise ValueError if the snapshot has more than ``rounds`` rounds."""
        if self.done > rounds:
            minimum = f"at least {self.done}, the number of rounds in the checkpoint"
            raise ValueError(f"rounds must be {minimum}, but is {rounds}; use another folder")


@dataclass
class Checkpoints:
    """Checkpoints of a run in a folder, to resume it after an interruption.

    ``solve`` saves a checkpoint after a chunk of rounds if ``every`` seconds have passed, and at the end. If the
    folder holds a checkpoint of the same run, ``solve`` resumes it, to exactly the result of an uninterrupted run. With
    more rounds, it continues a finished run. A checkpoint of another run is refused: another start, seed, method,
    data or functions, including functions that differ only in the arrays of their closures.

    Files are written atomically and have a digest of their contents. If the newest is damaged, the previous one is
    used. The two newest are kept. While a run uses the folder, a second run is refused.

    Attributes:
        folder: The folder. It is created if it does not exist.
        every: Minimum number of seconds between two checkpoints; 0 saves after every chunk. Default: 10.
    """

    folder: str | Path
    every: float = 10.0
    _last: float = field(default_factory=time.monotonic, repr=False)

    def __post_init__(self) -> None:
        self.folder = Path(self.folder)
        self.every = checks.check_real("every", self.every, minimum=0)

    def lock(self) -> AbstractContextManager[None]:
        """Return a context manager that locks the folder, and raises an error if another run uses it."""
        return lock_folder(Path(self.folder))

    def is_due(self) -> bool:
        """Return whether ``every`` seconds have passed since the last checkpoint."""
        return time.monotonic() - self._last >= self.every

    def save(self, snapshot: Snapshot, identity: Mapping[str, str]) -> Path:
        """Write a checkpoint, remove all but the two newest, and return the path of the new file.

        Args:
            snapshot: The run after its last completed round.
            identity: What the run depends on (data, method, seed), as text by name. Only a run of the same identity can
                resume it.
        """
        folder = Path(self.folder)
        make_folder(folder)
        arrays = flatten_by_path((snapshot.state, snapshot.record, snapshot.best))
        values = {name: getattr(snapshot, name) for name in VALUES}
        content = json.dumps({"identity": dict(identity), **values})
        metadata = {"format": FORMAT, "content": content, "digest": _digest(content, arrays)}
        file = folder / f"round-{snapshot.done:09d}{SUFFIX}"
        write_atomically(file, save(arrays, metadata))
        for old in self._files()[2:]:
            old.unlink(missing_ok=True)
        self._last = time.monotonic()
        return file

    def latest(
        self, identity: Mapping[str, str], like: Callable[[], tuple[Any, Any]], best: Params | None = None
    ) -> Snapshot | None:
        """Return the newest intact checkpoint; None if there is none. One of another run or version raises ValueError.

        Args:
            identity: What the run depends on, as text by name; see ``save``.
            like: Returns a state and a record of the structure to restore.
            best: Parameters with the structure of the best answer of an auto-tuned run. Default: None, not auto-tuned.
        """
        newest = self._newest()
        if newest is None:
            return None
        file, content, arrays = newest
        _check_identity(file, content["identity"], identity)
        structure = like()  # may call the user's clients, whose errors are not those of the file
        with wrap_read_errors(file):
            state, record, best = unflatten_by_path(arrays, (*structure, best))
            values = {name: content[name] for name in VALUES} | {"names": tuple(content["names"])}
            return Snapshot(state=state, record=record, best=best, **values)

    def saved_identity(self, name: str) -> str | None:
        """Return an entry of the newest checkpoint's identity; None without a checkpoint or the entry.

        Arrays are neither read nor checked, because all checkpoints in the folder have the same identity.

        Args:
            name: Name of the entry, such as "method".
        """
        for file, metadata in self._headers():
            with suppress(ValueError):
                identity: dict[str, str] = _read_content(file, metadata)["identity"]
                return identity.get(name)
        return None

    def saved_rounds(self) -> tuple[int, int]:
        """Return the completed rounds of the newest intact checkpoint and its first averaged one; (0, 0) without it."""
        newest = self._newest()
        return (0, 0) if newest is None else (newest[1]["done"], newest[1]["averaging_from"])

    def saved_names(self) -> tuple[str, ...]:
        """Return the clients of the newest intact checkpoint, in their order; none if there is no checkpoint."""
        newest = self._newest()
        return () if newest is None else tuple(newest[1]["names"])

    def _files(self) -> list[Path]:
        return sorted(Path(self.folder).glob(f"round-*{SUFFIX}"), reverse=True)

    def _headers(self) -> Iterator[tuple[Path, dict[str, str]]]:
        """Yield the checkpoints that can be opened and their metadata, the newest first. Arrays are not read."""
        for file in self._files():
            try:
                check_size(file, MAX_TENSOR_BYTES)
                with safe_open(file, framework="numpy") as opened:
                    metadata = opened.metadata() or {}
            except (OSError, SafetensorError):
                continue
            written = metadata.get("format", "")
            if written.startswith(KIND) and written != FORMAT:
                raise ValueError(
                    f"{file} was written by another version of softswitch ({written!r}; this one reads {FORMAT!r}); "
                    "resume with that version, or use another folder"
                )
            if written == FORMAT:
                yield file, metadata

    def _newest(self) -> tuple[Path, dict[str, Any], dict[str, np.ndarray]] | None:
        """Return the file, the content and the arrays of the newest checkpoint whose digest matches."""
        for file, metadata in self._headers():
            try:
                arrays = load_file(file)
                is_intact = metadata["digest"] == _digest(metadata["content"], arrays)
            except (OSError, SafetensorError, KeyError, TypeError, RecursionError):
                continue
            if is_intact:
                return file, _read_content(file, metadata), arrays
        return None


def _read_content(file: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a checkpoint that are not arrays, and its identity."""
    with wrap_read_errors(file):
        content: dict[str, Any] = json.loads(metadata["content"])
        checks.check_schema(content, {"identity": checks.MapOf(str), **VALUES}, "checkpoint")
    return content


def _check_identity(file: Path, saved: Mapping[str, str], identity: Mapping[str, str]) -> None:
    for name, value in identity.items():
        if saved.get(name) == value or name == "jax":
            continue
        difference = f"{DIGESTS[name]} differs" if name in DIGESTS else f"its {name} is {saved.get(name)}, not {value}"
        if saved.get("jax") != identity.get("jax"):
            difference += f" (it was written with JAX {saved.get('jax')}; this is {identity.get('jax')})"
        raise ValueError(f"{file} is a checkpoint of another run: {difference}; use another folder")


def _digest(content: str, arrays: Mapping[str, np.ndarray]) -> str:
    return hashlib.sha256(f"{content}{fingerprint(arrays)}".encode()).hexdigest()
