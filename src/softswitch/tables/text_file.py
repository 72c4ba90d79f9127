"""How a file of text columns is written: its encoding, its separator and its decimal sign, found by looking."""

from __future__ import annotations

import codecs
import csv
import io
import lzma
import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softswitch.tables.unpacked import open_bytes

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
class TextForm:
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


def form_of(path: Path, *, encoding: str = "auto", separator: str = "auto", decimal: str = "auto") -> TextForm:
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
    return TextForm(encoding, separator, decimal)


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
