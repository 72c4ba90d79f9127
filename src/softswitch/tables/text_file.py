"""Detection of a text file's encoding, separator and decimal sign, and size limits of untrusted files."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import zipfile
import zlib
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pandas as pd

from softswitch.support.files import check_bytes, check_size, check_unpacked

TABLE = 1 << 36  # largest uncompressed size of a table in bytes: 64 GiB
HARMLESS = 1 << 30  # largest uncompressed size in bytes for which the compression ratio is not limited
CELL_BYTES = 8  # smallest size of a cell in memory, in bytes
SAMPLE = 1 << 18  # number of characters or bytes that are read at once, and from which the format is detected
SEPARATORS = (",", ";", "\t", "|")
COMPRESSED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
COMPRESSION_ERRORS = (EOFError, OSError, zlib.error, lzma.LZMAError)  # errors of damaged compressed files
XZ_MEMORY = 1 << 28  # limit for the dictionary of an .xz file, in bytes


@dataclass(frozen=True)
class TextFormat:
    """The format of a text file."""

    encoding: str  # Python's name of the encoding
    separator: str  # one character
    decimal: str  # decimal sign, "." or ","

    def __str__(self) -> str:
        return f"separator {self.separator!r}, decimal sign {self.decimal!r}, {self.encoding}"


def check_text(path: Path) -> None:
    """Raise ValueError if a text file, compressed or not, has more than ``TABLE`` bytes uncompressed."""
    check_size(path, TABLE)
    if (ending := path.suffix.lower()) not in COMPRESSED:
        return
    if ending == ".xz":  # lzma.open has no such limit
        with path.open("rb") as file:
            lzma.LZMADecompressor(memlimit=XZ_MEMORY).decompress(file.read(SAMPLE), 1)
    size = 0
    with COMPRESSED[ending](path) as stream:
        while block := stream.read(SAMPLE):
            size += len(block)
            check_unpacked(path, size, TABLE, "or more, uncompressed", HARMLESS)


def check_parquet(path: Path) -> None:
    """Raise ValueError if a Parquet file would take more than ``TABLE`` bytes in memory."""
    import pyarrow.parquet as pq

    check_size(path, TABLE)
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    size = max(CELL_BYTES * metadata.num_rows * metadata.num_columns, sum(group.total_byte_size for group in groups))
    check_unpacked(path, size, TABLE, "unpacked", HARMLESS)


def check_excel(path: Path) -> None:
    """Raise ValueError if an Excel file, or the cells of its first sheet, have more than ``TABLE`` bytes unpacked."""
    import openpyxl

    check_size(path, TABLE)
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
        check_unpacked(path, size, TABLE, "unpacked", HARMLESS)
    with path.open("rb") as stream, closing(openpyxl.load_workbook(stream, read_only=True)) as book:
        book.worksheets[0].reset_dimensions()  # the file may state others than its cells have
        lengths = [len(row) for row in book.worksheets[0].iter_rows()]
    check_bytes(path, CELL_BYTES * len(lengths) * max(lengths, default=0), TABLE, "unpacked")


def open_bytes(path: Path) -> IO[bytes]:
    """Open a text file, compressed or not, and return a stream of its uncompressed bytes."""
    stream: IO[bytes] = COMPRESSED.get(path.suffix.lower(), Path.open)(path, "rb")
    return stream


def detect_format(path: Path, *, encoding: str = "auto", separator: str = "auto", decimal: str = "auto") -> TextFormat:
    """Return the format of a text file. Arguments that are "auto" are detected, others are used."""
    if separator != "auto" and (len(separator) != 1 or separator in '"\0\r\n'):
        raise ValueError(f"data.separator must be one character, such as a comma, but is {separator!r}")
    signs = SEPARATORS if separator == "auto" else (separator,)
    try:
        check_text(path)
        encoding = _detect_encoding(path) if encoding == "auto" else _check_encoding(encoding)
        rows = {sign: first_rows(path, encoding, sign) for sign in signs}
    except COMPRESSION_ERRORS as error:
        raise ValueError(f"{path} could not be unpacked: {error}") from error
    separator = max(signs, key=lambda sign: _agreement(rows[sign]))
    if decimal == "auto":
        decimal = _detect_decimal([cell for _, row in rows[separator][1:] for cell in row], separator)
    return TextFormat(encoding, separator, decimal)


def first_rows(path: Path, encoding: str, separator: str) -> list[tuple[int, list[str]]]:
    """Return the non-empty rows in the first ``SAMPLE`` characters: the number of the last line, and the cells."""
    try:
        with io.TextIOWrapper(open_bytes(path), encoding=encoding, newline="") as stream:
            text = stream.read(SAMPLE)
            is_complete = not stream.read(1)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except UnicodeError as error:
        raise ValueError(f"{path} is not written in {encoding}: {error}") from error
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
        first = stream.read(4)
    if first.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for name in ("utf-8", "cp1252"):
        with io.TextIOWrapper(open_bytes(path), encoding=name) as text, suppress(UnicodeDecodeError):
            while text.read(SAMPLE):
                pass
            return name
    return "latin-1"


def _agreement(rows: list[tuple[int, list[str]]]) -> tuple[float, int]:
    """Return the share of rows with as many cells as the first, and this number of cells; 0, 0 for a single column."""
    cells = len(rows[0][1]) if rows else 0
    return (sum(len(row) == cells for _, row in rows) / len(rows), cells) if cells > 1 else (0.0, 0)


def _detect_decimal(cells: list[str], separator: str) -> str:
    """Return the decimal sign with which more cells are numbers; the point if the separator is a comma."""
    texts = pd.Series(cells, dtype=str)
    whole = texts.str.replace(r"(?<=\d)\.(?=\d{3}(?!\d))", "", regex=True)  # without thousands separators
    commas = whole.str.replace(".", "x").str.replace(",", ".")
    counts = {sign: pd.to_numeric(one, errors="coerce").notna().sum() for sign, one in ((".", texts), (",", commas))}
    return "," if separator != "," and counts[","] > counts["."] else "."
