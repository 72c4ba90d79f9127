"""Reading and writing of table files, and lookup of columns and values by name."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from softswitch.support.text import escape_cell, unescape_cell
from softswitch.tables import text_file
from softswitch.tables.cells import EMPTY, is_text, parse_cells, same_value
from softswitch.tables.text_file import COMPRESSED, COMPRESSION_ERRORS, TextFormat, detect_format, first_rows

TEXT = (".csv", ".tsv", ".tab", ".txt")  # suffixes of table files
PARQUET = (".parquet", ".pq")
EXCEL = (".xlsx", ".xlsm")


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
    """Return the path and the lower-case suffix of a table file, or raise ValueError if missing or unsupported."""
    path = Path(file)
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise ValueError(f"file must be an existing table, but {str(path)!r} {problem}")
    ending, *_ = [ending.lower() for ending in reversed(path.suffixes) if ending.lower() not in COMPRESSED] or [""]
    if ending not in (TEXT if path.suffix.lower() in COMPRESSED else (*TEXT, *PARQUET, *EXCEL)):
        accepted = f"{', '.join((*TEXT, *PARQUET, *EXCEL))}, a compressed text file in {', '.join(COMPRESSED)}"
        raise ValueError(f"file must end in {accepted}, but is {str(path)!r}")
    return path, ending


def text_format(file: str | Path) -> TextFormat | None:
    """Return the detected format of a text file; None for Parquet and Excel files."""
    path, ending = check_file(file)
    return detect_format(path) if ending in TEXT else None


def _read_text(path: Path, form: TextFormat, empty: Sequence[str], *, as_text: bool) -> pd.DataFrame:
    _check_lines(path, first_rows(path, form.encoding, form.separator))
    options: dict[str, Any] = {"dtype": str, "na_filter": False} if as_text else {"na_values": [*EMPTY, *empty]}
    options |= {"sep": form.separator, "decimal": form.decimal, "encoding": form.encoding}
    try:
        with text_file.open_bytes(path) as stream:
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
    _map_texts(table, escape_cell).to_csv(file, index=False, quoting=quoting)


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
    names = [str(unescape_cell(name)).strip() for name in rows[0][1]]
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


def _check_names(path: Path, names: list[str]) -> None:
    duplicates = [repr(name) for name, count in Counter(names).items() if count > 1 and name]
    if duplicates:
        raise ValueError(f"{path} has several columns of the same name: {', '.join(duplicates[:8])}")


def _read_binary(path: Path, ending: str) -> pd.DataFrame:
    """Read a Parquet file, or the first sheet of an Excel file."""
    kind, extra = ("Excel", "excel") if ending in EXCEL else ("Parquet", "parquet")
    try:
        if ending in EXCEL:
            text_file.check_excel(path)
            with path.open("rb") as stream:
                table = pd.read_excel(stream, engine="openpyxl", keep_default_na=False, na_values=[*EMPTY])
        else:
            text_file.check_parquet(path)
            table = pd.read_parquet(path)
        return table.rename(columns=lambda name: str(name).strip())
    except ImportError as error:
        raise ValueError(f"{path} is {kind}, which needs another package: pip install 'softswitch[{extra}]'") from error
    except Exception as error:  # a damaged file can raise anything
        reason = str(error).partition("\n")[0].removeprefix(f"{path} ") or type(error).__name__
        raise ValueError(f"{path} could not be read as {kind}: {reason}") from error


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
