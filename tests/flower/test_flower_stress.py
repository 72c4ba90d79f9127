"""Liars, faults, clients that come and go, and a server that is started anew, all at random in one run."""

from collections import defaultdict

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict

import softswitch as ss
import softswitch.flower as fl
from flower_clients import FaultyGrid, simulated, zeros
from softswitch.flower import messages as wire
from softswitch.results.events import read_events
from softswitch.results.history import ClientOutcome
from test_flower_byzantine import around, ring
from test_flower_faults import IN_REPORT, IN_UPDATE

CLIENTS, FEWEST = 8, 3
pytestmark = pytest.mark.usefixtures("quiet")
LIES = {
    "claims more": lambda f, g, u: (f + 1, g, -u),
    "blocks": lambda f, g, u: (f, 1e6, u),
    "claims none": lambda f, g, u: (f, -1e6, u),
    "points back": lambda f, g, u: (f, g, -u),
    "far": lambda f, g, u: (f, g, 1e6 * u),
    "huge": lambda f, g, u: (1e6, g, -u),
}


class LyingGrid(FaultyGrid):
    """A grid with faults, and one client whose answers are false."""

    liar, lie = 0, "claims more"

    def deliver(self, message):
        reply = super().deliver(message)
        told = getattr(reply, "content", None) if reply is not None and not reply.has_error() else None
        if told is None or message.metadata.dst_node_id - 100 != self.liar:
            return reply
        kind, lie = message.metadata.message_type, LIES[self.lie]
        if kind == wire.REPORT and (self.liar, kind) not in self.faults:
            f, g, _ = lie(told[wire.VALUES]["objective"], told[wire.VALUES]["constraint"], 0)
            return _answer(message, {wire.VALUES: MetricRecord({"objective": f, "constraint": g})})
        if kind == wire.UPDATE and (self.liar, kind) not in self.faults:
            u = wire.from_record(told[wire.DIRECTION])["w"]
            return _answer(message, {wire.DIRECTION: wire.to_record({"w": lie(0, 0, u)[2].astype(u.dtype)})})
        return reply


def _answer(message, content):
    return Message(RecordDict(content), reply_to=message)


@pytest.mark.parametrize("rounds", [240, pytest.param(10_000, marks=pytest.mark.slow)])
def test_nothing_is_lost_and_every_fate_is_explained(tmp_path, rounds):
    generator = np.random.default_rng(0)
    grid = LyingGrid(simulated(lambda context: ring(int(context.node_config["partition-id"]))), CLIENTS)
    everyone, injected, lied = set(grid.connected), [], set()

    def stir(chunk=None):
        grid.faults.clear()
        for i in range(CLIENTS):
            for kind, faults in ((wire.REPORT, IN_REPORT), (wire.UPDATE, IN_UPDATE)):
                if generator.random() < 0.08:
                    grid.faults[i, kind] = str(generator.choice([*faults]))
        grid.connected = {node for node in everyone if generator.random() < 0.97}
        if generator.random() < 0.05:
            grid.liar, grid.lie = int(generator.integers(CLIENTS)), str(generator.choice([*LIES]))
            lied.add(grid.lie)
        injected.append(dict(grid.faults))

    stir()
    kept, events = ss.Checkpoints(tmp_path / "kept", every=0 if rounds < 1000 else 60.0), tmp_path / "events.jsonl"
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.05, tolerance=0.05, robust=1)
    for until in (rounds // 3, 2 * rounds // 3, rounds):  # the server ends, and another goes on
        strategy = fl.SwitchingStrategy(
            method,
            callbacks=[stir],
            checkpoints=kept,
            events=events,
            names=[f"site {i}" for i in range(CLIENTS)],
            report_timeout=0.004,
            update_timeout=0.004,
            wait=0.0,
            patience=10**6,
        )
        strategy.start(grid, zeros(), until)
    result = strategy.result
    history = result.history
    assert len(history) == rounds
    assert np.isfinite(result.params["w"]).all()
    w = result.last["w"]
    assert max(0.5 * np.square(w - around(i)).sum() for i in range(CLIENTS)) < 2  # at best 0.5; a liar's 100 and more

    told, outcomes = history.per_client.clients, history.per_client.outcomes
    np.testing.assert_array_equal(told >= 0, outcomes != ClientOutcome.EMPTY)
    reasons = defaultdict(list)
    for event in read_events(events):
        reasons[event["round"], event["client"]].append(event)
    voided = {event["round"] for event in read_events(events) if event["what"] == "void round"}
    for k, faults in enumerate(injected[:rounds]):
        asked = told[k][told[k] >= 0].tolist()
        reported = [i for i in asked if (i, wire.REPORT) not in faults]
        done = [i for i in reported if (i, wire.UPDATE) not in faults]
        void = min(len(reported), len(done)) < FEWEST
        assert history.void[k] == void == (k in voided)
        for i in asked:
            fate = ClientOutcome(int(outcomes[k, told[k].tolist().index(i)]))
            if i not in reported:
                wanted = IN_REPORT[faults[i, wire.REPORT]]
            elif len(reported) >= FEWEST and i not in done:
                wanted = IN_UPDATE[faults[i, wire.UPDATE]]
            else:
                wanted = ClientOutcome.VOID if void else ClientOutcome.COUNTED
            assert fate == wanted
            if fate not in (ClientOutcome.COUNTED, ClientOutcome.VOID):
                why = [event for event in reasons[k, f"site {i}"] if event["what"] in ("lost", "refused", "rejected")]
                assert why, (k, i, fate)
                assert why[0]["why"]
    assert len(lied) >= 3
    assert history.void.mean() < 0.2
