"""Training on a table with differential privacy: settings, declared features, and the key of the noise."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from softswitch.privacy.settings import RecordPrivacy
from softswitch.tables.constraints import CUSTOM
from softswitch.tables.features import Categorical, Column, Encoding, Numeric
from softswitch.tables.labels import Label, MulticlassLabel, NumberLabel
from softswitch.tables.settings import AIMS, Config

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"\s*(.+?)\s*:\s*({_NUMBER})\s+to\s+({_NUMBER})\s*")
_LEVELS = re.compile(r"\s*(.+?)\s*:\s*(.+)")
WITHHELD = "withheld: private data"
"""Stored in a run folder instead of the file's digest, which would allow guessing the file."""
NOISE_KEY = "noise.key"
KEY_WORDS = 2
"""Number of 32-bit words of a random key."""


def training_privacy(config: Config) -> RecordPrivacy | None:
    """Return the privacy settings of training, or None without privacy.

    Raises:
        ValueError: If a setting would use rows outside the privacy budget.
    """
    privacy = config.privacy
    if not privacy.is_enabled:
        if privacy.certificate_epsilon is not None or privacy.ranges or privacy.levels:
            raise ValueError("privacy.epsilon must be set if other settings of [privacy] are set")
        return None
    problems = []
    if config.run.aim != AIMS[1]:
        problems.append(
            f"run.aim must be {AIMS[1]!r} with privacy, but is {config.run.aim!r}: model selection is outside the "
            "privacy budget. Set privacy.certificate_epsilon to certify the trained model"
        )
    if config.data.held_out > 0 and privacy.certificate_epsilon is None:
        problems.append(
            f"data.held_out must be 0 with privacy if privacy.certificate_epsilon is not set, but is "
            f"{config.data.held_out:g}: the certificate of the held-out rows needs its own budget"
        )
    if config.task.regret:
        problems.append("task.regret must be false with privacy: client optima are outside the privacy budget")
    if problems:
        raise ValueError("\n".join(problems))
    names = ("epsilon", "delta", "clip_value", "clip_gradient", "sampling", "rate")
    return _record_privacy("privacy.", **{name: getattr(privacy, name) for name in names})


def certificate_privacy(config: Config) -> RecordPrivacy:
    """Return the privacy settings of the certificate."""
    privacy = config.privacy
    return _record_privacy("privacy.certificate_", epsilon=privacy.certificate_epsilon, delta=privacy.delta)


def _record_privacy(prefix: str, **settings: Any) -> RecordPrivacy:
    try:
        return RecordPrivacy(**settings)
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from error


def declared_encoding(config: Config, names: Sequence[str]) -> Encoding:
    """Return the encoding of the features as declared in the settings, without statistics of any row.

    A number is scaled so that its range becomes −1 to 1, and an empty cell is the middle. An undeclared value of a
    categorical feature is none of its levels.
    """
    columns: dict[str, Column] = {}
    problems = []
    for entry in config.privacy.ranges:
        match = _RANGE.fullmatch(entry)
        if match is None or not 0 < float(match[3]) - float(match[2]) < math.inf:
            problems.append(f"privacy.ranges must be strings like 'age: 18 to 90', but one is {entry!r:.100}")
            continue
        low, high = float(match[2]), float(match[3])
        columns[match[1]] = Numeric(match[1], (low + high) / 2, (high - low) / 2)
    for entry in config.privacy.levels:
        match = _LEVELS.fullmatch(entry)
        levels = [] if match is None else [level.strip() for level in match[2].split(",")]
        if match is None or len(levels) < 2 or len(set(levels)) < len(levels) or not all(levels):
            problems.append(f"privacy.levels must be strings like 'sex: F, M', but one is {entry!r:.100}")
            continue
        columns[match[1]] = Categorical(match[1], tuple(levels))
    missing = [name for name in names if name not in columns]
    if missing and not problems:
        problems.append(
            f"privacy.ranges and privacy.levels must declare every feature, but lack {', '.join(map(repr, missing))}: "
            "statistics of the rows are outside the privacy budget. Declare what is known without the data, or add the "
            "column to data.ignore"
        )
    if problems:
        raise ValueError("\n".join(problems))
    return Encoding(tuple(columns[name] for name in names))


def declared_label(label: Label, config: Config) -> Label:
    """Return the label without statistics of any row: with equal class shares, or scaled by its declared range."""
    if isinstance(label, MulticlassLabel):
        return replace(label, shares=(1 / len(label.values),) * len(label.values))
    if not isinstance(label, NumberLabel) or config.task.kind == CUSTOM:
        return label
    if label.low is None or label.high is None:
        raise ValueError(
            "data.label_range must be set with privacy: mean and deviation of the label are outside the privacy budget"
        )
    return NumberLabel((label.low + label.high) / 2, (label.high - label.low) / 2, label.low, label.high)


def noise_key(folder: Path) -> tuple[int, ...]:
    """Return the key of the noise from a folder of checkpoints, or create it from the operating system's entropy.

    The key is secret: with it, the noise can be removed from the model.
    """
    file = folder / NOISE_KEY
    folder.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        if any(folder.glob("round-*")):
            raise ValueError(f"{file} is missing, so the run cannot be resumed; start a new run")
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(os.urandom(4 * KEY_WORDS))
            stream.flush()
            os.fsync(stream.fileno())
    content = file.read_bytes()
    if len(content) != 4 * KEY_WORDS:
        raise ValueError(f"{file} is damaged, so the run cannot be resumed; start a new run")
    return tuple(int.from_bytes(content[i : i + 4], "little") for i in range(0, len(content), 4))


def delete_noise_key(folder: Path) -> None:
    """Delete the key of the noise once the run is finished."""
    (folder / NOISE_KEY).unlink(missing_ok=True)
