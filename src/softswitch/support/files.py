"""Files that are either whole or not there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np


def write_atomically(file: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file so that it is whole or not there, come what may; ``durable``: even a power cut."""
    beside = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
    if not durable:
        return
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(file: Path, told: Any) -> None:
    """Write JSON, whole or not at all."""
    text = json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False, default=_plain)
    write_atomically(file, (text + "\n").encode(), durable=False)


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's; anything else as text."""
    return value.item() if isinstance(value, np.generic) else str(value)
