"""Which run is meant: a folder, or "latest" for the newest one."""

from __future__ import annotations

from pathlib import Path

from softswitch.runs.folder import find_runs

LATEST, HERE = "latest", Path("runs")
"""The word, and where runs are looked for where no folder is named with it."""


def run_named(told: Path) -> Path:
    """The folder that is meant: as it is told, or the newest run's: "latest" below runs, "some/latest" below some."""
    if told.name != LATEST or told.exists():
        return told
    parent = HERE if told == Path(LATEST) else told.parent
    newest = max(
        find_runs(existing(parent)),
        key=lambda run: (run.about.get("started") or run.about.get("finished") or "", run.name),
        default=None,
    )
    if newest is None:
        raise ValueError(f"there is no run below {parent}; softswitch train SETTINGS makes one")
    return newest.folder


def existing(folder: Path) -> Path:
    """The same folder, or raise where there is none."""
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "is not there"
        raise ValueError(f"{folder} {what}; softswitch train makes one, or name the folder that your runs are in")
    return folder
