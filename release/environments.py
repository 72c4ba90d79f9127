"""Fresh virtual environments outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MAX_LINES = 60


class Failed(Exception):  # noqa: N818
    """A check of the release failed."""


def run_command(command: list[str], folder: Path) -> str:
    """Return the output of a command, or raise with its last lines. The checkout is not on its path."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, errors="replace"
    )
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-MAX_LINES:])
        raise Failed(f"{' '.join(map(str, command[:6]))} … ended with {done.returncode}:\n{last}")
    return done.stdout


class Environment:
    """A fresh virtual environment; ``name`` is that of its folder."""

    def __init__(self, folder: Path) -> None:
        self.name, self._folder = folder.name, folder
        folder.mkdir(parents=True)
        run_command([sys.executable, "-m", "venv", str(folder / "venv")], folder)

    def install(self, *packages: str) -> None:
        """Install packages with pip."""
        self.run("python", "-m", "pip", "install", "-qq", "--disable-pip-version-check", *packages)

    def run(self, program: str, *arguments: str, folder: Path | None = None) -> str:
        """Return the output of a program of the environment."""
        return run_command([str(self._folder / "venv" / "bin" / program), *arguments], folder or self._folder)
