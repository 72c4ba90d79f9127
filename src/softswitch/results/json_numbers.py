"""Records in JSON, which has no NaN or infinity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self


def replace_non_finite(value: Any) -> Any:
    """Replace every non-finite float in nested dicts, lists and tuples by None."""
    if isinstance(value, dict):
        return {key: replace_non_finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [replace_non_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def nan_if_none(value: Any) -> Any:
    """Return NaN for None, and every other value unchanged."""
    return math.nan if value is None else value


@dataclass(frozen=True, eq=False)
class JsonRecord:
    """A dataclass that JSON can hold, except for fields that are not compared."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, with None for numbers that are not finite."""
        return {entry.name: replace_non_finite(getattr(self, entry.name)) for entry in fields(self) if entry.compare}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Restore the record from ``to_dict``, with NaN for None."""
        return cls(**{entry.name: nan_if_none(values[entry.name]) for entry in fields(cls) if entry.name in values})
