"""A result's files: words as JSON, arrays as safetensors, the history as NumPy's own format. No pickles."""

from __future__ import annotations

import io
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import optax
from safetensors.numpy import save

from softswitch import methods as methods
from softswitch.methods.base import Method
from softswitch.methods.proximal import Proximal
from softswitch.methods.schedules import FallingStep, NormalizedAdam
from softswitch.results.history import History
from softswitch.support import checks
from softswitch.support.arrays import from_outline, named, outline, shaped
from softswitch.support.files import or_damaged, read_json, read_npz, write_atomically, write_json

WORDS, ARRAYS, HISTORY = "result.json", "arrays.safetensors", "history.npz"
FORMAT = "softswitch result 2"


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
    words = read_json(file)
    found = words.get("format") if isinstance(words, dict) else None
    if found != FORMAT:
        raise ValueError(f"{file} has the format {found!r}, but {FORMAT!r} is what this version reads")
    return dict(words)


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
    arrays = read_npz(file)
    with or_damaged(file):
        history = History.from_arrays(arrays)
        _check_lengths(history)
    return history


def _check_lengths(history: History) -> None:
    """Raise where parts of a history are of other lengths than the rounds they are about."""
    rounds, looks = history.objective.shape, history.full_rounds.shape
    own = {name: array.shape for name, array in history.to_arrays().items()}
    about = {
        name: looks if name.startswith(("full", "held_out")) else rounds
        for name in own
        if not name.startswith("per_client.")
    }
    wrong = [name for name, shape in about.items() if own[name] != shape]
    if history.per_client is not None:
        places = history.per_client.clients.shape
        wrong += [name for name in own if name.startswith("per_client.") and own[name][:2] != places]
        deep = history.per_client.constraint.ndim != 3 or history.per_client.clients.dtype.kind not in "iu"
        wrong += ["per_client"] * (deep or len(places) != 2 or places[:1] != rounds)
    if wrong or len(rounds) != 1 or len(looks) != 1:
        raise ValueError(f"its parts do not fit together: {', '.join(wrong)}")
    if history.full_rounds.dtype.kind not in "iu" or history.feasible.dtype.kind != "b":
        raise ValueError("rounds are no whole numbers, or the switch is not told by truth values")


OWN = (FallingStep, NormalizedAdam, Proximal)


def describe_rule(method: Method) -> dict[str, Any]:
    """The rule for JSON: its kind, and its settings. Of optax's functions the name is kept, of others their repr."""
    return {
        "kind": type(method).__name__,
        "module": type(method).__module__,
        "settings": {field.name: _described(getattr(method, field.name)) for field in fields(method)},
    }


def rule_described(told: dict[str, Any]) -> Method:
    """The rule of a description; raise where it is of a user's own kind, or holds functions of their own."""
    kind, settings = told["kind"], told["settings"]
    own = [name for name, value in settings.items() if isinstance(value, dict) and "repr" in value]
    if not told["module"].startswith(f"{methods.__name__}.") or own:
        what = f"is a {kind}" if not own else f"has functions of its own for {' and '.join(own)}"
        raise ValueError(f"the rule {what}, which no file can hold; hand it in: rule=…")
    made: Method = getattr(methods, kind)(**{name: _value(value) for name, value in settings.items()})
    return made


def same_rule(method: Method, told: dict[str, Any]) -> Method:
    """The rule that is handed in, or raise where it is not the one described, as far as a description goes."""
    checks.expect("method", method, Method)
    here = describe_rule(method)
    if here["kind"] != told["kind"]:
        raise ValueError(f"method must be a {told['kind']}, as was saved, but is {method!r}")
    for name, value in told["settings"].items():
        functions = any(isinstance(one, dict) and "repr" in one for one in (value, here["settings"].get(name)))
        if not functions and here["settings"].get(name) != value:
            raise ValueError(f"method must have {name} = {value!r}, as was saved, but is {method!r}")
    return method


def _described(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if type(value) in OWN:
        return {"own": type(value).__name__, **asdict(value)}
    name = getattr(value, "__name__", "")
    return {"optax": name} if name and getattr(optax, name, None) is value else {"repr": repr(value)}


def _value(told: Any) -> Any:
    if not isinstance(told, dict):
        return told
    if "optax" in told:
        return getattr(optax, told["optax"])
    numbers = dict(told)
    return {kind.__name__: kind for kind in OWN}[numbers.pop("own")](**numbers)
