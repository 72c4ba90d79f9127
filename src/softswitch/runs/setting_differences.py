"""The settings in which runs differ."""

from __future__ import annotations

from collections.abc import Sequence

from softswitch.runs.folder import Run
from softswitch.support.text import short_numbers


def differing_settings(runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
    """By section.name, the value in each run; the data's digest where that differs, and an empty text where unset."""
    every = [run.settings for run in runs]
    names = list(dict.fromkeys(name for settings in every for name in settings))
    found = {name: tuple(str(settings.get(name, "")) for settings in every) for name in names}
    return {name: tuple(map(short_numbers, values)) for name, values in found.items() if len(set(values)) > 1}
