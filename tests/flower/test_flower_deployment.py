"""A real deployment on loopback: processes, TLS, node authentication; and what happens when processes die.

How long anything takes depends on the machine, and on Flower, which tries again ever more rarely. So nothing is waited
for by the clock: a test holds a site at a step of its round (see ``Marking``) until what must happen has happened.
"""

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

LIMIT = 900  # seconds, only so that a test that hangs comes to an end


class Sites(Loopback):
    """Three sites with their numbers; an imposter has the first one's."""

    member = "site-{}"

    def __init__(self, folder, imposters=0):
        super().__init__(folder, nodes=3, app=APP, imposters=imposters)
        self.marks = folder / "marks"
        self.marks.mkdir()

    def node_config(self, node):
        return f'site={node if node <= self.nodes else 1} marks="{self.marks}"'

    def log(self, name):
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")

    def hold(self, where):
        """From now on the site waits when it comes there."""
        (self.marks / f"hold-{where}").touch()

    def release(self, where):
        (self.marks / f"hold-{where}").unlink()

    def wait_for(self, happened, what):
        until = time.monotonic() + LIMIT
        while not happened():
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            in_vain = ended or time.monotonic() > until
            assert not in_vain or happened(), f"{what} did not happen; ended: {ended}\n{self.log('run')[-3000:]}"
            time.sleep(0.1)

    def wait_until(self, where):
        """Wait until a site has come to a step of its round."""
        self.wait_for((self.marks / where).exists, where)


@pytest.fixture
def sites(tmp_path):
    with Sites(tmp_path) as deployment:
        yield deployment


def by_hand(rounds, alpha=1.0, step=0.3):
    """The whole run in NumPy. The constraint, w_0 − 2, is the same at every site."""
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


def check_two_rounds(found):
    assert found.about["status"]["code"] == "feasible"
    assert found.clients["client"] == ["site-1", "site-2", "site-3"]
    assert found.clients["rows"] == [6, 6, 6]
    assert (found.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    np.testing.assert_allclose(found.params["['w']"], by_hand(2), rtol=1e-5)
    assert found.certificate["confidence"] == 0.95
    assert (found.folder / "report.html").exists()


def test_the_deployed_app_in_one_process(tmp_path):
    nodes = {number: {"site": number, "marks": str(tmp_path)} for number in (1, 2, 3)}
    config = {"out": str(tmp_path / "runs"), "rounds": 2}
    small.server.app(InProcessGrid(small.client.app, nodes), Context(1, 0, {}, RecordDict(), config))
    (found,) = find_runs(tmp_path / "runs")
    check_two_rounds(found)


@pytest.mark.slow
def test_three_nodes_with_tls_and_authentication_and_three_that_are_refused(sites, tmp_path):
    other = tmp_path / "other"
    keys.main(other, 1, ["127.0.0.1"])
    key, authority = str(other / "node-1"), str(other / "ca.crt")
    refused = {
        "unregistered": sites.start_node(1, name="unregistered", auth_supernode_private_key=key),
        "other authority": sites.start_node(1, name="other authority", root_certificates=authority),
        "plain HTTP": sites.start(  # alone of the three it would try for ever
            "plain HTTP",
            "flower-supernode",
            *("--insecure", "--superlink", sites.address, "--max-retries", "1", "--port", str(free_port())),
        ),
    }
    reasons = {
        "unregistered": "Failed to activate SuperNode",
        "other authority": "CERTIFICATE_VERIFY_FAILED",
        "plain HTTP": "Server disconnected|reset by peer|Broken pipe|timed out",  # whichever of the two is quicker
    }
    run = sites.run(rounds=2)
    assert run.wait(timeout=LIMIT) == 0, sites.log("run")
    (found,) = find_runs(sites.folder / "runs")
    check_two_rounds(found)
    for name, process in refused.items():
        assert process.wait(timeout=LIMIT) != 0, name
        assert "Exit Code: 305" in sites.log(name)
        assert re.search(reasons[name], sites.log(name)), name


@pytest.mark.slow
def test_a_node_killed_between_the_exchanges_is_dropped_and_comes_back(sites):
    sites.hold("site-2-1-update")
    sites.hold("site-1-2")  # the third round does not end before the node is back
    run = sites.run(rounds=4)
    sites.wait_until("site-2-1-update")
    sites.stop("node-2", signal.SIGKILL)
    sites.release("site-2-1-update")
    sites.wait_until("site-1-2")  # Flower has noticed by now that the node is gone, or it would refuse it
    sites.start_node(2, name="node-2 again")
    sites.wait_for(lambda: "SuperNode ID" in sites.log("node-2 again"), "the node's return")
    sites.release("site-1-2")
    assert run.wait(timeout=LIMIT) == 0, sites.log("run")
    (found,) = find_runs(sites.folder / "runs")
    told, outcomes = found.history.per_client.clients, found.history.per_client.outcomes
    assert outcomes[0].tolist() == [ClientOutcome.COUNTED] * 3
    assert outcomes[1].tolist() == [ClientOutcome.COUNTED, ClientOutcome.NO_UPDATE, ClientOutcome.COUNTED]
    assert not found.history.void.any()
    assert told[2].tolist() == [0, 2, -1]
    assert told[3].tolist() == [0, 1, 2]  # it is asked again,
    assert outcomes[3].tolist() == [ClientOutcome.COUNTED] * 3  # and is back
    assert found.about["status"]["code"] == "feasible"


@pytest.mark.slow
def test_a_run_whose_server_is_killed_is_resumed(sites):
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
    (found,) = find_runs(sites.folder / "runs")
    assert not found.finished
    for mark in sites.marks.iterdir():
        mark.unlink()
    assert sites.run(rounds=5, resume=True).wait(timeout=LIMIT) == 0, sites.log("run")
    (found,) = find_runs(sites.folder / "runs")
    assert len(found.history) == 5
    np.testing.assert_allclose(found.params["['w']"], by_hand(5), rtol=1e-5)
    again = {mark.name for mark in sites.marks.iterdir()}
    assert {"site-1-2", "site-1-3", "site-1-4"} <= again
    assert not {"site-1-0", "site-1-1"} & again  # at most one round was lost


@pytest.mark.slow
def test_an_imposter_is_turned_away_and_an_excluded_site_left_out(tmp_path):
    """The imposter's key is registered at the SuperLink, and it calls itself site-1; site-3 is left out on the way."""
    with Sites(tmp_path, imposters=1) as sites:
        sites.hold("site-1-2")
        run = sites.run(rounds=4)
        sites.wait_until("site-1-2")
        (found,) = find_runs(sites.folder / "runs")
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
        (found,) = find_runs(sites.folder / "runs")
    assert len(found.history) == 4
    assert found.clients["client"] == ["site-1", "site-2"]
    assert found.about["excluded"] == ["site-3"]
    assert [one["client"] for one in found.certificate["clients"]] == ["site-1", "site-2"]
    turned_away = [event for event in found.events if event["what"] == "turned away"]
    assert {event["why"] for event in turned_away} == {"its public key is not in the list of clients"}
    assert len({event["node"] for event in turned_away}) == 1
    met = {event["client"]: event["node"] for event in found.events if event["what"] == "met"}
    assert set(met) == {"site-1", "site-2", "site-3"}
    assert turned_away[0]["node"] not in met.values()
    assert any(event["what"] == "excluded" and event["client"] == "site-3" for event in found.events)
