"""Fuzzing of run folders: an untrusted folder is displayed, used or rejected with a clear error."""

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
from softswitch.cli.train import certification_warnings
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
from softswitch.results.report.clients import (
    build_calibration,
    build_columns,
    judge_run,
    natural_frequencies,
    summarise_clients,
)
from softswitch.results.report.page import describe_usefulness, write_report
from softswitch.tables import training
from softswitch.tables.model import load as load_model

ROWS = table(6)
JSON_FILES = ["run.json", "certificate.json", "encoding.json", "frontier.json"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """The folder of a real run, with a changed table so that no run is resumed."""
    folder_of_runs = tmp_path_factory.mktemp("whole")
    folder = small_run(folder_of_runs)
    table(250).to_csv(folder_of_runs / "cases.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def contents(run_folder):
    files = {str(file.relative_to(run_folder)): file.read_bytes() for file in run_folder.rglob("*") if file.is_file()}
    fuzzed = {name: content for name, content in files.items() if not name.endswith((".png", ".svg", ".lock"))}
    assert {*JSON_FILES, "config.toml", "clients.csv", "history.npz", "params.safetensors"} <= set(fuzzed)
    assert any(name.startswith(CHECKPOINTS) for name in fuzzed)
    return Contents(fuzzed)


class Contents(dict):
    """Files by name, with a short repr."""

    def __repr__(self):
        return f"Contents({sorted(self)})"


class BrokenFile(NamedTuple):
    """A file and its new content, or None to delete it."""

    name: str
    content: bytes | None

    def __repr__(self):
        return f"Broken({self.name!r}, {str(self.content)[:2000]})"


@st.composite
def broken_arrays(draw, arrays):
    """Arrays with changed shapes or dtypes, removed arrays or renamed arrays."""
    arrays = dict(arrays)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(arrays)))
        array = arrays.pop(name)
        change = draw(st.sampled_from(["remove", "rename", "kind", "shape", "values", "flat"]))
        if change == "rename":
            arrays[name + draw(st.sampled_from(["x", ".y"]))] = array
        elif change == "kind":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                arrays[name] = array.astype(draw(st.sampled_from(["i1", "f2", "f8", "?", "u8", "c16"])))
        elif change == "shape":
            arrays[name] = np.repeat(array[None], draw(st.integers(0, 3)), axis=0)
        elif change == "flat":
            arrays[name] = array.reshape(-1)[: draw(st.integers(0, 5))]
        elif change == "values":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                extreme = np.array(draw(st.sampled_from([np.nan, np.inf, -np.inf, -1, 1e30, 99]))).astype(array.dtype)
            arrays[name] = np.full_like(array, extreme)
        if not arrays:
            arrays[name] = array
    return arrays


def read_metadata(content):
    """Return the metadata of a safetensors file."""
    size = int.from_bytes(content[:8], "little")
    return dict(json.loads(content[8 : 8 + size]).get("__metadata__", {}))


@st.composite
def broken_file(draw, contents):
    """A broken file of the folder."""
    return BrokenFile(*draw(_broken_file(contents)))


@st.composite
def _broken_file(draw, contents):
    json_files = [name for name in JSON_FILES if name in contents]  # these have the most failure modes
    name = draw(st.sampled_from([*json_files, *json_files, *sorted(contents)]))
    content = contents[name]
    choice = draw(st.integers(0, 9))
    if choice == 9:
        return name, draw(st.sampled_from([None, b"", b"[]", b"{}", b"null", b"[" * 5000, b"\0" * 100]))
    if choice < 7 and name.endswith(".json"):
        metadata = draw(broken_json(json.loads(content)))
        return name, json.dumps(metadata).encode()
    if choice < 6 and name.endswith(".npz"):
        stream = io.BytesIO()
        np.savez(stream, **draw(broken_arrays(dict(np.load(io.BytesIO(content))))))
        return name, stream.getvalue()
    if choice < 6 and name.endswith(".safetensors"):
        arrays = draw(broken_arrays(load(content)))
        real_arrays = {key: array for key, array in arrays.items() if array.dtype.kind != "c"}
        if not real_arrays:
            return name, content[:-1]
        if not name.startswith(CHECKPOINTS):
            return name, save(real_arrays)
        metadata = read_metadata(content)
        if draw(st.booleans()):
            metadata["content"] = json.dumps(draw(broken_json(json.loads(metadata["content"]))))
        if draw(st.booleans()):  # a valid structure with changed metadata
            metadata["digest"] = _digest(metadata["content"], real_arrays)
        else:
            metadata[draw(st.sampled_from(sorted(metadata)))] = draw(
                st.sampled_from(["", "x", "{}", "[]", "-1", "null"])
            )
        return name, save(real_arrays, metadata)
    return name, draw(broken_bytes(content))


def write_file(folder, name, content):
    file = folder / name
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)


def use_folder(folder, part):
    """Run one part of what the command line does with a folder, except plots."""
    run = open_run(folder)
    if part == "shown":
        _line(run)
        if not run.finished:
            return
        summary = summarise_clients(run)
        judge_run(run)
        description = read_description(run.about)
        build_columns(run, summary, description)
        describe_usefulness(run)
        build_calibration(run)
        natural_frequencies(run)
        certification_warnings(run)
        compare_settings([run, run])
        [str(cycle) for cycle in run.restarts]
        _ = run.history, run.certificate
    elif part == "model":
        load_model(folder, allow_uncertified=True).columns(ROWS)
    elif part == "frontier":
        summary = read_frontier(folder)
        _ = summary.columns, summary.summary, summary.notes
    elif part == "resumed":
        training.resume(folder, progress=False)
    elif part == "checkpoints":
        checkpoints = Checkpoints(folder / CHECKPOINTS)
        checkpoints.saved_identity("jax")
        checkpoints.latest({}, lambda: ((), ()))
    elif part == "found":
        resolve_run(folder.parent / "latest")
        find_runs(folder.parent)


PARTS = ("shown", "shown", "model", "frontier", "checkpoints", "found", "resumed")


@given(st.data())
@cases(60)
def test_fuzz_run_folders(run_folder, contents, tmp_path_factory, data):
    name, content = data.draw(broken_file(contents))
    folder = tmp_path_factory.getbasetemp() / "fuzz-runs" / "run"
    if not folder.exists():
        shutil.copytree(run_folder, folder)
    write_file(folder, name, content)
    try:
        for part in dict.fromkeys(PARTS):
            if part != "resumed" or data.draw(st.integers(0, 9)) == 0:
                only_clear_errors(lambda part=part: use_folder(folder, part))
    finally:
        (folder / name).write_bytes(contents[name])


@given(st.data())
@cases(3, 0.02)
def test_fuzz_reports(run_folder, contents, tmp_path_factory, data):
    """Write the report with its charts."""
    name, content = data.draw(broken_file(Contents({key: contents[key] for key in contents if key != "encoding.json"})))
    folder = tmp_path_factory.getbasetemp() / "fuzz-reports" / "run"
    if not folder.exists():
        shutil.copytree(run_folder, folder)
    write_file(folder, name, content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # values that overflow a chart's axis
            only_clear_errors(lambda: write_report([folder]))
    finally:
        (folder / name).write_bytes(contents[name])


def test_damaged_run_is_listed_with_other_runs(run_folder, tmp_path):
    for name in ("good", "bad"):
        shutil.copytree(run_folder, tmp_path / "runs" / name)
    (tmp_path / "runs" / "bad" / "certificate.json").write_text('{"verdict": 3}', encoding="utf-8")
    invocation = CliRunner().invoke(app, ["runs", str(tmp_path / "runs")])
    assert invocation.exit_code == 0
    (bad,) = (line for line in invocation.output.splitlines() if "bad" in line)
    assert "damaged" in bad
    assert any("good" in line and "damaged" not in line for line in invocation.output.splitlines())
    for command in ("compare", "report"):
        invocation = CliRunner().invoke(app, [command, str(tmp_path / "runs" / "good"), str(tmp_path / "runs" / "bad")])
        assert invocation.exit_code == 2
        assert "certificate.json is damaged" in invocation.output
        assert "certificate.verdict must be text" in invocation.output


def test_unmodified_folder_is_readable(run_folder):
    """Every part succeeds with the unmodified folder; otherwise fuzzing would test nothing."""
    folder = run_folder
    for part in dict.fromkeys(PARTS):
        if part == "resumed":
            with pytest.raises(ValueError, match="has changed since"):
                use_folder(folder, part)
        else:
            use_folder(folder, part)
    (newest, *_) = sorted((folder / CHECKPOINTS).glob("*.safetensors"), reverse=True)
    with safe_open(newest, framework="numpy") as opened:
        assert json.loads(opened.metadata()["content"])["done"] == 12
