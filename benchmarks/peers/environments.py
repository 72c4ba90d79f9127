"""An environment of its own for every peer that cannot share ours, made on first use."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path("build") / "peers"
"""Relative to where the benchmark is run."""
PACKAGES: dict[str, tuple[str, ...]] = {
    # FedJAX's last release is of 2024, and the JAX of that time is the newest it is tried with here.
    "fedjax": ("fedjax==0.0.17", "jax==0.4.30", "jaxlib==0.4.30", "numpy<2", "scipy<1.13", "dm-haiku==0.0.12"),
    "pfl": ("pfl==0.6.0", "torch==2.13.0"),
    "drjax": ("drjax==0.2.1", "jax==0.10.2"),
    "humancompatible": ("humancompatible-train==0.4.2", "torch==2.13.0"),
}


def python_of(environment: str, folder: Path = FOLDER) -> Path:
    """The Python of an environment; "": the one that runs this.

    A file in it says that it is whole; one without, from an interrupted installation, is made anew.
    """
    if not environment:
        return Path(sys.executable)
    place = folder / environment
    if not (place / "whole").exists():
        shutil.rmtree(place, ignore_errors=True)
        print(f"Installing {' '.join(PACKAGES[environment])} in {place}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PACKAGES[environment]], check=True)
        (place / "whole").touch()
    return place / "bin" / "python"
