"""Options of settings files as arguments of ``solve``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from softswitch.oracles.options import Compute, Logging, Output, Sampling

GROUPS: dict[str, type[Any]] = {"sampling": Sampling, "output": Output, "compute": Compute, "logging": Logging}
ALIASES = {"answer": "iterate"}  # names of options in settings files, and in the groups


def group_options(*, automatic: bool = False, **options: Any) -> dict[str, Any]:
    """Return options of a settings file as arguments of ``solve``; ``automatic``: batch sizes default to "auto"."""
    grouped: dict[str, Any] = {}
    options = {ALIASES.get(name, name): value for name, value in options.items()}
    for group, kind in GROUPS.items():
        given = {field.name: options.pop(field.name) for field in fields(kind) if field.name in options}
        if given:
            grouped[group] = kind.automatic(**given) if kind is Sampling and automatic else kind(**given)
    return grouped | options
