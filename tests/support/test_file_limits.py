"""Files from others: no more is read than a cap, and what is wrong is told in one clear error."""

import io
import json
import os
import zipfile

import numpy as np
import pytest

from softswitch.support.checks import ANY, MapOf, check_schema
from softswitch.support.files import MAX_BYTES_VARIABLE, read_json, read_npz, read_text, read_toml, size_limit
from softswitch.support.text import format_bytes


def test_a_cap_that_is_told(tmp_path, monkeypatch):
    file = tmp_path / "words.json"
    file.write_text(json.dumps("a" * 3000))
    assert read_json(file) == "a" * 3000
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "1e3")
    with pytest.raises(ValueError, match=r"words.json has 3 kB, but the limit is 1 kB.*SOFTSWITCH_MAX_FILE_BYTES=3002"):
        read_json(file)
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "3002")
    assert read_json(file) == "a" * 3000


@pytest.mark.parametrize("told", ["many", "-1", "nan", "inf", "0"])
def test_a_cap_that_is_none(monkeypatch, told):
    monkeypatch.setenv(MAX_BYTES_VARIABLE, told)
    with pytest.raises(ValueError, match=f"SOFTSWITCH_MAX_FILE_BYTES must be a number of bytes, .* '{told}'"):
        size_limit(10)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(ValueError, match="must be a regular file, but is a pipe"):
        read_json(tmp_path / "run.json")


@pytest.mark.parametrize(
    ("content", "said"),
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
def test_json_that_is_none(tmp_path, content, said):
    file = tmp_path / "run.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=said) as caught:
        read_json(file)
    assert str(file) in str(caught.value)
    assert type(caught.value) is ValueError


@pytest.mark.parametrize("content", [b"a = " + b"[" * 5000, b"\x80", b"a = " + b"9" * 5000, b"a", b"a = 1\na = 2"])
def test_toml_that_is_none(tmp_path, content):
    file = tmp_path / "config.toml"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"config.toml is not (TOML|UTF-8)") as caught:
        read_toml(file)
    assert type(caught.value) is ValueError


def test_words_are_not_changed(tmp_path):
    (tmp_path / "words").write_bytes("é\r\nb\r".encode())
    assert read_text(tmp_path / "words") == "é\r\nb\r"


def packed(file, members, how=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(file, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def test_arrays_come_back(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([True, False]), "c.d": np.asfortranarray(np.eye(3))}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        found = read_npz(tmp_path / "a.npz")
        assert list(found) == list(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype
            assert found[name].flags.writeable


def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "bomb.npz", a=np.zeros(1 << 24))  # 128 MiB of zeros
    with pytest.raises(ValueError, match=r"bomb.npz has 1\d\d kB and 134 MB or more uncompressed, over 200 times"):
        read_npz(tmp_path / "bomb.npz")
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "1e8")
    with pytest.raises(ValueError, match="has 134 MB uncompressed, but the limit is 100 MB"):
        read_npz(tmp_path / "bomb.npz")
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "2e8")
    assert read_npz(tmp_path / "bomb.npz")["a"].size == 1 << 24


def test_headers_that_lie(tmp_path):
    honest = npy(np.zeros(4))
    lying = honest.replace(b"'shape': (4,)", b"'shape': (10000000000000,)"[: len(b"'shape': (4,)")])
    huge = honest.replace(b"(4,), }             ", b"(4000000000000,), } ")
    assert len(huge) == len(honest) != huge.count(b"(4,)")
    for content in (huge, honest[:-8], honest + b"x", b"", b"\x93NUMPY", b"\x93NUMPY\x07\x00", lying):
        packed(tmp_path / "a.npz", {"a.npy": content})
        with pytest.raises(ValueError, match=r"a.npz is damaged"):
            read_npz(tmp_path / "a.npz")


def test_sizes_in_the_archive_that_lie(tmp_path):
    """What is declared is all that is ever read: a member that has more is damaged."""
    packed(tmp_path / "a.npz", {"a.npy": npy(np.zeros(1000))}, zipfile.ZIP_STORED)
    content = (tmp_path / "a.npz").read_bytes()
    size = (8000 + 128).to_bytes(4, "little")
    (tmp_path / "a.npz").write_bytes(content.replace(size, (200).to_bytes(4, "little")))
    with pytest.raises(ValueError, match=r"a.npz is damaged"):
        read_npz(tmp_path / "a.npz")


def test_no_objects_and_no_other_ways_of_packing(tmp_path):
    stream = io.BytesIO()
    np.save(stream, np.array([{}, {}]), allow_pickle=True)
    packed(tmp_path / "a.npz", {"a.npy": stream.getvalue()})
    with pytest.raises(ValueError, match=r"is damaged.*Object arrays cannot be loaded"):
        read_npz(tmp_path / "a.npz")
    packed(tmp_path / "b.npz", {"a.npy": npy(np.zeros(4))}, zipfile.ZIP_LZMA)  # may ask for any memory
    with pytest.raises(ValueError, match="must be stored or deflated"):
        read_npz(tmp_path / "b.npz")


SHAPE = {"a": float, "b?": [str], "c?": (None, {"d": bool}), "e?": MapOf(int), "f?": ANY}


@pytest.mark.parametrize(
    "told", [{"a": 1}, {"a": 1.5, "b": [], "c": None, "e": {}}, {"a": 0, "c": {"d": True}, "f": 1}]
)
def test_shapes_that_fit(told):
    check_schema(told, SHAPE)


@pytest.mark.parametrize(
    ("told", "said"),
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
def test_shapes_that_do_not(told, said):
    with pytest.raises(ValueError, match=said):
        check_schema(told, SHAPE)


def test_sizes_as_people_write_them():
    assert [format_bytes(n) for n in (0, 999, 1000, 3_200_000, 10**9, 68719476736, 2 * 10**12)] == [
        "0 bytes",
        "999 bytes",
        "1 kB",
        "3.2 MB",
        "1 GB",
        "68.7 GB",
        "2 TB",
    ]
