"""Tables: reading them from files, and finding what settings name in them."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from softswitch.support.text import defused, restored
from softswitch.tables.cells import EMPTY, is_text, parse_cells
from softswitch.tables.text_file import (
    PACKED,
    UNPACKING,
    TextFormat,
    check_parquet,
    check_workbook,
    detect_format,
    first_rows,
    open_bytes,
)

TEXT = (".csv", ".tsv", ".tab", ".txt")
PARQUET = (".parquet", ".pq")
EXCEL = (".xlsx", ".xlsm")


def read_table(
    file: str | Path,
    *,
    encoding: str = "auto",
    separator: str = "auto",
    decimal: str = "auto",
    empty: Sequence[str] = (),
    as_text: bool = False,
) -> pd.DataFrame:
    """Read a table from a text file (also packed), Parquet or Excel.

    Args:
        file: where it is; its name tells which of these it is.
        encoding: of a text file; "auto": found by looking, as are
        separator: what stands between its cells, and
        decimal: its decimal sign.
        empty: words that count as empty cells, besides those that always do.
        as_text: a text file's cells as they stand there.
    """
    path, ending = checked_file(file)
    if ending in TEXT:
        form = detect_format(path, encoding=encoding, separator=separator, decimal=decimal)
        return _from_text(path, form, empty, as_text=as_text)
    table = _from_parquet(path) if ending in PARQUET else _from_excel(path)
    _check_names(path, list(table.columns))
    return table if as_text else table.apply(parse_cells, empty=empty)


def checked_file(file: str | Path) -> tuple[Path, str]:
    """The path of a table that is there, and the ending that tells what kind of file it is."""
    path = Path(file)
    if not path.exists():
        raise ValueError(f"file must be a table that is there, but {str(path)!r} does not exist")
    if not path.is_file():
        raise ValueError(f"file must be a table, but {str(path)!r} is a folder")
    endings = [ending.lower() for ending in path.suffixes]
    ending = endings[-1] if endings else ""
    if ending in PACKED and len(endings) > 1:
        ending = endings[-2]
    elif ending == ".zip":
        ending = ".csv"
    if ending not in (*TEXT, *PARQUET, *EXCEL) or (endings[-1] in PACKED and ending not in TEXT):
        raise ValueError(
            f"file must end in {', '.join((*TEXT, *PARQUET, *EXCEL))}, a text file also in {', '.join(PACKED)} behind "
            f"that, but is {str(path)!r}"
        )
    return path, ending


def text_format(file: str | Path) -> TextFormat | None:
    """How a text file is written; None of any other file."""
    path, ending = checked_file(file)
    return detect_format(path) if ending in TEXT else None


def empty_marks(file: str | Path) -> tuple[str, ...]:
    """Which marks of empty cells the beginning of a text file has."""
    path, ending = checked_file(file)
    if ending not in TEXT:
        return ()
    form = detect_format(path)
    cells = {cell.strip() for _, row in first_rows(path, form.encoding, form.separator) for cell in row}
    return tuple(mark for mark in EMPTY if mark and mark in cells)


def _from_text(path: Path, form: TextFormat, empty: Sequence[str], *, as_text: bool) -> pd.DataFrame:
    _check_lines(path, first_rows(path, form.encoding, form.separator))
    told: dict[str, Any] = {"dtype": str, "na_filter": False} if as_text else {"na_values": [*EMPTY, *empty]}
    try:
        with open_bytes(path) as stream:
            table = pd.read_csv(
                stream,
                encoding=form.encoding,
                sep=form.separator,
                decimal=form.decimal,
                keep_default_na=False,
                skipinitialspace=True,
                low_memory=False,
                **told,
            )
    except (pd.errors.ParserError, UnicodeDecodeError, csv.Error, *UNPACKING) as error:
        raise ValueError(f"{path} could not be read as a table {form}: {error}") from error
    table = _each_text(table, restored)
    table.columns = pd.Index([str(name).strip() or f"Unnamed: {i}" for i, name in enumerate(table.columns)])
    _check_names(path, list(table.columns))
    return table if as_text else table.apply(parse_cells, decimal=form.decimal, empty=empty)


def write_table(table: pd.DataFrame, file: Path, form: TextFormat | None = None) -> None:
    """Write a table as CSV: spreadsheets compute none of its words, nor names of columns; ``read_table`` undoes that.

    Args:
        table: it.
        file: where; it is written over.
        form: how it is to be written.
    """
    alike = {} if form is None else {"sep": form.separator, "decimal": form.decimal, "encoding": form.encoding}
    broken = any(is_text(table[name]) and table[name].astype(str).str.contains("\r").any() for name in table.columns)
    quoting = csv.QUOTE_NONNUMERIC if broken else csv.QUOTE_MINIMAL  # which forgets that \r ends a line
    _each_text(table, defused).to_csv(file, index=False, quoting=quoting, **alike)


def _each_text(table: pd.DataFrame, change: Callable[[Any], Any]) -> pd.DataFrame:
    """The table with every name and every text changed; columns without a text that changes stay as they are."""
    changed = {}
    for name in table.columns:
        if is_text(table[name]):
            words = pd.unique(table[name].dropna())
            other = {word: new for word in words if (new := change(word)) != word}
            if other:
                changed[name] = table[name].map(lambda word, other=other: other.get(word, word))
    return table.assign(**changed).rename(columns=change)


def _check_lines(path: Path, rows: list[tuple[int, list[str]]]) -> None:
    """Refuse what is no table: nothing in it, no names above the columns, lines of other lengths than the first."""
    if not rows:
        raise ValueError(f"{path} is empty")
    names = [str(restored(name)).strip() for name in rows[0][1]]
    if len(rows) == 1:
        raise ValueError(f"{path} has names of columns, but no rows")
    numbers = [name for name in names if _is_number(name)]
    if 2 * len(numbers) >= len(names):
        raise ValueError(
            f"{path} must begin with a line of names, but its first line holds numbers: {', '.join(names[:5])}"
        )
    _check_names(path, names)
    for line, row in rows[1:]:
        if len(row) != len(names):
            raise ValueError(
                f"{path} has {len(names)} columns by its first line, but line {line} has {len(row)} cells: "
                f"{', '.join(row[:3])[:60]}…"
            )


def _check_names(path: Path, names: list[str]) -> None:
    twice = [repr(name) for name, many in Counter(names).items() if many > 1 and name]
    if twice:
        raise ValueError(f"{path} has several columns of the same name: {', '.join(twice[:8])}")


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return False
    return True


def _from_parquet(path: Path) -> pd.DataFrame:
    try:
        check_parquet(path)
        table = pd.read_parquet(path)
    except ImportError as error:
        raise ValueError(f"{path} is Parquet, which needs pyarrow: pip install 'softswitch[parquet]'") from error
    except Exception as error:  # whatever else a damaged file does to a library
        raise ValueError(f"{path} could not be read as Parquet: {_first_line(path, error)}") from error
    return table.rename(columns=lambda name: str(name).strip())


def _first_line(path: Path, error: Exception) -> str:
    """What a library says, as far as it says anything."""
    said = str(error).partition("\n")[0].removeprefix(f"{path} ")
    return said if isinstance(error, ValueError) and said else f"{type(error).__name__} {said}".rstrip()


def _from_excel(path: Path) -> pd.DataFrame:
    """The first sheet."""
    try:
        check_workbook(path)
        cells = pd.read_excel(path, header=None, engine="openpyxl")
    except ImportError as error:
        raise ValueError(f"{path} is Excel, which needs openpyxl: pip install 'softswitch[excel]'") from error
    except Exception as error:  # whatever else a damaged file does to a library
        raise ValueError(f"{path} could not be read as Excel: {_first_line(path, error)}") from error
    if len(cells) < 2:
        raise ValueError(f"{path} is empty" if cells.empty else f"{path} has names of columns, but no rows")
    names = [f"Unnamed: {i}" if pd.isna(name) else str(name).strip() for i, name in enumerate(cells.iloc[0])]
    return cells.iloc[1:].set_axis(names, axis=1).reset_index(drop=True).infer_objects()


def find_column(table: pd.DataFrame, name: str, setting: str) -> pd.Series:
    """A column of the table, or raise with the setting that names it."""
    if name not in table.columns:
        known = ", ".join(map(repr, table.columns))
        raise ValueError(f"{setting} must name a column of the table, but is {name!r}; there are {known}")
    found: pd.Series = table[name]
    if found.isna().any():
        raise ValueError(f"{setting} names column {name!r}, which has {int(found.isna().sum())} empty cells")
    return found


def match_value(values: pd.Series, wanted: Any, setting: str) -> np.ndarray:
    """Which rows hold a value; compared as they are or as text, since a file knows no types."""
    chosen = values == wanted
    if not chosen.any():
        chosen = values.astype(str) == str(wanted)
    if not chosen.any() or chosen.all():
        few = ", ".join(map(repr, pd.unique(values)[:8].tolist()))
        share = "no" if not chosen.any() else "every"
        raise ValueError(
            f"{setting} must single out some rows by column {values.name!r}, but {wanted!r} is the value of {share} "
            f"row; values are {few}"
        )
    return chosen.to_numpy()
