"""The settings of ``softswitch train``: a TOML file, checked key by key before any work."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from softswitch.privacy.settings import SAMPLING
from softswitch.problem.choices import ALPHA_SCALES, ANSWERS, CRITERIA, LOSSES
from softswitch.support.checks import did_you_mean
from softswitch.support.files import read_toml

RATES = ("miss-rate", "false-alarm-rate", "error-rate", "class-miss-rate", "decision-parity", "decision-opportunity")
"""Kinds whose constraint is a rate of decisions, or a gap between two of them."""
OF_CLASSES = ("error-rate", "class-miss-rate")
"""Kinds for labels of several classes,"""
OF_AMOUNTS = ("mean-error", "absolute-error", "coverage")
"""and for labels that are numbers."""
LABELS = ("two-classes", "classes", "number")
TASKS = (*RATES, "neyman-pearson", "demographic-parity", "equal-opportunity", "group-loss", *OF_AMOUNTS, "custom")
METHODS = ("softmax", "average", "hard", "penalty", "primal-dual")
OPTIMIZERS = ("sgd", "adam")
MEMORIES = ("on", "off", "corrected")
AIMS = ("certified", "bare")
INCOMPLETE = ("error", "drop")
ALL = "all"
AUTO = "auto"
"""What a setting is that the library chooses; as in the paper, where a step size is given."""


def says(comment: str, default: Any = MISSING, *, one_of: tuple[str, ...] = ()) -> Any:
    """A setting with its comment for the file, its default, and the words that it may be."""
    told = {"comment": comment, "one_of": one_of}
    if isinstance(default, list):
        return field(default_factory=lambda: tuple(default), metadata=told)
    return field(default=default, metadata=told)


@dataclass(frozen=True)
class DataSection:
    """Where the rows are, and what their columns mean."""

    file: str = says("CSV, Parquet or Excel, one row a case; a relative path is taken from this file's folder.")
    label: str = says("The column to predict.")
    client: str = says("The column that says whose row it is: hospital, branch, device.")
    positive: str | int | float | bool | None = says(
        "The label's value that counts as positive; the larger of two by default.", None
    )
    label_type: str = says(
        f"What the label is: {', '.join(LABELS)}; auto: by task.kind, and by the column.",
        AUTO,
        one_of=(AUTO, *LABELS),
    )
    label_range: tuple[float, ...] = says(
        "For a number: the smallest and the largest value it can have, [0, 100] say; certificates are then promises.",
        [],
    )
    features: tuple[str, ...] = says("Columns to learn from; empty: all but label, client and those ignored.", [])
    ignore: tuple[str, ...] = says("Columns to leave out.", [])
    held_out: float = says("The share of each client's rows that is kept for the certificate.", 0.25)
    validation: float = says("The share that the model for unseen rows is chosen by, where run.aim is certified.", 0.15)
    empty: tuple[str, ...] = says("Words that count as empty cells, besides NA, ?, - and the like.", [])
    incomplete: str = says(
        f"Rows with an empty cell as label, client or group: {' or '.join(INCOMPLETE)}.",
        INCOMPLETE[0],
        one_of=INCOMPLETE,
    )
    separator: str = says("What stands between a text file's cells; auto: found by looking.", AUTO)
    decimal: str = says("Its decimal sign; auto: found by looking.", AUTO, one_of=(AUTO, ".", ","))
    encoding: str = says("Its encoding; auto: found by looking.", AUTO)


@dataclass(frozen=True)
class TaskSection:
    """What is to be small, and what must hold at every client."""

    kind: str = says(f"What must hold: {', '.join(TASKS)}.", "neyman-pearson", one_of=TASKS)
    bound: float = says(
        "The constraint's bound, the tolerance: a rate (0.05 is 5%), a gap, a loss, or an error in the label's unit.",
        0.1,
    )
    sensitive: str | None = says("For parity, opportunity and group loss: the column with the group.", None)
    protected: str | int | float | bool | None = says("The value of that column that is the protected group.", None)
    loss: str = says(
        f"For a number, what is to be small: the {', '.join(LOSSES)} loss; auto: squared, but quantile for coverage.",
        AUTO,
        one_of=(AUTO, *LOSSES),
    )
    quantile: float | str = says(
        "Of the quantile loss: the share of labels below the prediction; auto: 1 - bound for coverage, else 0.5.",
        AUTO,
        one_of=(AUTO,),
    )
    regret: bool = says(
        "true: minimise by how much each client is worse off than with a model of its own, so that one whose rows are "
        "mostly noise does not rule the others.",
        False,
    )
    objective: str | None = says("For kind 'custom': 'module:function' of (params, batch), to be small.", None)
    constraint: str | None = says("For kind 'custom': 'module:function' of (params, batch), at most bound.", None)
    constraint_surrogate: str | None = says(
        "For kind 'custom' with a constraint that moves in jumps: a smooth 'module:function' to descend on instead.",
        None,
    )
    constraint_range: tuple[float, ...] = says(
        "For kind 'custom': the smallest and the largest constraint of a single row; certificates are then promises.",
        [],
    )


@dataclass(frozen=True)
class ModelSection:
    """What is learnt."""

    hidden: tuple[int, ...] = says("Widths of hidden layers; empty: a linear model, logistic for classes.", [])


@dataclass(frozen=True)
class MethodSection:
    """How it is learnt: "auto" is chosen by the library; with a step_size all other "auto" are as in the paper."""

    name: str = says(f"One of {', '.join(METHODS)}.", "softmax", one_of=METHODS)
    alpha: float | str = says("How sharply weights lean to the worst client, for 'softmax'.", AUTO, one_of=(AUTO,))
    alpha_scale: str = says(
        f"What alpha is measured in: {', '.join(ALPHA_SCALES)}; auto: raw where alpha is a number.",
        AUTO,
        one_of=(AUTO, *ALPHA_SCALES),
    )
    step_size: float | str = says("The server's step.", AUTO, one_of=(AUTO,))
    optimizer: str = says(f"The server's optimiser: {', '.join(OPTIMIZERS)}.", AUTO, one_of=(AUTO, *OPTIMIZERS))
    criterion: str = says(f"What the switch looks at: {', '.join(CRITERIA)}.", AUTO, one_of=(AUTO, *CRITERIA))
    slack: float | str = says("A of the switch's threshold bound/(1 + 1/A), at least 1.", AUTO, one_of=(AUTO,))
    threshold: float | str = says("The threshold itself, instead of slack.", AUTO, one_of=(AUTO,))
    local_step_size: float | str = says("The clients' step, where they take several.", AUTO, one_of=(AUTO,))
    memory: float | str = says(
        "Remember every client's reports: on, off, corrected (for small batches), or how much of the old is kept in "
        "the new, from 0 to below 1.",
        AUTO,
        one_of=(AUTO, *MEMORIES),
    )
    robust: int = says(
        "How many clients may lie without ruining the others; as many worst-off clients lose the full protection.", 0
    )
    penalty: float = says("Weight of violations, for 'penalty'.", 10.0)
    multiplier: float = says("First multiplier, for 'primal-dual'.", 1.0)
    dual_step_size: float = says("Step of the multipliers, for 'primal-dual'.", 0.01)


@dataclass(frozen=True)
class RunSection:
    """How long, how many, and where to."""

    rounds: int | str = says("How many rounds; auto: until nothing more is gained.", AUTO, one_of=(AUTO,))
    seconds: float | None = says("End after so many seconds; not set: never for that.", None)
    local_steps: int = says("Gradient steps of a client in a round.", 1)
    participation: float = says("The share of clients in a round.", 1.0)
    batch_size: int | str = says(
        "Rows a client draws for a gradient; all (or 0): all it has.", AUTO, one_of=(AUTO, ALL)
    )
    value_batch_size: int | str = says(
        "Rows a client draws for its report; same: as batch_size.", AUTO, one_of=(AUTO, ALL, "same")
    )
    average_last: float | str = says("The share of the rounds, the last ones, to average over.", AUTO, one_of=(AUTO,))
    answer: str = says(
        "The model: average of the feasible iterates, last or best; auto: the best of these on all training rows.",
        AUTO,
        one_of=ANSWERS,
    )
    seed: int = says("Of all random choices.", 0)
    aim: str = says(
        "certified: choose a model for unseen rows, no answer where it cannot be certified; bare: the method alone.",
        AIMS[0],
        one_of=AIMS,
    )
    confidence: float = says(
        "Of the certificate: the probability with which no client is wrongly said to meet the bound.", 0.95
    )
    folder: str = says("Where run folders are made, from this file's folder.", "runs")


@dataclass(frozen=True)
class PrivacySection:
    """Differential privacy of single rows; leave epsilon out for none."""

    epsilon: float | None = says("The budget of the rows to train on: how much any single one may be told of.", None)
    delta: float = says("The probability that is left out of that; well below one over a client's rows.", 1e-5)
    certificate_epsilon: float | None = says(
        "The budget of the rows that are held out, for the certificate; not set: none, and data.held_out must be 0.",
        None,
    )
    ranges: tuple[str, ...] = says(
        "For every feature of numbers where most values lie, known without a look: 'age: 30 to 80'.", []
    )
    levels: tuple[str, ...] = says("For every feature of words its values, likewise: 'sex: F, M'.", [])
    clip_value: float = says("What one row tells of objective and constraints is shortened to this length.", 3.0)
    clip_gradient: float = says("A row's gradient is shortened to this length.", 2.0)
    sampling: str = says(f"How rows are drawn: {' or '.join(SAMPLING)}.", SAMPLING[0], one_of=SAMPLING)
    rate: float = says("The share of its rows that a client draws for a report and for a gradient.", 1.0)

    @property
    def asked(self) -> bool:
        """Whether rows are to be kept private."""
        return self.epsilon is not None


@dataclass(frozen=True)
class Config:
    """All settings of a training run."""

    data: DataSection
    task: TaskSection = field(default_factory=TaskSection)
    model: ModelSection = field(default_factory=ModelSection)
    method: MethodSection = field(default_factory=MethodSection)
    run: RunSection = field(default_factory=RunSection)
    privacy: PrivacySection = field(default_factory=PrivacySection)


Settings = TypeVar("Settings")
SECTIONS: dict[str, type] = {
    "data": DataSection,
    "task": TaskSection,
    "model": ModelSection,
    "method": MethodSection,
    "run": RunSection,
    "privacy": PrivacySection,
}


def read_config(file: str | Path) -> Config:
    """Read and check a file of settings."""
    path = Path(file)
    try:
        told = read_toml(path)
    except OSError as error:
        raise ValueError(f"{path} could not be read: {error.strerror}") from error
    return parse_config(told)


def parse_config(told: dict[str, Any]) -> Config:
    """Check settings given as nested dicts; all mistakes are told at once."""
    said = _unknown(told, SECTIONS, "")
    if "data" not in told:
        said.append("[data] is missing; it needs file, label and client")
    parts: dict[str, Any] = {}
    for name, part in told.items():
        if name in SECTIONS and isinstance(part, dict):
            try:
                parts[name] = _section(SECTIONS[name], part, name)
            except ValueError as error:
                said.append(str(error))
        elif name in SECTIONS:
            said.append(f"{name} must be a section, [{name}], but is {_shown(part)}")
    if said:
        raise ValueError("\n".join(said))
    return Config(**parts)


def _section(kind: type[Settings], told: dict[str, Any], where: str) -> Settings:
    known = {entry.name: entry for entry in fields(kind)}  # type: ignore[arg-type]
    said = _unknown(told, known, f"{where}.")
    hints = get_type_hints(kind)
    missing = [n for n, e in known.items() if n not in told and e.default is MISSING and e.default_factory is MISSING]
    said += [f"{where}.{name} is missing: {known[name].metadata['comment']}" for name in missing]
    values = {}
    for name in (name for name in told if name in known):
        try:
            values[name] = _value(told[name], hints[name], known[name], f"{where}.{name}")
        except ValueError as error:
            said.append(str(error))
    if said:
        raise ValueError("\n".join(said))
    return kind(**values)


def _unknown(told: dict[str, Any], known: Any, prefix: str) -> list[str]:
    said = []
    for name in told:
        if name not in known:
            near = did_you_mean(name, list(known))
            hint = f"did you mean {prefix}{near}?" if near else f"there are {', '.join(prefix + k for k in known)}"
            said.append(f"{prefix}{name} is not a setting; {hint}")
    return said


def _value(value: Any, hint: Any, entry: Field[Any], where: str) -> Any:
    """The value in the type of its setting, or raise."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words = entry.metadata["one_of"]
    for kind in kinds:
        if get_origin(kind) is tuple:
            member = get_args(kind)[0]
            own = (float, int) if member is float else (member,)
            if isinstance(value, list | tuple) and all(type(one) in own for one in value):
                return tuple(map(member, value))
        elif kind is str and words:
            if value in words:
                return value
        elif kind is float and type(value) is int:
            with suppress(OverflowError):  # larger than any float: refused below
                return float(value)
        elif type(value) is kind:
            return value
    if words and kinds == (str,):
        raise ValueError(f"{where} must be one of {', '.join(words)}, but is {_shown(value)}")
    names = [_in_words(kind) for kind in kinds if kind is not type(None) and not (kind is str and words)]
    raise ValueError(f"{where} must be {' or '.join([*names, *map(json.dumps, words)])}, but is {_shown(value)}")


def _shown(value: Any) -> str:
    """A value as an error shows it: not more of it than a line has."""
    try:
        said = repr(value)
    except (ValueError, RecursionError):  # numbers of thousands of digits are not written out
        return f"a very long {type(value).__name__}"
    return said if len(said) <= 120 else f"{said[:100]}…"


def _in_words(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return {str: "a list of texts", int: "a list of whole numbers", float: "a list of numbers"}[get_args(kind)[0]]
    return {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}[kind]


def given(value: Any, otherwise: Any = None) -> Any:
    """A setting's value; ``otherwise`` where it is "auto"."""
    return otherwise if value == AUTO else value


def write_config(config: Config, *, comments: bool = True) -> str:
    """The settings as TOML, with their comments; those that have no value are shown commented out."""
    lines = []
    for section in SECTIONS:
        part = getattr(config, section)
        if part == PrivacySection():  # for those who look for it
            continue
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
