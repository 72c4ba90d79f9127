"""The event log has one line for each client event and survives a kill."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter

import pytest
from flwr.app import Context, RecordDict

import softswitch.flower as fl
from flower_clients import FaultyGrid, W, quadratics
from member_clients import RULE, events_of_kind, key, make_grid, run_strategy
from softswitch.flower import messages as wire
from softswitch.results.events import EVENTS, EventLog, read_events
from softswitch.results.folder import find_runs
from softswitch.support.files import write_json

pytestmark = pytest.mark.usefixtures("quiet")


def test_event_is_json_line(tmp_path):
    log = EventLog(tmp_path / "new" / "events.jsonl")
    log.record("met", client="Zürich", node=2**63)
    log.round = 3
    log.record("lost", "no answer\nat all \ud800", client="x")
    lines = (tmp_path / "new" / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["what"] for line in lines] == ["met", "lost"]
    first, second = read_events(log.file)
    assert (first["round"], first["client"], first["node"]) == (None, "Zürich", str(2**63))
    assert second["round"] == 3
    assert second["time"].endswith("+00:00")


def test_truncated_line_is_skipped(tmp_path):
    file = tmp_path / "events.jsonl"
    EventLog(file).record("met", client="a")
    content = file.read_bytes()
    file.write_bytes(content + content[: len(content) // 2])
    assert [event["what"] for event in read_events(file)] == ["met"]
    EventLog(file).record("resumed")
    file.write_bytes(file.read_bytes() + b'"not an event"\n\xff\xfe{\n')
    assert [event["what"] for event in read_events(file)] == ["met", "resumed"]
    assert read_events(tmp_path / "nowhere") == []


def test_unwritable_event_log_does_not_stop_run(tmp_path, caplog):
    log = EventLog(tmp_path / "events.jsonl")
    log.record("met")
    log.file.unlink()
    log.file.mkdir()
    log.record("lost")
    log.record("lost")
    assert caplog.text.count("an event cannot be written") == 2
    log.file.rmdir()
    log.record("back")
    assert [event["what"] for event in read_events(log.file)] == ["back"]
    (tmp_path / "plain").touch()
    with pytest.raises(OSError, match="plain"):
        EventLog(tmp_path / "plain" / "events.jsonl").record("met")


def test_events_survive_sigkill(tmp_path):
    file = tmp_path / "events.jsonl"
    code = (
        "import os, signal\nfrom softswitch.results.events import EventLog\n"
        f"log = EventLog({str(file)!r})\n"
        "for i in range(100):\n    log.record('met', client=str(i))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ), check=False).returncode == -signal.SIGKILL
    assert [event["client"] for event in read_events(file)] == [str(i) for i in range(100)]


def test_events_have_round_client_and_reason(tmp_path):
    grid = FaultyGrid(quadratics(5), 5)
    faults = {
        1: {(0, wire.REPORT): "silent", (1, wire.UPDATE): "raises", (2, wire.REPORT): "NaN"},
        2: {(0, wire.UPDATE): "shape", (3, wire.REPORT): "refuses"},
        3: {(i, wire.REPORT): "silent" for i in range(5)},
        4: {},
    }

    def set_faults(chunk):
        grid.faults = faults.get(chunk.round, {})
        if chunk.round == 4:
            grid.connected = {100, 101, 102}
        if chunk.round == 5:
            grid.faults[0, wire.EVALUATE] = "NaN judge"
            grid.connected = {101, 102}

    file = tmp_path / "events.jsonl"
    run_strategy(grid, rounds=5, callbacks=[set_faults], events=file)
    recorded = [(e["round"], e["what"], e["client"]) for e in read_events(file)]
    assert recorded[:5] == [(None, "met", f"site {i}") for i in range(5)]
    assert recorded[5:10] == [
        (1, "lost", "site 0"),
        (1, "rejected", "site 2"),
        (1, "lost", "site 1"),
        (2, "refused", "site 3"),
        (2, "rejected", "site 0"),
    ]
    assert recorded[10:16] == [*((3, "lost", f"site {i}") for i in range(5)), (3, "void round", None)]
    assert {(4, "left", "site 3"), (4, "left", "site 4")} <= set(recorded)
    assert recorded[-1][1] == "finished"
    reasons = {(e["round"], e["client"]): e["why"] for e in read_events(file)}
    assert "ValueError: no" in reasons[1, "site 1"]
    assert "bad report" in reasons[1, "site 2"]
    assert reasons[2, "site 3"] == "not today"


def test_run_folder_and_report_include_events(tmp_path):
    app = fl.server_app(
        RULE,
        {"w": W},
        rounds=3,
        out=tmp_path,
        wait=0.0,
        confidence=None,
        exclude=["site 2"],
        report_timeout=0.02,
    )
    grid = FaultyGrid(quadratics(3), 3)
    grid.faults[1, wire.REPORT] = "refuses"
    app(grid, Context(1, 1, {}, RecordDict(), {}))
    (run,) = find_runs(tmp_path)
    assert run.about["excluded"] == ["site 2"]
    assert run.clients["client"] == ["site 0", "site 1"]
    assert Counter(event["what"] for event in run.events) == {"refused": 3, "met": 2, "excluded": 1, "finished": 1}
    assert events_of_kind(run.folder / EVENTS, "excluded") == [("excluded", "site 2")]
    page = (run.folder / "report.html").read_text()
    assert "Events (events.jsonl): 1 excluded, 2 met, 3 refused, 1 finished." in page
    assert "Excluded clients: site 2." in page
    assert any(diagnostic["code"] == "excluded-clients" for diagnostic in run.about["diagnostics"])
    assert "exclude" in (run.folder / "config.toml").read_text()


def test_run_config_sets_keys_and_exclusions(tmp_path):
    """A resumed run keeps earlier exclusions."""
    folder = tmp_path / "keys"
    folder.mkdir()
    for i in range(4):
        (folder / f"site {i}.pub").write_text(key(i)[0] + " comment\n")
    app = fl.server_app(RULE, {"w": W}, rounds=3, out=tmp_path, wait=0.0, confidence=None, names=["replaced"])
    config = {"clients": str(folder), "exclude": "site 3,"}
    nodes = {100: (0, 0), 101: (1, 1), 102: (2, 2), 103: (3, 3), 104: (0, 9)}
    grid = make_grid(nodes)
    app(grid, Context(1, 1, {}, RecordDict(), config))
    (run,) = find_runs(tmp_path)
    assert run.clients["client"] == ["site 0", "site 1", "site 2"]
    assert Counter(event["what"] for event in run.events) == {
        "met": 3,
        "excluded": 1,
        "turned away": 1,
        "finished": 1,
    }
    assert 'clients = ["site 0", "site 1", "site 2", "site 3"]' in (run.folder / "config.toml").read_text()
    write_json(run.folder / "run.json", {k: v for k, v in run.about.items() if k != "finished"})  # as if killed
    app(grid, Context(1, 1, {}, RecordDict(), {"clients": str(folder), "exclude": "site 1", "resume": True}))
    (run,) = find_runs(tmp_path)
    assert run.about["excluded"] == ["site 3", "site 1"]
    write_json(run.folder / "run.json", {k: v for k, v in run.about.items() if k != "finished"})
    app(grid, Context(1, 1, {}, RecordDict(), {"clients": str(folder), "exclude": "SITE 3", "resume": True}))
    (run,) = find_runs(tmp_path)
    assert run.about["excluded"] == ["site 3", "site 1"]
    assert run.clients["client"] == ["site 0", "site 2"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"NAME\.pub"):
        app(grid, Context(1, 1, {}, RecordDict(), {"clients": str(tmp_path / "empty")}))


def test_no_events_without_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_strategy(fl.InProcessGrid(quadratics(2), 2))
    assert list(tmp_path.iterdir()) == []
