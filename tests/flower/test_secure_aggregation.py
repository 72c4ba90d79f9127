"""Secure aggregation: the server receives the weighted sum of all clients' directions only, or the round is void."""

import re
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import ConfigRecord, Context, Message, RecordDict

import softswitch as ss
import softswitch.flower as fl
from benchmarks import flat
from benchmarks.secure import CappedSGM, names_of
from benchmarks.secure import app_of as app_of_data
from flower_clients import FEATURES, FaultyGrid, quadratic, simulated, zeros
from softswitch.flower import messages as wire
from softswitch.flower import secure_aggregation
from softswitch.flower.secure_aggregation import (
    MASKED,
    ROUND_KEY,
    TERMS,
    dequantize,
    make_terms,
    parse_terms,
    quantize,
)
from softswitch.methods import Compression, TopK
from softswitch.methods.messages import LocalLoss
from softswitch.results.history import ClientOutcome
from softswitch.results.status import StatusCode
from softswitch_experiments.tasks.neyman_pearson import breast_cancer

pytestmark = pytest.mark.usefixtures("quiet")
RULE = ss.SoftmaxSGM(alpha=0.2, step_size=0.2, tolerance=0.1)
EQUAL_WEIGHTS = ss.SoftmaxSGM(alpha=0.0, step_size=0.2, tolerance=0.1)
SITES, LIMIT = 6, 10.0
NAMES = [f"site {i}" for i in range(SITES)]
SPECS = {"w": wire.ArraySpec((FEATURES,), "float64")}
DOCS = Path(__file__).parents[2] / "docs"


class RecordingGrid(FaultyGrid):
    """A grid that records every message and reply, and can change them."""

    def __init__(self, app, nodes, **options):
        super().__init__(app, nodes, **options)
        self.messages, self.changes = [], {}

    def deliver(self, message):
        kind, site = message.metadata.message_type, message.metadata.dst_node_id - 100
        if (site, kind) in self.changes:
            self.changes[site, kind](message.content)
        reply = super().deliver(message)
        if reply is not None and (site, kind, "reply") in self.changes:
            self.changes[site, kind, "reply"](reply.content)
        self.messages.append((site, kind, message, reply))
        return reply


def make_app(policy=None, signed=None):
    """Return an app of sites with a policy and signing keys."""

    def factory(context):
        return quadratic(context.node_config["partition-id"])

    if policy is None and signed is None:
        return simulated(factory)
    apps = {
        i: fl.client_app(factory, policy or fl.ClientPolicy.for_simulations(), signing_keys=signed and signed(i))
        for i in range(SITES)
    }
    return lambda message, context: apps[context.node_config["partition-id"]](message, context)


def make_strategy(method=RULE, secure=None, **settings):
    """Return a strategy with secure aggregation of all sites."""
    options = {"report_timeout": 0.5, "update_timeout": 0.5, "wait": 0.0, "patience": 10**6, "clip_norm": LIMIT}
    options["simulation"] = True
    secure = secure or fl.SecureAggregation(min_clients=3)
    return fl.SwitchingStrategy(method, **{**options, "names": NAMES, "secure": secure, **settings})


def run(grid, rounds=1, method=RULE, **settings):
    """Return a strategy after its run."""
    strategy = make_strategy(method, **settings)
    strategy.start(grid, zeros(), rounds)
    return strategy


def sent_terms(grid, constraints=1):
    """Return the terms of all sums."""
    updates = [message.content for _, kind, message, _ in grid.messages if kind == wire.UPDATE]
    return [parse_terms(content[TERMS], constraints) for content in updates]


def outcomes(strategy):
    """Return the outcome of every client in every round."""
    return strategy.result.history.per_client.outcomes


# ---- sums


def one_constraint(params, batch):
    """The sum of w plus 0.3, which is violated at the start."""
    return float(params["w"].sum() + 0.3), {"w": np.ones(FEATURES, np.float32)}


def two_constraints(params, batch):
    """The sum of w plus 0.3, and the first entry of w plus 0.25."""
    value, gradient = one_constraint(params, batch)
    rows = np.array([gradient["w"], [1.0, 0.0, 0.0]], np.float32)
    return np.array([value, float(params["w"][0]) + 0.25]), {"w": rows}


@pytest.mark.parametrize(("function", "constraints"), [(one_constraint, 1), (two_constraints, 2)])
def test_masked_run_matches_plain_run(function, constraints):
    """With weights below the cap, runs differ by rounding only: 2⁻³⁰ of the limit in each entry."""
    app = simulated(lambda context: quadratic(context.node_config["partition-id"], constraint=function))
    grid = RecordingGrid(app, SITES)
    masked = run(grid, 6, secure=fl.SecureAggregation(min_clients=2)).result
    assert max(max(terms.weights) for terms in sent_terms(grid, constraints)) < 0.5
    reference = fl.SwitchingStrategy(RULE, clip_norm=LIMIT, wait=0.0)
    reference.start(FaultyGrid(app, SITES), zeros(), 6)
    assert (masked.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    assert 0 < masked.history.feasible.sum() < 6
    np.testing.assert_array_equal(masked.history.feasible, reference.result.history.feasible)
    np.testing.assert_allclose(masked.last["w"], reference.result.last["w"], atol=2e-7)
    assert np.abs(masked.last["w"]).max() > 0.1


def test_masked_values_are_uniform():
    """Clients send no float arrays, and masked integers are uniform on 0 … 2³² for small directions too."""
    grid = RecordingGrid(make_app(), SITES)
    run(grid, 10)
    values = []
    for _, kind, _, reply in grid.messages:
        if kind == wire.UPDATE:
            assert wire.DIRECTION not in reply.content
            values.append(wire.from_record(reply.content[MASKED])["sum"])
    values = np.array(values)
    assert values.dtype == np.uint32
    shares = np.histogram(values, bins=4, range=(0, 2**32))[0] / values.size  # 180 numbers: deviation 0.032
    assert np.abs(shares - 0.25).max() < 0.16
    assert len(np.unique(values)) == values.size


def test_quantization_round_trip():
    direction = {"b": np.array([[0.5, -0.25]]), "a": np.array([-3.0])}
    units = quantize(direction, 0.5, 4.0)
    assert units.tolist() == [2**32 - 3 * 2**27, 2**26, 2**32 - 2**25]  # −3·½·2³⁰/4, ½·½·2³⁰/4, −¼·½·2³⁰/4
    restored = dequantize(units, 4.0, wire.array_specs(direction))
    np.testing.assert_allclose(restored["a"], [-1.5])
    np.testing.assert_allclose(restored["b"], [[0.25, -0.125]])
    maximum = quantize({"w": np.array([4.0])}, 1.0, 4.0)
    assert dequantize(maximum, 4.0, {"w": wire.ArraySpec((1,), "float64")})["w"] == 4.0


def effective_clients(weights):
    """Return (Σ r_i)²/Σ r_i²."""
    return np.sum(weights) ** 2 / np.square(weights).sum()


def test_weights_are_capped():
    """At α = 6400 one client has all the weight; with a cap of a third at least three clients share it."""
    method = ss.SoftmaxSGM(alpha=6400.0, step_size=0.1, tolerance=0.1)
    grid = RecordingGrid(make_app(), SITES)
    result = run(grid, 5, method).result
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    round_terms = sent_terms(grid)
    assert max(max(terms.weights) for terms in round_terms) <= 1.001 / 3
    assert min(effective_clients(terms.weights) for terms in round_terms) > 2.97
    reports = result.history.per_client.objective[0]
    uncapped = np.exp(6400.0 * (reports - reports.max()))
    assert effective_clients(uncapped) == pytest.approx(1.0)


def test_masked_run_matches_capped_compiled_run():
    """The compiled run with capped weights has the same trajectory, and the cap changes it."""
    data = breast_cancer(6)
    settings = {"alpha": 50.0, "step_size": 0.5, "tolerance": 0.1}
    options = {"rounds": 4, "batch_size": None}
    compiled = flat.solve(data.problem, data.train, CappedSGM(most=1 / 3, **settings), **options)
    uncapped = flat.solve(data.problem, data.train, CappedSGM(most=1.0, **settings), **options)
    secure = {"names": names_of(6), "clip_norm": LIMIT, "simulation": True}
    secure["secure"] = fl.SecureAggregation(min_clients=3)
    strategy = fl.SwitchingStrategy(ss.SoftmaxSGM(**settings), **secure)
    strategy.start(fl.InProcessGrid(app_of_data(data), 6), fl.initial_arrays(data.problem.start), 4)
    (masked,) = strategy.result.last.values()
    np.testing.assert_allclose(masked, compiled.last, atol=2e-5)
    assert np.abs(np.asarray(uncapped.last) - masked).max() > 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {"memory": ss.Memory(smoothing=0.5)},
        {"memory": ss.Memory(corrected=True)},
        {"method": ss.Automatic(tolerance=0.1)},
    ],
)
def test_all_clients_take_part_with_memory_and_automatic_settings(options):
    strategy = run(RecordingGrid(make_app(), SITES), 5, **options)
    assert outcomes(strategy).shape == (5, SITES)
    assert (outcomes(strategy) == ClientOutcome.COUNTED).all()


# ---- lost clients


@pytest.mark.parametrize("fault", ["silent", "raises", "restarted", "refuses"])
def test_round_with_lost_direction_is_void_and_next_round_counts(fault, caplog, tmp_path):
    """A round without all directions changes nothing. The next one has new keys, and the run goes on as a plain one."""
    grid, states = RecordingGrid(make_app(), SITES), []
    grid.faults = {(2, wire.UPDATE): fault}

    def after_round(chunk):
        grid.faults = {}
        states.append(np.asarray(chunk.state.params["w"]))

    strategy = run(grid, 4, EQUAL_WEIGHTS, callbacks=[after_round], events=tmp_path / "events")
    lost = ClientOutcome.REFUSED if fault in ("restarted", "refuses") else ClientOutcome.NO_UPDATE
    expected = [lost if i == 2 else ClientOutcome.VOID for i in range(SITES)]
    assert outcomes(strategy)[0].tolist() == expected
    assert (outcomes(strategy)[1:] == ClientOutcome.COUNTED).all()
    np.testing.assert_array_equal(states[0], 0)
    reference = fl.SwitchingStrategy(EQUAL_WEIGHTS, clip_norm=LIMIT, wait=0.0)
    reference.start(FaultyGrid(make_app(), SITES), zeros(), 3)
    np.testing.assert_allclose(strategy.result.last["w"], reference.result.last["w"], atol=2e-7)
    keys = [key for terms in sent_terms(grid)[::SITES] for key in terms.keys]
    assert len(set(keys)) == 4 * SITES
    assert "directions are not aggregated: 5 of 6 directions arrived" in caplog.text
    assert any(event["what"] == "not aggregated" for event in fl.read_events(tmp_path / "events"))


@pytest.mark.parametrize("fault", ["silent", "NaN"])
def test_round_with_lost_report_is_void(fault):
    grid = RecordingGrid(make_app(), SITES)
    grid.faults = {(2, wire.REPORT): fault}
    strategy = run(grid, 2)
    assert not (outcomes(strategy) == ClientOutcome.COUNTED).any()
    assert not sent_terms(grid)


def test_run_without_lost_client_can_be_resumed(tmp_path):
    """A run ends after ``patience`` void rounds. It continues without the lost client if that is excluded."""
    grid, settings = RecordingGrid(make_app(), SITES), {"checkpoints": ss.Checkpoints(tmp_path, every=0), "patience": 3}

    def leave(chunk):
        if chunk.round == 2:
            grid.connected.discard(102)

    ended = run(grid, 20, callbacks=[leave], **settings).result
    assert ended.status.code is StatusCode.STOPPED
    assert len(ended.history) == 5
    rest = RecordingGrid(make_app(), SITES)
    rest.connected.discard(102)
    resumed = run(rest, 20, exclude=["site 2"], **settings).result
    assert len(resumed.history) == 20
    assert (resumed.history.per_client.outcomes[5:, :5] == ClientOutcome.COUNTED).all()
    assert {len(terms.names) for terms in sent_terms(rest)} == {5}


def test_clients_outside_of_cohort_are_turned_away(caplog):
    strategy = run(RecordingGrid(make_app(), SITES), 2, names=NAMES[:5])
    assert strategy.result.names == tuple(NAMES[:5])
    assert (outcomes(strategy) == ClientOutcome.COUNTED).all()
    assert "client 'site 5' is turned away" in caplog.text


def test_too_few_weighted_clients_are_not_aggregated(caplog):
    """Only two sites have a constraint, so a round on the constraint would sum these two only."""

    def factory(context):
        client = quadratic(context.node_config["partition-id"])
        report, has_constraint = client.report, context.node_config["partition-id"] < 2
        value = [1.0 if has_constraint else -np.inf]
        client.report = lambda params, task: wire.Values(report(params, task).objective, value)
        return client

    grid = RecordingGrid(simulated(factory), SITES)
    strategy = run(grid)
    assert (outcomes(strategy)[0] == ClientOutcome.VOID).all()
    assert not sent_terms(grid)
    assert "one client would have 50% of the sum, but at most 1/3 is accepted" in caplog.text


# ---- refusals of clients


def test_client_uses_each_key_once():
    """Two directions with the same masks would reveal their difference."""
    grid, refusals = RecordingGrid(make_app(), SITES), []

    def repeat():
        first = {kind: message for site, kind, message, _ in grid.messages if site == 0}
        reply = FaultyGrid.deliver(grid, Message(first[wire.UPDATE].content, 100, wire.UPDATE, group_id="0"))
        refusals.append(wire.read_refusal(reply.content))

    grid.changes = {(1, wire.UPDATE): lambda content: repeat()}
    assert (outcomes(run(grid))[0] == ClientOutcome.COUNTED).all()
    repeat()
    assert all("has already sent its direction" in reason for reason in refusals)
    assert len(refusals) == 2


@pytest.mark.parametrize("min_clients", [4, 7])
def test_client_policy_sets_min_clients(min_clients, caplog):
    """The client's policy applies even if the server does not use secure aggregation."""
    policy = fl.ClientPolicy(min_rows=1, min_class_rows=1, min_secure_clients=min_clients)
    strategy = run(RecordingGrid(make_app(policy), SITES), method=EQUAL_WEIGHTS)
    expected = ClientOutcome.COUNTED if min_clients <= SITES else ClientOutcome.REFUSED
    assert (outcomes(strategy)[0] == expected).all()
    plain = fl.SwitchingStrategy(RULE, wait=0.0)
    plain.start(RecordingGrid(make_app(policy), SITES), zeros(), 1)
    assert (plain.result.history.per_client.outcomes[0] == ClientOutcome.REFUSED).all()
    assert "it sends directions only with secure aggregation" in caplog.text


def change_terms(**changes):
    """Return a function that changes the terms sent by the server."""

    def change(content):
        record = content[TERMS] = ConfigRecord(dict(content[TERMS]))
        for name, value in changes.items():
            record[name] = value(record[name]) if callable(value) else value

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (change_terms(weights=[1.0] + [0.0] * 5), "one client would have 100% of the sum"),
        (change_terms(weights=[0.34] + [0.1] * 5), "one client would have 40% of the sum"),
        (change_terms(weights=[0.0] * 6), "one client would have 100% of the sum"),
        (change_terms(losses=lambda values: [0.0] * len(values)), "one client would have 100% of the sum"),
        (change_terms(losses=lambda values: [1e9, *values[1:]]), "one client would have 100% of the sum"),
        (change_terms(losses=lambda values: [np.inf, *values[1:]]), "its local loss has entries up to inf"),
        (change_terms(losses=lambda values: [*[1e308] * 8, *values[8:]]), "its local loss has entries up to 1e+308"),
        (change_terms(losses=[0.0, 0.0, 1.0, 0.0] * 6), "one client would have 100% of the sum"),  # penalties only
        (change_terms(losses=[1.0, 0.0, 0.0] * 6), "4 numbers of each client"),
        (change_terms(weights=lambda values: values[:-1]), "a name, a key, a weight"),
        (change_terms(weights=[0.5] * 6), "a sum of at most 1"),
        (change_terms(weights=[np.nan] + [0.1] * 5), "a sum of at most 1"),
        (change_terms(keys=lambda values: [*values[:-1], values[0]]), "a name, a key, a weight"),
        (change_terms(keys=lambda values: [*values[:-1], b"no key"]), "its terms contain an invalid key"),
        (change_terms(keys=lambda values: [*values[:-1], bytes(32)]), "its terms contain an invalid key"),
        (change_terms(keys=lambda values: [values[1], values[0], *values[2:]]), "do not contain this client"),
        (change_terms(names="abcdef"), "a list of names"),
        (lambda content: content.update({TERMS: ConfigRecord({})}), "a list of names"),
    ],
)
def test_unsafe_terms_are_refused(change, reason, caplog):
    grid = RecordingGrid(make_app(), SITES)
    grid.changes = {(0, wire.UPDATE): change}
    policy = fl.ClientPolicy(min_rows=1, min_class_rows=1, min_secure_clients=3)
    grid._app = make_app(policy)
    strategy = run(grid)
    assert outcomes(strategy)[0, 0] == ClientOutcome.REFUSED
    assert reason in caplog.text


# ---- invalid messages from clients


@pytest.mark.parametrize(
    "content",
    [
        wire.to_record({"sum": np.zeros(FEATURES + 1, np.uint32)}),
        wire.to_record({"sum": np.zeros(FEATURES, np.float32)}),
        ConfigRecord({"sum": 1}),
    ],
)
def test_invalid_masked_direction_is_rejected(content):
    grid = RecordingGrid(make_app(), SITES)
    grid.changes = {(2, wire.UPDATE, "reply"): lambda sent: sent.update({MASKED: content})}
    expected = [ClientOutcome.BAD_UPDATE if i == 2 else ClientOutcome.VOID for i in range(SITES)]
    assert outcomes(run(grid))[0].tolist() == expected


@pytest.mark.parametrize(
    "key", [None, ConfigRecord({}), ConfigRecord({"key": b"none", "signature": b""}), ConfigRecord({"key": 3})]
)
def test_report_without_key_is_rejected(key):
    grid = RecordingGrid(make_app(), SITES)

    def change(content):
        del content[ROUND_KEY]
        if key is not None:
            content[ROUND_KEY] = key

    grid.changes = {(2, wire.REPORT, "reply"): change}
    expected = [ClientOutcome.BAD_REPORT if i == 2 else ClientOutcome.VOID for i in range(SITES)]
    assert outcomes(run(grid))[0].tolist() == expected


def test_sum_longer_than_clip_norm_is_void(caplog):
    grid = RecordingGrid(make_app(), SITES)

    def change(content):
        content[MASKED] = wire.to_record({"sum": wire.from_record(content[MASKED])["sum"] + np.uint32(2**31)})

    grid.changes = {(2, wire.UPDATE, "reply"): change}
    assert (outcomes(run(grid))[0] == ClientOutcome.VOID).all()
    assert f"above clip_norm={LIMIT:g}" in caplog.text


# ---- attacks of a server


class AttackingServer:
    """A server that sends each site what it likes, and sums the masked directions that it receives."""

    victim, weight = 3, 1 / SITES

    def __init__(self, app=None):
        policy = fl.ClientPolicy(min_rows=1, min_class_rows=1, min_secure_clients=3)
        self.grid, self.refusals = FaultyGrid(app or make_app(policy), SITES), {}

    def ask(self, kind, contents, k):
        """Return the replies by site; refusals are kept."""
        replies = {}
        for i, content in contents.items():
            reply = FaultyGrid.deliver(self.grid, Message(content, 100 + i, kind, group_id=str(k)))
            if reply.has_error() or (refusal := wire.read_refusal(reply.content)) is not None:
                self.refusals[i] = reply.error.reason if reply.has_error() else refusal
            else:
                replies[i] = reply.content
        return replies

    def request_reports(self, k, params=None, **changes):
        """Request reports at the parameters of each site; ``changes`` are settings of all sites but the victim."""
        common = {"round": k, "seed": 0, "local_steps": 1, "step_size": 0.1, "switches": True, "clip_norm": LIMIT}
        contents = {}
        for i in range(SITES):
            settings = ConfigRecord(common | {MASKED: True} | ({} if i == self.victim else changes))
            where = zeros() if params is None else wire.to_record({"w": params[i]})
            contents[i] = RecordDict({wire.PARAMS: where, wire.SETTINGS: settings})
        return self.ask(wire.REPORT, contents, k)

    def make_terms(self, reports, objectives=None, weights=None):
        """Return terms with these coefficients of the objective, and none of the constraint."""
        loss = LocalLoss(np.ones(SITES) if objectives is None else objectives, np.zeros((SITES, 1)), 0.0, 0.0)
        given = np.full(SITES, self.weight) if weights is None else weights
        return make_terms([NAMES[i] for i in reports], list(reports.values()), given, loss)

    def collect(self, terms, k):
        """Send terms by site; return the masked directions that come."""
        contents = {i: RecordDict({TERMS: ConfigRecord(one._asdict())}) for i, one in terms.items()}
        replies = self.ask(wire.UPDATE, contents, k)
        return {i: wire.from_record(content[MASKED])["sum"] for i, content in replies.items()}

    def reads(self, masked):
        """Return whether the sum is the weighted direction of the victim."""
        expected = self.weight * direction_at_start(self.victim)
        return np.abs(sum_masked(masked) - expected).max() < 1e-6


def sum_masked(masked):
    """Return the sum that a server computes from masked directions."""
    total = np.sum(list(masked.values()), axis=0, dtype=np.uint32)
    return dequantize(total, LIMIT, SPECS)["w"]


def direction_at_start(i):
    """Return the direction of site i at the start, for the objective."""
    task, loss = fl.Task(0, 0, 1, 0.1, True), LocalLoss(1.0, np.zeros(1), 0.0, 0.0)
    return quadratic(i).update({"w": np.zeros(FEATURES, np.float32)}, task, loss)["w"]


def test_honest_server_reads_sum_of_all_directions_only():
    server = AttackingServer()
    terms = server.make_terms(server.request_reports(0))
    masked = server.collect(dict.fromkeys(range(SITES), terms), 0)
    expected = sum(direction_at_start(i) for i in range(SITES)) / SITES
    np.testing.assert_allclose(sum_masked(masked), expected, atol=SITES * LIMIT / 2**31)
    for left_out in range(SITES):
        part = {i: units for i, units in masked.items() if i != left_out}
        remaining = expected - direction_at_start(left_out) / SITES
        assert np.abs(sum_masked(part) - remaining).max() > 1e-3


def test_zero_losses_of_other_clients_are_refused():
    """Attack A1: the other clients minimise 0, so that the sum is the direction of one client."""
    server = AttackingServer()
    objectives = (np.arange(SITES) == server.victim).astype(float)
    terms = server.make_terms(server.request_reports(0), objectives)
    assert not server.collect(dict.fromkeys(range(SITES), terms), 0)
    assert len(server.refusals) == SITES
    assert all("one client would have 100% of the sum" in reason for reason in server.refusals.values())


def test_different_losses_do_not_cancel_masks():
    """Attack A1 with other terms for each client: each one accepts that it alone minimises 0."""
    server = AttackingServer()
    reports = server.request_reports(0)
    terms = {i: server.make_terms(reports, (np.arange(SITES) != i).astype(float)) for i in range(SITES)}
    terms[server.victim] = server.make_terms(reports)
    masked = server.collect(terms, 0)
    assert len(masked) == SITES
    assert not server.reads(masked)


@pytest.mark.parametrize(("at_optima", "changes"), [(True, {}), (False, {"local_steps": 2, "step_size": 2.0})])
def test_different_parameters_or_settings_do_not_cancel_masks(at_optima, changes):
    """Attack A2: the directions of the other clients are 0, by their parameters or by the local step size."""
    server = AttackingServer()
    zero = np.zeros(FEATURES, np.float32)
    optima = [zero if i == server.victim else zero - direction_at_start(i) for i in range(SITES)]
    reports = server.request_reports(0, optima if at_optima else None, **changes)
    masked = server.collect(dict.fromkeys(range(SITES), server.make_terms(reports)), 0)
    assert len(masked) == SITES
    assert not server.reads(masked)


def test_masks_of_lost_clients_are_not_revealed():
    """Attack B: the server claims that directions did not arrive. No request removes their masks."""
    server = AttackingServer()
    reports = server.request_reports(0)
    terms = server.make_terms(reports)
    server.collect(dict.fromkeys(range(SITES), terms), 0)
    arrived = RecordDict({"encrypted_shares": ConfigRecord({"arrived": [server.victim], "shares": [b""]})})
    assert not server.ask("query.unmask", dict.fromkeys(range(SITES), arrived), 0)
    assert len(server.refusals) == SITES
    remaining = {i: report for i, report in reports.items() if i != server.victim}
    loss = LocalLoss(1.0, np.zeros((5, 1)), 0.0, 0.0)
    smaller = make_terms([NAMES[i] for i in remaining], list(remaining.values()), np.full(5, 0.2), loss)
    assert not server.collect(dict.fromkeys(remaining, smaller), 0)  # the round keys are used


@pytest.mark.parametrize("change", ["fewer", "more", "renamed"])
def test_changed_cohort_is_refused(change):
    """Sums over n and over n − 1 clients differ by the direction of one client."""
    server = AttackingServer()
    terms = server.make_terms(server.request_reports(0))
    server.collect(dict.fromkeys(range(SITES), terms), 0)
    names = NAMES if change == "fewer" else [*NAMES[:-1], "another site"] if change == "renamed" else [*NAMES, "new"]
    reports = server.request_reports(1)
    if change == "fewer":
        del reports[SITES - 1]
        names = names[:-1]
    elif change == "more":
        extra = secure_aggregation.create_round_key(1, "new", Context(1, 1, {}, RecordDict(), {}), None)
        reports[SITES] = RecordDict({ROUND_KEY: extra})
    n = len(reports)
    loss = LocalLoss(1.0, np.zeros((n, 1)), 0.0, 0.0)
    changed = make_terms(names, list(reports.values()), np.full(n, 1 / n), loss)
    assert not server.collect(dict.fromkeys(range(SITES - 1), changed), 1)
    assert all("other clients than the first sum" in reason for reason in server.refusals.values())
    assert len(server.refusals) == SITES - 1


def test_sums_with_many_weights_are_linear_equations():
    """A documented limit: n sums at the same parameters with n lists of weights reveal every direction."""
    server, generator, weights, sums = AttackingServer(), np.random.default_rng(0), [], []
    for k in range(SITES):
        given = generator.uniform(0.08, 0.16, SITES)
        weights.append(given)
        terms = server.make_terms(server.request_reports(k), weights=given)
        sums.append(sum_masked(server.collect(dict.fromkeys(range(SITES), terms), k)))
    directions = [direction_at_start(i) for i in range(SITES)]
    np.testing.assert_allclose(np.linalg.solve(weights, sums), directions, atol=1e-5)


def test_server_that_replaces_keys_reads_direction():
    """A documented limit without signed keys: the server replaces the keys of all other sites."""
    server = AttackingServer()
    reports = server.request_reports(0)
    private = {i: X25519PrivateKey.generate() for i in range(SITES)}
    for i, report in reports.items():
        if i != server.victim:
            report[ROUND_KEY]["key"] = private[i].public_key().public_bytes_raw()
    terms = server.make_terms(reports)
    total = server.collect({server.victim: terms}, 0)[server.victim]
    settings = server.grid._contexts[100 + server.victim].state[wire.SETTINGS]
    digest = terms.digest(zeros(), settings)
    for i in range(SITES):
        if i != server.victim:
            mask = secure_aggregation.generate_mask(private[i], terms.keys[server.victim], digest, FEATURES)
            total = total - mask if i > server.victim else total + mask
    assert server.reads({server.victim: total})


def make_signing_keys(tmp_path, kind):
    """Write the keys of all sites, and return the signing option of site i."""
    for i in range(SITES):
        if kind == "ed25519":
            key = ed25519.Ed25519PrivateKey.generate()
        else:
            key = ec.derive_private_key(1000 + i, ec.SECP384R1())
        encryption = serialization.NoEncryption()
        form = serialization.PrivateFormat
        text = key.private_bytes(serialization.Encoding.PEM, form.OpenSSH if i % 2 else form.PKCS8, encryption)
        (tmp_path / f"site {i}").write_bytes(text)
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        (tmp_path / f"site {i}.pub").write_bytes(public)
    return lambda i: fl.SigningKeys(tmp_path / f"site {i}", tmp_path)


@pytest.mark.parametrize("kind", ["ecdsa", "ed25519"])
def test_signed_keys_prevent_key_substitution(tmp_path, kind, caplog):
    signed = make_signing_keys(tmp_path, kind)
    strategy = run(RecordingGrid(make_app(signed=signed), SITES), 2)
    assert (outcomes(strategy) == ClientOutcome.COUNTED).all()
    grid = RecordingGrid(make_app(signed=signed), SITES)
    other = X25519PrivateKey.generate().public_key().public_bytes_raw()
    grid.changes = {(0, wire.UPDATE): change_terms(keys=lambda keys: [*keys[:-1], other])}
    assert outcomes(run(grid))[0, 0] == ClientOutcome.REFUSED
    assert "the key of 'site 5' for this round is not signed by its owner" in caplog.text
    grid.changes = {(0, wire.UPDATE): change_terms(signatures=[])}
    assert outcomes(run(grid))[0, 0] == ClientOutcome.REFUSED
    assert "the keys of the clients are not signed" in caplog.text
    (tmp_path / "site 5.pub").unlink()
    assert (outcomes(run(RecordingGrid(make_app(signed=signed), SITES)))[0] == ClientOutcome.REFUSED).all()
    assert "'site 5' is in the sum, but not in its list of clients" in caplog.text


# ---- settings and claims


def test_sums_over_some_clients_are_refused():
    """The sums over changing sets of clients are linear equations for single directions."""
    with pytest.raises(ValueError, match=r"participation must be 1 with secure, but is 0\.5"):
        make_strategy(participation=0.5)
    with pytest.raises(ValueError, match="secure needs names or clients"):
        run(FaultyGrid(make_app(), SITES), names=())


def test_clients_that_report_on_batches_are_refused(caplog):
    """Their weights vary by chance at the same parameters: equations for single directions."""

    def factory(context):
        return quadratic(context.node_config["partition-id"], value_batch_size=4)

    with pytest.raises(ValueError, match="report on all rows"):
        run(FaultyGrid(simulated(factory), SITES))
    server = AttackingServer(simulated(factory))
    terms = server.make_terms(server.request_reports(0))
    assert not server.collect(dict.fromkeys(range(SITES), terms), 0)

    def with_noise(context):
        client = quadratic(context.node_config["partition-id"])
        if context.node_config["partition-id"] == 2:
            client.privacy_report = {"epsilon": 1.0, "delta": 1e-5, "deviations": [0.1, 0.1], "neighbours": "add"}
        return client

    strategy = run(FaultyGrid(simulated(with_noise), SITES))
    assert outcomes(strategy)[0, 2] == ClientOutcome.REFUSED
    assert "it reports on batches or with noise" in caplog.text


def test_incompatible_settings_are_rejected():
    with pytest.raises(ValueError, match="secure needs clip_norm"):
        make_strategy(clip_norm=None)
    with pytest.raises(ValueError, match="secure hides a client among 3"):
        make_strategy(names=["a", "b"])
    settings = {"alpha": 100.0, "step_size": 0.1, "tolerance": 0.1}
    for options, message in (
        ({"robust": 1}, "robust=1 compares"),
        ({"at_clients": Compression(up=TopK(0.5))}, "secure or Compression"),
    ):
        with pytest.raises(ValueError, match=message):
            run(FaultyGrid(make_app(), SITES), method=ss.SoftmaxSGM(**settings, **options))
    with pytest.raises(TypeError, match="secure must be a SecureAggregation"):
        fl.StrategySettings(clip_norm=1.0, secure=True)
    with pytest.raises(ValueError, match="min_clients"):
        fl.SecureAggregation(min_clients=1)


def sections():
    """Return the texts that say what secure aggregation protects."""
    for page in ("security.md", "federated/what-leaves-a-client.md"):
        text = (DOCS / page).read_text(encoding="utf-8")
        yield re.search(r"^## Secure aggregation\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)[1]
    yield fl.SecureAggregation.__doc__


def test_documentation_claims_protection_from_honest_but_curious_server_only():
    for section in sections():
        text = " ".join(section.split())
        assert "honest-but-curious" in text
        assert "no external cryptographic review" in text
        rows = re.split(r"\n(?=\||\n)", section)  # of tables, and paragraphs
        for sentence in re.split(r"(?<=[.])\s", "\n".join(" ".join(row.split()) for row in rows)):
            if re.search(r"\b(malicious|lying|lies|dishonest|deviates|attacks|active)\b", sentence):
                assert re.search(r"\b(not|Not|no|cannot|can)\b", sentence), sentence
                assert not re.search(r"\b(secure|safe|protects|prevents|guarantees)\b", sentence), sentence
