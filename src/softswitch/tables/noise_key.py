"""The secret that a table's private run draws its rows and noise by: with the checkpoints, and gone when it is over."""

from __future__ import annotations

import os
from pathlib import Path

NOISE_KEY = "noise.key"
WORDS = 2
"""Of 32 bits each: as many as a random key has."""


def noise_key(folder: Path) -> tuple[int, ...]:
    """The words of a run that goes on, or new ones from the operating system's entropy.

    Settings and seed are in a run's folder, and whoever has all that noise is drawn by can take it off the model.

    Args:
        folder: of the run's checkpoints.
    """
    file = folder / NOISE_KEY
    folder.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        if any(folder.glob("round-*")):
            raise ValueError(f"{file} is gone, by which the run's noise was drawn: it cannot go on; train anew")
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(os.urandom(4 * WORDS))
            stream.flush()
            os.fsync(stream.fileno())
    words = file.read_bytes()
    if len(words) != 4 * WORDS:
        raise ValueError(f"{file} is damaged: the run cannot go on; train anew")
    return tuple(int.from_bytes(words[i : i + 4], "little") for i in range(0, len(words), 4))


def forget_noise_key(folder: Path) -> None:
    """Nobody needs it any more.

    Args:
        folder: of the run's checkpoints.
    """
    (folder / NOISE_KEY).unlink(missing_ok=True)
