"""Arrays in NumPy's packed format (.npz), from anyone: no pickles, and no more bytes than a cap."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from softswitch.support.capped_files import ARRAYS, MOST_BYTES, cap, check_size, or_damaged, refuse_size
from softswitch.support.text import byte_size

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
