"""The output folder of an experiment: complete or absent, and reused while code and settings stay the same."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from softswitch.results.folder import read_versions, write_result
from softswitch.support.files import read_text
from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch_experiments.paper.sources import digest

CLAIMS = "claims.json"
Settings = dict[str, Any]
_UNFINISHED = re.compile(r"\.(?P<name>.+)\.(?P<process>\d+)\.(tmp|old)")


@dataclass(frozen=True)
class Saved:
    """The saved outputs of an experiment."""

    name: str  # name of the experiment
    claims: tuple[Claim, ...]  # its claims
    files: tuple[Path, ...]  # figures, tables and claims
    seeds: int  # number of seeds
    seconds: float  # duration of the runs
    reused: bool = False  # whether an earlier call wrote them


def describe_settings(experiment: Experiment, scale: Scale) -> Settings:
    """Return everything that determines the outputs, up to the arithmetic of the machine."""
    packages = {name: number for name, number in read_versions().items() if name in ("softswitch", "jax", "jaxlib")}
    return {"seeds": scale.seeds, "quick": scale.quick, "packages": packages, "sources": digest(experiment.run)}


def read_outputs(out: Path, name: str) -> dict[str, Any] | None:
    """Return settings, duration and claims of an experiment's folder, or None if there are none."""
    try:
        content = json.loads(read_text(out / name / CLAIMS))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def find_saved(experiment: Experiment, settings: Settings, out: Path) -> Saved | None:
    """Return the outputs in ``out`` if they are complete and come from the same settings."""
    content = read_outputs(out, experiment.name)
    if content is None or any(content.get(key) != value for key, value in settings.items()):
        return None
    files = tuple(out / experiment.name / file for file in content["files"])
    runs = [out / experiment.name / "runs" / run for run in content["runs"]]
    if not all(path.exists() for path in (*files, *runs)):
        return None
    claims = tuple(Claim(**claim) for claim in content["claims"])
    return Saved(experiment.name, claims, files, content["seeds"], content["seconds"], reused=True)


def write_outputs(
    experiment: Experiment, scale: Scale, settings: Settings, outcome: Outcome, seconds: float, out: Path
) -> Saved:
    """Write figure (PNG, SVG), tables (CSV), claims (JSON) and the run folders to ``out/<name>/``.

    Everything is written to a temporary folder, which is renamed at the end. An interruption leaves the earlier
    outputs, or none.
    """
    folder, temporary = out / experiment.name, out / f".{experiment.name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    files = [f"{experiment.name}.{kind}" for kind in ("png", "svg")]
    for file in files:
        outcome.figure.savefig(temporary / file, dpi=150)
        outcome.figure.set_layout_engine("none")  # compute the layout once, not once per file
    for name, rows in outcome.tables.items():
        files.append(f"{name}.csv")
        _write_table(temporary / files[-1], rows)
    command = f"softswitch paper {experiment.name} --seeds {scale.seeds}{' --quick' if scale.quick else ''}"
    for name, result in scale.runs.items():
        write_result(temporary / "runs" / name, result, about={"command": command})
    files.append(CLAIMS)
    content = {
        "experiment": experiment.name,
        "summary": experiment.summary,
        "seconds": round(seconds, 1),
        **settings,
        "files": files,
        "runs": list(scale.runs),
        "claims": [asdict(claim) | {"held": bool(claim.held)} for claim in outcome.claims],
    }
    (temporary / CLAIMS).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _replace_folder(folder, temporary)
    return Saved(experiment.name, outcome.claims, tuple(folder / file for file in files), scale.seeds, seconds)


def _replace_folder(folder: Path, temporary: Path) -> None:
    earlier = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    shutil.rmtree(earlier, ignore_errors=True)
    if folder.exists():
        folder.rename(earlier)
    temporary.rename(folder)
    shutil.rmtree(earlier, ignore_errors=True)


def remove_unfinished(out: Path) -> None:
    """Remove the temporary folders of processes that no longer run."""
    for path in out.glob(".*"):
        match = _UNFINISHED.fullmatch(path.name)
        if match and not _is_alive(int(match["process"])):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(process: int) -> bool:
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
