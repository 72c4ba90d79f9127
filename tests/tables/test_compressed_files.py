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
from softswitch.tables.table import open_bytes, read_table, write_table

TEXT = b"a,b\n" + b"1,x\n" * 50_000


def test_concatenated_gzip_streams(tmp_path):
    half = len(TEXT) // 2
    file = tmp_path / "t.csv.gz"
    file.write_bytes(gzip.compress(TEXT[:half]) + gzip.compress(TEXT[half:]))
    with open_bytes(file) as stream:
        assert stream.read() == TEXT
    assert len(read_table(file)) == 50_000


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".csv.bz2", ".csv.xz"])
def test_suffix_selects_compression_of_written_tables(tmp_path, suffix):
    file, frame = tmp_path / f"t{suffix}", pd.DataFrame({"a": [1, 2], "b": ["=é", "x\ry"]})
    write_table(frame, file)
    pd.testing.assert_frame_equal(read_table(file), frame.astype({"a": float}), check_dtype=False)
    assert file.read_bytes().startswith(b'"a"') == (suffix == ".csv")


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


def test_excel_with_one_text_in_many_cells_is_rejected(tmp_path, monkeypatch):
    book = openpyxl.Workbook()
    for row in (["a", "b"], *[["x" * 30_000, 1]] * 100):
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    assert len(read_table(tmp_path / "t.xlsx")) == 100
    monkeypatch.setattr(table_module, "HARMLESS", 1 << 20)
    with pytest.raises(ValueError, match=r"t.xlsx .* uncompressed, over 200 times as much"):
        read_table(tmp_path / "t.xlsx")


def test_parquet_bomb_is_not_decoded(tmp_path):
    """A text of 16 MB is the value of 256 cells: 4.3 GB from 1 kB, of which no cell is decoded."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(256, np.int32)), pa.array(["a" * (1 << 24)]))
    options = {"compression": "brotli", "dictionary_pagesize_limit": 1 << 30, "write_statistics": False}
    pq.write_table(pa.table({"a": texts, "b": range(256)}), tmp_path / "t.parquet", store_schema=False, **options)
    assert (tmp_path / "t.parquet").stat().st_size < 2000
    with pytest.raises(ValueError, match=r"has .* and 4.3 GB or more uncompressed, over 200 times as much"):
        read_table(tmp_path / "t.parquet")
    assert pa.default_memory_pool().max_memory() < 1 << 29


def test_parquet_widths_and_rows_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(table_module, "HARMLESS", 1 << 20)
    wide = pa.array([b"x" * 10_000] * 2000, pa.binary(10_000))
    pq.write_table(pa.table({"a": wide, "b": range(2000)}), tmp_path / "wide.parquet")
    with pytest.raises(ValueError, match=r"has .* and 40.0 MB or more uncompressed, over 200 times as much"):
        read_table(tmp_path / "wide.parquet")
    pq.write_table(pa.table({"a": [[1], [2]], "b": [{"c": 1}, None]}), tmp_path / "nested.parquet")
    with pytest.raises(ValueError, match="column 'a' has lists or records"):
        read_table(tmp_path / "nested.parquet")


def test_parquet_bomb_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(table_module, "HARMLESS", 1 << 20)
    pq.write_table(pa.table({"a": np.zeros(1 << 20), "b": ["x"] * (1 << 20)}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t.parquet .* uncompressed, over 200 times as much"):
        read_table(tmp_path / "t.parquet")
    # One text of 10,000 letters is the value of 2,000 cells: 20 MB from a few kB.
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2000, np.int32)), pa.array(["x" * 10_000]))
    for name, column in (("cells", texts), ("category", texts)):
        stored = column.cast(pa.string()) if name == "cells" else column
        pq.write_table(pa.table({"a": stored}), tmp_path / f"{name}.parquet")
        with pytest.raises(ValueError, match=rf"{name}.parquet .* uncompressed, over 200 times as much"):
            read_table(tmp_path / f"{name}.parquet")
    pd.DataFrame({"a": np.arange(1000.0), "b": ["some text", None] * 500}).to_parquet(tmp_path / "u.parquet")
    assert len(read_table(tmp_path / "u.parquet")) == 1000
