"""Conversion of numbers and dataclasses to JSON, which has no NaN or infinity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self


def replace_non_finite(value: Any) -> Any:
    """Return a copy of nested dicts, lists and tuples (as lists) with None for every float that is not finite."""
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
    """Base of dataclasses that are saved as JSON. Fields with ``compare=False`` are not saved."""

    def to_dict(self) -> dict[str, Any]:
        """Return the saved fields by name, with None for floats that are not finite."""
        return {entry.name: replace_non_finite(getattr(self, entry.name)) for entry in fields(self) if entry.compare}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Restore a record from ``to_dict``, with NaN for None. Unknown entries are ignored."""
        return cls(**{entry.name: nan_if_none(values[entry.name]) for entry in fields(cls) if entry.name in values})
