"""Files that are read no further than a cap: what comes from others may be of any size, and say anything."""

from __future__ import annotations

import csv
import json
import math
import os
import stat
import struct
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any, NoReturn
from zipfile import BadZipFile

from safetensors import SafetensorError

MOST_BYTES = "SOFTSWITCH_MOST_BYTES"
"""The environment variable that stands for every cap, where it is set."""
SETTINGS = 1 << 20
"""Caps, in bytes: of a file of settings,"""
WORDS = 1 << 28
"""of a text in a run's folder,"""
ARRAYS = 1 << 31
"""of packed arrays there, unpacked,"""
TENSORS = 1 << 34
"""and of arrays that are not packed, which take no more memory than their file has bytes."""

_ODD = (
    *(LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError, EOFError, ValueError),
    *(NotImplementedError, struct.error, zlib.error, csv.Error, BadZipFile, SafetensorError, SyntaxError, TokenError),
)
"""What reading something damaged, or made to do harm, may raise."""


def cap(default: int) -> int:
    """The cap: ``default`` bytes, unless the environment says another."""
    told = os.environ.get(MOST_BYTES)
    if not told:
        return default
    try:
        most = float(told)
    except ValueError:
        most = math.nan
    if not (1 <= most < math.inf):
        raise ValueError(f"{MOST_BYTES} must be a number of bytes, such as 2e9, but is {told!r}")
    return int(most)


def refuse_size(file: object, size: int, most: int, what: str = "") -> NoReturn:
    """Say that a file is larger than its cap, and how to have it read all the same."""
    from softswitch.support.text import byte_size  # it needs NumPy, which a help text does without

    raise ValueError(
        f"{file} has {byte_size(size)}{f' {what}' if what else ''}, but at most {byte_size(most)} are read; where you "
        f"know it, and it is meant to be so large: set {MOST_BYTES}={size} in the environment"
    )


def check_size(file: Path, default: int) -> None:
    """Raise where a file is larger than its cap, or is no plain file (a pipe or a device, say)."""
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{file} must be a plain file, but is a {'folder' if file.is_dir() else 'pipe or a device'}")
    if found.st_size > (most := cap(default)):
        refuse_size(file, found.st_size, most)


def read_capped(file: Path, default: int = WORDS) -> bytes:
    """The file's bytes, or raise where they are more than the cap."""
    check_size(file, default)
    most = cap(default)
    with file.open("rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        refuse_size(file, len(content), most, "or more")
    return content


def read_words(file: Path, default: int = WORDS) -> str:
    """The file's text."""
    try:
        return read_capped(file, default).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def read_json(file: Path, default: int = WORDS) -> Any:
    """What a JSON file says: finite numbers only."""
    with or_damaged(file):
        return json.loads(read_words(file, default), parse_constant=_refuse_number, parse_float=_finite)


def read_toml(file: Path, default: int = SETTINGS) -> dict[str, Any]:
    """What a TOML file says."""
    text = read_words(file, default)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError, ArithmeticError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"{file} is not TOML: {why}") from error


@contextmanager
def or_damaged(what: object) -> Iterator[None]:
    """Within, whatever reading raises is told as one clear error; what is clear already stays."""
    try:
        yield
    except _ODD as error:
        if type(error) is ValueError and str(what) in str(error):
            raise
        raise ValueError(f"{what} is damaged, or was not written by softswitch: {_told(error)}") from error


def _told(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "it asks for more memory than there is"
    said = str(error).partition("\n")[0][:200]
    if isinstance(error, KeyError):
        return f"{said} is missing"
    return said if type(error) is ValueError and said else f"{type(error).__name__} {said}".rstrip()


def _refuse_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number that JSON knows")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:20]} is too large a number")
    return value
