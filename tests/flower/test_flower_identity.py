"""Client identity: keys identify clients, the order of arrival is irrelevant and names are unambiguous."""

import numpy as np
import pytest

import softswitch as ss
import softswitch.flower as fl
from flower_clients import FaultyGrid, W, quadratic, quadratics, simulated
from member_clients import Clock, events_of_kind, key, make_grid, member_list, run_strategy
from softswitch.flower import messages as wire
from softswitch.results.history import ClientOutcome

pytestmark = pytest.mark.usefixtures("quiet")


def two_constraints(i, name=None):
    """Return client i with one constraint more than the others."""
    client = quadratic(i)
    constraints = lambda params, batch: (np.zeros(2), {"w": np.zeros((2, 3))})  # noqa: E731
    return fl.NumpyClient(client._objective, constraints, client._data, {"w": W}, name=name or client.name)


def test_only_listed_clients_participate(tmp_path, caplog):
    nodes = {100: (0, 0), 101: (1, 1), 102: (2, 9), 103: (3, None)}  # site 2 with an unknown key, site 3 without a key
    result = run_strategy(
        make_grid(nodes), rounds=2, clients=member_list(0, 1, 2, 3), events=tmp_path / "events.jsonl"
    ).result
    assert result.names == ("site 0", "site 1", "site 2", "site 3")
    assert result.history.per_client.clients.tolist() == [[0, 1], [0, 1]]
    assert np.isnan(result.client_constraint[:, 0]).tolist() == [False, False, True, True]
    assert caplog.text.count("its public key is not in the list") == 2
    assert events_of_kind(tmp_path / "events.jsonl", "turned away") == [("turned away", None)] * 2


def test_impostor_is_rejected_and_real_client_participates():
    nodes = {100: (1, 9), 101: (0, 0), 105: (1, 1)}  # node 100 claims to be site 1 and arrives first
    result = run_strategy(make_grid(nodes), clients=member_list(0, 1)).result
    assert result.names == ("site 0", "site 1")
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()


@pytest.mark.parametrize("listed", [True, False])
def test_name_of_late_client_is_kept_for_its_key(listed, tmp_path):
    """Node 100 takes the name of site 1, which connects later. Without a list, the name is taken."""
    grid = make_grid({100: (1, 9), 101: (0, 0), 105: (1, 1)})
    grid.connected.discard(105)

    def connect(chunk):
        grid.connected.add(105)

    members = {"clients": member_list(0, 1)} if listed else {"names": ["site 0", "site 1"]}
    strategy = run_strategy(grid, rounds=3, callbacks=[connect], events=tmp_path / "events", **members)
    assert strategy.clients.roster.connected == {0: 101, 1: 105 if listed else 100}
    outcomes = strategy.result.history.per_client.outcomes.tolist()
    assert outcomes[0] == [ClientOutcome.COUNTED, ClientOutcome.EMPTY if listed else ClientOutcome.COUNTED]
    assert outcomes[1:] == [[ClientOutcome.COUNTED] * 2] * 2
    assert len(events_of_kind(tmp_path / "events", "turned away")) == 1


def test_name_that_differs_from_key_is_rejected(caplog):
    nodes = {100: (0, 0), 101: (0, 1)}  # a member, under another member's name
    result = run_strategy(make_grid(nodes), clients=member_list(0, 1)).result
    assert "its key is that of 'site 1', but it calls itself 'site 0'" in caplog.text
    assert result.history.per_client.clients.tolist() == [[0]]


@pytest.mark.parametrize("form", ["OpenSSH", "PEM", "path", "with a comment"])
def test_key_formats(form, tmp_path):
    file = tmp_path / "node.pub"
    file.write_text(key(0)[0] + " somebody@somewhere\n")
    public_key = {"OpenSSH": key(0)[0], "PEM": key(0)[1], "path": file, "with a comment": file.read_text()}[form]
    assert run_strategy(make_grid({100: (0, 0)}), clients={"site 0": public_key}).result.names == ("site 0",)


def test_invalid_client_list_is_rejected(tmp_path):
    private = tmp_path / "node"
    private.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    for clients, message in (
        ({"a": "no key"}, "text of a public key"),
        ({"a": private}, "private"),
        ({"a": "ssh-rsa garbage"}, "not a public key"),
        ({"a": "x" * 5000}, r"clients\['a'\]"),  # too long for the name of a file
        ({"a": "~nobody-has-this-name/a.pub"}, r"clients\['a'\]"),
        ({"a": key(0)[0], "b": key(0)[1]}, "'a' and 'b' have the same"),
        ({"a": key(0)[0], "A ": key(1)[0]}, "looks the same"),
        ({" ": key(0)[0]}, "empty"),
    ):
        with pytest.raises(ValueError, match=message):
            fl.StrategySettings(clients=clients)
    with pytest.raises(TypeError, match="names to public keys"):
        fl.StrategySettings(clients=["site 0"])
    with pytest.raises(ValueError, match="names must be empty"):
        fl.StrategySettings(clients=member_list(0), names=["site 0"])
    for names in (["x", "x"], ["x", "X"], ["caf\u00e9", "cafe\u0301"], ["x", " x"], ["Straße", "STRASSE"]):
        with pytest.raises(ValueError, match="once"):
            fl.StrategySettings(names=names)


def test_names_are_normalised_and_lookalikes_rejected(caplog):
    called = {0: " caf\u0065\u0301 ", 1: "CAF\u00c9", 2: "other"}
    app = simulated(lambda context: quadratic(0, name=called[context.node_config["i"]]))
    result = run_strategy(make_grid({100: (0, None), 101: (1, None), 102: (2, None)}, app)).result
    assert result.names == ("CAF\u00c9", "other")  # sorted by name
    assert "looks like that of" in caplog.text
    result = run_strategy(make_grid({100: (0, None), 102: (2, None)}, app), names=["caf\u00e9", "other"]).result
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()


def test_duplicate_names_are_reported_once(monkeypatch):
    clock = Clock(monkeypatch)
    app = simulated(lambda context: quadratic(context.node_config["i"], name="hospital"))
    with pytest.raises(ValueError, match="all 3 nodes call themselves 'hospital'"):
        run_strategy(make_grid({100 + i: (i, None) for i in range(3)}, app), report_timeout=600.0, wait=600.0)
    assert clock.now < 1


class LateGrid(FaultyGrid):
    """A grid with nodes that connect after some number of polls."""

    def __init__(self, app, nodes, keys=None, late=(), looks=3):
        super().__init__(app, nodes, keys=keys)
        self._late, self._left = set(late), looks

    def get_node_ids(self):
        self._left -= 1
        return sorted(node for node in self.connected if node not in self._late or self._left <= 0)


@pytest.mark.parametrize("names", [True, False])
def test_first_node_does_not_decide_configuration(names, caplog, monkeypatch, tmp_path):
    """It has two constraints and the others one, so it is rejected."""
    Clock(monkeypatch)
    app = simulated(
        lambda context: two_constraints(9) if context.node_config["i"] == 9 else quadratic(context.node_config["i"])
    )
    nodes = {90: {"i": 9}} | {100 + i: {"i": i} for i in range(5)}
    grid = LateGrid(app, nodes, late=range(100, 105))
    options = {"names": [f"site {i}" for i in range(5)]} if names else {"min_clients": 5}
    events = tmp_path / "events.jsonl"
    result = run_strategy(grid, rounds=2, wait=600.0, events=events, **options).result
    assert result.names == tuple(f"site {i}" for i in range(5))
    assert events_of_kind(events, "met") == [("met", f"site {i}") for i in range(5)]  # once: no new vote took place
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    assert "'site 9' is turned away: it has 2 constraints, the others 1" in caplog.text


def test_unlisted_nodes_do_not_vote(monkeypatch, caplog):
    """Three unlisted nodes connect before the two listed ones."""
    Clock(monkeypatch)
    app = simulated(
        lambda context: (two_constraints if context.node_config["i"] > 5 else quadratic)(context.node_config["i"])
    )
    grid = LateGrid(app, {90 + i: {"i": i} for i in (0, 1, 7, 8, 9)}, late=(90, 91))
    result = run_strategy(grid, rounds=2, names=["site 0", "site 1"], wait=600.0).result
    assert result.names == ("site 0", "site 1")
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    assert caplog.text.count("it has 2 constraints, the others 1") == 3


def test_configuration_without_majority_is_rejected():
    app = simulated(lambda context: (two_constraints, quadratic)[context.node_config["i"]](context.node_config["i"]))
    grid = make_grid({100: (0, None), 101: (1, None)}, app)
    with pytest.raises(ValueError, match="set constraints"):
        run_strategy(grid)
    assert run_strategy(grid, constraints=1).result.names == ("site 1",)


def test_reconnected_client_replaces_old_node(tmp_path):
    """The old node is still in the SuperLink's list and does not reply."""
    grid = make_grid({100: (0, 0), 101: (1, 1), 111: (1, 1)}, grid=FaultyGrid)
    grid.connected = {100, 101}

    def restart(chunk):
        grid.connected = {100, 101, 111}
        grid.faults = {(1, kind): "silent" for kind in (wire.REGISTER, wire.REPORT, wire.UPDATE, wire.EVALUATE)}

    events = tmp_path / "events.jsonl"
    result = run_strategy(grid, rounds=4, clients=member_list(0, 1), callbacks=[restart], events=events).result
    assert result.names == ("site 0", "site 1")
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    assert result.status.ok
    assert events_of_kind(events, "replaced", "lost") == [("replaced", "site 1")]


@pytest.mark.parametrize("automatic", [False, True])
@pytest.mark.parametrize("participation", [1.0, 0.7])
def test_run_continues_without_excluded_client(tmp_path, automatic, participation):
    grid = FaultyGrid(quadratics(4), 4)
    settings = {"checkpoints": ss.Checkpoints(tmp_path / "kept", every=0), "participation": participation}
    method = ss.Automatic(tolerance=0.1) if automatic else ss.SoftmaxSGM(alpha=5.0, step_size=0.2, tolerance=0.1)
    stop = [lambda chunk: chunk.round == 5]
    first = run_strategy(grid, 12, method, callbacks=stop, **settings).result
    assert len(first.history) == 5
    assert first.names == tuple(f"site {i}" for i in range(4))
    events = tmp_path / "events.jsonl"
    result = run_strategy(grid, 12, method, exclude=["SITE 1"], events=events, **settings).result
    assert len(result.history) == 12
    assert result.names == ("site 0", "site 2", "site 3")
    assert result.client_constraint.shape == (3, 1)
    assert np.isfinite(result.client_constraint).all()
    assert result.status.ok
    assert result.history.per_client.clients.max() == 2
    assert result.history.worst_client.max() <= 2
    participants_before = first.history.per_client.clients[:5]
    participants_after = result.history.per_client.clients[:5]
    np.testing.assert_array_equal(participants_after, np.array([0, -1, 1, 2, -1])[participants_before])
    assert result.diagnostics[-1].code == "excluded-clients"
    assert "SITE 1" in result.explain()
    assert ("excluded", "site 1") in events_of_kind(events)
    assert events_of_kind(events, "resumed", "finished") == [("resumed", None), ("finished", None)]
    memory = result.state.parts.get("memory")
    assert memory is None or len(memory.reported_at) == 3


def test_unknown_excluded_name_is_reported(caplog):
    result = run_strategy(FaultyGrid(quadratics(3), 3), exclude=["site 1", "site 11"]).result
    assert result.names == ("site 0", "site 2")
    assert "no client is known by the name 'site 11'" in caplog.text
    assert result.diagnostics[-1].evidence.endswith("no client is known by the name 'site 11'")
    caplog.clear()
    run_strategy(FaultyGrid(quadratics(2), 2), exclude=["site 5"], names=["site 0", "site 1", "Site 5"])
    assert "no client is known" not in caplog.text


def test_withdrawn_client_stays_known_after_resume(tmp_path, caplog):
    grid = FaultyGrid(quadratics(3), 3)
    settings = {"checkpoints": ss.Checkpoints(tmp_path, every=0)}
    run_strategy(grid, 4, **settings)
    grid.connected.discard(101)
    for rounds in (6, 8):
        result = run_strategy(grid, rounds, exclude=["site 1"], **settings).result
        assert result.names == ("site 0", "site 2")
        assert result.diagnostics[-1].evidence == "'site 1' excluded (exclude); 'site 1' took part in earlier rounds"
    assert "no client is known" not in caplog.text


def test_memory_of_excluded_client_is_dropped(tmp_path):
    """It is far above the tolerance, so no round is feasible while its memory is kept."""

    def factory(context):
        client = quadratic(context.node_config["i"])
        if client.name == "site 1":
            client._constraint = lambda params, batch: (5.0, {"w": np.zeros(3, np.float32)})
        return client

    grid = make_grid({100 + i: (i, None) for i in range(4)}, simulated(factory))
    checkpoints = ss.Checkpoints(tmp_path, every=0)
    settings = {"checkpoints": checkpoints, "participation": 0.5, "memory": ss.Memory()}
    first = run_strategy(grid, 20, callbacks=[lambda chunk: chunk.round == 8], **settings).result
    assert not first.history.feasible[3:].any()
    result = run_strategy(grid, 20, exclude=["site 1"], **settings).result
    assert result.history.feasible[12:].any()
    assert result.status.ok


def test_excluded_client_is_not_awaited(monkeypatch):
    clock = Clock(monkeypatch)
    nodes = {100: (0, 0), 101: (1, 1), 102: (2, 2)}
    strategy = run_strategy(make_grid(nodes), clients=member_list(0, 1, 2), exclude=["site 2"], wait=600.0)
    assert strategy.result.names == ("site 0", "site 1")
    assert strategy.clients.roster.rows(1) == 8
    del nodes[102]
    assert run_strategy(make_grid(nodes), clients=member_list(0, 1, 2), exclude=["site 2"], wait=600.0).result.status.ok
    assert clock.now < 1
