"""The oldest versions that pyproject.toml allows, as pins."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

EXTRAS = ("excel", "fairness", "flower", "parquet", "report", "tensorboard")
"""What is tried along with the package; PyTorch, Ray and MLflow are large, and tried by the tests that pin them."""
TOOLS = ("beartype", "hypothesis", "jsonschema", "prometheus-client", "psutil", "pytest-xdist", "pyyaml")
"""What the tests need besides pytest."""


def oldest_pins(file: Path) -> list[str]:
    """Every direct dependency at its lower bound, those of the extras as well."""
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *(one for extra in EXTRAS for one in project["optional-dependencies"][extra])]
    return list(dict.fromkeys(pinned(one) for one in asked))


def pinned(requirement: str) -> str:
    """``jax>=0.9,<0.12`` as ``jax==0.9``."""
    match = re.match(r"([\w.-]+(?:\[[\w,-]+\])?)\s*>=\s*([\w.]+)", requirement)
    if match is None:
        raise ValueError(f"{requirement!r} has no lower bound")
    return f"{match[1]}=={match[2]}"
