"""The files of a saved result: JSON, safetensors and NumPy archives, no pickles."""

from __future__ import annotations

import io
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import optax
from safetensors.numpy import save

from softswitch import methods
from softswitch.methods.base import Method
from softswitch.methods.schedules import FallingStep, NormalizedAdam
from softswitch.results.history import History
from softswitch.support import checks
from softswitch.support.arrays import decode_structure, encode_structure, flatten_by_path, unflatten_by_path
from softswitch.support.files import read_json, read_npz, wrap_read_errors, write_atomically, write_json

FIELDS, ARRAYS, HISTORY = "result.json", "arrays.safetensors", "history.npz"
FORMAT = "softswitch result 2"
CUSTOM_STRUCTURE = {"like": True}  # the outline of a tree that is not made of dicts, lists and tuples


def write(folder: Path, values: dict[str, Any], trees: dict[str, Any], history: History) -> None:
    """Write a result to an empty folder. The JSON file is last: it exists only if all files do."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / FIELDS).exists():
        raise ValueError(f"folder must be empty, but {folder} already holds a result")
    arrays: dict[str, np.ndarray] = {}
    outlines: dict[str, Any] = {}
    for name, tree in trees.items():
        arrays |= {f"{name}:{path}": array for path, array in flatten_by_path(tree).items()}
        try:
            outlines[name] = encode_structure(tree)
        except TypeError:
            outlines[name] = CUSTOM_STRUCTURE
    write_atomically(folder / ARRAYS, save(arrays))
    write_history(folder / HISTORY, history)
    write_json(folder / FIELDS, {"format": FORMAT, **values, "outlines": outlines})


def read_format(file: Path, expected: str) -> dict[str, Any]:
    """Read a JSON object with an entry ``format`` of the expected value."""
    content = read_json(file)
    found = content.get("format") if isinstance(content, dict) else None
    if found != expected:
        raise ValueError(f"{file} has the format {found!r}, but this version reads {expected!r}")
    return dict(content)


def restore_tree(outlines: dict[str, Any], arrays: dict[str, np.ndarray], name: str, like: Any) -> Any:
    """Restore a tree of a result. ``like`` has its structure, if that is not made of dicts, lists and tuples."""
    prefix = f"{name}:"
    leaves = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
    structure = outlines[name]
    if like is not None:
        return unflatten_by_path(leaves, like) if structure is not None else None
    if structure == CUSTOM_STRUCTURE:
        raise ValueError(
            f"{name} is not made of dicts, lists and tuples; pass like=…, parameters of the same structure"
        )
    return decode_structure(structure, leaves)


def write_history(file: Path, history: History) -> None:
    """Write a history atomically."""
    stream = io.BytesIO()
    np.savez_compressed(stream, **history.to_arrays())  # type: ignore[arg-type]
    write_atomically(file, stream.getvalue(), durable=False)


def read_history(file: Path) -> History:
    """Read a history and check that its arrays have consistent shapes."""
    arrays = read_npz(file)
    with wrap_read_errors(file):
        return _check_shapes(History.from_arrays(arrays))


def _check_shapes(history: History) -> History:
    rounds, evaluations, reports = history.objective.shape, history.full_rounds.shape, history.per_client
    places = () if reports is None else reports.clients.shape

    def fits(name: str, shape: tuple[int, ...]) -> bool:
        if name.startswith("per_client."):
            return shape[:2] == places
        return shape == (evaluations if name.startswith(("full", "held_out")) else rounds)

    wrong = [name for name, array in history.to_arrays().items() if not fits(name, array.shape)]
    if reports is not None and (len(places) != 2 or places[:1] != rounds or reports.constraint.ndim != 3):
        wrong.append("per_client")
    if wrong or len(rounds) != 1 or len(evaluations) != 1:
        raise ValueError(f"its arrays have inconsistent shapes: {', '.join(wrong)}")
    integers = [history.full_rounds, *([] if reports is None else [reports.clients])]
    if any(array.dtype.kind not in "iu" for array in integers) or history.feasible.dtype.kind != "b":
        raise ValueError("full_rounds and clients must be integers and feasible must be booleans")
    return history


_SETTINGS_TYPES = {cls.__name__: cls for cls in (FallingStep, NormalizedAdam)}


def describe_method(method: Method) -> dict[str, Any]:
    """Describe a method for JSON. Functions of optax are described by name, others by their repr."""
    return {
        "kind": type(method).__name__,
        "module": type(method).__module__,
        "settings": {entry.name: _describe_setting(getattr(method, entry.name)) for entry in fields(method)},
    }


def restore_method(described: dict[str, Any], given: Method | None = None) -> Method:
    """Restore a method, or check that the given one differs only in its custom functions from the description."""
    kind, settings = described["kind"], described["settings"]
    if given is None:
        custom = [name for name, value in settings.items() if _is_custom(value)]
        if not described["module"].startswith(f"{methods.__name__}.") or custom:
            reason = f"is a {kind}" if not custom else f"has custom functions for {' and '.join(custom)}"
            raise ValueError(f"the method {reason}, which cannot be saved; pass it as method=…")
        method: Method = getattr(methods, kind)(**{name: _restore_setting(value) for name, value in settings.items()})
        return method
    checks.check_instance("method", given, Method)
    current = describe_method(given)
    if current["kind"] != kind:
        raise ValueError(f"method must be a {kind}, as was saved, but is {given!r}")
    for name, value in settings.items():
        setting = current["settings"].get(name)
        if setting != value and not _is_custom(value) and not _is_custom(setting):
            raise ValueError(f"method must have {name} = {value!r}, as was saved, but is {given!r}")
    return given


def _is_custom(described: Any) -> bool:
    return isinstance(described, dict) and "repr" in described


def _describe_setting(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if type(value) in _SETTINGS_TYPES.values():
        return {"type": type(value).__name__, **asdict(value)}
    name = getattr(value, "__name__", "")
    return {"optax": name} if name and getattr(optax, name, None) is value else {"repr": repr(value)}


def _restore_setting(described: Any) -> Any:
    if not isinstance(described, dict):
        return described
    if "optax" in described:
        return getattr(optax, described["optax"])
    return _SETTINGS_TYPES[described["type"]](**{name: v for name, v in described.items() if name != "type"})
