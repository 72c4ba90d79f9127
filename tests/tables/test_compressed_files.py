"""Compressed tables, including malicious ones."""

import gzip
import lzma

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from softswitch.support.files import MAX_BYTES_VARIABLE
from softswitch.tables import table as table_module
from softswitch.tables.table import open_bytes, read_table

TEXT = b"a,b\n" + b"1,x\n" * 50_000


def test_concatenated_gzip_streams(tmp_path):
    half = len(TEXT) // 2
    file = tmp_path / "t.csv.gz"
    file.write_bytes(gzip.compress(TEXT[:half]) + gzip.compress(TEXT[half:]))
    with open_bytes(file) as stream:
        assert stream.read() == TEXT
    assert len(read_table(file)) == 50_000


def test_gzip_bomb_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(table_module, "HARMLESS", 1 << 20)
    file = tmp_path / "t.csv.gz"
    file.write_bytes(gzip.compress(b"a,b\n" + b"0,0\n" * (1 << 20)))
    with pytest.raises(ValueError, match=r"t.csv.* uncompressed, over 200 times as much.*SOFTSWITCH_MAX_FILE_BYTES"):
        read_table(file)
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "1e6")
    with pytest.raises(ValueError, match=r"but the limit is 1.0 MB"):
        read_table(file)
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "1e8")
    assert len(read_table(file)) == 1 << 20


def test_uncompressed_table_size_limit(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_bytes(b"a,b\n" + b"0,0\n" * (1 << 16))
    monkeypatch.setattr(table_module, "HARMLESS", 1)
    assert len(read_table(tmp_path / "t.csv")) == 1 << 16
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "1000")
    with pytest.raises(ValueError, match=r"t.csv has 262.1 kB, but the limit is 1.0 kB"):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize("keep", [0, 3, 0.5, 0.9])
def test_truncated_gzip_is_rejected(tmp_path, keep):
    file = tmp_path / "t.csv.gz"
    content = gzip.compress(TEXT)
    file.write_bytes(content[: int(keep if keep > 1 else keep * len(content))])
    with pytest.raises(ValueError, match=r"t.csv.* (could not be|is empty)"):
        read_table(file)


def test_xz_memory_limit(tmp_path):
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]
    (tmp_path / "t.csv.xz").write_bytes(lzma.compress(TEXT, filters=filters))
    with pytest.raises(ValueError, match=r"t.csv.xz could not be unpacked: Memory usage limit exceeded"):
        read_table(tmp_path / "t.csv.xz")


def test_excel_with_distant_cell_is_rejected(tmp_path):
    book = openpyxl.Workbook()
    book.active.append(["a", "b"])
    book.active.append([1, 2])
    book.save(tmp_path / "good.xlsx")
    assert len(read_table(tmp_path / "good.xlsx")) == 1
    book.active["XFD1048576"] = 1
    book.save(tmp_path / "far.xlsx")
    with pytest.raises(ValueError, match=r"far.xlsx could not be read as Excel: has 137.4 GB unpacked, but the limit"):
        read_table(tmp_path / "far.xlsx")


def test_parquet_bomb_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(table_module, "HARMLESS", 1 << 20)
    pq.write_table(pa.table({"a": np.zeros(1 << 20), "b": ["x"] * (1 << 20)}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t.parquet .* uncompressed, over 200 times as much"):
        read_table(tmp_path / "t.parquet")
    # One text of 100,000 letters is the value of 20,000 cells: 2 GB from a few kB.
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), pa.array(["x" * 100_000]))
    for name, column in (("cells", texts), ("category", texts), ("nested", pa.array([["x" * 1000] * 50_000]))):
        stored = column.cast(pa.string()) if name == "cells" else column
        pq.write_table(pa.table({"a": stored}), tmp_path / f"{name}.parquet")
        with pytest.raises(ValueError, match=rf"{name}.parquet .* uncompressed, over 200 times as much"):
            read_table(tmp_path / f"{name}.parquet")
    pd.DataFrame({"a": np.arange(1000.0), "b": ["some text", None] * 500}).to_parquet(tmp_path / "u.parquet")
    assert len(read_table(tmp_path / "u.parquet")) == 1000
