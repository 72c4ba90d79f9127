"""Non-finite numbers in JSON, which has no NaN or infinity."""

from __future__ import annotations

import math
from typing import Any


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
