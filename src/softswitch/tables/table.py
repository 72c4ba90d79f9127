"""Tables: reading them from files, and finding what settings name in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd


def read_table(file: str | Path, *, as_text: bool = False) -> pd.DataFrame:
    """Read a CSV (also compressed) or Parquet file; ``as_text``: a CSV's cells as they stand there."""
    path = Path(file)
    if not path.exists():
        raise ValueError(f"file must be a table that is there, but {str(path)!r} does not exist")
    if path.suffix in (".parquet", ".pq"):
        try:
            return pd.read_parquet(path)
        except ImportError as error:
            raise ValueError(f"{path} is Parquet, which needs pyarrow: pip install 'softswitch[parquet]'") from error
    if ".csv" not in path.suffixes:
        raise ValueError(f"file must end in .csv (or .csv.gz, .csv.xz, …) or .parquet, but is {str(path)!r}")
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False) if as_text else pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} could not be read as CSV: {error}") from error


def column(table: pd.DataFrame, name: str, setting: str) -> pd.Series:
    """A column of the table, or raise with the setting that names it."""
    if name not in table.columns:
        known = ", ".join(map(repr, table.columns))
        raise ValueError(f"{setting} must name a column of the table, but is {name!r}; there are {known}")
    found: pd.Series = table[name]
    if found.isna().any():
        raise ValueError(f"{setting} names column {name!r}, which has {int(found.isna().sum())} empty cells")
    return found


def is_value(values: pd.Series, wanted: Any, setting: str) -> np.ndarray:
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
