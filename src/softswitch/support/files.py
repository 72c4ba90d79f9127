"""Files that are either whole or not there."""

from __future__ import annotations

import csv
import json
import math
import os
import stat
import struct
import tomllib
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, NoReturn
from zipfile import BadZipFile

import numpy as np
from safetensors import SafetensorError

from softswitch.support.text import byte_size


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


PLAIN = "biufc"
"""Kinds of numbers: truth values, whole and real ones. Objects would be pickles."""
MOST_MEMBERS = 10_000
LIKELY = 200
"""An archive that unpacks to more than this many times its size is taken for a trap,"""
HARMLESS = 1 << 26
"""unless it has no more than so many bytes unpacked."""


def read_npz(file: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name; sizes are looked at before anything is unpacked.

    Raises:
        ValueError: the file is damaged, or its arrays are larger than the cap, or are no numbers.
    """
    check_size(file, ARRAYS)
    with or_damaged(file), zipfile.ZipFile(file) as archive:
        check_members(file, archive.infolist(), ARRAYS)
        return {one.filename.removesuffix(".npy"): _array(archive, one) for one in archive.infolist()}


def check_members(file: Path, members: list[zipfile.ZipInfo], default: int, harmless: int = HARMLESS) -> None:
    """Raise where an archive says that it unpacks to more than its cap, or to suspiciously much.

    Args:
        file: the archive.
        members: what it says is in it. Nothing more than that can be read of it.
        default: the cap in bytes of all together, unless the environment says another.
        harmless: so many bytes unpacked are nothing to speak of.
    """
    if len(members) > MOST_MEMBERS:
        raise ValueError(f"{file} must hold at most {MOST_MEMBERS:,} files, but holds {len(members):,}")
    odd = [one for one in members if one.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)]
    if odd or any(one.flag_bits & 1 for one in members):
        raise ValueError(f"{file} is packed in a way that is not read: only plain and deflated, without a password")
    unpacked, most = sum(one.file_size for one in members), cap(default)
    if unpacked > most:
        refuse_size(file, unpacked, most, "unpacked")
    refuse_trap(file, unpacked, file.stat().st_size, most, default, harmless)


def refuse_trap(file: Path, unpacked: int, packed: int, most: int, default: int, harmless: int) -> None:
    """Raise where few bytes become very many, which hardly any honest file does; a cap of one's own allows it.

    Args:
        file: its name.
        unpacked: how many bytes there are, or so far are, unpacked,
        packed: and packed.
        most: the cap,
        default: and what it is where nobody has set it.
        harmless: so many bytes unpacked are nothing to speak of.
    """
    if most == default and unpacked > harmless and unpacked > LIKELY * packed:
        raise ValueError(
            f"{file} has {byte_size(packed)} and unpacks to {byte_size(unpacked)} or more, over {LIKELY} times as "
            f"much, as files made to do harm do; where you know it: set {MOST_BYTES} in the environment to as many "
            "bytes as may be unpacked"
        )


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """An array, if its own header and the archive agree on its size."""
    with archive.open(member) as stream:
        shape, by_columns, dtype = _header(stream)
        told = math.prod(shape) * dtype.itemsize
        there = member.file_size - stream.tell()
        if told != there:
            raise ValueError(f"{member.filename} says that it has {told:,} bytes, but has {there:,}")
        content = stream.read(told)
    if len(content) != told:
        raise ValueError(f"{member.filename} ends early")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if by_columns else "C").copy()


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"its format {version} is not known")
    shape, by_columns, dtype = readers[version](stream)
    if dtype.kind not in PLAIN:
        raise ValueError(f"it holds {dtype}, which are no numbers")
    if not all(type(side) is int and side >= 0 for side in shape):
        raise ValueError(f"its shape {shape} is none")
    return shape, by_columns, dtype
