"""Untrusted files: size limits, and clear errors for invalid content."""

import datetime
import io
import json
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from softswitch.support import files
from softswitch.support.checks import ANY, MapOf, check_schema
from softswitch.support.files import (
    MAX_BYTES_VARIABLE,
    read_json,
    read_npz,
    read_text,
    read_toml,
    size_limit,
    write_json,
)


def test_limit_from_environment(tmp_path, monkeypatch):
    file = tmp_path / "words.json"
    file.write_text(json.dumps("a" * 3000))
    assert read_json(file) == "a" * 3000
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "1e3")
    with pytest.raises(ValueError, match=r"words.json has 3.0 kB, but the limit is 1.0 kB.*MAX_FILE_BYTES=3002"):
        read_json(file)
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "3002")
    assert read_json(file) == "a" * 3000


@pytest.mark.parametrize("value", ["many", "-1", "nan", "inf", "0"])
def test_invalid_limit_is_rejected(monkeypatch, value):
    monkeypatch.setenv(MAX_BYTES_VARIABLE, value)
    with pytest.raises(ValueError, match=f"SOFTSWITCH_MAX_FILE_BYTES must be a number of bytes, .* '{value}'"):
        size_limit(10)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this platform has no pipes")
def test_pipe_is_rejected(tmp_path):
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(ValueError, match="must be a regular file, but is a pipe"):
        read_json(tmp_path / "run.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": NaN}', "NaN is not a valid JSON number"),
        (b'{"a": 1e999}', "1e999 is not a valid JSON number, or too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is damaged"),
        (b'{"a": ', "is damaged"),
        (b"", "is damaged"),
    ],
)
def test_invalid_json_is_rejected(tmp_path, content, message):
    file = tmp_path / "run.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read_json(file)
    assert str(file) in str(error.value)
    assert type(error.value) is ValueError


@pytest.mark.parametrize("content", [b"a = " + b"[" * 5000, b"\x80", b"a = " + b"9" * 5000, b"a", b"a = 1\na = 2"])
def test_invalid_toml_is_rejected(tmp_path, content):
    file = tmp_path / "config.toml"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"config.toml is not (TOML|UTF-8)") as error:
        read_toml(file)
    assert type(error.value) is ValueError


def test_text_is_unchanged(tmp_path):
    (tmp_path / "words").write_bytes("é\r\nb\r".encode())
    assert read_text(tmp_path / "words") == "é\r\nb\r"


def write_zip(file, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def npy_bytes(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def test_npz_round_trip(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([True, False]), "c.d": np.asfortranarray(np.eye(3))}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        result = read_npz(tmp_path / "a.npz")
        assert list(result) == list(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(result[name], array)
            assert result[name].dtype == array.dtype
            assert result[name].flags.writeable


def test_zip_bomb_is_rejected(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "bomb.npz", a=np.zeros(1 << 24))  # 128 MiB of zeros
    with pytest.raises(ValueError, match=r"bomb.npz has 1\d\d.\d kB and 134.2 MB or more uncompressed, over 200 times"):
        read_npz(tmp_path / "bomb.npz")
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "1e8")
    with pytest.raises(ValueError, match=r"has 134.2 MB uncompressed, but the limit is 100.0 MB"):
        read_npz(tmp_path / "bomb.npz")
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "2e8")
    assert read_npz(tmp_path / "bomb.npz")["a"].size == 1 << 24


def test_false_npy_headers_are_rejected(tmp_path):
    valid = npy_bytes(np.zeros(4))
    false_shape = valid.replace(b"'shape': (4,)", b"'shape': (10000000000000,)"[: len(b"'shape': (4,)")])
    huge_shape = valid.replace(b"(4,), }             ", b"(4000000000000,), } ")
    assert len(huge_shape) == len(valid) != huge_shape.count(b"(4,)")
    for content in (huge_shape, valid[:-8], valid + b"x", b"", b"\x93NUMPY", b"\x93NUMPY\x07\x00", false_shape):
        write_zip(tmp_path / "a.npz", {"a.npy": content})
        with pytest.raises(ValueError, match=r"a.npz is damaged"):
            read_npz(tmp_path / "a.npz")


def test_false_zip_sizes_are_rejected(tmp_path):
    """Only the declared size is read, and a member with more data is damaged."""
    write_zip(tmp_path / "a.npz", {"a.npy": npy_bytes(np.zeros(1000))}, zipfile.ZIP_STORED)
    content = (tmp_path / "a.npz").read_bytes()
    size = (8000 + 128).to_bytes(4, "little")
    (tmp_path / "a.npz").write_bytes(content.replace(size, (200).to_bytes(4, "little")))
    with pytest.raises(ValueError, match=r"a.npz is damaged"):
        read_npz(tmp_path / "a.npz")


def test_objects_and_other_compression_are_rejected(tmp_path):
    stream = io.BytesIO()
    np.save(stream, np.array([{}, {}]), allow_pickle=True)
    write_zip(tmp_path / "a.npz", {"a.npy": stream.getvalue()})
    with pytest.raises(ValueError, match=r"is damaged.*Object arrays cannot be loaded"):
        read_npz(tmp_path / "a.npz")
    write_zip(
        tmp_path / "b.npz", {"a.npy": npy_bytes(np.zeros(4))}, zipfile.ZIP_LZMA
    )  # could allocate any amount of memory
    with pytest.raises(ValueError, match="must be stored or deflated"):
        read_npz(tmp_path / "b.npz")


SCHEMA = {"a": float, "b?": [str], "c?": (None, {"d": bool}), "e?": MapOf(int), "f?": ANY}


@pytest.mark.parametrize(
    "content", [{"a": 1}, {"a": 1.5, "b": [], "c": None, "e": {}}, {"a": 0, "c": {"d": True}, "f": 1}]
)
def test_valid_schemas(content):
    check_schema(content, SCHEMA)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "it must be an object, but is list"),
        ({}, "it.a is missing"),
        ({"a": True}, "it.a must be a number, but is that number"),
        ({"a": 10**400}, "it.a must be a number"),
        ({"a": float("nan")}, "it.a must be a number"),
        ({"a": 1, "b": "x"}, "it.b must be a list, but is str"),
        ({"a": 1, "b": ["x", None]}, r"it.b\[1\] must be text, but is null"),
        ({"a": 1, "c": 1}, "it.c must be an object"),
        ({"a": 1, "c": {}}, "it.c.d is missing"),
        ({"a": 1, "e": {"x": 1.5}}, "it.e.x must be a whole number"),
    ],
)
def test_invalid_schemas_are_rejected(content, message):
    with pytest.raises(ValueError, match=message):
        check_schema(content, SCHEMA)


def test_json_holds_only_convertible_objects(tmp_path):
    """An array is an error: as text it would be shortened without notice."""
    content = {"count": np.int64(3), "share": np.float32(0.5), "file": Path("a/b"), "day": datetime.date(2020, 1, 2)}
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json") == {"count": 3, "share": 0.5, "file": "a/b", "day": "2020-01-02"}
    for value in (np.arange(3.0), object(), {1}):
        with pytest.raises(TypeError, match="JSON cannot hold"):
            write_json(tmp_path / "b.json", {"value": value})
    assert not (tmp_path / "b.json").exists()


WRITES = re.compile(
    r"\.write_(text|bytes)\(|open\([^)]*[\"'][wax]b?[\"']|\.to_csv\((?!stream)|savefig\((?!stream)|np\.savez?\w*\((?!stream)"
)
EXCEPTIONS = {  # files that write in another way, and the number of lines
    "softswitch/results/trackers.py": 1,  # a file that must not exist
    "softswitch/support/files.py": 1,
    "softswitch_experiments/paper/outputs.py": 3,  # in a new folder
}


def test_files_are_written_atomically():
    """All else is written by ``open_atomically`` or ``open_regular``, which follow no links."""
    source = Path(files.__file__).parents[2]
    counts = {
        str(file.relative_to(source)): sum(bool(WRITES.search(line)) for line in file.read_text("utf-8").splitlines())
        for file in source.rglob("*.py")
    }
    assert {file: count for file, count in counts.items() if count} == EXCEPTIONS
