"""A run with random attacks, faults, clients that leave and join, and server restarts."""

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
from test_flower_byzantine import centre_on_ring, ring_client
from test_flower_faults import IN_REPORT, IN_UPDATE

CLIENTS, MIN_CLIENTS = 8, 3
pytestmark = pytest.mark.usefixtures("quiet")
ATTACKS = {
    "claims more": lambda f, g, u: (f + 1, g, -u),
    "blocks": lambda f, g, u: (f, 1e6, u),
    "claims none": lambda f, g, u: (f, -1e6, u),
    "points back": lambda f, g, u: (f, g, -u),
    "far": lambda f, g, u: (f, g, 1e6 * u),
    "huge": lambda f, g, u: (1e6, g, -u),
}


class ByzantineGrid(FaultyGrid):
    """A grid with faults and one Byzantine client."""

    byzantine, attack = 0, "claims more"

    def deliver(self, message):
        reply = super().deliver(message)
        content = getattr(reply, "content", None) if reply is not None and not reply.has_error() else None
        if content is None or message.metadata.dst_node_id - 100 != self.byzantine:
            return reply
        kind, attack = message.metadata.message_type, ATTACKS[self.attack]
        if kind == wire.REPORT and (self.byzantine, kind) not in self.faults:
            f, g, _ = attack(content[wire.VALUES]["objective"], content[wire.VALUES]["constraint"], 0)
            return _answer(message, {wire.VALUES: MetricRecord({"objective": f, "constraint": g})})
        if kind == wire.UPDATE and (self.byzantine, kind) not in self.faults:
            u = wire.from_record(content[wire.DIRECTION])["w"]
            return _answer(message, {wire.DIRECTION: wire.to_record({"w": attack(0, 0, u)[2].astype(u.dtype)})})
        return reply


def _answer(message, content):
    return Message(RecordDict(content), reply_to=message)


@pytest.mark.parametrize("rounds", [240, pytest.param(10_000, marks=pytest.mark.slow)])
def test_every_client_outcome_is_explained(tmp_path, rounds):
    generator = np.random.default_rng(0)
    grid = ByzantineGrid(simulated(lambda context: ring_client(int(context.node_config["partition-id"]))), CLIENTS)
    all_nodes, injected, attacks = set(grid.connected), [], set()

    def set_faults(chunk=None):
        grid.faults.clear()
        for i in range(CLIENTS):
            for kind, faults in ((wire.REPORT, IN_REPORT), (wire.UPDATE, IN_UPDATE)):
                if generator.random() < 0.08:
                    grid.faults[i, kind] = str(generator.choice([*faults]))
        grid.connected = {node for node in all_nodes if generator.random() < 0.97}
        if generator.random() < 0.05:
            grid.byzantine, grid.attack = int(generator.integers(CLIENTS)), str(generator.choice([*ATTACKS]))
            attacks.add(grid.attack)
        injected.append(dict(grid.faults))

    set_faults()
    checkpoints, events = (
        ss.Checkpoints(tmp_path / "kept", every=0 if rounds < 1000 else 60.0),
        tmp_path / "events.jsonl",
    )
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.05, tolerance=0.05, robust=1)
    for rounds_done in (rounds // 3, 2 * rounds // 3, rounds):  # the server stops and another resumes
        strategy = fl.SwitchingStrategy(
            method,
            callbacks=[set_faults],
            checkpoints=checkpoints,
            events=events,
            names=[f"site {i}" for i in range(CLIENTS)],
            simulation=True,
            report_timeout=0.004,
            update_timeout=0.004,
            wait=0.0,
            patience=10**6,
        )
        strategy.start(grid, zeros(), rounds_done)
    result = strategy.result
    history = result.history
    assert len(history) == rounds
    assert np.isfinite(result.params["w"]).all()
    w = result.last["w"]
    assert (
        max(0.5 * np.square(w - centre_on_ring(i)).sum() for i in range(CLIENTS)) < 2
    )  # the optimum is 0.5; an attack gives 100 and more

    participants, outcomes = history.per_client.clients, history.per_client.outcomes
    np.testing.assert_array_equal(participants >= 0, outcomes != ClientOutcome.EMPTY)
    reasons = defaultdict(list)
    for event in read_events(events):
        reasons[event["round"], event["client"]].append(event)
    voided = {event["round"] for event in read_events(events) if event["what"] == "void round"}
    for k, faults in enumerate(injected[:rounds]):
        sampled = participants[k][participants[k] >= 0].tolist()
        reported = [i for i in sampled if (i, wire.REPORT) not in faults]
        updated = [i for i in reported if (i, wire.UPDATE) not in faults]
        void = min(len(reported), len(updated)) < MIN_CLIENTS
        assert history.void[k] == void == (k in voided)
        for i in sampled:
            outcome = ClientOutcome(int(outcomes[k, participants[k].tolist().index(i)]))
            if i not in reported:
                expected = IN_REPORT[faults[i, wire.REPORT]]
            elif len(reported) >= MIN_CLIENTS and i not in updated:
                expected = IN_UPDATE[faults[i, wire.UPDATE]]
            else:
                expected = ClientOutcome.VOID if void else ClientOutcome.COUNTED
            assert outcome == expected
            if outcome not in (ClientOutcome.COUNTED, ClientOutcome.VOID):
                explanations = [
                    event for event in reasons[k, f"site {i}"] if event["what"] in ("lost", "refused", "rejected")
                ]
                assert explanations, (k, i, outcome)
                assert explanations[0]["why"]
    assert len(attacks) >= 3
    assert history.void.mean() < 0.2
