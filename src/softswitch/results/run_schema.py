"""Schemas of the JSON files in a run's folder, which may come from anyone."""

from __future__ import annotations

from typing import Any

from softswitch.results.frontier import NUMBERS
from softswitch.support.checks import ANY, MapOf, check_schema

_NUMBER = (float, None)
_RUN = {
    "format": str,
    "started?": str,
    "finished?": str,
    "base?": str,
    "command?": str,
    "engine?": str,
    "bounded?": str,
    "description?": {
        "constraint": str,
        "objective": str,
        "is_share": bool,
        "is_nonnegative": bool,
        "cost": (str, None),
    },
    "data?": {"file": str, "sha256": str},
    "status?": {"code": str, "message": str},
    "versions?": MapOf(str),
    "aim?": (None, {"answered": bool, "words": str}),
}
"""Entries of every run."""
_FINISHED_RUN = {
    "status": {"code": str, "message": str},
    "answer": str,
    "method": str,
    "tolerance": float,
    "seed": ANY,
    "rounds": int,
    "seconds": float,
    "switch_share": _NUMBER,
    "worst_objective": _NUMBER,
    "worst_constraint": _NUMBER,
    "violating": [str],
    "clients": int,
    "diagnostics": [{"code": str, "evidence": str, "advice": str}],
    "versions": MapOf(str),
    "restarts?": [MapOf((bool, str, float, None))],
    "lower_bound?": (None, {"certified": bool, "value": _NUMBER, "description": str}),
    "oldest_report?": (int, None),
    "price?": _NUMBER,
    "worst_loss?": _NUMBER,
    "privacy?": (None, {"description": str, "epsilon": [_NUMBER], "delta": float}),
    "auto_settings?": MapOf(ANY),
    "constraints?": [str],
    "groups?": (None, MapOf(MapOf(_NUMBER))),
    "models?": [
        {
            "name": str,
            "objective": _NUMBER,
            "mean_objective": _NUMBER,
            "constraint": _NUMBER,
            "violating": int,
            "feasible": bool,
        }
    ],
}
"""Further entries of a finished run."""
_LISTED = ("status", "tolerance", "rounds", "worst_objective", "worst_constraint")
"""Entries that a list of runs needs."""
_CERTIFICATE = {
    "verdict": str,
    "confidence": float,
    "approximate": bool,
    "clients": [
        {
            "client": (str, bool, float),
            "verdict": str,
            "constraints": [{"estimate": _NUMBER, "lower": _NUMBER, "upper": _NUMBER}],
            "rows_needed?": (int, None),
        }
    ],
}
_FRONTIER = {
    "confidence": float,
    "clients": int,
    "shares": bool,
    "approximate": bool,
    "certifiability": str,
    "requested": _NUMBER,
    "planned_tests": int,
    "tested": [[ANY]],
    "smallest": MapOf(_NUMBER),
    "points": [
        {
            "bound": float,
            "outcome": str,
            **dict.fromkeys(NUMBERS, _NUMBER),
            "measures": MapOf(_NUMBER),
            "model": str,
            "failing_clients": [str],
        }
    ],
}


def check_run(about: dict[str, Any], *, for_report: bool = False) -> None:
    """Check the content of run.json; ``for_report``: also that it has everything that a report needs."""
    check_schema(about, _RUN, "run")
    if "finished" in about:
        optional = {n if n in _LISTED else f"{n.removesuffix('?')}?": schema for n, schema in _FINISHED_RUN.items()}
        check_schema(about, _FINISHED_RUN if for_report else optional, "run")


def check_certificate(content: Any) -> None:
    """Check the content of certificate.json."""
    check_schema(content, _CERTIFICATE, "certificate")
    if not all(client["constraints"] for client in content["clients"]):
        raise ValueError("a client has no constraints")


def check_frontier(content: Any) -> None:
    """Check the content of frontier.json."""
    check_schema(content, _FRONTIER, "frontier")
    if not content["points"]:
        raise ValueError("frontier.points is empty")


def check_settings(settings: dict[str, Any]) -> None:
    """Check the types of the settings that a report shows, by section.name."""
    for name in ("data.label", "data.client", "task.kind", "task.sensitive", "task.constraint"):
        if not isinstance(settings.get(name, ""), str):
            raise ValueError(f"{name} must be a string, but is {type(settings[name]).__name__}")
    for name, value in settings.items():
        if isinstance(value, dict):
            raise ValueError(f"{name} must be a setting, but is a section")
