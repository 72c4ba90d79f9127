"""Reading and writing of table files, detection of text formats, and lookup of columns and values by name."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from softswitch.support.files import check_bytes, check_size, check_unpacked, open_atomically
from softswitch.support.text import escape_cell, unescape_cell
from softswitch.tables.cells import EMPTY, is_text, parse_cells, same_value

TEXT = (".csv", ".tsv", ".tab", ".txt")  # suffixes of table files
PARQUET = (".parquet", ".pq")
EXCEL = (".xlsx", ".xlsm")
TABLE = 1 << 36  # largest uncompressed size of a table in bytes: 64 GiB
PARQUET_ROWS = 1 << 16  # rows of a Parquet file that are read at a time to count the bytes of their texts
HARMLESS = 1 << 30  # largest uncompressed size in bytes for which the compression ratio is not limited
CELL_BYTES = 8  # smallest size of a cell in memory, in bytes
SAMPLE = 1 << 18  # number of characters or bytes that are read at once, and from which the format is detected
SEPARATORS = (",", ";", "\t", "|")
COMPRESSED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
COMPRESSION_ERRORS = (EOFError, OSError, zlib.error, lzma.LZMAError)  # errors of damaged compressed files
XZ_MEMORY = 1 << 28  # limit for the dictionary of an .xz file, in bytes


def read_table(file: str | Path, *, empty: Sequence[str] = (), as_text: bool = False, **form: Any) -> pd.DataFrame:
    """Read a table from a text file (also compressed), Parquet or Excel; its suffix selects the format.

    ``empty`` has further texts that count as empty cells. With ``as_text``, cells are not parsed. ``form`` has the
    encoding, separator and decimal sign of a text file. Default: detected.
    """
    path, ending = check_file(file)
    if ending in TEXT:
        return _read_text(path, detect_format(path, **form), empty, as_text=as_text)
    table = _read_binary(path, ending)
    _check_names(path, list(table.columns))
    return table if as_text else table.apply(parse_cells, empty=empty)


def check_file(file: str | Path) -> tuple[Path, str]:
    """Return the path and the lower-case suffix of a table file; ValueError if missing, unsupported or too large."""
    path = Path(file)
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise ValueError(f"file must be an existing table, but {str(path)!r} {problem}")
    ending, *_ = [ending.lower() for ending in reversed(path.suffixes) if ending.lower() not in COMPRESSED] or [""]
    if ending not in (TEXT if path.suffix.lower() in COMPRESSED else (*TEXT, *PARQUET, *EXCEL)):
        accepted = f"{', '.join((*TEXT, *PARQUET, *EXCEL))}, a compressed text file in {', '.join(COMPRESSED)}"
        raise ValueError(f"file must end in {accepted}, but is {str(path)!r}")
    check_size(path.resolve(), TABLE)
    return path, ending


def text_format(file: str | Path, like: TextFormat | None = None, columns: Collection[str] = ()) -> TextFormat | None:
    """Return the format of a text file: detected, or that of an earlier file, ``like``. None for other files.

    Separator and decimal sign are those of ``like`` if the header then has all ``columns``; otherwise they are
    detected. A file that is valid UTF-8 or has a byte order mark is read as such; another as ``like`` if it decodes.
    """
    path, ending = check_file(file)
    if ending not in TEXT:
        return None
    if like is None:
        return detect_format(path)
    known = {"separator": like.separator, "decimal": like.decimal, "likely_encoding": like.encoding}
    for encoding in ("auto", like.encoding):
        with suppress(ValueError):
            form = detect_format(path, encoding=encoding, **known)
            rows = first_rows(path, form.encoding, form.separator)
            if rows and set(columns) <= set(_column_names(rows[0][1])):
                return form
    return detect_format(path, likely_encoding=like.encoding)


def _read_text(path: Path, form: TextFormat, empty: Sequence[str], *, as_text: bool) -> pd.DataFrame:
    _check_lines(path, first_rows(path, form.encoding, form.separator))
    options: dict[str, Any] = {"dtype": str, "na_filter": False} if as_text else {"na_values": [*EMPTY, *empty]}
    options |= {"sep": form.separator, "decimal": form.decimal, "encoding": form.encoding}
    try:
        with open_bytes(path) as stream:
            table = pd.read_csv(stream, keep_default_na=False, skipinitialspace=True, low_memory=False, **options)
    except (pd.errors.ParserError, UnicodeDecodeError, csv.Error, *COMPRESSION_ERRORS) as error:
        raise ValueError(f"{path} could not be read as a table {form}: {error}") from error
    table = _map_texts(table, unescape_cell)
    table.columns = pd.Index([str(name).strip() or f"Unnamed: {i}" for i, name in enumerate(table.columns)])
    _check_names(path, list(table.columns))
    return table if as_text else table.apply(parse_cells, decimal=form.decimal, empty=empty)


def write_table(table: pd.DataFrame, file: Path) -> None:
    """Write a table as CSV. Cells that a spreadsheet would run as formulas are escaped; ``read_table`` undoes that."""
    has_cr = any(is_text(table[name]) and table[name].astype(str).str.contains("\r").any() for name in table.columns)
    quoting = csv.QUOTE_NONNUMERIC if has_cr else csv.QUOTE_MINIMAL  # QUOTE_MINIMAL does not quote \r
    compress = COMPRESSED.get(file.suffix.lower(), lambda stream, mode: nullcontext(stream))
    with open_atomically(file, durable=False) as raw, compress(raw, "wb") as stream:
        _map_texts(table, escape_cell).to_csv(stream, index=False, quoting=quoting)


def _map_texts(table: pd.DataFrame, change: Callable[[Any], Any]) -> pd.DataFrame:
    """Return the table with a function applied to all column names and text cells."""
    changed = {}
    for name in filter(lambda name: is_text(table[name]), table.columns):
        texts = pd.unique(table[name].dropna())
        if replacements := {text: new for text in texts if (new := change(text)) != text}:
            changed[name] = table[name].map(lambda text, new=replacements: new.get(text, text))
    return table.assign(**changed).rename(columns=change)


def _check_lines(path: Path, rows: list[tuple[int, list[str]]]) -> None:
    """Raise ValueError if a file is empty, has no header or no rows, or has lines of different lengths."""
    if not rows:
        raise ValueError(f"{path} is empty")
    names = _column_names(rows[0][1])
    if len(rows) == 1:
        raise ValueError(f"{path} has a header, but no rows")
    numbers = pd.to_numeric(pd.Series([name.replace(",", ".") for name in names]), errors="coerce")
    if 2 * numbers.notna().sum() >= len(names):
        raise ValueError(f"{path} must begin with a header, but its first line holds numbers: {', '.join(names[:5])}")
    _check_names(path, names)
    for line, row in rows[1:]:
        if len(row) != len(names):
            cells = f"line {line} has {len(row)} cells: {', '.join(row[:3])[:60]}…"
            raise ValueError(f"{path} has {len(names)} columns in its header, but {cells}")


def _column_names(header: list[str]) -> list[str]:
    return [str(unescape_cell(name)).strip() for name in header]


def _check_names(path: Path, names: list[str]) -> None:
    duplicates = [repr(name) for name, count in Counter(names).items() if count > 1 and name]
    if duplicates:
        raise ValueError(f"{path} has several columns of the same name: {', '.join(duplicates[:8])}")


def _read_binary(path: Path, ending: str) -> pd.DataFrame:
    """Read a Parquet file, or the first sheet of an Excel file."""
    kind, extra = ("Excel", "excel") if ending in EXCEL else ("Parquet", "parquet")
    try:
        if ending in EXCEL:
            check_excel(path)
            with path.open("rb") as stream:
                table = pd.read_excel(stream, engine="openpyxl", keep_default_na=False, na_values=[*EMPTY])
        else:
            check_parquet(path)
            table = pd.read_parquet(path)
        return table.rename(columns=lambda name: str(name).strip())
    except ImportError as error:
        raise ValueError(f"{path} is {kind}, which needs another package: pip install 'softswitch[{extra}]'") from error
    except Exception as error:  # a damaged file can raise anything
        reason = str(error).partition("\n")[0].removeprefix(f"{path} ") or type(error).__name__
        raise ValueError(f"{path} could not be read as {kind}: {reason}") from error


@dataclass(frozen=True)
class TextFormat:
    """The format of a text file."""

    encoding: str  # Python's name of the encoding
    separator: str  # one character
    decimal: str  # decimal sign, "." or ","

    def __str__(self) -> str:
        return f"separator {self.separator!r}, decimal sign {self.decimal!r}, {self.encoding}"


def check_text(path: Path) -> None:
    """Raise ValueError if a compressed text file has more than ``TABLE`` bytes uncompressed."""
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
    """Raise ValueError if a Parquet file has nested columns, or would take more than ``TABLE`` bytes in memory.

    A long text that the file holds once may be the value of any number of cells. Texts are therefore read as
    dictionaries, and a text counts once for each cell that has it. All other sizes are those of the metadata.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    if nested := [field.name for field in file.schema_arrow if pa.types.is_nested(field.type)]:
        raise ValueError(f"each cell must be one value, but the column {nested[0]!r} has lists or records")
    columns = [file.schema.column(i) for i in range(len(file.schema))]
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    rows = sum(max(group.num_rows, group.column(i).num_values) for group in groups for i in range(len(columns)))
    widest = max((column.length for column in columns), default=0)  # of columns of fixed size
    size = max(max(CELL_BYTES, widest) * rows, sum(group.total_byte_size for group in groups))
    check_unpacked(path, size, TABLE, "unpacked", HARMLESS)
    texts, size = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"], 0
    for batch in pq.ParquetFile(path, read_dictionary=texts).iter_batches(PARQUET_ROWS, columns=texts):
        for cells in batch.columns:
            if pa.types.is_dictionary(cells.type):
                size += pc.sum(pc.binary_length(cells.dictionary).cast("int64").take(cells.indices)).as_py() or 0
            else:
                size += cells.nbytes
        check_unpacked(path, size, TABLE, "or more, unpacked", HARMLESS)


def check_excel(path: Path) -> None:
    """Raise ValueError if an Excel file, or the cells of its first sheet, have more than ``TABLE`` bytes unpacked."""
    import openpyxl

    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
        check_unpacked(path, size, TABLE, "unpacked", HARMLESS)
    rows = columns = size = 0
    with path.open("rb") as stream, closing(openpyxl.load_workbook(stream, read_only=True)) as book:
        book.worksheets[0].reset_dimensions()  # the file may state others than its cells have
        for row in book.worksheets[0].iter_rows(values_only=True):
            rows, columns = rows + 1, max(columns, len(row))
            size += sum(len(cell) for cell in row if isinstance(cell, str))  # one text may be that of many cells
    check_bytes(path, CELL_BYTES * rows * columns, TABLE, "unpacked")
    check_unpacked(path, size, TABLE, "unpacked", HARMLESS)


def open_bytes(path: Path) -> IO[bytes]:
    """Open a text file, compressed or not, and return a stream of its uncompressed bytes."""
    stream: IO[bytes] = COMPRESSED.get(path.suffix.lower(), Path.open)(path, "rb")
    return stream


def detect_format(
    path: Path, *, encoding: str = "auto", separator: str = "auto", decimal: str = "auto", likely_encoding: str = "auto"
) -> TextFormat:
    """Return the format of a text file. Arguments that are "auto" are detected, others are used.

    ``likely_encoding`` is that of a file that is not in UTF-8, if the file can be decoded with it.
    """
    if separator != "auto" and (len(separator) != 1 or separator in '"\0\r\n'):
        raise ValueError(f"data.separator must be one character, such as a comma, but is {separator!r}")
    signs = SEPARATORS if separator == "auto" else (separator,)
    try:
        check_text(path)
        encoding = _detect_encoding(path, likely_encoding) if encoding == "auto" else _check_encoding(encoding)
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


def _detect_encoding(path: Path, likely: str) -> str:
    with open_bytes(path) as stream:
        first = stream.read(4)
    if first.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for name in ("utf-8", *(() if likely == "auto" else (_check_encoding(likely),)), "cp1252"):
        with io.TextIOWrapper(open_bytes(path), encoding=name) as text, suppress(UnicodeError):
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


def find_column(table: pd.DataFrame, name: str, setting: str) -> pd.Series:
    """Return a column of a table, or raise ValueError; ``setting`` is the name of the setting in the error."""
    if name not in table.columns:
        names = ", ".join(map(repr, table.columns))
        raise ValueError(f"{setting} must name a column of the table, but is {name!r}; there are {names}")
    return table[name]


def match_value(values: pd.Series, value: Any, setting: str) -> np.ndarray:
    """Return a mask of the rows that hold a value; raise ValueError if none or all do.

    If no row matches directly, values are compared as text, because text files have no types, and then as numbers: 2
    matches 2.0.
    """
    matches = values == value
    if not matches.any():
        matches = values.astype(str) == str(value)
    if not matches.any():
        matches = values.isin([known for known in pd.unique(values.dropna()) if same_value(known, value)])
    if not matches.any() or matches.all():
        examples = ", ".join(map(repr, pd.unique(values)[:8].tolist()))
        problem = f"{value!r} is the value of {'every' if matches.any() else 'no'} row; values are {examples}"
        raise ValueError(f"{setting} must be the value of some rows in column {values.name!r}, but {problem}")
    return matches.to_numpy()
