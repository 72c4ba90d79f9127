"""The settings of ``softswitch train``: a TOML file that is validated before any work."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from softswitch.problem.choices import ANSWERS, CRITERIA, LOSSES, SCORES, THRESHOLDS
from softswitch.support.checks import closest_match
from softswitch.tables.constraints import KINDS

OPTIMIZERS = ("sgd", "adam")
MEMORIES = ("on", "off", "corrected")
AIMS = ("certified", "bare")
ALL = "all"  # value of a batch size for all rows
AUTO = "auto"  # value of a setting that the library chooses during training


@dataclass(frozen=True)
class OneOf:
    """Type annotation of a string setting that must be one of ``choices``, which are read at validation."""

    choices: Iterable[str]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.literal_schema(list(self.choices))


def setting(comment: str, default: Any = MISSING) -> Any:
    """Return the dataclass field of a setting, with its comment in the TOML file. Without a default it is required."""
    return field(default=default, metadata={"comment": comment})


@dataclass(frozen=True)
class DataSection:
    """The table file and the roles of its columns."""

    file: str = setting("CSV, Parquet or Excel file with one row per case; relative to the folder of this file.")
    label: str = setting("Column to predict.")
    client: str = setting("Column that identifies the client of a row: hospital, branch, device.")
    positive: str | int | float | bool | None = setting("Positive value of two classes. Default: the larger.", None)
    label_range: tuple[float, ...] = setting("Range of a numeric label, if known: then certificates are exact.", ())
    ignore: tuple[str, ...] = setting("Columns to ignore.", ())
    categories: tuple[str, ...] = setting("Columns of numbers that are read as categories, such as codes.", ())
    held_out: float = setting(
        "Share of each client's rows to hold out for the certificate; more at small clients.", 0.25
    )
    validation: float = setting("Share of each client's rows to select the model with if run.aim is certified.", 0.15)
    empty: tuple[str, ...] = setting("More strings that count as empty cells, besides NA, ?, - and similar ones.", ())
    separator: str = setting("Separator of a text file; auto: detected.", AUTO)
    decimal: Annotated[str, OneOf((AUTO, ".", ","))] = setting("Decimal sign of a text file; auto: detected.", AUTO)
    encoding: str = setting("Encoding of a text file; auto: detected.", AUTO)


@dataclass(frozen=True)
class TaskSection:
    """The objective, and the constraint that must hold at every client."""

    kind: Annotated[str, OneOf(KINDS)] = setting("Kind of constraint.", "neyman-pearson")
    bound: float = setting("Bound of the constraint: a rate (0.05: 5%), a loss, or an error in the label's unit.", 0.1)
    sensitive: str | None = setting("Column with the group, for parity, opportunity and group loss.", None)
    protected: str | int | float | bool | None = setting("Value of that column for the protected group.", None)
    loss: Annotated[str, OneOf((AUTO, *LOSSES))] = setting("Loss; auto: quantile for coverage, else squared.", AUTO)
    quantile: float | Literal["auto"] = setting("Of the quantile loss; auto: 1 - bound for coverage, else 0.5.", AUTO)
    regret: bool = setting("true: minimise each client's regret: its loss minus that of its own best model.", False)


@dataclass(frozen=True)
class ModelSection:
    """The architecture of the model."""

    hidden: tuple[int, ...] = setting("Widths of hidden layers; empty: no network.", ())
    score: Annotated[str, OneOf(SCORES)] = setting(
        "Score of a bounded rate, without hidden layers; auto: the mean of a linear model and gradient boosting.", AUTO
    )
    thresholds: Annotated[str, OneOf(THRESHOLDS)] = setting("Thresholds of misses or false alarms.", THRESHOLDS[0])


@dataclass(frozen=True)
class MethodSection:
    """The method. Values set to "auto" are chosen during training, or as published if step_size is set."""

    name: Annotated[str, OneOf((AUTO, "softmax"))] = setting("auto: SQP, or softmax if that is needed.", AUTO)
    alpha: float | Literal["auto"] = setting("Sharpness of the softmax weights of the clients.", AUTO)
    step_size: float | Literal["auto"] = setting("Step size of the server.", AUTO)
    optimizer: Annotated[str, OneOf((AUTO, *OPTIMIZERS))] = setting("Optimiser of the server.", AUTO)
    criterion: Annotated[str, OneOf((AUTO, *CRITERIA))] = setting("Criterion of the switch.", AUTO)
    slack: float | Literal["auto"] = setting("A in the threshold bound/(1 + 1/A) of the switch, at least 1.", AUTO)
    threshold: float | Literal["auto"] = setting("Threshold of the switch, instead of slack.", AUTO)
    local_step_size: float | Literal["auto"] = setting("Step size of the clients for several local steps.", AUTO)
    memory: Annotated[str, OneOf((AUTO, *MEMORIES))] = setting("Client memory; corrected: for small batches.", AUTO)
    robust: int = setting("Number of Byzantine clients to tolerate; as many of the worst clients are trimmed.", 0)


@dataclass(frozen=True)
class RunSection:
    """The length of the run, client sampling, and the output folder."""

    rounds: int | Literal["auto"] = setting("Number of rounds; auto: stop when progress stalls.", AUTO)
    seconds: float | None = setting("Time limit of training in rounds, in seconds. Default: no limit.", None)
    local_steps: int = setting("Local gradient steps of a client per round.", 1)
    participation: float = setting("Share of clients per round.", 1.0)
    batch_size: int | Annotated[str, OneOf((AUTO, ALL))] = setting("Rows per client and gradient; all or 0: all.", AUTO)
    value_batch_size: int | Annotated[str, OneOf((AUTO, ALL, "same"))] = setting("Rows per client and report.", AUTO)
    average_last: float | Literal["auto"] = setting("Share of the last rounds to average over.", AUTO)
    answer: Annotated[str, OneOf(ANSWERS)] = setting("Iterate to return; auto: the best in training.", AUTO)
    seed: int = setting("Seed of all random choices.", 0)
    aim: Annotated[str, OneOf(AIMS)] = setting("certified: select a certifiable model; bare: do not.", AIMS[0])
    confidence: float = setting("Confidence level of the certificate.", 0.95)
    folder: str = setting("Folder for run folders, relative to the folder of this file.", "runs")


@dataclass(frozen=True)
class PrivacySection:
    """Differential privacy of single rows. Default: none."""

    epsilon: float | None = setting("Privacy budget of the training rows.", None)
    delta: float = setting("Failure probability of the guarantee; well below 1 / rows of a client.", 1e-5)
    certificate_epsilon: float | None = setting("Privacy budget of the held-out rows. Default: none.", None)
    ranges: tuple[str, ...] = setting("Range of every numeric feature, known without the data: 'age: 30 to 80'.", ())
    levels: tuple[str, ...] = setting("Values of every categorical feature, known without the data: 'sex: F, M'.", ())
    clip_value: float = setting("Largest norm of a row's objective and constraints.", 3.0)
    clip_gradient: float = setting("Largest norm of a row's gradient.", 2.0)
    rate: float = setting("Share of its rows that a client samples for a report and for a gradient.", 1.0)


@dataclass(frozen=True)
class Config:
    """All settings of a training run, by section of the file."""

    data: DataSection
    task: TaskSection = field(default_factory=TaskSection)
    model: ModelSection = field(default_factory=ModelSection)
    method: MethodSection = field(default_factory=MethodSection)
    run: RunSection = field(default_factory=RunSection)
    privacy: PrivacySection = field(default_factory=PrivacySection)


SECTIONS: dict[str, type] = get_type_hints(Config)
for _section in (*SECTIONS.values(), Config):
    _section.__pydantic_config__ = {"strict": True, "extra": "forbid"}  # type: ignore[attr-defined]


def read_config(file: str | Path) -> Config:
    """Read and validate a settings file, which must not be a symbolic link; a ValueError lists all problems."""
    from softswitch.support.files import read_toml  # NumPy would slow down the command line

    path = Path(file)
    try:
        values = read_toml(path)
    except OSError as error:
        raise ValueError(f"{path} could not be read: {error.strerror}") from error
    return parse_config(values)


def parse_config(values: dict[str, Any]) -> Config:
    """Validate settings by section and name; a ValueError lists all problems."""
    from pydantic import TypeAdapter, ValidationError

    try:
        # JSON, because strict validation accepts dicts as dataclasses and lists as tuples only there.
        config: Config = TypeAdapter(Config).validate_json(json.dumps(values, default=lambda value: {}))
    except (ValueError, RecursionError) as error:  # without ValidationError: JSON cannot express the values
        problems = [problem["loc"] for problem in error.errors()] if isinstance(error, ValidationError) else [()]
        messages = dict.fromkeys(_message(values, *map(str, loc[:2])) for loc in problems)
        raise ValueError("\n".join(messages)) from None
    return config


def _message(values: Any, section: str | None = None, name: str | None = None) -> str:
    """Describe a problem of the settings: an unknown, missing or wrong section or value, and what is accepted."""
    if section is None:
        return f"settings must be sections of strings, numbers and lists, but are {_shorten(values)}"
    if name is None:
        if section not in SECTIONS:
            return _unknown(section, SECTIONS, "")
        if section not in values:
            return "[data] is missing; it needs file, label and client"
        return f"{section} must be a section, [{section}], but is {_shorten(values[section])}"
    known = {entry.name: entry for entry in fields(SECTIONS[section])}
    if name not in known:
        return _unknown(name, known, f"{section}.")
    if name not in values[section]:
        return f"{section}.{name} is missing: {known[name].metadata['comment']}"
    accepted = _describe(get_type_hints(SECTIONS[section], include_extras=True)[name])
    return f"{section}.{name} must be {accepted}, but is {_shorten(values[section][name])}"


def _unknown(name: str, known: Mapping[str, Any], prefix: str) -> str:
    near = closest_match(name, list(known))
    hint = f"did you mean {prefix}{near}?" if near else f"there are {', '.join(prefix + each for each in known)}"
    return f"{prefix}{name} is not a setting; {hint}"


def _describe(hint: Any) -> str:
    """Return the values that a type hint accepts, as text such as "a number" or "one of sgd, adam"."""
    if metadata := getattr(hint, "__metadata__", None):
        choices = metadata[0].choices
        return f"one of {', '.join(choices)}"
    if get_origin(hint) is Literal:
        return json.dumps(get_args(hint)[0])
    names = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
    if hint in names:
        return names[hint]
    members = [member for member in get_args(hint) if member not in (NoneType, ...)]
    if get_origin(hint) is tuple:
        return f"a list of {names[members[0]].split()[-1]}s"
    return " or ".join(map(_describe, members))


def _shorten(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # integers of thousands of digits
        return f"a very long {type(value).__name__}"
    return text if len(text) <= 120 else f"{text[:100]}…"


def replace_auto(value: Any, default: Any = None) -> Any:
    """Return the value of a setting; ``default`` if it is "auto"."""
    return default if value == AUTO else value


def write_config(config: Config) -> str:
    """Return the settings as TOML text with comments; settings that are None are commented out."""
    lines = []
    for section in SECTIONS:
        part = getattr(config, section)
        if part == PrivacySection():
            continue
        lines += [f"# {type(part).__doc__}", f"[{section}]"]
        hints = get_type_hints(type(part), include_extras=True)
        for entry in fields(part):
            value = getattr(part, entry.name)
            value = list(value) if isinstance(value, tuple) else value
            written = json.dumps(value, ensure_ascii=False, allow_nan=False)
            accepted = _describe(hints[entry.name]).capitalize()
            comment = f"# {entry.metadata['comment']}" + (f" {accepted}." if "ne of" in accepted else "")
            lines += [comment, f"# {entry.name} =" if value is None else f"{entry.name} = {written}"]
        lines.append("")
    return "\n".join(lines)
