"""A table's bytes, unpacked as they are read, and no more of them than a cap."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from xml.parsers import expat

from softswitch.support.capped_files import cap, check_size, refuse_size
from softswitch.support.packed_arrays import check_members, refuse_trap

TABLE = 1 << 36
"""The cap of a table in bytes, unpacked: 64 GiB."""
HARMLESS = 1 << 30
"""A packed table may become this large however small it is; beyond, only so many times as large as it is."""
MEMORY = 1 << 28
"""So many bytes may unpacking .xz take for itself; its own strongest setting takes a quarter of it."""
BLOCK = 1 << 18
MOST_CELLS = 1 << 26
"""A sheet is as wide as its widest row and as long as its last; so many cells it may have, empty ones counted."""
ROUGHLY = 8
"""Bytes that a cell takes in memory at least."""


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked; reading them raises where they are more than the cap."""
    ending = path.suffix.lower()
    check_size(path, TABLE)
    if ending == ".zip":
        return io.BufferedReader(_Capped(_from_zip(path), path))
    opened: dict[str, Any] = {".gz": gzip.open, ".xz": _Unxz, ".bz2": bz2.open}
    if ending not in opened:
        return path.open("rb")
    return io.BufferedReader(_Capped(opened[ending](path), path), BLOCK)


class _Capped(io.RawIOBase):
    """A stream that counts what it gives, and ends where that is too much."""

    def __init__(self, stream: Any, path: Path) -> None:
        self._stream, self._path, self._packed = stream, path, path.stat().st_size
        self._given, self._most = 0, cap(TABLE)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._stream.read(len(buffer))
        self._given += len(content)
        if self._given > self._most:
            refuse_size(self._path, self._given, self._most, "or more, unpacked")
        refuse_trap(self._path, self._given, self._packed, self._most, TABLE, HARMLESS)
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


class _Unxz:
    """The bytes of an .xz file; Python's own stream has no limit to the memory that a file may ask for."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._unpacker: lzma.LZMADecompressor | None = None

    def read(self, size: int) -> bytes:
        """At most so many bytes; none at the end."""
        while True:
            if self._unpacker is None or self._unpacker.eof:
                padding = b"" if self._unpacker is None else b"\0"  # between streams
                packed = b"" if self._unpacker is None else self._unpacker.unused_data.lstrip(padding)
                while not packed and (part := self._file.read(BLOCK)):
                    packed = part.lstrip(padding)
                if not packed:
                    if self._unpacker is None:
                        raise lzma.LZMAError("it is empty")
                    return b""
                self._unpacker = lzma.LZMADecompressor(lzma.FORMAT_AUTO, memlimit=MEMORY)
            else:
                packed = self._file.read(BLOCK) if self._unpacker.needs_input else b""
                if not packed and self._unpacker.needs_input:
                    raise EOFError("it ends early")
            if content := self._unpacker.decompress(packed, size):
                return content

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _from_zip(path: Path) -> IO[bytes]:
    archive = zipfile.ZipFile(path)
    try:
        check_members(path, archive.infolist(), TABLE, HARMLESS)
        names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX")]
        if len(names) != 1:
            raise ValueError(f"{path} must hold one file, but holds {len(names)}: {', '.join(names[:5])}")
        return archive.open(names[0])
    except BaseException:
        archive.close()  # else it is closed whenever Python comes to it
        raise


_PLACE = re.compile(r"([A-Za-z]{1,3})(\d{1,12})")


def check_workbook(path: Path) -> None:
    """Raise where an Excel file unpacks to too much, or a cell far out would make its sheet huge."""
    check_size(path, TABLE)
    with zipfile.ZipFile(path) as archive:
        check_members(path, archive.infolist(), TABLE, HARMLESS)
        for member in archive.namelist():  # a sheet may have any name
            with archive.open(member) as stream, suppress(expat.ExpatError):
                _check_sheet(path, stream)


def _check_sheet(path: Path, stream: IO[bytes]) -> None:
    parser, extent = expat.ParserCreate(), _Extent(path)
    parser.StartElementHandler = extent.see
    while part := stream.read(BLOCK):
        parser.Parse(part, False)


class _Extent:
    """How far out the cells of a sheet stand; whatever has no place of its own comes after what was before it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._row = self._column = self._wide = self._long = 0

    def see(self, name: str, attributes: dict[str, str]) -> None:
        """Look at an element; raise where the sheet becomes too large by it."""
        kind, place = name.rpartition(":")[2], attributes.get("r")
        if kind == "row":
            self._row = self._row + 1 if place is None else _whole(place)
            self._column = 0
        elif kind == "c":
            self._column += 1
            if place is not None and (found := _PLACE.fullmatch(place)):
                self._column = 0
                for letter in found[1].upper():
                    self._column = 26 * self._column + ord(letter) - 64
                self._long = max(self._long, int(found[2]))
            self._wide, self._long = max(self._wide, self._column), max(self._long, self._row)
        if self._wide * self._long > MOST_CELLS:
            raise ValueError(
                f"{self._path} has a sheet of {self._long:,} rows and {self._wide:,} columns, more than "
                f"{MOST_CELLS:,} cells; remove what stands far from the table, or save the sheet as CSV"
            )


def _whole(number: str) -> int:
    """The number of a row; 0 where it is none."""
    try:
        return int(float(number))
    except (ValueError, OverflowError):
        return 0


def check_parquet(path: Path) -> None:
    """Raise where a Parquet file becomes too much in memory."""
    import pyarrow.parquet as pq

    check_size(path, TABLE)
    about = pq.read_metadata(path)
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    unpacked = max(ROUGHLY * about.num_rows * about.num_columns, sum(group.total_byte_size for group in groups))
    if unpacked > (most := cap(TABLE)):
        refuse_size(path, unpacked, most, "unpacked")
    refuse_trap(path, unpacked, path.stat().st_size, most, TABLE, HARMLESS)
