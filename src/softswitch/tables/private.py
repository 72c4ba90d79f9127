"""Training on a table with differential privacy: settings and declared features."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from softswitch.privacy.settings import RecordPrivacy
from softswitch.support.checks import call_all
from softswitch.tables.cells import parse_each
from softswitch.tables.features import Categorical, Encoding, Numeric, to_categories
from softswitch.tables.labels import Label, MulticlassLabel, NumberLabel
from softswitch.tables.settings import AIMS, Config

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"\s*(.+?)\s*:\s*({_NUMBER})\s+to\s+({_NUMBER})\s*")
PRIVATE_FORM = {"encoding": "utf-8-sig", "separator": ",", "decimal": "."}  # of text files; not detected from rows
WITHHELD = "withheld: private data"  # in run.json instead of the file's digest, which would allow guessing the file


def training_privacy(config: Config) -> RecordPrivacy | None:
    """Return the privacy settings of training, None if not private; raise ValueError if other settings conflict."""
    privacy = config.privacy
    if privacy.epsilon is None:
        if privacy.certificate_epsilon is not None or privacy.ranges or privacy.levels:
            raise ValueError("privacy.epsilon must be set if other settings of [privacy] are set")
        return None
    problems = []
    if config.run.aim != AIMS[1]:
        problems.append(
            f"run.aim must be {AIMS[1]!r} with privacy, but is {config.run.aim!r}: model selection has no budget. Set "
            "privacy.certificate_epsilon to certify the trained model"
        )
    if config.data.held_out > 0 and privacy.certificate_epsilon is None:
        needed = f"is {config.data.held_out:g}: a certificate needs its own budget"
        problems.append(f"data.held_out must be 0 with privacy if privacy.certificate_epsilon is not set, but {needed}")
    if config.task.regret:
        problems.append("task.regret must be false with privacy: client optima have no privacy budget")
    if problems:
        raise ValueError("\n".join(problems))
    names = ("epsilon", "delta", "clip_value", "clip_gradient", "rate")
    return _record_privacy("privacy.", **{name: getattr(privacy, name) for name in names})


def certificate_privacy(config: Config) -> RecordPrivacy:
    """Return the privacy settings of the held-out rows: privacy.certificate_epsilon and privacy.delta."""
    privacy = config.privacy
    return _record_privacy("privacy.certificate_", epsilon=privacy.certificate_epsilon, delta=privacy.delta)


def _record_privacy(prefix: str, **settings: Any) -> RecordPrivacy:
    try:
        return RecordPrivacy(**settings)
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from error


def declared_encoding(config: Config, names: Sequence[str]) -> Encoding:
    """Return the encoding of the features ``names`` from the ranges and levels in the settings, without any row."""
    ranges = [partial(_declared_number, entry) for entry in config.privacy.ranges]
    levels = [partial(_declared_levels, entry) for entry in config.privacy.levels]
    columns = {column.name: column for column in call_all(*ranges, *levels)}
    if missing := [name for name in names if name not in columns]:
        raise ValueError(
            f"privacy.ranges and privacy.levels must declare every feature, but lack {', '.join(map(repr, missing))}: "
            "statistics of the rows have no privacy budget. Declare what is known without the data, or add the column "
            "to data.ignore"
        )
    return Encoding(tuple(columns[name] for name in names))


def _declared_number(entry: str) -> Numeric:
    """Return the encoding of a column from an entry such as "age: 18 to 90": clipped, and scaled to [−1, 1]."""
    match = _RANGE.fullmatch(entry)
    if match is None or not 0 < float(match[3]) - float(match[2]) < math.inf:
        raise ValueError(f"privacy.ranges must be strings like 'age: 18 to 90', but one is {entry!r:.100}")
    low, high = float(match[2]), float(match[3])
    return Numeric(match[1], (low + high) / 2, (high - low) / 2, bounded=True)


def _declared_levels(entry: str) -> Categorical:
    name, _, text = entry.partition(":")
    levels = tuple(to_categories(parse_each(pd.Series(text.split(",")))).fillna(""))
    if not name.strip() or len(levels) < 2 or len(set(levels)) < len(levels) or not all(levels):
        raise ValueError(f"privacy.levels must be strings like 'sex: F, M', but one is {entry!r:.100}")
    return Categorical(name.strip(), levels)


def hold_out_by_hash(table: pd.DataFrame, share: float, seed: int) -> np.ndarray:
    """Return a mask of about this share of the rows, by a hash of each row: no row depends on the others."""
    cells = table.apply(to_categories).where(table.notna(), "")
    hashes = pd.util.hash_pandas_object(cells, index=False, hash_key=f"{seed % 10**16:016d}")
    return np.asarray(hashes.to_numpy() < share * 2.0**64)


def declared_label(label: Label) -> Label:
    """Return the label without statistics of rows: with equal class shares, or scaled by its range in the settings."""
    if isinstance(label, MulticlassLabel):
        return replace(label, shares=(1 / len(label.classes),) * len(label.classes))
    if not isinstance(label, NumberLabel):
        return label
    if label.low is None or label.high is None:
        raise ValueError("data.label_range must be set with privacy: mean and deviation have no privacy budget")
    return NumberLabel((label.low + label.high) / 2, (label.high - label.low) / 2, label.low, label.high)
