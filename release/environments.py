"""Fresh environments outside of the checkout, and commands in them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

MOST_LINES = 60


class Failed(Exception):  # noqa: N818
    """Something is not as it must be for a release."""


def command(words: list[str], folder: Path, more: Mapping[str, str] | None = None) -> str:
    """What a command prints; raises with its last lines where it fails. No path of the checkout reaches it."""
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    done = subprocess.run(
        words, cwd=folder, env={**own, **(more or {})}, capture_output=True, text=True, check=False, errors="replace"
    )
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-MOST_LINES:])
        raise Failed(f"{' '.join(map(str, words[:6]))} … ended with {done.returncode}:\n{last}")
    return done.stdout


class Environment:
    """A fresh virtual environment.

    Attributes:
        name: its folder's.
    """

    def __init__(self, folder: Path) -> None:
        self.name, self._folder = folder.name, folder
        folder.mkdir(parents=True)
        command([sys.executable, "-m", "venv", str(folder / "venv")], folder)

    def install(self, *what: str) -> None:
        """Install with pip as it is configured."""
        self.run("python", "-m", "pip", "install", "-qq", "--disable-pip-version-check", *what)

    def run(self, program: str, *words: str, folder: Path | None = None) -> str:
        """What a program of the environment prints."""
        return command([str(self._folder / "venv" / "bin" / program), *words], folder or self._folder)
