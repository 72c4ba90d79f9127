"""What a run's files of words must look like: they may come from anyone."""

from __future__ import annotations

from typing import Any

from softswitch.results.frontier_point import NUMBERS
from softswitch.support.json_schema import ANYTHING, Each, check_shape

_MAYBE = (float, None)
_BEGUN = {
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
    "versions?": Each(str),
    "aim?": (None, {"answered": bool, "words": str}),
}
"""Of a run that is under way, or was killed;"""
_FINISHED = {
    "status": {"code": str, "message": str},
    "answer": str,
    "method": str,
    "tolerance": float,
    "seed": ANYTHING,
    "rounds": int,
    "seconds": float,
    "switch_share": _MAYBE,
    "worst_objective": _MAYBE,
    "worst_constraint": _MAYBE,
    "violating": [str],
    "clients": int,
    "diagnostics": [{"code": str, "evidence": str, "advice": str}],
    "versions": Each(str),
    "restarts?": [Each((bool, str, float, None))],
    "lower_bound?": (None, {"certified": bool, "value": _MAYBE, "words": str}),
    "oldest_report?": (int, None),
    "price?": _MAYBE,
    "worst_loss?": _MAYBE,
    "stationarity?": [_MAYBE],
    "privacy?": (None, {"words": str, "epsilon": [_MAYBE], "delta": float}),
    "chosen?": Each(ANYTHING),
    "constraints?": [str],
    "groups?": (None, Each(Each(_MAYBE))),
    "beside?": [
        {
            "name": str,
            "objective": _MAYBE,
            "mean_objective": _MAYBE,
            "constraint": _MAYBE,
            "violating": int,
            "feasible": bool,
        }
    ],
}
"""and, besides, of one that came to its end."""
_INTERVAL = {"estimate": _MAYBE, "lower": _MAYBE, "upper": _MAYBE}
_CERTIFICATE = {
    "verdict": str,
    "confidence": float,
    "approximate": bool,
    "clients": [
        {
            "client": (str, bool, float),
            "verdict": str,
            "constraints": [_INTERVAL],
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
    "asked": _MAYBE,
    "claims": int,
    "tested": [[ANYTHING]],
    "smallest": Each(_MAYBE),
    "points": [
        {
            "bound": float,
            "outcome": str,
            **dict.fromkeys(NUMBERS, _MAYBE),
            "measures": Each(_MAYBE),
            "model": str,
            "in_the_way": [str],
        }
    ],
}


def check_about(about: dict[str, Any], *, whole: bool = False) -> None:
    """Raise where run.json says something else than a run does; ``whole``: or lacks something that a report shows."""
    check_shape(about, _BEGUN, "run")
    if "finished" in about:
        listed = ("status", "tolerance", "rounds", "worst_objective", "worst_constraint")
        lenient = {name if name in listed else f"{name.removesuffix('?')}?": shape for name, shape in _FINISHED.items()}
        check_shape(about, _FINISHED if whole else lenient, "run")


def check_certificate(told: Any) -> None:
    """Raise where certificate.json does."""
    check_shape(told, _CERTIFICATE, "certificate")
    if not all(client["constraints"] for client in told["clients"]):
        raise ValueError("a client has no constraints")


def check_frontier(told: Any) -> None:
    """Raise where frontier.json does."""
    check_shape(told, _FRONTIER, "frontier")
    if not told["points"]:
        raise ValueError("frontier.points is empty")


def check_settings(flat: dict[str, Any]) -> None:
    """Raise where settings that are shown are of another kind than theirs; section.name by section.name."""
    for name in ("data.label", "data.client", "task.kind", "task.sensitive", "task.constraint"):
        if not isinstance(flat.get(name, ""), str):
            raise ValueError(f"{name} must be a text, but is {type(flat[name]).__name__}")
    for name, value in flat.items():
        if isinstance(value, dict):
            raise ValueError(f"{name} must be a setting, but is a section")
