"""A result's files: words as JSON, arrays as safetensors, the history as NumPy's own format. No pickles."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from softswitch.results.history import History
from softswitch.support.arrays import from_outline, named, outline, shaped
from softswitch.support.files import write_atomically, write_json

WORDS, ARRAYS, HISTORY = "result.json", "arrays.safetensors", "history.npz"
FORMAT = "softswitch result 1"


def write(folder: Path, words: dict[str, Any], trees: dict[str, Any], history: History) -> None:
    """Write a result into a folder of its own; the words come last, so that they are there once all is."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / WORDS).exists():
        raise ValueError(f"{folder} holds a result already; a result has a folder of its own")
    arrays: dict[str, np.ndarray] = {}
    outlines: dict[str, Any] = {}
    for name, tree in trees.items():
        arrays |= {f"{name}:{path}": array for path, array in named(tree).items()}
        try:
            outlines[name] = outline(tree)
        except TypeError:
            outlines[name] = {"like": True}
    write_atomically(folder / ARRAYS, save(arrays))
    write_history(folder / HISTORY, history)
    write_json(folder / WORDS, {"format": FORMAT, **words, "outlines": outlines})


def read_words(folder: Path) -> dict[str, Any]:
    """A result's words, or raise."""
    file = folder / WORDS
    if not file.exists():
        raise ValueError(f"{str(folder)!r} must be a folder that Result.save has written, but has no {WORDS}")
    words: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if words.get("format") != FORMAT:
        raise ValueError(f"{file} has the format {words.get('format')!r}, but {FORMAT!r} is what this version reads")
    return words


def tree(name: str, words: dict[str, Any], arrays: dict[str, np.ndarray], like: Any) -> Any:
    """One of a result's trees; ``like`` has its structure, where that is not plain dicts, lists and tuples."""
    own = {key.removeprefix(f"{name}:"): array for key, array in arrays.items() if key.startswith(f"{name}:")}
    outlined = words["outlines"][name]
    if like is not None:
        return shaped(own, like) if outlined is not None else None
    if outlined == {"like": True}:
        raise ValueError(
            f"{name} is not made of dicts, lists and tuples alone; give like=…, parameters of the same structure"
        )
    return from_outline(outlined, own)


def write_history(file: Path, history: History) -> None:
    """Write a history, whole or not at all."""
    stream = io.BytesIO()
    np.savez_compressed(stream, **history.to_arrays())  # type: ignore[arg-type]
    write_atomically(file, stream.getvalue(), durable=False)


def read_history(file: Path) -> History:
    """Read a history."""
    with np.load(file, allow_pickle=False) as stored:
        return History.from_arrays({name: stored[name] for name in stored.files})
