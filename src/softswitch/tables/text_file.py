"""How a file of text columns is written: its encoding, its separator and its decimal sign, found by looking."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import re
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from xml.parsers import expat

from softswitch.support.files import cap, check_members, check_size, refuse_size, refuse_trap

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


SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
DECIMALS = {".": "point", ",": "comma"}
PACKED = (".gz", ".xz", ".bz2", ".zip")
UNPACKING = (EOFError, OSError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, NotImplementedError)
"""What a packed file that is damaged raises."""
LOOKED_AT = 1 << 18
"""So many characters of a file are looked at to find its separator and its decimal sign."""
FEWEST_POINTS = 0.1
"""Cells with a decimal point are fewer than this share of those with a decimal comma, where the comma is the sign."""


@dataclass(frozen=True)
class TextFormat:
    """How a file of text columns is written.

    Attributes:
        encoding: by its Python name.
        separator: between cells.
        decimal: the decimal sign.
    """

    encoding: str
    separator: str
    decimal: str

    def __str__(self) -> str:
        separator = SEPARATORS.get(self.separator, repr(self.separator))
        name = {"utf-8": "UTF-8", "utf-8-sig": "UTF-8", "cp1252": "Windows-1252"}.get(self.encoding, self.encoding)
        return f"separated by {separator}, decimal {DECIMALS.get(self.decimal, self.decimal)}, {name}"


def detect_format(path: Path, *, encoding: str = "auto", separator: str = "auto", decimal: str = "auto") -> TextFormat:
    """How a file is written; what is given is not looked for."""
    try:
        encoding = _encoding(path) if encoding == "auto" else _known_encoding(encoding)
    except UNPACKING as error:
        raise ValueError(f"{path} could not be unpacked: {error}") from error
    if separator != "auto" and (len(separator) != 1 or separator in '"\0\r\n'):
        raise ValueError(f"data.separator must be one character, such as a comma, but is {separator!r}")
    rows = first_rows(path, encoding, separator) if separator != "auto" else None
    if rows is None:
        tried = {sign: first_rows(path, encoding, sign) for sign in SEPARATORS}
        separator = max(SEPARATORS, key=lambda sign: _agreement(tried[sign]))
        rows = tried[separator]
    if decimal == "auto":
        decimal = _decimal([cell for _, row in rows[1:] for cell in row], separator)
    return TextFormat(encoding, separator, decimal)


def first_rows(path: Path, encoding: str, separator: str) -> list[tuple[int, list[str]]]:
    """The rows that the beginning of the file has, each with the number of the line where it ends; no empty lines."""
    try:
        with io.TextIOWrapper(open_bytes(path), encoding=encoding, newline="") as stream:
            text = stream.read(LOOKED_AT)
            whole = not stream.read(1)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not written in {encoding}: {error.reason} at byte {error.start}") from error
    except UnicodeError as error:
        raise ValueError(f"{path} is not written in {encoding}: {error}") from error
    except UNPACKING as error:
        raise ValueError(f"{path} could not be unpacked: {error}") from error
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    rows = []
    try:
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise ValueError(f"{path} could not be read as a table: {error}") from error
    return rows if whole or len(rows) < 2 else rows[:-1]


def _known_encoding(name: str) -> str:
    """An encoding of text by its Python name, or raise."""
    try:
        "a".encode(name)
        return codecs.lookup(name).name
    except (LookupError, UnicodeError, ValueError) as error:
        raise ValueError(f"data.encoding must name an encoding, but is {name!r}") from error


def _encoding(path: Path) -> str:
    with open_bytes(path) as stream:
        first = stream.read(4096)
    for mark, name in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if first.startswith(mark):
            return name
    if first.count(0) > len(first) // 5:
        return "utf-16-le" if first[1::2].count(0) >= first[::2].count(0) else "utf-16-be"
    for name in ("utf-8", "cp1252"):
        if _can_be(path, name):
            return name
    return "latin-1"


def _can_be(path: Path, encoding: str) -> bool:
    decoder: Any = codecs.getincrementaldecoder(encoding)()
    with open_bytes(path) as stream:
        try:
            while part := stream.read(LOOKED_AT):
                decoder.decode(part)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True


def _agreement(rows: list[tuple[int, list[str]]]) -> tuple[float, int]:
    """The share of rows with as many cells as the first one has, where it has several; and how many."""
    if not rows or len(rows[0][1]) < 2:
        return 0.0, 0
    cells = len(rows[0][1])
    return sum(len(row) == cells for _, row in rows) / len(rows), cells


_WITH_COMMA = re.compile(r"\s*[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+\D{0,3}")
_DOUBTFUL = re.compile(r"\s*[-+]?[1-9]\d{0,2},\d{3}\D{0,3}")
_WITH_POINT = re.compile(r"\s*[-+]?(\d+|\d{1,3}(,\d{3})+)?\.\d+([eE][-+]?\d+)?\D{0,3}")


def _decimal(cells: list[str], separator: str) -> str:
    """Cells such as 1,5 against cells such as 1.5; in 1,234 the comma may stand for thousands as well."""
    comma = [cell for cell in cells if "," in cell and _WITH_COMMA.fullmatch(cell)]
    point = sum(_WITH_POINT.fullmatch(cell) is not None for cell in cells if "." in cell)
    doubtful = sum(_DOUBTFUL.fullmatch(cell) is not None for cell in comma)
    sure = len(comma) - (doubtful if separator == "," or point else 0)
    return "," if sure > 0 and point <= FEWEST_POINTS * len(comma) else "."
