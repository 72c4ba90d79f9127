"""Detection of a text file's encoding, separator and decimal sign, and size limits of untrusted files."""

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
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import IO, Any
from xml.parsers import expat

from softswitch.support.files import check_archive, check_compression_ratio, check_size, raise_too_large, size_limit

TABLE = 1 << 36  # largest uncompressed size of a table in bytes: 64 GiB
HARMLESS = 1 << 30  # uncompressed size up to which the compression ratio is not limited
XZ_MEMORY = 1 << 28  # memory limit of .xz decompression in bytes
BLOCK = 1 << 18
MAX_CELLS = 1 << 26  # largest number of cells of an Excel sheet, including empty ones
CELL_BYTES = 8  # smallest size of a cell in memory


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading uncompressed bytes; reading raises an error beyond the size limit."""
    check_size(path, TABLE)
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".zip": _open_zip}
    ending = path.suffix.lower()
    if ending not in (*openers, ".xz"):
        return path.open("rb")
    blocks = _xz_blocks(path) if ending == ".xz" else _read_blocks(openers[ending](path))
    return io.BufferedReader(_LimitedStream(blocks, path), BLOCK)


class _LimitedStream(io.RawIOBase):
    """A stream of blocks that raises an error when it has returned too many bytes."""

    def __init__(self, blocks: Iterator[bytes], path: Path) -> None:
        self._blocks, self._path, self._packed = blocks, path, path.stat().st_size
        self._rest, self._given, self._most = b"", 0, size_limit(TABLE)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = next(filter(None, self._blocks), b"")
            self._given += len(self._rest)
            if self._given > self._most:
                raise_too_large(self._path, self._given, self._most, "or more, uncompressed")
            check_compression_ratio(self._path, self._given, self._packed, self._most, TABLE, HARMLESS)
        content, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(content)] = content
        return len(content)


def _read_blocks(stream: IO[bytes]) -> Iterator[bytes]:
    with stream:
        while block := stream.read(BLOCK):
            yield block


def _xz_blocks(path: Path) -> Iterator[bytes]:
    """Yield the uncompressed bytes of an .xz file, with a memory limit that ``lzma.open`` lacks."""
    with path.open("rb") as file:
        packed = file.read(BLOCK)
        while packed:  # the beginning of a stream
            decompressor = lzma.LZMADecompressor(lzma.FORMAT_AUTO, memlimit=XZ_MEMORY)
            while not decompressor.eof:
                yield decompressor.decompress(packed, BLOCK)
                packed = file.read(BLOCK) if decompressor.needs_input and not decompressor.eof else b""
                if not packed and decompressor.needs_input and not decompressor.eof:
                    raise EOFError("it ends early")
            packed = decompressor.unused_data.lstrip(b"\0")  # between streams
            while not packed and (part := file.read(BLOCK)):
                packed = part.lstrip(b"\0")


def _open_zip(path: Path) -> IO[bytes]:
    archive = zipfile.ZipFile(path)
    try:
        check_archive(path, archive.infolist(), TABLE, HARMLESS)
        names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX")]
        if len(names) != 1:
            raise ValueError(f"{path} must hold one file, but holds {len(names)}: {', '.join(names[:5])}")
        return archive.open(names[0])
    except BaseException:
        archive.close()
        raise


_REFERENCE = re.compile(r"([A-Za-z]{1,3})(\d{1,12})")


def check_workbook(path: Path) -> None:
    """Raise if an Excel file is too large uncompressed, or a sheet has too many cells."""
    check_size(path, TABLE)
    with zipfile.ZipFile(path) as archive:
        check_archive(path, archive.infolist(), TABLE, HARMLESS)
        for member in archive.namelist():  # sheets can have any name
            with archive.open(member) as stream, suppress(expat.ExpatError):
                _check_sheet(path, stream)


def _check_sheet(path: Path, stream: IO[bytes]) -> None:
    """Raise if the extent of a sheet is too large; a cell without a reference follows the previous one."""
    row = column = rows = columns = 0

    def start_element(name: str, attributes: dict[str, str]) -> None:
        nonlocal row, column, rows, columns
        kind, reference = name.rpartition(":")[2], attributes.get("r")
        if kind == "row":
            row, column = row + 1 if reference is None else _row_number(reference), 0
        elif kind == "c":
            column += 1
            if reference is not None and (match := _REFERENCE.fullmatch(reference)):
                column = reduce(lambda number, letter: 26 * number + ord(letter) - 64, match[1].upper(), 0)
                rows = max(rows, int(match[2]))
            columns, rows = max(columns, column), max(rows, row)
        if rows * columns > MAX_CELLS:
            raise ValueError(
                f"{path} has a sheet of {rows:,} rows and {columns:,} columns, more than {MAX_CELLS:,} cells; remove "
                "cells far from the table, or save the sheet as CSV"
            )

    parser = expat.ParserCreate()
    parser.StartElementHandler = start_element
    while part := stream.read(BLOCK):
        parser.Parse(part, False)


def _row_number(reference: str) -> int:
    try:
        return int(float(reference))
    except (ValueError, OverflowError):
        return 0


def check_parquet(path: Path) -> None:
    """Raise if a Parquet file is too large in memory."""
    import pyarrow.parquet as pq

    check_size(path, TABLE)
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    size = max(CELL_BYTES * metadata.num_rows * metadata.num_columns, sum(group.total_byte_size for group in groups))
    if size > (most := size_limit(TABLE)):
        raise_too_large(path, size, most, "unpacked")
    check_compression_ratio(path, size, path.stat().st_size, most, TABLE, HARMLESS)


SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
DECIMALS = {".": "point", ",": "comma"}
COMPRESSED = (".gz", ".xz", ".bz2", ".zip")
COMPRESSION_ERRORS = (EOFError, OSError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, NotImplementedError)
"""Errors of damaged compressed files."""
SAMPLE = 1 << 18  # number of characters used to detect separator and decimal sign
MAX_POINTS_SHARE = 0.1
"""Largest ratio of cells with a decimal point to cells with a decimal comma in a file with decimal commas."""


@dataclass(frozen=True)
class TextFormat:
    """Format of a text file: encoding (its Python name), separator and decimal sign."""

    encoding: str
    separator: str
    decimal: str

    def __str__(self) -> str:
        separator = SEPARATORS.get(self.separator, repr(self.separator))
        name = {"utf-8": "UTF-8", "utf-8-sig": "UTF-8", "cp1252": "Windows-1252"}.get(self.encoding, self.encoding)
        return f"separated by {separator}, decimal {DECIMALS.get(self.decimal, self.decimal)}, {name}"


def detect_format(path: Path, *, encoding: str = "auto", separator: str = "auto", decimal: str = "auto") -> TextFormat:
    """Return the format of a text file; values other than "auto" are not detected."""
    try:
        encoding = _detect_encoding(path) if encoding == "auto" else _check_encoding(encoding)
    except COMPRESSION_ERRORS as error:
        raise ValueError(f"{path} could not be unpacked: {error}") from error
    if separator != "auto" and (len(separator) != 1 or separator in '"\0\r\n'):
        raise ValueError(f"data.separator must be one character, such as a comma, but is {separator!r}")
    signs = tuple(SEPARATORS) if separator == "auto" else (separator,)
    rows = {sign: first_rows(path, encoding, sign) for sign in signs}
    separator = max(signs, key=lambda sign: _agreement(rows[sign]))
    if decimal == "auto":
        decimal = _detect_decimal([cell for _, row in rows[separator][1:] for cell in row], separator)
    return TextFormat(encoding, separator, decimal)


def first_rows(path: Path, encoding: str, separator: str) -> list[tuple[int, list[str]]]:
    """Return the first non-empty rows, each with the number of its last line."""
    try:
        with io.TextIOWrapper(open_bytes(path), encoding=encoding, newline="") as stream:
            text = stream.read(SAMPLE)
            is_complete = not stream.read(1)
    except UnicodeError as error:
        raise ValueError(f"{path} is not written in {encoding}: {error}") from error
    except COMPRESSION_ERRORS as error:
        raise ValueError(f"{path} could not be unpacked: {error}") from error
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    try:
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise ValueError(f"{path} could not be read as a table: {error}") from error
    return rows if is_complete or len(rows) < 2 else rows[:-1]


def _check_encoding(name: str) -> str:
    try:
        "a".encode(name)
        return codecs.lookup(name).name
    except (LookupError, UnicodeError, ValueError) as error:
        raise ValueError(f"data.encoding must name an encoding, but is {name!r}") from error


def _detect_encoding(path: Path) -> str:
    with open_bytes(path) as stream:
        first = stream.read(4096)
    if first.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if first.count(0) > len(first) // 5:
        return "utf-16-le" if first[1::2].count(0) >= first[::2].count(0) else "utf-16-be"
    return next((name for name in ("utf-8", "cp1252") if _can_decode(path, name)), "latin-1")


def _can_decode(path: Path, encoding: str) -> bool:
    with io.TextIOWrapper(open_bytes(path), encoding=encoding) as stream, suppress(UnicodeDecodeError):
        while stream.read(SAMPLE):
            pass
        return True
    return False


def _agreement(rows: list[tuple[int, list[str]]]) -> tuple[float, int]:
    """Return the share of rows with as many cells as the first row, and this number; 0 for a single column."""
    cells = len(rows[0][1]) if rows else 0
    return (sum(len(row) == cells for _, row in rows) / len(rows), cells) if cells > 1 else (0.0, 0)


_WITH_COMMA = re.compile(r"\s*[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+\D{0,3}")
_AMBIGUOUS = re.compile(r"\s*[-+]?[1-9]\d{0,2},\d{3}\D{0,3}")
_WITH_POINT = re.compile(r"\s*[-+]?(\d+|\d{1,3}(,\d{3})+)?\.\d+([eE][-+]?\d+)?\D{0,3}")


def _detect_decimal(cells: list[str], separator: str) -> str:
    """Compare the numbers of cells such as 1,5 and 1.5; the comma in 1,234 is ambiguous."""
    comma = [cell for cell in cells if "," in cell and _WITH_COMMA.fullmatch(cell)]
    point = sum(_WITH_POINT.fullmatch(cell) is not None for cell in cells if "." in cell)
    ambiguous = sum(_AMBIGUOUS.fullmatch(cell) is not None for cell in comma)
    certain = len(comma) - (ambiguous if separator == "," or point else 0)
    return "," if certain > 0 and point <= MAX_POINTS_SHARE * len(comma) else "."
