"""Packed tables, and such as are made to do harm."""

import bz2
import gzip
import lzma
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from softswitch.support.files import MAX_BYTES_VARIABLE
from softswitch.tables import text_file as unpacked
from softswitch.tables.table import read_table
from softswitch.tables.text_file import open_bytes

TEXT = b"a,b\n" + b"1,x\n" * 50_000


def test_several_streams_one_after_the_other(tmp_path):
    half = len(TEXT) // 2
    for ending, pack in (("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)):
        file = tmp_path / f"t.csv.{ending}"
        between = b"\0" * (4 * unpacked.BLOCK) if ending == "xz" else b""
        file.write_bytes(pack(TEXT[:half]) + between + pack(TEXT[half:]))
        with open_bytes(file) as stream:
            assert stream.read() == TEXT
        assert len(read_table(file)) == 50_000


@pytest.mark.parametrize("ending", ["gz", "xz", "bz2", "zip"])
def test_a_table_that_grows_beyond_measure(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(unpacked, "HARMLESS", 1 << 20)
    file = tmp_path / f"t.csv.{ending}"
    bomb = b"a,b\n" + b"0,0\n" * (1 << 20)
    if ending == "zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("t.csv", bomb)
    else:
        file.write_bytes({"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}[ending](bomb))
    with pytest.raises(ValueError, match=r"t.csv.* uncompressed, over 200 times as much.*SOFTSWITCH_MAX_FILE_BYTES"):
        read_table(file)
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "1e6")
    with pytest.raises(ValueError, match=r"but the limit is 1 MB"):
        read_table(file)
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "1e8")
    assert len(read_table(file)) == 1 << 20


def test_a_large_table_that_is_not_packed_is_refused_only_by_its_cap(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_bytes(b"a,b\n" + b"0,0\n" * (1 << 16))
    monkeypatch.setattr(unpacked, "HARMLESS", 1)
    assert len(read_table(tmp_path / "t.csv")) == 1 << 16
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "1000")
    with pytest.raises(ValueError, match=r"t.csv has 262 kB, but the limit is 1 kB"):
        read_table(tmp_path / "t.csv")


def test_xz_that_asks_for_much_memory(tmp_path):
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]
    (tmp_path / "t.csv.xz").write_bytes(lzma.compress(TEXT, filters=filters))
    with pytest.raises(ValueError, match=r"t.csv.xz could not be unpacked: Memory usage limit exceeded"):
        read_table(tmp_path / "t.csv.xz")
    (tmp_path / "u.csv.xz").write_bytes(lzma.compress(TEXT, preset=9))
    assert len(read_table(tmp_path / "u.csv.xz")) == 50_000


@pytest.mark.parametrize("ending", ["gz", "xz", "bz2", "zip"])
@pytest.mark.parametrize("keep", [0, 3, 0.5, 0.9])
def test_a_packed_table_that_is_cut_short(tmp_path, ending, keep):
    file = tmp_path / f"t.csv.{ending}"
    if ending == "zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("t.csv", TEXT)
    else:
        file.write_bytes({"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}[ending](TEXT))
    content = file.read_bytes()
    file.write_bytes(content[: int(keep if keep > 1 else keep * len(content))])
    with pytest.raises(ValueError, match=r"t.csv.* (could not be|is empty)"):
        read_table(file)


def test_zip_with_a_password_or_packed_otherwise(tmp_path):
    file = tmp_path / "t.csv.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("t.csv", TEXT)
    with pytest.raises(ValueError, match="must be stored or deflated"):
        read_table(file)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("t.csv", TEXT)
    content = bytearray(file.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="not encrypted"):
        read_table(file)


def test_a_sheet_with_a_cell_far_out(tmp_path):
    from openpyxl import Workbook

    book = Workbook()
    for row in (["a", "b"], [1, 2], [3, 4]):
        book.active.append(row)
    book.save(tmp_path / "good.xlsx")
    assert len(read_table(tmp_path / "good.xlsx")) == 2
    book.active["XFD1048576"] = 1
    book.save(tmp_path / "far.xlsx")
    with pytest.raises(ValueError, match="a sheet of 1,048,576 rows and 16,384 columns"):
        read_table(tmp_path / "far.xlsx")


FAR = b'<row r="9"><c r="XFD9"><v>1</v></c></row><row r="1000000"><c r="A1000000"><v>1</v></c></row>'


@pytest.mark.parametrize(
    ("cells", "name"),
    [
        (FAR.replace(b"<c r", b"<c\nr"), "worksheets/sheet1.xml"),
        (FAR.replace(b'"', b"'"), "worksheets/sheet1.xml"),
        (FAR.replace(b' r="A1000000"', b""), "worksheets/sheet1.xml"),
        (FAR.replace(b"<c r", b"<c " + b" " * unpacked.BLOCK + b"r"), "worksheets/sheet1.xml"),
        (FAR, "elsewhere.bin"),
    ],
)
def test_a_cell_far_out_is_seen_however_it_is_written(tmp_path, cells, name):
    pd.DataFrame({"a": [1, 2], "b": [3, 4]}).to_excel(tmp_path / "good.xlsx", index=False)
    with zipfile.ZipFile(tmp_path / "good.xlsx") as good, zipfile.ZipFile(tmp_path / "far.xlsx", "w") as far:
        for member in good.namelist():
            content = good.read(member).replace(b"</sheetData>", cells + b"</sheetData>")
            content = content.replace(b"worksheets/sheet1.xml", name.encode())
            far.writestr(member.replace("worksheets/sheet1.xml", name), content)
    with pytest.raises(ValueError, match="a sheet of 1,000,000 rows and 16,384 columns"):
        read_table(tmp_path / "far.xlsx")


def test_parquet_that_grows_beyond_measure(tmp_path, monkeypatch):
    monkeypatch.setattr(unpacked, "HARMLESS", 1 << 20)
    pq.write_table(pa.table({"a": np.zeros(1 << 20), "b": ["x"] * (1 << 20)}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t.parquet .* uncompressed, over 200 times as much"):
        read_table(tmp_path / "t.parquet")
    pd.DataFrame({"a": np.arange(1000.0)}).to_parquet(tmp_path / "u.parquet")
    assert len(read_table(tmp_path / "u.parquet")) == 1000
