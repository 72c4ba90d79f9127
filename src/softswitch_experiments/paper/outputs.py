"""What an experiment leaves on disk: a folder that is whole or not there, and known again when it is asked for anew."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softswitch.results.folder import versions, write_result
from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch_experiments.paper.sources import digest

CLAIMS = "claims.json"
_UNFINISHED = re.compile(r"\.(?P<name>.+)\.(?P<process>\d+)\.(tmp|old)")


@dataclass(frozen=True)
class Written:
    """An experiment's folder.

    Attributes:
        name: the experiment's name.
        claims: what was put to the test.
        files: figures, tables and claims.
        seeds: with how many seeds.
        seconds: what its runs took.
        kept: whether it was there already, and nothing was run.
    """

    name: str
    claims: tuple[Claim, ...]
    files: tuple[Path, ...]
    seeds: int
    seconds: float
    kept: bool = False


Settings = dict[str, Any]


def settings(experiment: Experiment, scale: Scale) -> Settings:
    """What the outputs depend on: they are the same wherever these are, up to the machine's arithmetic."""
    packages = {name: number for name, number in versions().items() if name in ("softswitch", "jax", "jaxlib")}
    return {"seeds": scale.seeds, "quick": scale.quick, "packages": packages, "sources": digest(experiment.run)}


def told(out: Path, name: str) -> dict[str, Any] | None:
    """What an experiment's folder tells: its settings, seconds and claims; nothing where there is none."""
    try:
        found = json.loads((out / name / CLAIMS).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    return found if isinstance(found, dict) else None


def kept(experiment: Experiment, wanted: Settings, out: Path) -> Written | None:
    """The outputs that are there already, if they are complete and come from the same settings."""
    found = told(out, experiment.name)
    if found is None or any(found.get(key) != value for key, value in wanted.items()):
        return None
    files = tuple(out / experiment.name / file for file in found["files"])
    runs = [out / experiment.name / "runs" / run for run in found["runs"]]
    if not all(path.exists() for path in (*files, *runs)):
        return None
    claims = tuple(Claim(**claim) for claim in found["claims"])
    return Written(experiment.name, claims, files, found["seeds"], found["seconds"], kept=True)


def write(
    experiment: Experiment, scale: Scale, about: Settings, outcome: Outcome, seconds: float, out: Path
) -> Written:
    """Write figure (PNG, SVG), numbers (CSV), claims (JSON) and every run's folder into ``out/<name>/``.

    All is written into a folder beside it, which takes its place at the end: whoever ends the process in between leaves
    the earlier outputs, or none.
    """
    folder, beside = out / experiment.name, out / f".{experiment.name}.{os.getpid()}.tmp"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    files = [f"{experiment.name}.{kind}" for kind in ("png", "svg")]
    for file in files:
        outcome.figure.savefig(beside / file, dpi=150)
        outcome.figure.set_layout_engine("none")  # laid out once, not once a file
    for name, rows in outcome.tables.items():
        files.append(f"{name}.csv")
        _write_table(beside / files[-1], rows)
    quick = " --quick" if scale.quick else ""
    command = f"softswitch paper {experiment.name} --seeds {scale.seeds}{quick}"
    for name, result in scale.runs.items():
        write_result(beside / "runs" / name, result, about={"command": command})
    files.append(CLAIMS)
    tells = {
        "experiment": experiment.name,
        "shows": experiment.shows,
        "seconds": round(seconds, 1),
        **about,
        "files": files,
        "runs": list(scale.runs),
        "claims": [{"statement": c.statement, "held": bool(c.held), "measured": c.measured} for c in outcome.claims],
    }
    (beside / CLAIMS).write_text(json.dumps(tells, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _put_in_place(beside, folder)
    return Written(experiment.name, outcome.claims, tuple(folder / file for file in files), scale.seeds, seconds)


def _put_in_place(beside: Path, folder: Path) -> None:
    earlier = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    shutil.rmtree(earlier, ignore_errors=True)
    if folder.exists():
        folder.rename(earlier)
    beside.rename(folder)
    shutil.rmtree(earlier, ignore_errors=True)


def clear_unfinished(out: Path) -> None:
    """Remove what processes that are no more had begun to write."""
    for path in out.glob(".*"):
        match = _UNFINISHED.fullmatch(path.name)
        if match and not _alive(int(match["process"])):
            shutil.rmtree(path, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _write_table(file: Path, rows: Sequence[Row]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows(rows)
