"""Atomic writes, and reads that limit the size of a file and report damaged content as ValueError.

Files may come from others: nothing here follows a symbolic link in the place of a file, or opens a pipe or a device.
"""

from __future__ import annotations

import csv
import json
import math
import os
import secrets
import stat
import struct
import tomllib
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from rich.filesize import decimal
from safetensors import SafetensorError

MAX_BYTES_VARIABLE = "SOFTSWITCH_MAX_FILE_BYTES"  # environment variable that overrides every size limit
MAX_SETTINGS_BYTES = 1 << 20  # of a TOML file
MAX_TEXT_BYTES = 1 << 28  # of a text or JSON file
MAX_ARCHIVE_BYTES = 1 << 31  # of an .npz file, uncompressed
MAX_TENSOR_BYTES = 1 << 34  # of a .safetensors file
MAX_MEMBERS = 10_000  # files in an archive
MAX_COMPRESSION_RATIO = 200  # archives with a larger ratio are rejected as decompression bombs
SAFE_BYTES = 1 << 26  # archives of at most this uncompressed size may have any compression ratio
NUMERIC_KINDS = "biufc"  # accepted ``dtype.kind``; object arrays would be pickles

_READ_ERRORS = (  # that damaged or malicious files may raise
    *(LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError, EOFError, ValueError),
    *(NotImplementedError, struct.error, zlib.error, csv.Error, zipfile.BadZipFile, SafetensorError),
    *(SyntaxError, TokenError),
)


def make_folder(folder: Path) -> None:
    """Create a folder if it does not exist; raise ValueError if a symbolic link is in its place."""
    if folder.is_symlink():
        raise ValueError(f"{folder} must not be a symbolic link; remove the link, or use another folder")
    folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def open_atomically(file: Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Open a new file that gets its name ``file`` at the end of the ``with`` block, or is removed if it fails.

    An existing file is replaced, and so is a symbolic link, which is not followed. ``durable`` also flushes the file to
    disk, to survive a power failure.
    """
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as stream:
            yield stream
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_atomically(file: Path, content: bytes, *, durable: bool = True) -> None:
    """Write or replace a file as ``open_atomically`` does."""
    with open_atomically(file, durable=durable) as stream:
        stream.write(content)


def write_json(file: Path, content: Any) -> None:
    """Write JSON atomically. NumPy scalars, paths and dates are converted; NaN and other objects are errors."""
    text = json.dumps(content, default=_to_json, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(file, (text + "\n").encode(), durable=False)


def _to_json(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path | date):
        return str(value)
    raise TypeError(f"JSON cannot hold {type(value).__name__}: {value!r}")


def size_limit(default: int) -> int:
    """Return a size limit in bytes: that of the environment variable if it is set, else ``default``."""
    value = os.environ.get(MAX_BYTES_VARIABLE)
    if not value:
        return default
    try:
        limit = float(value)
    except ValueError:
        limit = math.nan
    if not (1 <= limit < math.inf):
        raise ValueError(f"{MAX_BYTES_VARIABLE} must be a number of bytes, such as 2e9, but is {value!r}")
    return int(limit)


def check_bytes(file: object, size: int, default: int, suffix: str = "") -> None:
    """Raise ValueError if a file has more bytes than ``size_limit(default)``; ``suffix`` says how they were counted."""
    if size > (limit := size_limit(default)):
        advice = f"if you trust the file, set {MAX_BYTES_VARIABLE}={size} in the environment"
        size_text = f"{decimal(size)} {suffix}".rstrip()
        raise ValueError(f"{file} has {size_text}, but the limit is {decimal(limit)}; {advice}")


def check_size(file: Path, default: int) -> None:
    """Raise ValueError if a file is larger than ``size_limit(default)``, or is not a regular file."""
    check_regular(file)
    check_bytes(file, file.stat().st_size, default)


def check_regular(file: Path) -> None:
    """Raise ValueError if a path is not that of a regular file: a folder, a symbolic link, a pipe or a device."""
    mode = file.lstat().st_mode
    if not stat.S_ISREG(mode):
        kind = "folder" if stat.S_ISDIR(mode) else "symbolic link" if stat.S_ISLNK(mode) else "pipe or a device"
        raise ValueError(f"{file} must be a regular file, but is a {kind}")


def check_unshared(file: Path) -> None:
    """Raise ValueError if a path is that of anything but a regular file with this name alone, or of nothing."""
    if os.path.lexists(file):
        check_regular(file)
        if (names := file.lstat().st_nlink) > 1:
            raise ValueError(f"{file} must have one name, but {names} hard links lead to it; copy it, and remove it")


@contextmanager
def open_regular(file: Path, mode: str = "rb") -> Iterator[IO[bytes]]:
    """Open a regular file to read ("rb") or to append ("ab"); raise ValueError if it is none.

    The file is checked before and after it is opened, because another process may replace it in between. To append, the
    file must have one name only: a hard link could lead to any file of the user.
    """
    (check_regular if mode == "rb" else check_unshared)(file)
    flags = os.O_NOFOLLOW | os.O_NONBLOCK
    with open(file, mode, opener=lambda path, given: os.open(path, given | flags, 0o666)) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise ValueError(f"{file} must be a regular file, but was replaced")
        yield stream


def read_bytes(file: Path, default: int = MAX_TEXT_BYTES) -> bytes:
    """Return a file's bytes; raise ValueError if there are more than ``size_limit(default)``."""
    with open_regular(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        check_bytes(file, size, default)
        return stream.read(size)


def read_text(file: Path, default: int = MAX_TEXT_BYTES) -> str:
    """Return the text of a UTF-8 file; raise ValueError if it is too large or has another encoding."""
    try:
        return read_bytes(file, default).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def read_json(file: Path) -> Any:
    """Return the parsed content of a JSON file; raise ValueError if it is invalid or has NaN or infinity."""

    def parse(text: str) -> float:
        if not math.isfinite(value := float(text)):
            raise ValueError(f"{text[:20]} is not a valid JSON number, or too large")
        return value

    with wrap_read_errors(file):
        return json.loads(read_text(file), parse_constant=parse, parse_float=parse)


def read_toml(file: Path) -> dict[str, Any]:
    """Return the parsed content of a TOML file; raise ValueError if it is invalid."""
    text = read_text(file, MAX_SETTINGS_BYTES)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError, ArithmeticError) as error:
        raise ValueError(f"{file} is not TOML: {_reason(error)}") from error


@contextmanager
def wrap_read_errors(source: object) -> Iterator[None]:
    """Convert an error that damaged content may raise in the ``with`` block to a ValueError that names ``source``."""
    try:
        yield
    except _READ_ERRORS as error:
        if type(error) is ValueError and str(source) in str(error):
            raise
        raise ValueError(f"{source} is damaged, or was not written by softswitch: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    message = str(error).partition("\n")[0][:200]
    if isinstance(error, RecursionError | MemoryError):
        return "it is nested too deeply" if isinstance(error, RecursionError) else "it needs too much memory"
    if isinstance(error, KeyError):
        return f"{message} is missing"
    return message if isinstance(error, ValueError) and message else f"{type(error).__name__} {message}".rstrip()


def read_npz(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by name; raise ValueError if the file is damaged, too large or not numeric."""
    check_size(file, MAX_ARCHIVE_BYTES)
    with wrap_read_errors(file), open_regular(file) as stream, zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        check_archive(file, members)
        return {member.filename.removesuffix(".npy"): _read_array(archive, member) for member in members}


def check_archive(file: Path, members: list[zipfile.ZipInfo]) -> None:
    """Raise ValueError if a zip archive is encrypted, too large uncompressed, or looks like a decompression bomb."""
    if len(members) > MAX_MEMBERS:
        raise ValueError(f"{file} must hold at most {MAX_MEMBERS:,} files, but holds {len(members):,}")
    supported = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    if any(member.compress_type not in supported or member.flag_bits & 1 for member in members):
        raise ValueError(f"{file} must be stored or deflated and not encrypted, but is not")
    check_unpacked(file, sum(member.file_size for member in members), MAX_ARCHIVE_BYTES, "uncompressed", SAFE_BYTES)


def check_unpacked(file: Path, size: int, default: int, suffix: str, safe_bytes: int) -> None:
    """Raise ValueError if a compressed file is too large with the uncompressed ``size``, or a decompression bomb.

    The compression ratio is not limited for at most ``safe_bytes`` bytes, or if the user has set the limit of the size.
    """
    check_bytes(file, size, default, suffix)
    compressed = file.stat().st_size
    if size_limit(default) == default and size > max(safe_bytes, MAX_COMPRESSION_RATIO * compressed):
        raise ValueError(
            f"{file} has {decimal(compressed)} and {decimal(size)} or more uncompressed, over "
            f"{MAX_COMPRESSION_RATIO} times as much, like a decompression bomb; if you trust the file, set "
            f"{MAX_BYTES_VARIABLE} in the environment to the number of bytes that may be uncompressed"
        )


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as stream:
        array = np.lib.format.read_array(stream, allow_pickle=False)
        has_more = bool(stream.read(1))
    if array.dtype.kind not in NUMERIC_KINDS or has_more:
        raise ValueError(f"{member.filename} must hold one array of numbers, but has dtype {array.dtype} or more bytes")
    return array
