"""Writing and reading of run folders: settings, history, clients, parameters, certificate and trade-off curve."""

from __future__ import annotations

import csv
import io
import itertools
import math
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from softswitch.problem.parameters import Params
from softswitch.results.certificate import Certificate, Outcome, Verdict
from softswitch.results.events import EVENTS, read_events
from softswitch.results.frontier import Frontier
from softswitch.results.history import History
from softswitch.results.json_numbers import replace_non_finite
from softswitch.results.result import Result
from softswitch.results.status import Restart
from softswitch.support import files
from softswitch.support.arrays import flatten_by_path, unflatten_by_path
from softswitch.support.checks import ANY, MapOf, check_schema
from softswitch.support.files import open_atomically, wrap_read_errors, write_atomically, write_json
from softswitch.support.text import escape_row, shorten_numbers, unescape_cell

ABOUT, CONFIG, HISTORY, CLIENTS = "run.json", "config.toml", "history.npz", "clients.csv"
PARAMS, CERTIFICATE, ENCODING, CHECKPOINTS = "params.safetensors", "certificate.json", "encoding.json", "checkpoints"
FRONTIER = "frontier.json"
FORMAT, FRONTIER_FORMAT = "softswitch run 1", "softswitch frontier 1"
PACKAGES = ("softswitch", "jax", "jaxlib", "optax", "numpy", "scipy", "pandas")
TEXT_SETTINGS = ("data.label", "data.client", "task.kind", "task.sensitive")  # checked to be strings
LATEST, DEFAULT_PARENT = "latest", Path("runs")


def _all(kind: Any, names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), kind)


_NUMBER = (float, None)
_MODEL = {"name": str, **_all(_NUMBER, "objective mean_objective constraint"), "violating": int, "feasible": bool}
_BINS = [{**_all(float, "predicted observed lower upper"), "rows": int}]
_CERTIFICATION = {
    "certified": bool,
    **_all(str, "outcome message model?"),
    **_all(int, "models? earlier_certificates?"),
}
_USEFULNESS = {**_all(bool, "is_useful constant_is_feasible is_held_out"), **_all(int, "errors rows")}
_USEFULNESS |= _all(float, "worst mean constant upper confidence") | _all(
    str, "metric worst_client condition prediction"
)
_RUN = {  # schema of run.json; a name with "?" is optional
    **_all(str, "format started? finished? base? command? engine? requirement?"),
    "description?": {**_all(str, "constraint objective"), **_all(bool, "is_share is_nonnegative"), "cost": (str, None)},
    "data?": _all(str, "file sha256"),
    "status?": _all(str, "code message"),
    "versions?": MapOf(str),
    "certification?": (None, _CERTIFICATION),
    "usefulness?": (None, _USEFULNESS),
    "reliability?": (None, {"all": _BINS, "clients": MapOf(_BINS)}),
    "classes?": (None, _all(str, "negative positive")),
}
_FINISHED = {  # further entries of a finished run
    **_all(str, "answer method"),
    **_all(int, "rounds clients"),
    **_all(float, "tolerance seconds"),
    **_all(_NUMBER, "worst_objective worst_constraint switch_share price? worst_loss?"),
    "status": _all(str, "code message"),
    "seed": ANY,
    "violating": [str],
    "diagnostics": [_all(str, "code evidence advice")],
    "versions": MapOf(str),
    "restarts?": [MapOf((bool, str, float, None))],
    "lower_bound?": (None, {"certified": bool, "value": _NUMBER, "description": str}),
    "privacy?": (None, {"description": str, "epsilon": [_NUMBER], "delta": float}),
    "auto_settings?": MapOf(ANY),
    "constraints?": [str],
    "groups?": (None, MapOf(MapOf(_NUMBER))),
    "models?": [_MODEL],
}
_LIMITS = [{**_all(_NUMBER, "estimate lower upper"), "rows?": int}]
_CLIENT = {"client": str, "verdict": str, "constraints": _LIMITS, "rows_needed?": (int, None)}
_CERTIFICATE = {**_all(str, "verdict outcome message"), "confidence": float, "approximate": bool, "clients": [_CLIENT]}
_POINT = _all(_NUMBER, "objective constraint other_objective constant") | {"bound": float, "measures": MapOf(_NUMBER)}
_POINT |= _all(str, "outcome model") | {"failing_clients": [str]}
_FRONTIER = {"points": [_POINT], "confidence": float, "clients": int}
_FRONTIER |= _all(bool, "shares approximate") | {"certifiability": str}


def read_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that results depend on, by name."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def create_folder(parent: Path, stem: str) -> Path:
    """Create the folder ``parent/stem-YYYYMMDD-HHMMSS`` (UTC), with a number appended if it exists, and return it."""
    base = f"{stem}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folders = (parent / f"{base}{'' if attempt == 1 else f'-{attempt}'}" for attempt in itertools.count(1))
    while True:
        with suppress(FileExistsError):
            (folder := next(folders)).mkdir(parents=True)
            return folder


def write_result(
    folder: str | Path,
    result: Result,
    *,
    about: Mapping[str, Any] | None = None,
    clients: Mapping[str, Sequence[Any]] | None = None,
    certificate: Certificate | None = None,
) -> None:
    """Write a result to a run folder; run.json is written last and marks the run as finished.

    Args:
        folder: The folder. It is created if it does not exist; a run that it holds is overwritten.
        result: The output of ``solve``.
        about: Further entries of run.json; they replace entries of the same name. Default: none.
        clients: Further columns of clients.csv, one value per client in the order of ``result.names``. Default: none.
        certificate: The certificate of the answer. Default: none, and an existing one is deleted.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    result.history.save(folder / HISTORY)
    write_atomically(folder / CLIENTS, _clients_csv(result, clients or {}), durable=False)
    write_atomically(folder / PARAMS, save(flatten_by_path(result.params)), durable=False)
    (folder / CERTIFICATE).unlink(missing_ok=True)  # of previous parameters
    if certificate is not None:
        write_json(folder / CERTIFICATE, certificate.to_dict())
    privacy, copied = result.privacy, ("seed", "worst_objective", "worst_constraint", "auto_settings", "price")
    values = {
        "format": FORMAT,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "status": {"code": str(result.status.code), "message": result.status.message},
        "answer": result.selected,
        "method": str(result.method),
        "tolerance": float(result.method.tolerance),
        "threshold": float(result.method.switch_at),
        "rounds": len(result.history),
        "seconds": round(result.seconds, 3),
        "restarts": [restart.to_dict() for restart in result.restarts],
        "switch_share": result.history.switch_share,
        "worst_loss": None if result.client_optimum is None else result.worst_loss,
        "lower_bound": result.lower_bound and result.lower_bound.to_dict(),
        "violating": list(map(str, result.violating)),
        "clients": len(result.names),
        "diagnostics": list(map(asdict, result.diagnostics)),
        "models": [model.to_dict() for model in (result.as_baseline, *result.baselines)],
        "privacy": privacy and {**privacy.to_dict(), "description": str(privacy)},
        "versions": read_versions(),
        **{name: getattr(result, name) for name in copied},
    }
    write_json(folder / ABOUT, replace_non_finite(values) | dict(about or {}))


def _clients_csv(result: Result, more: Mapping[str, Sequence[Any]]) -> bytes:
    table: dict[str, Sequence[Any]] = {"client": list(map(str, result.names)), **more}
    if (memory := result.state.parts.get("memory")) is not None:
        table |= {"times_heard": memory.times.tolist(), "last_heard_in_round": memory.reported_at.tolist()}
    if result.privacy is not None:
        table["epsilon"] = [math.nan if epsilon is None else epsilon for epsilon in result.privacy.epsilon]
    table["objective"] = result.client_loss.tolist()
    if result.client_optimum is not None:
        table |= {"client_optimum": result.client_optimum.tolist(), "regret": result.client_objective.tolist()}
    constraints = result.client_constraint.T.tolist()
    names = ["constraint"] if len(constraints) == 1 else [f"constraint_{i}" for i in range(1, len(constraints) + 1)]
    table |= dict(zip(names, constraints, strict=True))
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(escape_row(table))
    writer.writerows(map(escape_row, zip(*table.values(), strict=True)))
    return stream.getvalue().encode()


@dataclass(frozen=True)
class Run:
    """A run folder, whose files are read when needed.

    Attributes:
        folder: Path of the folder.
        about: Content of run.json.
    """

    folder: Path
    about: dict[str, Any]

    @property
    def name(self) -> str:
        """Last component of the folder's path."""
        return self.folder.name

    @property
    def finished(self) -> bool:
        """Whether the run has a result. If not, it is in progress or was killed."""
        return "finished" in self.about

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings of config.toml by "section.name"; only the seed if there is no such file."""
        file = self.folder / CONFIG
        if not file.exists():
            return {"seed": self.about.get("seed")}
        sections = files.read_toml(file)
        with wrap_read_errors(file):
            settings = {f"{section}.{name}": v for section, part in sections.items() for name, v in part.items()}
            for name, value in settings.items():
                if isinstance(value, dict) or (name in TEXT_SETTINGS and not isinstance(value, str)):
                    raise ValueError(f"{name} must be a setting of another type, but is {type(value).__name__}")
        digest = self.about.get("data", {}).get("sha256")
        return settings if digest is None else settings | {"data.sha256": digest[:12]}

    @property
    def client_noun(self) -> str:
        """Name of the column that identifies the client, such as "hospital". Default: "client"."""
        return str(self.settings.get("data.client", "client"))

    @property
    def restarts(self) -> list[Restart]:
        """The restarts of an auto-tuned run; empty for other runs."""
        with wrap_read_errors(self.folder / ABOUT):
            return [Restart.from_dict(values) for values in self.about.get("restarts", ())]

    @cached_property
    def history(self) -> History:
        """The history of the rounds, from history.npz."""
        return History.load(self.folder / HISTORY)

    @cached_property
    def clients(self) -> dict[str, list[Any]]:
        """The columns of clients.csv by name: "client" has strings, all others have floats."""
        file = self.folder / CLIENTS
        with wrap_read_errors(file):
            text = files.read_bytes(file).decode("utf-8")
            header, *rows = csv.reader(io.StringIO(text, newline=""))
            columns = dict(zip(map(unescape_cell, header), zip(*rows, strict=True), strict=True))
            kinds = {"constraint" if name.startswith("constraint") else name for name in columns}
            if missing := {"client", "objective", "constraint"} - kinds:
                raise ValueError(f"columns are missing: {', '.join(sorted(missing))}")
            convert = {"client": unescape_cell}
            return {name: [convert.get(name, float)(cell) for cell in column] for name, column in columns.items()}

    @cached_property
    def params(self) -> dict[str, np.ndarray]:
        """The arrays of the answer's parameters, by their path in the parameter tree."""
        file = self.folder / PARAMS
        content = files.read_bytes(file, files.MAX_TENSOR_BYTES)
        with wrap_read_errors(file):
            return load(content)

    def restore_params(self, like: Params) -> Params:
        """Return the answer's parameters as a tree with the structure of ``like``, such as ``problem.start``."""
        with wrap_read_errors(self.folder / PARAMS):
            return unflatten_by_path(self.params, like)

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """The entries of the event log of a run over Flower, in order; empty if there is none."""
        return read_events(self.folder / EVENTS)

    @cached_property
    def certificate(self) -> dict[str, Any] | None:
        """The content of certificate.json, as ``Certificate.to_dict`` wrote it; None if there is none."""
        file = self.folder / CERTIFICATE
        if not file.exists():
            return None
        with wrap_read_errors(file):
            content: dict[str, Any] = files.read_json(file)
            check_schema(content, _CERTIFICATE, "certificate")
            Outcome(content["outcome"])
            for client in content["clients"]:
                Verdict(client["verdict"])
                if not client["constraints"]:
                    raise ValueError(f"the client {client['client']!r} has no constraints")
        return content


def read_format(file: Path, expected: str) -> dict[str, Any]:
    """Read a JSON object, or raise ValueError if its entry ``format`` is not ``expected``."""
    content = files.read_json(file)
    written = content.get("format") if isinstance(content, dict) else None
    if written != expected:
        raise ValueError(f"{file} has the format {written!r}, but this version reads {expected!r}")
    return dict(content)


def open_run(folder: str | Path) -> Run:
    """Open a run folder. Raise ValueError if its run.json is missing, damaged or of another version."""
    file = Path(folder) / ABOUT
    if not file.exists():
        raise ValueError(f"{str(folder)!r} must be the folder of a run, but has no {ABOUT}")
    about = read_format(file, FORMAT)
    with wrap_read_errors(file):
        check_schema(about, _RUN | _FINISHED if "finished" in about else _RUN, "run")
        if certification := about.get("certification"):
            Outcome(certification["outcome"])
    return Run(file.parent, about)


def find_runs(parent: str | Path) -> list[Run]:
    """Return all runs in a folder and its subfolders, sorted by path. Other files and damaged runs are ignored."""
    runs = []
    for file in sorted(Path(parent).glob(f"**/{ABOUT}")):
        with suppress(ValueError, OSError):
            runs.append(open_run(file.parent))
    return runs


def resolve_run(folder: Path) -> Path:
    """Return the folder itself or, for "PARENT/latest", the newest run below PARENT. PARENT is ``runs`` by default."""
    if folder.name != LATEST or folder.exists():
        return folder
    parent = check_folder(DEFAULT_PARENT if folder == Path(LATEST) else folder.parent)
    if not (runs := find_runs(parent)):
        raise ValueError(f"there is no run below {parent}; create one with softswitch train SETTINGS")
    return max(runs, key=lambda r: (r.about.get("started") or r.about.get("finished") or "", r.name)).folder


def check_folder(folder: Path) -> Path:
    """Return the folder, or raise ValueError if it is not an existing folder."""
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise ValueError(f"{folder} {problem}; softswitch train creates it, or give the folder of your runs")
    return folder


def compare_settings(runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
    """Return each setting that differs, as text for each run, by "section.name"; an unset value is an empty string."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    values = {name: tuple(str(run.settings.get(name, "")) for run in runs) for name in names}
    return {name: tuple(map(shorten_numbers, texts)) for name, texts in values.items() if len(set(texts)) > 1}


def write_frontier(folder: Path, frontier: Frontier, about: Mapping[str, Any]) -> None:
    """Write frontier.png, then frontier.json with the points and ``about``. The JSON file marks a complete folder."""
    with open_atomically(folder / "frontier.png", durable=False) as stream:
        frontier.figure().savefig(stream, format="png", dpi=150)
    write_json(folder / FRONTIER, {"format": FRONTIER_FORMAT, "about": dict(about), **frontier.to_dict()})


def read_frontier(folder: str | Path) -> Frontier:
    """Read frontier.json of a folder. The points have no result and no certificate: these are in run folders."""
    file = Path(folder) / FRONTIER
    content = read_format(file, FRONTIER_FORMAT)
    with wrap_read_errors(file):
        check_schema(content, _FRONTIER, "frontier")
        if not content["points"]:
            raise ValueError("points is empty")
        return Frontier.from_dict(content)
