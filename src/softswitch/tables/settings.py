"""The settings of ``softswitch train``: a TOML file, checked key by key before any work."""

from __future__ import annotations

import difflib
import json
import tomllib
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from softswitch.problem.words import ALPHA_SCALES, ANSWERS, CRITERIA

TASKS = ("neyman-pearson", "demographic-parity", "equal-opportunity", "group-loss", "own")
METHODS = ("softmax", "average", "hard", "penalty", "primal-dual")
OPTIMIZERS = ("sgd", "adam")


def says(comment: str, default: Any = MISSING, *, one_of: tuple[str, ...] = ()) -> Any:
    """A setting with its comment for the file, its default, and the words that it may be."""
    told = {"comment": comment, "one_of": one_of}
    if isinstance(default, list):
        return field(default_factory=lambda: tuple(default), metadata=told)
    return field(default=default, metadata=told)


@dataclass(frozen=True)
class DataSection:
    """Where the rows are, and what their columns mean."""

    file: str = says("CSV or Parquet, one row a case; a relative path is taken from this file's folder.")
    label: str = says("The column to predict.")
    client: str = says("The column that says whose row it is: hospital, branch, device.")
    positive: str | int | float | bool | None = says(
        "The label's value that counts as positive; the larger of two by default.", None
    )
    features: tuple[str, ...] = says("Columns to learn from; empty: all but label, client and those ignored.", [])
    ignore: tuple[str, ...] = says("Columns to leave out.", [])
    held_out: float = says("The share of each client's rows that is kept for the certificate.", 0.25)


@dataclass(frozen=True)
class TaskSection:
    """What is to be small, and what must hold at every client."""

    kind: str = says(f"What must hold: {', '.join(TASKS)}.", "neyman-pearson", one_of=TASKS)
    at_most: float = says("The constraint's bound, the tolerance: a loss, or a gap of probabilities.", 0.1)
    sensitive: str | None = says("For parity, opportunity and group loss: the column with the group.", None)
    protected: str | int | float | bool | None = says("The value of that column that is the protected group.", None)
    objective: str | None = says("For kind 'own': 'module:function' of (params, batch), to be small.", None)
    constraint: str | None = says("For kind 'own': 'module:function' of (params, batch), at most at_most.", None)


@dataclass(frozen=True)
class ModelSection:
    """What is learnt."""

    hidden: tuple[int, ...] = says("Widths of hidden layers; empty: logistic regression.", [])


@dataclass(frozen=True)
class MethodSection:
    """How it is learnt."""

    name: str = says(f"One of {', '.join(METHODS)}.", "softmax", one_of=METHODS)
    alpha: float | None = says("How sharply weights lean to the worst client; 10·ln(clients)/at_most by default.", None)
    alpha_scale: str = says("What alpha is measured in: raw values, or their spread.", "raw", one_of=ALPHA_SCALES)
    step_size: float | None = says("The server's step; 0.5 with sgd, 0.001 with adam by default.", None)
    optimizer: str | None = says(
        "sgd or adam; sgd for logistic regression, adam for networks by default.", None, one_of=OPTIMIZERS
    )
    criterion: str | None = says(
        f"What the switch looks at: {', '.join(CRITERIA)}; the method's own by default.", None, one_of=CRITERIA
    )
    penalty: float = says("Weight of violations, for 'penalty'.", 10.0)
    multiplier: float = says("First multiplier, for 'primal-dual'.", 1.0)
    dual_step_size: float = says("Step of the multipliers, for 'primal-dual'.", 0.01)


@dataclass(frozen=True)
class RunSection:
    """How long, how many, and where to."""

    rounds: int = says("How many rounds.", 1000)
    local_steps: int = says("Gradient steps of a client in a round.", 1)
    participation: float = says("The share of clients in a round.", 1.0)
    batch_size: int = says("Rows a client draws; 0: all it has.", 32)
    seed: int = says("Of all random choices.", 0)
    answer: str | None = says(
        "The model: average of the feasible iterates, last or best; by default average, but last for networks.",
        None,
        one_of=ANSWERS,
    )
    confidence: float = says(
        "Of the certificate: the probability with which all of its statements hold together.", 0.95
    )
    folder: str = says("Where run folders are made, from this file's folder.", "runs")


@dataclass(frozen=True)
class Config:
    """All settings of a training run."""

    data: DataSection
    task: TaskSection = field(default_factory=TaskSection)
    model: ModelSection = field(default_factory=ModelSection)
    method: MethodSection = field(default_factory=MethodSection)
    run: RunSection = field(default_factory=RunSection)


Settings = TypeVar("Settings")
SECTIONS: dict[str, type] = {
    "data": DataSection,
    "task": TaskSection,
    "model": ModelSection,
    "method": MethodSection,
    "run": RunSection,
}


def read_config(file: str | Path) -> Config:
    """Read and check a file of settings."""
    path = Path(file)
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} could not be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    return config_from(told)


def config_from(told: dict[str, Any]) -> Config:
    """Check settings given as nested dicts."""
    _refuse_unknown(told, SECTIONS, "")
    if "data" not in told:
        raise ValueError("[data] is missing; it needs file, label and client")
    for name, part in told.items():
        if not isinstance(part, dict):
            raise ValueError(f"{name} must be a section, [{name}], but is {part!r}")
    return Config(**{name: _section(SECTIONS[name], part, name) for name, part in told.items()})


def _section(kind: type[Settings], told: dict[str, Any], where: str) -> Settings:
    known = {entry.name: entry for entry in fields(kind)}  # type: ignore[arg-type]
    _refuse_unknown(told, known, f"{where}.")
    hints = get_type_hints(kind)
    missing = [n for n, e in known.items() if n not in told and e.default is MISSING and e.default_factory is MISSING]
    if missing:
        raise ValueError(f"{where}.{missing[0]} is missing: {known[missing[0]].metadata['comment']}")
    return kind(**{name: _value(value, hints[name], known[name], f"{where}.{name}") for name, value in told.items()})


def _refuse_unknown(told: dict[str, Any], known: Any, prefix: str) -> None:
    for name in told:
        if name not in known:
            near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"there are {', '.join(prefix + k for k in known)}"
            raise ValueError(f"{prefix}{name} is not a setting; {hint}")


def _value(value: Any, hint: Any, entry: Field[Any], where: str) -> Any:
    """The value in the type of its setting, or raise."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if entry.metadata["one_of"] and value not in entry.metadata["one_of"]:
        raise ValueError(f"{where} must be one of {', '.join(entry.metadata['one_of'])}, but is {value!r}")
    for kind in kinds:
        if get_origin(kind) is tuple:
            member = get_args(kind)[0]
            if isinstance(value, list | tuple) and all(type(one) is member for one in value):
                return tuple(value)
        elif type(value) is kind or (kind is float and type(value) is int):
            return kind(value)
    names = [
        f"a list of {get_args(k)[0].__name__}" if get_origin(k) is tuple else k.__name__
        for k in kinds
        if k is not type(None)
    ]
    raise ValueError(f"{where} must be {' or '.join(names)}, but is {value!r}")


def write_config(config: Config, *, comments: bool = True) -> str:
    """The settings as TOML, with their comments; those that have no value are shown commented out."""
    lines = []
    for section in SECTIONS:
        part = getattr(config, section)
        if comments:
            lines.append(f"# {type(part).__doc__}")
        lines.append(f"[{section}]")
        for entry in fields(part):
            value = getattr(part, entry.name)
            if comments:
                lines.append(f"# {entry.metadata['comment']}")
            if value is not None:
                lines.append(f"{entry.name} = {_toml(value)}")
            elif comments:
                lines.append(f"# {entry.name} =")
        lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    """Numbers, words, truth values and lists of them: what JSON and TOML write alike."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False, allow_nan=False)
