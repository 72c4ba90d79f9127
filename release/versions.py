"""Pins of the oldest versions that pyproject.toml allows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

EXTRAS = ("excel", "fairness", "flower", "parquet", "report", "tensorboard")
"""Extras to install. The large ones (PyTorch, Ray, MLflow) are only tested with the pinned versions."""
TOOLS = ("beartype", "hypothesis", "jsonschema", "prometheus-client", "psutil", "pytest-xdist", "pyyaml")
"""Packages that the tests need in addition to pytest."""


def oldest_pins(file: Path) -> list[str]:
    """Return every direct dependency, with those of the extras, at its lower bound."""
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    requirements = [
        *project["dependencies"],
        *(one for extra in EXTRAS for one in project["optional-dependencies"][extra]),
    ]
    return list(dict.fromkeys(pin_oldest(one) for one in requirements))


def pin_oldest(requirement: str) -> str:
    """Return ``jax==0.9`` for ``jax>=0.9,<0.12``."""
    match = re.match(r"([\w.-]+(?:\[[\w,-]+\])?)\s*>=\s*([\w.]+)", requirement)
    if match is None:
        raise ValueError(f"{requirement!r} has no lower bound")
    return f"{match[1]}=={match[2]}"
