"""Training on a table whose rows are kept private: what must be known without a look, and what is refused."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from softswitch.privacy.settings import RecordPrivacy
from softswitch.problem.networks import false_alarms, misses, objective
from softswitch.problem.problem import Problem
from softswitch.tables.features import Column, Encoding, Levels, Numeric
from softswitch.tables.labels import Label, MulticlassLabel, NumberLabel
from softswitch.tables.settings import AIMS, Config

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"\s*(.+?)\s*:\s*({_NUMBER})\s+to\s+({_NUMBER})\s*")
_LEVELS = re.compile(r"\s*(.+?)\s*:\s*(.+)")
STAND_INS: dict[str, Any] = {"miss-rate": misses, "false-alarm-rate": false_alarms, "error-rate": objective}
"""What is descended on in place of rates whose rows are kept private."""
NOT_TOLD = "not told: rows are kept private"
"""In a run's folder, in place of a digest of the file: who has it could try files until one fits."""


def training_privacy(config: Config) -> RecordPrivacy | None:
    """How rows to train on are kept private; None: not at all. Raise for settings that would look uncounted.

    Args:
        config: the settings.
    """
    privacy = config.privacy
    if not privacy.asked:
        if privacy.certificate_epsilon is not None or privacy.ranges or privacy.levels:
            raise ValueError("privacy.epsilon must be set where other settings of [privacy] are")
        return None
    said = []
    if config.run.aim != AIMS[1]:
        said.append(
            f"run.aim must be {AIMS[1]!r} with privacy, but is {config.run.aim!r}: to choose a model by rows is not "
            "counted. privacy.certificate_epsilon certifies the one that is trained"
        )
    if config.data.held_out > 0 and privacy.certificate_epsilon is None:
        said.append(
            f"data.held_out must be 0 with privacy where privacy.certificate_epsilon is not set, but is "
            f"{config.data.held_out:g}: rows that are held out are for the certificate, which has a budget of its own"
        )
    if config.task.regret:
        said.append("task.regret must be false with privacy: f_i* tells of rows, and is not counted")
    if said:
        raise ValueError("\n".join(said))
    return _named(
        "privacy.",
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        clip_value=privacy.clip_value,
        clip_gradient=privacy.clip_gradient,
        sampling=privacy.sampling,
        rate=privacy.rate,
    )


def certificate_privacy(config: Config) -> RecordPrivacy:
    """How rows that are held out are kept private.

    Args:
        config: the settings.
    """
    return _named("privacy.certificate_", epsilon=config.privacy.certificate_epsilon, delta=config.privacy.delta)


def _named(prefix: str, **settings: Any) -> RecordPrivacy:
    """The settings; an error names them as the file does."""
    try:
        return RecordPrivacy(**settings)
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from error


def declared_encoding(config: Config, names: Sequence[str]) -> Encoding:
    """How columns become features by what is declared of them: no mean, no deviation and no level of any row.

    A number is scaled such that its range becomes −1 to 1, and an empty cell is the middle; a word that is not declared
    is none of the levels.

    Args:
        config: the settings.
        names: the columns to learn from.
    """
    found: dict[str, Column] = {}
    said = []
    for entry in config.privacy.ranges:
        told = _RANGE.fullmatch(entry)
        if told is None or not 0 < float(told[3]) - float(told[2]) < math.inf:
            said.append(f"privacy.ranges must be texts like 'age: 18 to 90', but one is {entry!r:.100}")
            continue
        low, high = float(told[2]), float(told[3])
        found[told[1]] = Numeric(told[1], (low + high) / 2, (high - low) / 2)
    for entry in config.privacy.levels:
        told = _LEVELS.fullmatch(entry)
        levels = [] if told is None else [level.strip() for level in told[2].split(",")]
        if told is None or len(levels) < 2 or len(set(levels)) < len(levels) or not all(levels):
            said.append(f"privacy.levels must be texts like 'sex: F, M', but one is {entry!r:.100}")
            continue
        found[told[1]] = Levels(told[1], tuple(levels))
    missing = [name for name in names if name not in found]
    if missing and not said:
        said.append(
            f"privacy.ranges and privacy.levels must declare every feature, but lack {', '.join(map(repr, missing))}: "
            "to take means, deviations or levels from rows is not counted. Declare what is known without a look, or "
            "put the column into data.ignore"
        )
    if said:
        raise ValueError("\n".join(said))
    return Encoding(tuple(found[name] for name in names))


def private_problem(problem: Problem, kind: str) -> Problem:
    """The problem with something to descend on in place of a rate that is itself a mean over rows: the logistic loss.

    What stands in for a rate otherwise looks for the wrong rows nearest to the threshold, among all of them.

    Args:
        problem: of the kind.
        kind: what must hold.
    """
    stand_in = STAND_INS.get(kind)
    return problem if stand_in is None else replace(problem, constraint_surrogate=stand_in)


def public_label(label: Label, config: Config) -> Label:
    """The label by what is known of it without a look: its classes, or its range.

    Args:
        label: as the rows have it.
        config: the settings.
    """
    if isinstance(label, MulticlassLabel):
        return replace(label, shares=(1 / len(label.values),) * len(label.values))
    if not isinstance(label, NumberLabel) or config.task.kind == "custom":
        return label
    if label.low is None or label.high is None:
        raise ValueError("data.label_range must be set with privacy: the label's mean and deviation are not counted")
    return NumberLabel((label.low + label.high) / 2, (label.high - label.low) / 2, label.low, label.high)


NOISE_KEY = "noise.key"
WORDS = 2
"""Of 32 bits each: as many as a random key has."""


def noise_key(folder: Path) -> tuple[int, ...]:
    """The words of a run that goes on, or new ones from the operating system's entropy.

    Settings and seed are in a run's folder, and whoever has all that noise is drawn by can take it off the model.

    Args:
        folder: of the run's checkpoints.
    """
    file = folder / NOISE_KEY
    folder.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        if any(folder.glob("round-*")):
            raise ValueError(f"{file} is gone, by which the run's noise was drawn: it cannot go on; train anew")
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(os.urandom(4 * WORDS))
            stream.flush()
            os.fsync(stream.fileno())
    words = file.read_bytes()
    if len(words) != 4 * WORDS:
        raise ValueError(f"{file} is damaged: the run cannot go on; train anew")
    return tuple(int.from_bytes(words[i : i + 4], "little") for i in range(0, len(words), 4))


def forget_noise_key(folder: Path) -> None:
    """Nobody needs it any more.

    Args:
        folder: of the run's checkpoints.
    """
    (folder / NOISE_KEY).unlink(missing_ok=True)
