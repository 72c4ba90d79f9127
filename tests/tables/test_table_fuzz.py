"""Fuzzing of tables: any file is either read or rejected with a clear error."""

import gzip
import io
import lzma
import os

import hypothesis.strategies as st
from hypothesis import given
from typer.testing import CliRunner

from fuzzing import broken_bytes, cases, only_clear_errors
from small_run import table
from softswitch.cli import app
from softswitch.tables.table import read_table, text_format, write_table

CELLS = st.one_of(
    st.sampled_from(["", "1", "-2.5", "1,5", "1.234,5", "1e5", "1e999", "nan", "NA", "-", "?", "inf", "2020-01-31"]),
    st.sampled_from(["31.12.2020", "25:61", "0000-00-00", "9" * 400, "=1+1", "'=1", "yes", "no", "a b", " x ", "True"]),
    st.sampled_from(['"', '""', 'a"b', '"a', "\0", "\r", "é", "€ 5", "5%", "x" * 200_000, "−3", "٣", "1_000", "0x1f"]),
    st.text(max_size=6),
)
NAMES = st.one_of(st.sampled_from(["a", "b", "y", "id", "", " ", "a ", "Unnamed: 0", "=a", "a.1", "label"]), CELLS)
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252", "latin-1", "utf-32", "utf-7"]


@st.composite
def tables(draw):
    """Draw text that may be a table, with ragged rows, quotes, duplicate names and unusual encodings."""
    wide, long = draw(st.integers(1, 5)), draw(st.integers(0, 8))
    separator = draw(st.sampled_from([",", ";", "\t", "|", ", "]))
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    pool = draw(st.lists(CELLS, min_size=1, max_size=5))
    cells = st.sampled_from(pool) if draw(st.booleans()) else CELLS

    def row(cell):
        length = wide if draw(st.integers(0, 9)) else draw(st.integers(0, 7))
        drawn = [draw(cell) for _ in range(length)]
        return separator.join(f'"{one.replace(chr(34), chr(34) * 2)}"' if draw(st.booleans()) else one for one in drawn)

    text = end.join([row(NAMES), *(row(cells) for _ in range(long))]) + draw(st.sampled_from(["", end, end * 3]))
    return text.encode(draw(st.sampled_from(ENCODINGS)), errors="ignore")


def read_and_write(file):
    text_format(file)
    frame = read_table(file)
    read_table(file, as_text=True)
    write_table(frame, file.with_name("fuzz-again.csv"))
    return frame


@given(st.one_of(tables(), tables(), st.binary(max_size=300)))
@cases(150)
def test_fuzz_table_text(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "fuzz-table.csv"
    file.write_bytes(content)
    only_clear_errors(lambda: read_and_write(file))


def format_contents():
    text = table(30).to_csv(index=False).encode()
    contents = {"csv": text, "csv.gz": gzip.compress(text), "csv.xz": lzma.compress(text)}
    for extension in ("parquet", "excel"):
        stream = io.BytesIO()
        getattr(table(30), f"to_{extension}")(stream, index=False)
        contents["xlsx" if extension == "excel" else extension] = stream.getvalue()
    return contents


CONTENTS = format_contents()


@given(st.sampled_from(sorted(CONTENTS)).flatmap(lambda kind: st.tuples(st.just(kind), broken_bytes(CONTENTS[kind]))))
@cases(100, 0.5)
def test_fuzz_table_formats(tmp_path_factory, broken):
    extension, content = broken
    file = tmp_path_factory.getbasetemp() / f"fuzz-table.{extension}"
    file.write_bytes(content)
    only_clear_errors(lambda: read_table(file))


@given(st.one_of(tables(), tables(), broken_bytes(CONTENTS["csv"])))
@cases(40, 0.4)
def test_fuzz_init(tmp_path_factory, content):
    """``softswitch init`` writes settings or prints an error, but never a traceback."""
    home = tmp_path_factory.getbasetemp()
    (home / "fuzz-init.csv").write_bytes(content)
    before = os.environ.get("COLUMNS")
    command = ["init", str(home / "fuzz-init.csv"), "--out", str(home / "fuzz-init.toml"), "--force"]
    result = CliRunner().invoke(app, command, env={"COLUMNS": before or "80"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (0, 2)
