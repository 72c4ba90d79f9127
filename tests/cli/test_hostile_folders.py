"""Run folders and tables from others: links, pipes and control characters harm neither files nor the terminal."""

import json
import os
import shutil
import threading

import pytest
from typer.testing import CliRunner

from small_run import small_run, table
from softswitch.cli import app
from softswitch.privacy.ledger import LEDGER, ReleaseLedger
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.events import EVENTS, EventLog, read_events
from softswitch.support import files
from softswitch.support.files import MAX_BYTES_VARIABLE, write_atomically
from softswitch.support.processes import LOCK, lock_folder
from softswitch.tables.scores import SCORE_FILE, Score
from softswitch.trackers import PrometheusTracker

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


def test_hard_links_are_not_written(folder, victim):
    """A lock or a log under a second name of another file would change that file."""
    os.link(victim, folder / EVENTS)
    with pytest.raises(ValueError, match="2 hard links"):
        EventLog(folder / EVENTS).record("joined")
    (folder / "checkpoints" / LOCK).unlink(missing_ok=True)
    os.link(victim, folder / "checkpoints" / LOCK)
    assert invoke("resume", folder, "--rounds", 20).exit_code == 2
    assert victim.read_text() == "precious"


def test_log_that_is_replaced_by_a_link_is_not_followed(folder, victim):
    log = EventLog(folder / EVENTS)
    log.record("joined")
    (folder / EVENTS).unlink()
    (folder / EVENTS).symlink_to(victim)
    log.record("lost")
    assert victim.read_text() == "precious"


def test_folder_of_checkpoints_is_no_link(folder, tmp_path):
    """Nothing is written to, or deleted from, the folder that a link leads to."""
    (tmp_path / "home").mkdir()
    for name in (LEDGER, "round-000000001.safetensors", "round-000000002.safetensors"):
        (tmp_path / "home" / name).write_text("precious")
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").symlink_to(tmp_path / "home")
    assert invoke("resume", folder, "--rounds", 20).exit_code == 2
    (tmp_path / "home" / LEDGER).unlink()
    for write in (
        lambda: ReleaseLedger(folder / "checkpoints").begin_rounds(1),
        lambda: Checkpoints(folder / "checkpoints").save(None, {}),
    ):
        with pytest.raises(ValueError, match="symbolic link"):
            write()
    assert sorted(os.listdir(tmp_path / "home")) == ["round-000000001.safetensors", "round-000000002.safetensors"]


READ_BY = dict.fromkeys(["certificate.json", "config.toml", "clients.csv", "history.npz", EVENTS], "report")
READ_BY |= dict.fromkeys(["run.json", "encoding.json", "params.safetensors"], "predict")


@pytest.mark.parametrize("name", READ_BY)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_read_is_a_regular_file(folder, tmp_path, name, kind):
    """A link could show any file of the user in a report; a pipe would never end."""
    (folder / EVENTS).touch()
    secret = tmp_path / "secret"
    (folder / name).rename(secret)
    if kind == "link":
        (folder / name).symlink_to(secret)
    else:
        os.mkfifo(folder / name)
    table(20).to_csv(tmp_path / "cases.csv", index=False)
    invocation = invoke(READ_BY[name], folder, *([tmp_path / "cases.csv"] if READ_BY[name] == "predict" else []))
    assert invocation.exit_code == 2, invocation.output
    assert "must be a regular file" in " ".join(invocation.output.split())
    assert not (folder / "report.html").exists()


def test_score_is_a_regular_file(tmp_path, victim):
    for make in (os.mkfifo, lambda file: file.symlink_to(victim)):
        make(tmp_path / SCORE_FILE)
        with pytest.raises(ValueError, match="must be a regular file"):
            Score.load(tmp_path, "binary", 2)
        (tmp_path / SCORE_FILE).unlink()


def test_size_of_event_log_is_limited(folder, monkeypatch):
    (folder / EVENTS).write_text('{"what": "joined"}\n' * 10)
    assert len(read_events(folder / EVENTS)) == 10
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "100")
    with pytest.raises(ValueError, match="but the limit is 100 bytes"):
        read_events(folder / EVENTS)


def test_outputs_do_not_follow_links(folder, tmp_path, victim, monkeypatch):
    """``predict`` and ``init`` write next to a table, and a stranger's folder may have links under these names."""
    absent = tmp_path / "absent"
    table(60).to_csv(tmp_path / "cases.csv", index=False)
    (tmp_path / "cases-predicted.csv").symlink_to(absent)  # it leads nowhere yet, as to a file that a shell runs
    assert invoke("predict", folder, tmp_path / "cases.csv").exit_code == 0
    for target, more in ((absent, ()), (victim, ("--force",))):
        (tmp_path / "cases.toml").unlink(missing_ok=True)
        (tmp_path / "cases.toml").symlink_to(target)
        flags = ("--label", "y", "--client", "ward", "--out", tmp_path / "cases.toml", "--yes", *more)
        invocation = invoke("init", tmp_path / "cases.csv", *flags)
        assert invocation.exit_code == 0, invocation.output
        assert not (tmp_path / "cases.toml").is_symlink()
    assert not absent.exists()
    assert victim.read_text() == "precious"


def test_metrics_do_not_follow_links(tmp_path, victim):
    file = tmp_path / "run.prom"
    for name in (file, f"{file}.{os.getpid()}.{threading.current_thread().ident}"):
        os.symlink(victim, name)
    PrometheusTracker(file).close()
    assert victim.read_text() == "precious"
    assert "softswitch_running" in file.read_text()


def test_names_in_tables_do_not_control_the_terminal(tmp_path):
    cases = table(60).rename(columns={"a": "a\x1b[2J", "b": "[red]b[/red]"}).drop(columns="ward")
    cases.to_csv(tmp_path / "cases.csv", index=False)
    flags = ("--client", "seen", "--label", "y", "--yes", "--out", tmp_path / "cases.toml")
    output = invoke("init", tmp_path / "cases.csv", *flags).output
    output += invoke("init", tmp_path / "cases.csv", "--out", tmp_path / "other.toml").output
    assert "\x1b" not in output
    assert "[red]b[/red]" in output


def test_line_breaks_do_not_add_rows(folder):
    about = json.loads((folder / "run.json").read_text())
    about["status"]["code"] = "fine\nanother-run  certified"
    (folder / "run.json").write_text(json.dumps(about))
    output = invoke("runs", folder.parent).output
    assert not any(line.strip().startswith("another-run") for line in output.splitlines())


def test_control_characters_are_visible(folder):
    about = json.loads((folder / "run.json").read_text())
    about["status"]["code"] = "fine\x1b]0;title\x07\x1b[2J"
    (folder / "run.json").write_text(json.dumps(about))
    output = invoke("runs", folder.parent).output + invoke("runs", folder.parent / "no\x1b[2J").output
    assert "\x1b" not in output
    assert "\x07" not in output
    assert output.count("\\x1b[2J") >= 1
