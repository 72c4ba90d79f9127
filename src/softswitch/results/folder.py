"""A run's folder: all that is needed to judge it, show it, use its model and do it again."""

from __future__ import annotations

import csv
import io
import math
import platform
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

from softswitch.results.certificate import Certificate
from softswitch.results.events import EVENTS, read_events
from softswitch.results.frontier import Frontier
from softswitch.results.history import History
from softswitch.results.restart import Restart
from softswitch.results.result import Result
from softswitch.results.run_schema import check_about, check_certificate, check_frontier, check_settings
from softswitch.results.saving import read_history, write_history
from softswitch.results.status import EARLIER
from softswitch.support.arrays import named
from softswitch.support.files import (
    SETTINGS,
    TENSORS,
    check_size,
    or_damaged,
    read_capped,
    read_json,
    read_words,
    write_atomically,
    write_json,
)
from softswitch.support.text import defused_row, restored, short_numbers

ABOUT, CONFIG, HISTORY, CLIENTS = "run.json", "config.toml", "history.npz", "clients.csv"
PARAMS, CERTIFICATE, ENCODING, CHECKPOINTS = "params.safetensors", "certificate.json", "encoding.json", "checkpoints"
FORMAT = "softswitch run 1"
PACKAGES = ("softswitch", "jax", "jaxlib", "optax", "numpy", "scipy", "pandas")


def versions() -> dict[str, str]:
    """What the run was made with."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def new_folder(parent: Path, stem: str) -> Path:
    """A folder of its own below ``parent``, named after the stem and the time."""
    base = f"{stem}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    for attempt in range(1, 1000):
        folder = parent / (base if attempt == 1 else f"{base}-{attempt}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{parent / base} and a thousand like it are there already")


def write_result(
    folder: Path,
    result: Result,
    *,
    about: Mapping[str, Any] | None = None,
    clients: Mapping[str, Sequence[Any]] | None = None,
    certificate: Certificate | None = None,
) -> None:
    """Write what a run came to: history, clients, parameters, certificate, and at last what it is about.

    Args:
        folder: where.
        result: of ``solve``.
        about: more to tell of it.
        clients: further columns of the table of clients.
        certificate: on held-out rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_history(folder / HISTORY, result.history)
    write_atomically(
        folder / CLIENTS, _clients_bytes(result, {**(clients or {}), **_heard(result), **_spent(result)}), durable=False
    )
    write_atomically(folder / PARAMS, save(named(result.params)), durable=False)
    if certificate is not None:
        write_json(folder / CERTIFICATE, certificate.to_dict())
    else:
        (folder / CERTIFICATE).unlink(missing_ok=True)  # of parameters that are no longer there
    told = {
        "format": FORMAT,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "status": {"code": str(result.status.code), "message": result.status.message},
        "answer": result.selected,
        "method": str(result.method),
        "tolerance": float(result.method.tolerance),
        "threshold": float(result.method.switch_at),
        "seed": result.seed,
        "rounds": len(result.history),
        "seconds": round(result.seconds, 3),
        "restarts": [cycle.to_dict() for cycle in result.restarts],
        "switch_share": _or_none(result.history.switch_share),
        "worst_objective": _or_none(result.worst_objective),
        "worst_constraint": _or_none(result.worst_constraint),
        "worst_loss": None if result.client_optimum is None else _or_none(result.worst_loss),
        "stationarity": [] if result.method.proximal is None else [_or_none(one) for one in result.history.stages],
        "lower_bound": None if result.lower_bound is None else result.lower_bound.to_dict(),
        "violating": [str(name) for name in result.violating],
        "clients": len(result.names),
        "oldest_report": None if result.history.oldest is None else int(result.history.oldest.max()),
        "diagnostics": [asdict(diagnostic) for diagnostic in result.diagnostics],
        "auto_settings": result.auto_settings,
        "beside": [one.to_dict() for one in (result.as_baseline, *result.baselines)],
        "privacy": None if result.privacy is None else {**result.privacy.to_dict(), "words": str(result.privacy)},
        "price": None if result.price is None else _or_none(result.price),
        "versions": versions(),
    }
    write_json(folder / ABOUT, told | dict(about or {}))


def _heard(result: Result) -> dict[str, Sequence[Any]]:
    """How often each client was heard, and when last, where the server remembers."""
    remembered = result.state.memory
    if remembered is None:
        return {}
    return {"times_heard": remembered.times.tolist(), "last_heard_in_round": remembered.heard_at.tolist()}


def _spent(result: Result) -> dict[str, Sequence[Any]]:
    """What the run cost each client's rows, where these are kept private."""
    if result.privacy is None:
        return {}
    return {"epsilon": [math.nan if own is None else own for own in result.privacy.epsilon]}


def _or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _clients_bytes(result: Result, more: Mapping[str, Sequence[Any]]) -> bytes:
    many = result.client_constraint.shape[1]
    table: dict[str, Sequence[Any]] = {"client": [str(name) for name in result.names]}
    table |= more
    table["objective"] = result.client_loss.tolist()
    if result.client_optimum is not None:
        table |= {"client_optimum": result.client_optimum.tolist(), "regret": result.client_objective.tolist()}
    for c in range(many):
        name = "constraint" if many == 1 else f"constraint_{c + 1}"
        table[name] = result.client_constraint[:, c].tolist()
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(defused_row(table))
    writer.writerows(map(defused_row, zip(*table.values(), strict=True)))
    return stream.getvalue().encode()


def flat_settings(text: str) -> dict[str, Any]:
    """A file of settings, section.name by section.name."""
    told = tomllib.loads(text)
    return {f"{section}.{name}": value for section, part in told.items() for name, value in part.items()}


@dataclass(frozen=True)
class Run:
    """A run's folder, read.

    Attributes:
        folder: where it is.
        about: what it is about, as in run.json.
    """

    folder: Path
    about: dict[str, Any]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def finished(self) -> bool:
        """Whether it came to its end, or was ended; else it is under way, or was killed."""
        return "finished" in self.about

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings as used, section.name by section.name; the seed, where there is no file of settings."""
        file = self.folder / CONFIG
        if not file.exists():
            return {"seed": self.about.get("seed")}
        with or_damaged(file):
            flat = flat_settings(read_words(file, SETTINGS))
            check_settings(flat)
        data = self.about.get("data", {}).get("sha256")
        return flat if data is None else flat | {"data.sha256": data[:12]}

    @property
    def restarts(self) -> list[Restart]:
        """What a run that chose for itself went through."""
        with or_damaged(self.folder / ABOUT):
            return [Restart.from_dict(told) for told in self.about.get("restarts", ())]

    @cached_property
    def history(self) -> History:
        """Round by round."""
        return read_history(self.folder / HISTORY)

    @cached_property
    def clients(self) -> dict[str, list[Any]]:
        """The table of clients, column by column."""
        file = self.folder / CLIENTS
        with or_damaged(file):
            text = read_capped(file).decode("utf-8")
            header, *rows = csv.reader(io.StringIO(text, newline=""))
            columns = dict(zip(map(restored, header), zip(*rows, strict=True), strict=True))
            table: dict[str, list[Any]] = {
                name: [restored(cell) for cell in column] if name == "client" else [float(cell) for cell in column]
                for name, column in columns.items()
            }
            if missing := {"client", "objective"} - set(table) or not any(n.startswith("constraint") for n in table):
                raise ValueError(f"a column is missing: {missing if isinstance(missing, set) else 'constraint'}")
        return table

    @cached_property
    def params(self) -> dict[str, np.ndarray]:
        """The model's arrays by their paths."""
        file = self.folder / PARAMS
        check_size(file, TENSORS)
        with or_damaged(file):
            return load_file(file)

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """What happened to clients, of a run over Flower; see ``softswitch.results.events``."""
        return read_events(self.folder / EVENTS)

    @cached_property
    def certificate(self) -> dict[str, Any] | None:
        """The certificate, where there is one."""
        file = self.folder / CERTIFICATE
        if not file.exists():
            return None
        with or_damaged(file):
            told: dict[str, Any] = read_json(file)
            check_certificate(told)
        return told


def open_run(folder: str | Path) -> Run:
    """Read a run's folder."""
    path = Path(folder)
    file = path / ABOUT
    if not file.exists():
        raise ValueError(f"{str(path)!r} must be the folder of a run, but has no {ABOUT}")
    about = read_json(file)
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        about = about if isinstance(about, dict) else {}
        raise ValueError(f"{file} has the format {about.get('format')!r}, but {FORMAT!r} is what this version reads")
    with or_damaged(file):
        check_about(about)
    if "status" in about:
        code = about["status"]["code"]
        about["status"]["code"] = EARLIER.get(code, code)
    return Run(path, about)


def find_runs(parent: str | Path) -> list[Run]:
    """All runs below a folder, the oldest first; whatever else is there is passed over."""
    found = []
    for file in sorted(Path(parent).glob(f"**/{ABOUT}")):
        with suppress(ValueError, OSError):
            found.append(open_run(file.parent))
    return found


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


def differing_settings(runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
    """By section.name, the value in each run; the data's digest where that differs, and an empty text where unset."""
    every = [run.settings for run in runs]
    names = list(dict.fromkeys(name for settings in every for name in settings))
    found = {name: tuple(str(settings.get(name, "")) for settings in every) for name in names}
    return {name: tuple(map(short_numbers, values)) for name, values in found.items() if len(set(values)) > 1}


FRONTIER = "frontier.json"
FRONTIER_FORMAT = "softswitch frontier 1"


def write_frontier(folder: Path, frontier: Frontier, about: Mapping[str, Any]) -> None:
    """Write frontier.csv, .png and .svg, and at last frontier.json with what it is about."""
    write_atomically(folder / "frontier.csv", frontier.to_csv().encode(), durable=False)
    figure = frontier.figure()
    for kind in ("png", "svg"):
        stream = io.BytesIO()
        figure.savefig(stream, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
        write_atomically(folder / f"frontier.{kind}", stream.getvalue(), durable=False)
    write_json(folder / FRONTIER, {"format": FRONTIER_FORMAT, "about": dict(about), **frontier.to_dict()})


def has_frontier(folder: str | Path) -> bool:
    """Whether there is one."""
    return (Path(folder) / FRONTIER).exists()


def read_frontier(folder: str | Path) -> Frontier:
    """The frontier of a folder; its models are in folders of their own."""
    file = Path(folder) / FRONTIER
    told = read_json(file)
    found = told.get("format") if isinstance(told, dict) else None
    if found != FRONTIER_FORMAT:
        raise ValueError(f"{file} has the format {found!r}, but {FRONTIER_FORMAT!r} is what this version reads")
    with or_damaged(file):
        check_frontier(told)
        return Frontier.from_dict(told)
