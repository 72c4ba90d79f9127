"""Checkpoints: where a run stands, in files that are either whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from softswitch.support import checks

FORMAT = "softswitch checkpoint 1"
SUFFIX = ".safetensors"


class Standing(NamedTuple):
    """Where a run stands after so many rounds.

    Attributes:
        state: all that the server keeps.
        record: the history so far, as one record.
        done: how many rounds.
        seconds: how long they took.
        names: the labels of the clients met so far, where they are not known beforehand.
    """

    state: Any
    record: Any
    done: int
    seconds: float
    names: tuple[str, ...] = ()


@dataclass
class Checkpoints:
    """Keeps a run's standing in a folder, so that it can go on after Ctrl-C, a kill or a power cut.

    Given to ``solve``, it saves after a chunk of rounds where ``every`` seconds have gone by, and at the end. Where the
    folder already holds a checkpoint of the same request, ``solve`` goes on from there, to exactly the result of a run
    that was never interrupted. A checkpoint of another request is refused.

    A file is written beside its place, flushed to the disk and then moved there, so that it is whole or not there; a
    digest of its contents tells a damaged one, and the one before is used. The two newest are kept.

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

    def due(self) -> bool:
        """Whether it is time for another."""
        return time.monotonic() - self._last >= self.every

    def save(self, standing: Standing, request: dict[str, str]) -> Path:
        """Write where the run stands, and remove all but the two newest."""
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        arrays = named((standing.state, standing.record))
        told = {
            "format": FORMAT,
            "request": json.dumps(request),
            "done": str(standing.done),
            "seconds": repr(standing.seconds),
            "names": json.dumps(standing.names),
            "digest": _digest(arrays),
        }
        file = folder / f"round-{standing.done:09d}{SUFFIX}"
        write_atomically(file, save(arrays, told))
        for old in self._files()[2:]:
            old.unlink(missing_ok=True)
        self._last = time.monotonic()
        return file

    def latest(self, request: dict[str, str], like: tuple[Any, Any]) -> Standing | None:
        """The newest that is sound, in the shape of ``like`` (a state and a record); None where there is none.

        Raises:
            ValueError: it is of another request.
        """
        for file in self._files():
            try:
                told, arrays = _read(file)
            except (OSError, SafetensorError, ValueError, KeyError):
                continue  # cut short or damaged: the one before
            there = json.loads(told["request"])
            for name in request:
                if there.get(name) != request[name]:
                    raise ValueError(
                        f"{file} is of another request: its {name} is {there.get(name)}, but {request[name]} is asked "
                        "for; use another folder"
                    )
            state, record = shaped(arrays, like)
            names = tuple(json.loads(told.get("names", "[]")))
            return Standing(state, record, int(told["done"]), float(told["seconds"]), names)
        return None

    def _files(self) -> list[Path]:
        """All, the newest first."""
        return sorted(Path(self.folder).glob(f"round-*{SUFFIX}"), reverse=True)


def write_atomically(file: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file so that it is whole or not there, come what may; ``durable``: even a power cut."""
    beside = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
    if not durable:
        return
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def fingerprint(*trees: Any) -> str:
    """A digest of all arrays in the trees: shapes, types and values."""
    return _digest({f"{i}{name}": array for i, tree in enumerate(trees) for name, array in named(tree).items()})


def words(settings: Any) -> dict[str, str]:
    """A dataclass's settings that are not arrays, as text that is the same in every process."""
    assert is_dataclass(settings)
    static = [entry.name for entry in fields(settings) if entry.metadata.get("static")]
    return {name: without_addresses(repr(getattr(settings, name))) for name in static}


def without_addresses(text: str) -> str:
    """A repr that is the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def named(tree: Any) -> dict[str, np.ndarray]:
    """The leaves by their paths."""
    return {
        jax.tree_util.keystr(path): np.asarray(leaf, order="C")
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _digest(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _read(file: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """A checkpoint's words and arrays; raises where it is damaged."""
    with safe_open(file, framework="numpy") as opened:
        told = opened.metadata() or {}
        arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
    if told.get("format") != FORMAT or told["digest"] != _digest(arrays):
        raise ValueError(f"{file} is damaged")
    return told, arrays


def shaped(arrays: dict[str, np.ndarray], like: Any) -> Any:
    """Arrays by their paths as a tree again, in the structure of ``like``."""
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    return jax.tree.unflatten(structure, [arrays[jax.tree_util.keystr(path)] for path, _ in paths])
