"""A real deployment on loopback: processes, TLS, node authentication and killed processes.

Durations depend on the machine and on Flower's backoff, so tests do not wait for fixed times. A test holds a site at a
step of its round (see ``MarkingClient``) until a condition is met.
"""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from flwr.app import Context, RecordDict

from softswitch.flower import InProcessGrid
from softswitch.results.folder import find_runs
from softswitch.results.history import ClientOutcome

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals"
sys.path.insert(0, str(EXAMPLE))
import keys  # noqa: E402
from loopback import Loopback, free_port  # noqa: E402

APP = Path(__file__).parent / "flower_app"
sys.path.insert(0, str(APP))
import small.client  # noqa: E402
import small.server  # noqa: E402

LIMIT = 900  # seconds; stops tests that hang


class Sites(Loopback):
    """Three sites with their numbers. An impostor uses the number of the first."""

    member = "site-{}"

    def __init__(self, folder, impostors=0):
        super().__init__(folder, nodes=3, app=APP, imposters=impostors)
        self.marks = folder / "marks"
        self.marks.mkdir()

    def node_config(self, node):
        return f'site={node if node <= self.nodes else 1} marks="{self.marks}"'

    def log(self, name):
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")

    def hold(self, step):
        """Make the site wait at this step."""
        (self.marks / f"hold-{step}").touch()

    def release(self, step):
        (self.marks / f"hold-{step}").unlink()

    def wait_for(self, condition, description):
        deadline = time.monotonic() + LIMIT
        while not condition():
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            has_failed = ended or time.monotonic() > deadline
            assert not has_failed or condition(), (
                f"{description} did not happen; ended: {ended}\n{self.log('run')[-3000:]}"
            )
            time.sleep(0.1)

    def wait_until(self, step):
        """Wait until a site has reached a step of its round."""
        self.wait_for((self.marks / step).exists, step)


@pytest.fixture
def sites(tmp_path):
    with Sites(tmp_path) as deployment:
        yield deployment


def reference_run(rounds, alpha=1.0, step=0.3):
    """Compute the run in NumPy. The constraint, w_0 − 2, is the same at every site."""
    centres = np.array([[n + 0.25] * 2 for n in (1, 2, 3)])
    spread = np.square(np.arange(6) / 10 - 0.25).mean()
    w, iterates = np.zeros(2), []
    for _ in range(rounds):
        if w[0] - 2 > 0.1 / 1.1:  # λ = ε/(1 + 1/10)
            w = w - step * np.array([1.0, 0.0])
            continue
        iterates.append(w)
        f = 0.5 * (np.square(w - centres).sum(axis=1) + 2 * spread)
        p = np.exp(alpha * (f - f.max()))
        w = w - step * (p / p.sum()) @ (w - centres)
    return np.mean(iterates, axis=0)


def check_two_rounds(run):
    assert run.about["status"]["code"] == "feasible"
    assert run.clients["client"] == ["site-1", "site-2", "site-3"]
    assert run.clients["rows"] == [6, 6, 6]
    assert (run.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    np.testing.assert_allclose(run.params["['w']"], reference_run(2), rtol=1e-5)
    assert run.certificate["confidence"] == 0.95
    assert (run.folder / "report.html").exists()


def test_deployed_app_in_one_process(tmp_path):
    nodes = {number: {"site": number, "marks": str(tmp_path)} for number in (1, 2, 3)}
    config = {"out": str(tmp_path / "runs"), "rounds": 2}
    small.server.app(InProcessGrid(small.client.app, nodes), Context(1, 0, {}, RecordDict(), config))
    (run,) = find_runs(tmp_path / "runs")
    check_two_rounds(run)


@pytest.mark.slow
def test_tls_and_authentication(sites, tmp_path):
    other_folder = tmp_path / "other"
    keys.main(other_folder, 1, ["127.0.0.1"])
    key, authority = str(other_folder / "node-1"), str(other_folder / "ca.crt")
    rejected = {
        "unregistered": sites.start_node(1, name="unregistered", auth_supernode_private_key=key),
        "other authority": sites.start_node(1, name="other authority", root_certificates=authority),
        "plain HTTP": sites.start(  # the only one of the three that would retry forever
            "plain HTTP",
            "flower-supernode",
            *("--insecure", "--superlink", sites.address, "--max-retries", "1", "--port", str(free_port())),
        ),
    }
    reasons = {
        "unregistered": "Failed to activate SuperNode",
        "other authority": "CERTIFICATE_VERIFY_FAILED",
        "plain HTTP": "Server disconnected|reset by peer|Broken pipe|timed out",  # depends on which process is faster
    }
    run = sites.run(rounds=2)
    assert run.wait(timeout=LIMIT) == 0, sites.log("run")
    (finished_run,) = find_runs(sites.folder / "runs")
    check_two_rounds(finished_run)
    counts = [json.loads(file.read_text()) for file in (sites.folder / "state/softswitch/answers").glob("*.json")]
    assert counts == [{"reports": 2, "updates": 2}] * 3  # over the processes of all messages
    for name, process in rejected.items():
        assert process.wait(timeout=LIMIT) != 0, name
        assert "Exit Code: 305" in sites.log(name)
        assert re.search(reasons[name], sites.log(name)), name


@pytest.mark.slow
def test_killed_node_is_dropped_and_returns(sites):
    sites.hold("site-2-1-update")
    sites.hold("site-1-2")  # the third round does not end before the node is back
    sites.hold("site-1-3")  # the fourth does not end before the node has introduced itself
    run = sites.run(rounds=5)
    sites.wait_until("site-2-1-update")
    sites.stop("node-2", signal.SIGKILL)
    sites.release("site-2-1-update")
    sites.wait_until("site-1-2")  # Flower has noticed by now that the node is gone, or it would refuse it
    sites.start_node(2, name="node-2 again")
    sites.wait_for(lambda: "SuperNode ID" in sites.log("node-2 again"), "the node's return")
    sites.release("site-1-2")
    sites.wait_for(lambda: "Sent successfully" in sites.log("node-2 again"), "the node's introduction")
    sites.release("site-1-3")
    assert run.wait(timeout=LIMIT) == 0, sites.log("run")
    (finished_run,) = find_runs(sites.folder / "runs")
    participants, outcomes = finished_run.history.per_client.clients, finished_run.history.per_client.outcomes
    assert outcomes[0].tolist() == [ClientOutcome.COUNTED] * 3
    assert outcomes[1].tolist() == [ClientOutcome.COUNTED, ClientOutcome.NO_UPDATE, ClientOutcome.COUNTED]
    assert not finished_run.history.void.any()
    assert participants[2].tolist() == [0, 2, -1]
    assert participants[4].tolist() == [0, 1, 2]  # it participates again,
    assert outcomes[4].tolist() == [ClientOutcome.COUNTED] * 3  # and counts
    assert finished_run.about["status"]["code"] == "feasible"


@pytest.mark.slow
def test_killed_server_is_resumed(sites):
    sites.hold("site-1-2")  # the run does not end before its server is killed
    run = sites.run(rounds=5)
    sites.wait_until("site-1-2")
    servers = [
        process
        for process in psutil.Process(sites.processes["superlink"].pid).children(recursive=True)
        if any("flwr-serverapp" in word for word in process.cmdline())
    ]
    assert servers
    for process in servers:
        os.kill(process.pid, signal.SIGKILL)
    run.wait(timeout=LIMIT)
    (finished_run,) = find_runs(sites.folder / "runs")
    assert not finished_run.finished
    for mark in sites.marks.iterdir():
        mark.unlink()
    assert sites.run(rounds=5, resume=True).wait(timeout=LIMIT) == 0, sites.log("run")
    (finished_run,) = find_runs(sites.folder / "runs")
    assert len(finished_run.history) == 5
    np.testing.assert_allclose(finished_run.params["['w']"], reference_run(5), rtol=1e-5)
    new_marks = {mark.name for mark in sites.marks.iterdir()}
    assert {"site-1-2", "site-1-3", "site-1-4"} <= new_marks
    assert not {"site-1-0", "site-1-1"} & new_marks  # at most one round was lost


@pytest.mark.slow
def test_imposter_is_rejected_and_excluded_site_omitted(tmp_path):
    """The impostor's key is registered at the SuperLink, and its name is site-1. site-3 is excluded on resume."""
    with Sites(tmp_path, impostors=1) as sites:
        sites.hold("site-1-2")
        run = sites.run(rounds=4)
        sites.wait_until("site-1-2")
        (finished_run,) = find_runs(sites.folder / "runs")
        servers = [
            process
            for process in psutil.Process(sites.processes["superlink"].pid).children(recursive=True)
            if any("flwr-serverapp" in word for word in process.cmdline())
        ]
        for process in servers:
            os.kill(process.pid, signal.SIGKILL)
        run.wait(timeout=LIMIT)
        for mark in sites.marks.iterdir():
            mark.unlink()
        assert sites.run(rounds=4, resume=True, exclude="site-3").wait(timeout=LIMIT) == 0, sites.log("run")
        (finished_run,) = find_runs(sites.folder / "runs")
    assert len(finished_run.history) == 4
    assert finished_run.clients["client"] == ["site-1", "site-2"]
    assert finished_run.about["excluded"] == ["site-3"]
    assert [client["client"] for client in finished_run.certificate["clients"]] == ["site-1", "site-2"]
    rejections = [event for event in finished_run.events if event["what"] == "turned away"]
    assert {event["why"] for event in rejections} == {"its public key is not in the list of clients"}
    assert len({event["node"] for event in rejections}) == 1
    nodes_by_client = {event["client"]: event["node"] for event in finished_run.events if event["what"] == "met"}
    assert set(nodes_by_client) == {"site-1", "site-2", "site-3"}
    assert rejections[0]["node"] not in nodes_by_client.values()
    assert any(event["what"] == "excluded" and event["client"] == "site-3" for event in finished_run.events)
