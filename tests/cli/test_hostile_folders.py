"""Run folders from others: links, pipes and control characters harm neither files nor the terminal."""

import json
import os
import shutil

import pytest
from typer.testing import CliRunner

from small_run import small_run
from softswitch.cli import app
from softswitch.results.events import EVENTS, EventLog
from softswitch.support import files
from softswitch.support.files import write_atomically
from softswitch.support.processes import LOCK, lock_folder

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this platform has no pipes")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("hostile"))


@pytest.fixture
def folder(original, tmp_path):
    shutil.copytree(original, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def victim(tmp_path):
    file = tmp_path / "authorized_keys"
    file.write_text("precious")
    return file


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_links_with_predictable_names_are_not_followed(folder, victim):
    for name in (f".report.html.{os.getpid()}.tmp", "report.html"):
        (folder / name).symlink_to(victim)
    invocation = invoke("report", folder)
    assert invocation.exit_code == 0, invocation.output
    assert victim.read_text() == "precious"
    assert not (folder / "report.html").is_symlink()


def test_guessed_temporary_file_is_an_error(tmp_path, victim, monkeypatch):
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "guessed")
    (tmp_path / ".run.json.guessed.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "run.json", b"{}")
    assert victim.read_text() == "precious"


def test_links_are_not_locked(tmp_path, victim):
    (tmp_path / "real").mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "real")
    (tmp_path / "real" / LOCK).symlink_to(victim)
    for folder in (tmp_path / "checkpoints", tmp_path / "real"):
        with pytest.raises(ValueError, match="symbolic link"), lock_folder(folder):
            pass
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_event_log_is_a_regular_file(folder, victim, kind):
    if kind == "pipe":
        os.mkfifo(folder / EVENTS)
        invocation = invoke("report", folder)
        assert invocation.exit_code == 2
        assert "must be a regular file, but is a pipe" in " ".join(invocation.output.split())
    else:
        (folder / EVENTS).symlink_to(victim)
    with pytest.raises(ValueError, match="must be a regular file"):
        EventLog(folder / EVENTS).record("joined")
    assert victim.read_text() == "precious"


def test_control_characters_are_visible(folder):
    about = json.loads((folder / "run.json").read_text())
    about["status"]["code"] = "fine\x1b]0;title\x07\x1b[2J"
    (folder / "run.json").write_text(json.dumps(about))
    output = invoke("runs", folder.parent).output + invoke("runs", folder.parent / "no\x1b[2J").output
    assert "\x1b" not in output
    assert "\x07" not in output
    assert output.count("\\x1b[2J") >= 1
