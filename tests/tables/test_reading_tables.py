"""Reading of tables from text files in many formats, Parquet and Excel."""

import bz2
import gzip
import lzma

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import given

from softswitch.tables.cells import EMPTY, parse_cells, parse_numbers
from softswitch.tables.features import Encoding
from softswitch.tables.table import read_table, text_format

TABLE = pd.DataFrame(
    {
        "age": [20.25, 30.5, None, 50.0] * 5,
        "Straße": ["Köln", "Zürich", "a, b; c", None] * 5,
        "visits": [1200, 3, 1000400, 0] * 5,
        "seen": ["2013-01-05", "2013-02-28", "2014-12-31", "2015-07-01"] * 5,
    }
)


def format_number(number, decimal, thousands):
    text = f"{number:,}" if thousands else str(number)
    return text if decimal == "." else text.translate(str.maketrans({".": ",", ",": "."}))


@given(
    numbers=st.lists(st.decimals(-99999, 99999, places=2), min_size=4, max_size=12),
    words=st.lists(st.sampled_from(["Köln", "é", "x y", "a,b", "c;d", "e|f", 'g"h', "Ünal"]), min_size=4, max_size=4),
    separator=st.sampled_from(",;\t|"),
    decimal=st.sampled_from(".,"),
    thousands=st.booleans(),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "cp1252", "utf-16"]),
)
def test_text_formats_are_read_equally(tmp_path_factory, numbers, words, separator, decimal, thousands, encoding):
    """Includes quoted cells with a decimal comma in a comma-separated file."""
    file = tmp_path_factory.mktemp("t") / "t.csv"
    town = [words[i % 4] for i in range(len(numbers))]
    cells = [format_number(number, decimal, thousands) for number in numbers]
    pd.DataFrame({"town": town, "x": cells, "n": range(len(numbers))}).to_csv(
        file, index=False, sep=separator, encoding=encoding
    )
    table = read_table(file)
    assert list(table["town"]) == town
    np.testing.assert_allclose(table["x"], [float(number) for number in numbers])
    np.testing.assert_array_equal(table["n"], range(len(numbers)))
    assert text_format(file).separator == separator


@pytest.mark.parametrize("extension", ["csv", "tsv.gz", "txt.xz", "csv.bz2", "parquet", "xlsx"])
def test_file_formats(tmp_path, extension):
    file = tmp_path / f"T.{extension}"
    text = TABLE.to_csv(index=False, sep="\t").encode()
    if extension == "parquet":
        TABLE.to_parquet(file)
    elif extension == "xlsx":
        TABLE.to_excel(file, index=False)
    else:
        compress = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}.get(file.suffix, bytes)
        file.write_bytes(compress(text))
    table = read_table(file)
    assert list(table.columns) == list(TABLE.columns)
    for name in TABLE.columns:
        assert table[name].isna().equals(TABLE[name].isna())
        assert list(table[name].dropna()) == list(TABLE[name].dropna())


def test_encoding_is_independent_of_file_format(tmp_path):
    """Semicolons, decimal commas, thousands separators, day-first dates, other empty-cell markers and cp1252."""
    TABLE.to_csv(tmp_path / "one.csv", index=False)
    other = TABLE.assign(
        age=TABLE["age"].map(lambda age: "?" if pd.isna(age) else str(age).replace(".", ",")),
        visits=TABLE["visits"].map(lambda count: f"{count:,}".replace(",", ".")),
        seen=pd.to_datetime(TABLE["seen"]).dt.strftime("%d.%m.%Y"),
    )
    other.to_csv(tmp_path / "other.txt", index=False, sep=";", encoding="cp1252", na_rep=" n/a ")
    encoding = Encoding.fit(read_table(tmp_path / "one.csv"), list(TABLE.columns))
    assert "seen season sin" in encoding.features
    expected = encoding.encode(read_table(tmp_path / "one.csv"))
    assert np.abs(expected).sum(0).min() > 0
    np.testing.assert_array_equal(encoding.encode(read_table(tmp_path / "other.txt")), expected)
    np.testing.assert_array_equal(
        encoding.encode(TABLE.assign(seen=pd.to_datetime(TABLE["seen"]))), expected, "pandas timestamps"
    )


def test_empty_cell_markers(tmp_path):
    rows = "\n".join(f'"{marker}",1' for marker in EMPTY)
    (tmp_path / "t.csv").write_text(f"a,b\nx,1\n{rows}\n", encoding="utf-8")
    table = read_table(tmp_path / "t.csv")
    assert table["a"].isna().sum() == len(EMPTY)
    assert {"", "NA", "N/A", "null", "?", "-", "."} <= set(EMPTY)


def test_none_is_empty_only_among_numbers():
    assert parse_cells(pd.Series(["None", "some"])).tolist() == ["None", "some"]
    assert parse_cells(pd.Series(["None", "1", "2.5"])).fillna(0).tolist() == [0, 1, 2.5]


@pytest.mark.parametrize(
    ("cells", "decimal", "numbers"),
    [
        (["1,234.5", "12"], ".", [1234.5, 12]),
        (["1.234,5", "1.000.000"], ",", [1234.5, 1e6]),
        (["12%", "7.5 %"], ".", [12, 7.5]),
        (["€1,200", "€3"], ".", [1200, 3]),
        (["1.200 €", "3,5 €"], ",", [1200, 3.5]),
        (["1 234", "5"], ".", [1234, 5]),
        (["1'234.5", "-5"], ".", [1234.5, -5]),
        (["1,5", "2,25"], ".", [1.5, 2.25]),  # differs from the file's decimal sign, but consistently in the column
        (["12%", "7"], ".", None),
        (["$5", "€5"], ".", None),
        (["1,23,4", "5"], ".", None),
        (["05.01.2013", "06.01.2013"], ",", None),
        (["A12", "A13"], ".", None),
        (["", ""], ".", None),
        (["-", "5"], ".", None),
    ],
)
def test_parse_numbers(cells, decimal, numbers):
    parsed = parse_numbers(pd.Series(cells), decimal)
    assert (parsed is None) == (numbers is None)
    if numbers is not None:
        np.testing.assert_allclose(parsed, numbers)


def test_whitespace_is_stripped():
    assert parse_cells(pd.Series([" yes", "yes ", " ? ", "no"])).tolist()[:2] == ["yes", "yes"]
    assert parse_cells(pd.Series([" yes", "yes ", " ? ", "no"])).isna().tolist() == [False, False, True, False]
    assert parse_cells(pd.Series(["a", "b"], dtype="category")).tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.csv", None, "does not exist"),
        ("t.doc", "a", r"must end in .csv, .tsv, .*, .xlsx, .xlsm, a compressed text file in .gz, .bz2, .xz"),
        ("t.parquet.gz", "a", "must end in .csv"),
        ("t.csv", "", "t.csv is empty"),
        ("t.csv", "\n\n", "t.csv is empty"),
        ("t.csv", "a,b,c\n", "has a header, but no rows"),
        ("t.csv", "1,2.5,x\n2,3.5,y\n", "must begin with a header, but its first line holds numbers: 1, 2.5, x"),
        ("t.csv", "a,b,a\n1,2,3\n", "several columns of the same name: 'a'"),
        ("t.csv", "a,b\n1,2\n\n3,4,5\n", "has 2 columns in its header, but line 4 has 3 cells: 3, 4, 5"),
        ("t.csv", "a;b;c\n1;2;3\n4;5\n", "has 3 columns in its header, but line 3 has 2 cells"),
        ("t.csv.gz", "a,b\n1,2\n", "could not be unpacked"),
        ("t.zip", "a,b\n1,2\n", "must end in .csv"),
        ("t.parquet", "a,b\n1,2\n", "could not be read as Parquet"),
        ("t.xlsx", "a,b\n1,2\n", "could not be read as Excel"),
    ],
)
def test_invalid_files_are_rejected(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / name)


def test_separator_is_consistent_across_lines(tmp_path):
    (tmp_path / "t.csv").write_text("town, street, number, letter;age\nx, y;1\nz;2\nw;3\n")
    table = read_table(tmp_path / "t.csv")
    assert list(table.columns) == ["town, street, number, letter", "age"]
    assert table["age"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "decimal"),
    [
        ("a;b;d\n1,5;2;05.01.2013\n2,25;3;06.01.2013\n", ","),
        ("a;b\n1.234,5;x\n7,25;y\n", ","),
        ("a;b;d\n1.5;2;05.01.2013\n2.25;3;06.01.2013\n", "."),
        ("a;b\n1.234;2\n5.678;3\n", "."),
    ],
)
def test_decimal_sign_is_inferred(tmp_path, text, decimal):
    (tmp_path / "t.csv").write_text(text)
    assert text_format(tmp_path / "t.csv").decimal == decimal


def test_explicit_format_overrides_inference(tmp_path):
    (tmp_path / "t.csv").write_text("a;b,c\n1;5,x\n")
    table = read_table(tmp_path / "t.csv", separator=",", decimal=".")
    assert list(table.columns) == ["a;b", "c"]
    assert table.iloc[0].tolist() == ["1;5", "x"]
    with pytest.raises(ValueError, match=r"data.encoding must name an encoding, but is 'utf-99'"):
        read_table(tmp_path / "t.csv", encoding="utf-99")
    (tmp_path / "t.csv").write_bytes("a,b\nKöln,1\n".encode("cp1252"))
    with pytest.raises(ValueError, match="is not written in utf-8"):
        read_table(tmp_path / "t.csv", encoding="utf-8")
