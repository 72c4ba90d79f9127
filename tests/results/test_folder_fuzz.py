"""Fuzzing of run folders: a folder from anyone is shown, used or refused by a clear error."""

import io
import json
import shutil
import warnings
from typing import NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from safetensors import safe_open
from safetensors.numpy import load, save
from typer.testing import CliRunner

from fuzzing import broken_bytes, broken_json, cases, only_clear_errors
from small_run import small_run, table
from softswitch.cli import app
from softswitch.cli.runs import _line
from softswitch.results.checkpoints import Checkpoints, _digest
from softswitch.results.descriptions import read_description
from softswitch.results.folder import (
    CHECKPOINTS,
    compare_settings,
    find_runs,
    open_run,
    read_frontier,
    resolve_run,
)
from softswitch.results.report import write_report
from softswitch.results.report.clients import build_columns, judge_run, summarise_clients
from softswitch.results.report.page import describe_usefulness
from softswitch.tables import training
from softswitch.tables.model import load as load_model

ROWS = table(6)
LIKE = ["run.json", "certificate.json", "encoding.json", "frontier.json"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A real run's folder; the table has changed since, so that no run is gone on with."""
    home = tmp_path_factory.mktemp("whole")
    folder = small_run(home)
    table(250).to_csv(home / "cases.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def contents(whole):
    found = {str(file.relative_to(whole)): file.read_bytes() for file in whole.rglob("*") if file.is_file()}
    shown = {name: content for name, content in found.items() if not name.endswith((".png", ".svg", ".lock"))}
    assert {*LIKE, "config.toml", "clients.csv", "history.npz", "params.safetensors"} <= set(shown)
    assert any(name.startswith(CHECKPOINTS) for name in shown)
    return Contents(shown)


class Contents(dict):
    """Files by name; too long to be shown."""

    def __repr__(self):
        return f"Contents({sorted(self)})"


class Broken(NamedTuple):
    """A file, and what is to stand in it; None: it is to be gone."""

    name: str
    content: bytes | None

    def __repr__(self):
        return f"Broken({self.name!r}, {str(self.content)[:2000]})"


@st.composite
def broken_arrays(draw, arrays):
    """Arrays with some of another shape or kind, taken out, or called otherwise."""
    arrays = dict(arrays)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(arrays)))
        array = arrays.pop(name)
        how = draw(st.sampled_from(["remove", "rename", "kind", "shape", "values", "flat"]))
        if how == "rename":
            arrays[name + draw(st.sampled_from(["x", ".y"]))] = array
        elif how == "kind":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                arrays[name] = array.astype(draw(st.sampled_from(["i1", "f2", "f8", "?", "u8", "c16"])))
        elif how == "shape":
            arrays[name] = np.repeat(array[None], draw(st.integers(0, 3)), axis=0)
        elif how == "flat":
            arrays[name] = array.reshape(-1)[: draw(st.integers(0, 5))]
        elif how == "values":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                odd = np.array(draw(st.sampled_from([np.nan, np.inf, -np.inf, -1, 1e30, 99]))).astype(array.dtype)
            arrays[name] = np.full_like(array, odd)
        if not arrays:
            arrays[name] = array
    return arrays


def words_of(content):
    """What a file of tensors says beside them."""
    size = int.from_bytes(content[:8], "little")
    return dict(json.loads(content[8 : 8 + size]).get("__metadata__", {}))


@st.composite
def broken_file(draw, contents):
    """A file of the folder, broken."""
    return Broken(*draw(_broken_file(contents)))


@st.composite
def _broken_file(draw, contents):
    words = [name for name in LIKE if name in contents]  # most can go wrong with these
    name = draw(st.sampled_from([*words, *words, *sorted(contents)]))
    content = contents[name]
    how = draw(st.integers(0, 9))
    if how == 9:
        return name, draw(st.sampled_from([None, b"", b"[]", b"{}", b"null", b"[" * 5000, b"\0" * 100]))
    if how < 7 and name.endswith(".json"):
        told = draw(broken_json(json.loads(content)))
        return name, json.dumps(told).encode()
    if how < 6 and name.endswith(".npz"):
        stream = io.BytesIO()
        np.savez(stream, **draw(broken_arrays(dict(np.load(io.BytesIO(content))))))
        return name, stream.getvalue()
    if how < 6 and name.endswith(".safetensors"):
        arrays = draw(broken_arrays(load(content)))
        plain = {key: array for key, array in arrays.items() if array.dtype.kind != "c"}
        if not plain:
            return name, content[:-1]
        if not name.startswith(CHECKPOINTS):
            return name, save(plain)
        told = words_of(content)
        if draw(st.booleans()):
            told["content"] = json.dumps(draw(broken_json(json.loads(told["content"]))))
        if draw(st.booleans()):  # as if it were sound: only its words are odd
            told["digest"] = _digest(told["content"], plain)
        else:
            told[draw(st.sampled_from(sorted(told)))] = draw(st.sampled_from(["", "x", "{}", "[]", "-1", "null"]))
        return name, save(plain, told)
    return name, draw(broken_bytes(content))


def put(folder, name, content):
    file = folder / name
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)


def look(folder, part):
    """All that the command line does with a folder but for drawing; one part of it."""
    run = open_run(folder)
    if part == "shown":
        _line(run)
        if not run.finished:
            return
        found = summarise_clients(run)
        judge_run(run, found)
        words = read_description(run.about)
        build_columns(run, found, words)
        describe_usefulness(run, words)
        compare_settings([run, run])
        [str(cycle) for cycle in run.restarts]
        _ = run.history, run.certificate
    elif part == "model":
        load_model(folder, allow_uncertified=True).columns(ROWS)
    elif part == "frontier":
        found = read_frontier(folder)
        _ = found.columns, found.summary, found.notes
    elif part == "resumed":
        training.resume(folder, progress=False)
    elif part == "checkpoints":
        kept = Checkpoints(folder / CHECKPOINTS)
        kept.saved_identity("jax")
        kept.latest({}, lambda: ((), ()))
    elif part == "found":
        resolve_run(folder.parent / "latest")
        find_runs(folder.parent)


PARTS = ("shown", "shown", "model", "frontier", "checkpoints", "found", "resumed")


@given(st.data())
@cases(60)
def test_fuzz_run_folders(whole, contents, tmp_path_factory, data):
    name, content = data.draw(broken_file(contents))
    folder = tmp_path_factory.getbasetemp() / "fuzz-runs" / "run"
    if not folder.exists():
        shutil.copytree(whole, folder)
    put(folder, name, content)
    try:
        for part in dict.fromkeys(PARTS):
            if part != "resumed" or data.draw(st.integers(0, 9)) == 0:
                only_clear_errors(lambda part=part: look(folder, part))
    finally:
        (folder / name).write_bytes(contents[name])


@given(st.data())
@cases(3, 0.02)
def test_fuzz_reports(whole, contents, tmp_path_factory, data):
    """The whole page, with its charts."""
    name, content = data.draw(broken_file(Contents({key: contents[key] for key in contents if key != "encoding.json"})))
    folder = tmp_path_factory.getbasetemp() / "fuzz-reports" / "run"
    if not folder.exists():
        shutil.copytree(whole, folder)
    put(folder, name, content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numbers that overflow a chart's axis
            only_clear_errors(lambda: write_report([folder]))
    finally:
        (folder / name).write_bytes(contents[name])


def test_a_damaged_run_is_told_and_hides_no_other(whole, tmp_path):
    for name in ("good", "bad"):
        shutil.copytree(whole, tmp_path / "runs" / name)
    (tmp_path / "runs" / "bad" / "certificate.json").write_text('{"verdict": 3}', encoding="utf-8")
    done = CliRunner().invoke(app, ["runs", str(tmp_path / "runs")])
    assert done.exit_code == 0
    (bad,) = (line for line in done.output.splitlines() if "bad" in line)
    assert "damaged" in bad
    assert any("good" in line and "damaged" not in line for line in done.output.splitlines())
    for command in ("compare", "report"):
        done = CliRunner().invoke(app, [command, str(tmp_path / "runs" / "good"), str(tmp_path / "runs" / "bad")])
        assert done.exit_code == 2
        assert "certificate.json is damaged" in done.output
        assert "certificate.verdict must be text" in done.output


def test_what_is_fuzzed_can_be_read(whole):
    """Unbroken, every part goes well: else nothing would be tried."""
    folder = whole
    for part in dict.fromkeys(PARTS):
        if part == "resumed":
            with pytest.raises(ValueError, match="has changed since"):
                look(folder, part)
        else:
            look(folder, part)
    (newest, *_) = sorted((folder / CHECKPOINTS).glob("*.safetensors"), reverse=True)
    with safe_open(newest, framework="numpy") as opened:
        assert json.loads(opened.metadata()["content"])["done"] == 12
