"""Secure aggregation: the server receives the weighted mean only, or the round is void."""

import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.secure_aggregation.crypto.shamir import create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

import softswitch as ss
import softswitch.flower as fl
from benchmarks import flat
from benchmarks.secure import CappedSGM
from benchmarks.secure import app_of as app_of_data
from flower_clients import FEATURES, FaultyGrid, quadratic, simulated, zeros
from softswitch.flower import messages as wire
from softswitch.flower import secure_aggregation as secrets
from softswitch.flower.secure_aggregation import (
    MASKED,
    ROUND_KEY,
    SHARES,
    TERMS,
    UNMASKING,
    AggregationTerms,
    dequantize,
    effective_clients,
    malicious_server_threshold,
    parse_terms,
    quantize,
)
from softswitch.methods import Compression, TopK
from softswitch.results.history import ClientOutcome
from softswitch_experiments.tasks.neyman_pearson import breast_cancer

pytestmark = pytest.mark.usefixtures("quiet")
RULE = ss.SoftmaxSGM(alpha=0.2, step_size=0.2, tolerance=0.1)
SITES, LIMIT = 6, 10.0


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

    def answers(self, kind, record):
        """Return the records of one kind in the last round, by site."""
        return {
            site: reply.content[record] for site, what, _, reply in self.messages if what == kind and reply is not None
        }


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


def run(grid, rounds=1, method=RULE, secure=None, **settings):
    """Return a strategy after its run."""
    options = {"report_timeout": 0.5, "update_timeout": 0.5, "wait": 0.0, "patience": 10**6, "clip_norm": LIMIT}
    options["simulation"] = True
    secure = secure or fl.SecureAggregation(min_clients=3)
    strategy = fl.SwitchingStrategy(method, **{**options, "secure": secure, **settings})
    strategy.start(grid, zeros(), rounds)
    return strategy


def sent_terms(grid):
    """Return the terms of all sums."""
    return [parse_terms(message.content[TERMS]) for _, kind, message, _ in grid.messages if kind == wire.UPDATE]


def outcomes(strategy):
    """Return the outcome of every client in every round."""
    return strategy.result.history.per_client.outcomes


def test_masked_sum_matches_plain_run():
    """With weights below the cap, runs differ by rounding only: 2⁻³⁰ of the limit in each entry."""
    grid = RecordingGrid(make_app(), SITES)
    masked = run(grid, 6, secure=fl.SecureAggregation(min_clients=2)).result
    assert max(max(terms.weights) for terms in sent_terms(grid)) < 0.5
    reference = fl.SwitchingStrategy(RULE, clip_norm=LIMIT, wait=0.0)
    reference.start(FaultyGrid(make_app(), SITES), zeros(), 6)
    assert (masked.history.per_client.outcomes == ClientOutcome.COUNTED).all()
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


def test_masks_cancel_in_full_sum_only():
    """Three clients: pairwise masks cancel, and each client's own mask remains until the shares arrive."""
    terms, pairs = make_terms()
    directions = [np.array([1.0, -2.0, 0.5]), np.array([0.25, 0.0, -1.0]), np.array([3.0, 1.0, 1.0])]
    contexts = [Context(7, i, {}, RecordDict(), {}) for i in range(3)]
    sent = []
    for i, context in enumerate(contexts):
        context.state[ROUND_KEY] = ConfigRecord({"round": 4, "private": pairs[i][0], "public": pairs[i][1]})
        answer = secrets.mask_direction({"w": directions[i]}, terms, terms.names[i], context, 2, None)
        sent.append((wire.from_record(answer[MASKED])["sum"], answer[SHARES]["shares"]))
    arrived = [0, 1, 2]
    unmaskings = []
    for i, context in enumerate(contexts):
        arrivals = ConfigRecord({"arrived": arrived, "shares": [sent[j][1][i] for j in arrived]})
        message = type("Asked", (), {"content": RecordDict({SHARES: arrivals})})
        unmaskings.append(secrets.unmask(message, context, 2))
        with pytest.raises(fl.RefusalError, match="already revealed"):
            secrets.unmask(message, context, 2)
    total = np.sum([numbers for numbers, _ in sent], axis=0, dtype=np.uint32)
    expected = 0.5 * directions[0] + 0.25 * directions[1] + 0.25 * directions[2]
    specs = {"w": wire.ArraySpec((3,), "float64")}
    assert np.abs(dequantize(total, LIMIT, specs)["w"] - expected).max() > 1e-3
    for i in arrived:
        seed = secrets.combine_shares(
            [unmaskings[0]["shares"][i], unmaskings[2]["shares"][i]]
        )  # two of three shares suffice
        total = total - secrets.generate_mask(seed, 3)
    np.testing.assert_allclose(dequantize(total, LIMIT, specs)["w"], expected, atol=3 * LIMIT / 2**31)
    assert all(record["masks"] == [] for record in unmaskings)


def make_terms():
    """Return AggregationTerms of three clients and their keys."""
    pairs = [secrets.generate_key_pair() for _ in range(3)]
    fields = {"round": 4, "names": ["a", "b", "c"], "keys": [public for _, public in pairs]}
    fields |= {"weights": [0.5, 0.25, 0.25], "shares": 2, "limit": LIMIT, "signatures": []}
    return AggregationTerms(**fields), pairs


def test_secret_sharing_threshold():
    secret = b"0123456789abcdef" * 2
    shares = create_shares(secret, 2, 3)
    assert all(secrets.combine_shares(list(pair)) == secret for pair in itertools.combinations(shares, 2))
    assert all(secret not in share for share in shares)


def test_quantization_round_trip():
    direction = {"b": np.array([[0.5, -0.25]]), "a": np.array([-3.0])}
    units = quantize(direction, 0.5, 4.0)
    assert units.tolist() == [2**32 - 3 * 2**27, 2**26, 2**32 - 2**25]  # −3·½·2³⁰/4, ½·½·2³⁰/4, −¼·½·2³⁰/4
    restored = dequantize(units, 4.0, wire.array_specs(direction))
    np.testing.assert_allclose(restored["a"], [-1.5])
    np.testing.assert_allclose(restored["b"], [[0.25, -0.125]])
    maximum = quantize({"w": np.array([4.0])}, 1.0, 4.0)
    assert dequantize(maximum, 4.0, {"w": wire.ArraySpec((1,), "float64")})["w"] == 4.0


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
    assert effective_clients(uncapped / uncapped.sum()) == pytest.approx(1.0)


class UnconstrainedObjective:
    """A client with the objective only."""

    objective, constraint, penalty, tolerance = 1.0, np.zeros(1), 0.0, 0.0


def direction_at_start(i):
    """Return the direction of site i at the start."""
    return quadratic(i).update(
        {"w": np.zeros(FEATURES, np.float32)}, fl.Task(0, 0, 1, 0.1, True), UnconstrainedObjective
    )["w"]


def expected_mean(sites, grid):
    """Return Σ r_i u_i / Σ r_i of these sites at the start, with the weights sent by the server."""
    weights = sent_terms(grid)[0].weights
    total = np.zeros(FEATURES)
    for i in sites:
        total += weights[i] * direction_at_start(i)
    return total / sum(weights[i] for i in sites)


@pytest.mark.parametrize("lost", [(2,), (0, 5)])
@pytest.mark.parametrize("fault", ["silent", "raises", "restarted", "refuses"])
def test_clients_lost_before_update_are_excluded(lost, fault):
    """Other clients reveal the pairwise masks, and the sum is divided by the remaining weight."""
    grid = RecordingGrid(make_app(), SITES)
    grid.faults = {(i, wire.UPDATE): fault for i in lost}
    strategy = run(grid)
    remaining = [i for i in range(SITES) if i not in lost]
    lost_outcome = ClientOutcome.REFUSED if fault in ("restarted", "refuses") else ClientOutcome.NO_UPDATE
    assert outcomes(strategy)[0].tolist() == [
        lost_outcome if i in lost else ClientOutcome.COUNTED for i in range(SITES)
    ]
    expected = -RULE.step_size * expected_mean(remaining, grid)
    np.testing.assert_allclose(strategy.result.last["w"], expected, atol=1e-6)


def test_client_lost_after_update_counts():
    """Other clients hold shares of its mask. If another direction is lost too, the round is void."""
    grid = RecordingGrid(make_app(), SITES)
    grid.faults = {(4, wire.UNMASK): "silent"}
    strategy = run(grid)
    assert (outcomes(strategy)[0] == ClientOutcome.COUNTED).all()
    full_mean = expected_mean(range(SITES), grid)
    np.testing.assert_allclose(strategy.result.last["w"], -RULE.step_size * full_mean, atol=1e-6)
    grid = RecordingGrid(make_app(), SITES)
    grid.faults = {(4, wire.UNMASK): "silent", (1, wire.UPDATE): "silent"}
    strategy = run(grid)
    assert (np.delete(outcomes(strategy)[0], 1) == ClientOutcome.VOID).all()
    np.testing.assert_array_equal(strategy.result.last["w"], 0)


@pytest.mark.parametrize(
    ("faults", "secure", "reason"),
    [
        ({(i, wire.UPDATE): "silent" for i in (0, 1, 2)}, {}, "3 of 6 directions came, with"),
        ({(i, wire.UPDATE): "silent" for i in (0, 1)}, {"min_weight": 0.9}, "4 of 6 directions came, with"),
        ({(0, wire.UPDATE): "silent"}, {"min_clients": 6}, "the effective number of clients is"),
        ({(i, wire.UNMASK): "silent" for i in (0, 1, 2)}, {}, "3 shares of the mask of 'site 0' came, 4 are needed"),
    ],
)
def test_unsafe_rounds_are_void(faults, secure, reason, caplog, tmp_path):
    grid = RecordingGrid(make_app(), SITES)
    grid.faults = faults
    method = ss.SoftmaxSGM(alpha=0.0, step_size=0.2, tolerance=0.1)
    options = {"min_clients": 3, **secure}
    strategy = run(
        grid, method=method, secure=fl.SecureAggregation(**options), min_clients=1, events=tmp_path / "events"
    )
    assert not (outcomes(strategy)[0] == ClientOutcome.COUNTED).any()
    np.testing.assert_array_equal(strategy.result.last["w"], 0)
    assert f"directions are not aggregated: {reason}" in caplog.text
    assert any(event["what"] == "not aggregated" for event in fl.read_events(tmp_path / "events"))


def test_too_few_weighted_clients_are_not_aggregated(caplog):
    """Only two sites have a constraint, so a round on the constraint would sum these two only."""

    def factory(context):
        client = quadratic(context.node_config["partition-id"])
        report = client.report
        if context.node_config["partition-id"] > 1:
            client.report = lambda params, task: wire.Values(report(params, task).objective, [-np.inf])
        else:
            client.report = lambda params, task: wire.Values(report(params, task).objective, [1.0])
        return client

    strategy = run(RecordingGrid(simulated(factory), SITES))
    assert (outcomes(strategy)[0] == ClientOutcome.VOID).all()
    assert "directions are not aggregated: the effective number of clients would be 2.00" in caplog.text


# ---- refusals of clients


def test_client_uses_each_key_once():
    """Repeated requests before and after unmasking: two directions with one mask would reveal their difference."""
    grid, refusals = RecordingGrid(make_app(), SITES), []

    def repeat(*kinds):
        first = {kind: message for site, kind, message, _ in grid.messages if site == 0}
        for kind in kinds:
            reply = FaultyGrid.deliver(grid, Message(first[kind].content, 100, kind, group_id="0"))
            refusals.append(wire.read_refusal(reply.content))

    grid.changes = {(1, wire.UPDATE): lambda content: repeat(wire.UPDATE)}
    assert (outcomes(run(grid))[0] == ClientOutcome.COUNTED).all()
    repeat(wire.UPDATE, wire.UNMASK)
    assert "a key masks one direction only" in refusals[0]
    assert "it lost its key for the round" in refusals[1]
    assert "or has already revealed" in refusals[2]


@pytest.mark.parametrize("min_clients", [4, 7])
def test_client_policy_sets_min_aggregate(min_clients, caplog):
    """The client's policy applies even if the server does not use secure aggregation."""
    method = ss.SoftmaxSGM(alpha=0.0, step_size=0.2, tolerance=0.1)
    policy = fl.ClientPolicy(min_rows=1, min_class_rows=1, min_secure_clients=min_clients)
    strategy = run(RecordingGrid(make_app(policy), SITES), method=method)
    all_counted = (outcomes(strategy)[0] == ClientOutcome.COUNTED).all()
    assert all_counted == (min_clients <= SITES)
    if min_clients > SITES:
        assert "the effective number of clients in the sum is 6.00, but it requires 7" in caplog.text
    grid = RecordingGrid(make_app(policy), SITES)
    strategy_without_masks = fl.SwitchingStrategy(RULE, wait=0.0)
    strategy_without_masks.start(grid, zeros(), 1)
    assert (strategy_without_masks.result.history.per_client.outcomes[0] == ClientOutcome.REFUSED).all()
    assert "it sends directions only with secure aggregation" in caplog.text


def change_terms(**changes):
    """Return a function that changes the terms sent by the server."""

    def change(content):
        record = content[TERMS]
        for name, value in changes.items():
            record[name] = value(record[name]) if callable(value) else value

    return change


def test_inconsistent_weights_cannot_be_unmasked(caplog):
    """A server that sends different weights to one site cannot unmask the sum."""
    grid = RecordingGrid(make_app(), SITES)
    small_weights = change_terms(weights=lambda weights: [1e-9 * weight for weight in weights])
    grid.changes = {(i, wire.UPDATE): small_weights for i in range(1, SITES)}
    strategy = run(grid)
    assert (outcomes(strategy)[0] == ClientOutcome.VOID).all()
    assert "1 shares of the mask of 'site 0' came, 4 are needed" in caplog.text  # shares are encrypted with the terms


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (change_terms(weights=lambda values: [1.0] + [0.0] * 5), "the effective number of clients in the sum is 1.00"),
        (change_terms(weights=lambda values: values[:-1]), "one name, key and weight"),
        (change_terms(weights=[0.5] * 6), "a sum of at most 1"),
        (change_terms(keys=lambda values: [*values[:-1], values[0]]), "one name, key and weight"),
        (change_terms(keys=lambda values: [*values[:-1], b"no key"]), "its terms contain an invalid key"),
        (
            change_terms(keys=lambda values: [secrets.generate_key_pair()[1], *values[1:]]),
            "its terms do not contain this client",
        ),
        (change_terms(shares=3), "more than half"),
        (change_terms(limit=0.0), "limit must be positive"),
        (change_terms(round=9), "it lost its key for the round"),
        (change_terms(names="abcdef"), "a list of names"),
        (lambda content: content.update({TERMS: ConfigRecord({})}), "a list of names"),
    ],
)
def test_unsafe_terms_are_refused(change, reason, caplog):
    grid = RecordingGrid(make_app(), SITES)
    grid.changes = {(0, wire.UPDATE): change}
    strategy = run(grid)
    assert outcomes(strategy)[0, 0] == ClientOutcome.REFUSED
    assert reason in caplog.text


@pytest.mark.parametrize(
    ("unmask_request", "reason"),
    [
        ({"arrived": [1, 2, 3, 4]}, "with its own"),
        ({"arrived": [0, 1, 2]}, "3 of 6 directions arrived"),
        ({"arrived": [0, 1, 1, 2]}, "or one twice"),
        ({"arrived": [0, 1, 2, 9]}, "not in the sum"),
        ({"arrived": "all"}, "a list of arrived"),
    ],
)
def test_masks_are_sent_only_after_enough_updates(unmask_request, reason, caplog):
    grid = RecordingGrid(make_app(), SITES)

    def change(content):
        content[SHARES]["arrived"] = unmask_request["arrived"]
        content[SHARES]["shares"] = [b""] * len(unmask_request["arrived"])

    grid.changes = {(0, wire.UNMASK): change}
    run(grid)
    assert reason in caplog.text
    assert "masks are not removed" in caplog.text


def test_client_reveals_one_mask_type_for_each_peer():
    """If the server claims to some clients only that site 1 arrived, it obtains both masks of no site."""
    grid = RecordingGrid(make_app(), SITES)

    def without(content):
        arrived = content[SHARES]["arrived"]
        position = arrived.index(1)
        for name in ("arrived", "shares"):
            content[SHARES][name] = [value for i, value in enumerate(content[SHARES][name]) if i != position]

    grid.changes = {(i, wire.UNMASK): without for i in (3, 4, 5)}
    strategy = run(grid)
    assert not (outcomes(strategy)[0] == ClientOutcome.COUNTED).all()
    unmaskings = grid.answers(wire.UNMASK, UNMASKING)
    for site in range(SITES):
        shares, masks = unmaskings[site]["shares"], unmaskings[site]["masks"]
        assert (len(shares), len(masks)) == ((5, 1) if site > 2 else (6, 0))


# ---- invalid messages from clients


@pytest.mark.parametrize(
    ("record", "content"),
    [
        (MASKED, wire.to_record({"sum": np.zeros(FEATURES + 1, np.uint32)})),
        (MASKED, wire.to_record({"sum": np.zeros(FEATURES, np.float32)})),
        (MASKED, ConfigRecord({"sum": 1})),
        (SHARES, ConfigRecord({"shares": [b""]})),
        (SHARES, ConfigRecord({"shares": [b"x" * 2000] * SITES})),
        (SHARES, ConfigRecord({"shares": [1] * SITES})),
    ],
)
def test_invalid_masked_direction_is_rejected(record, content):
    grid = RecordingGrid(make_app(), SITES)
    grid.changes = {(2, wire.UPDATE, "reply"): lambda sent: sent.update({record: content})}
    strategy = run(grid)
    assert outcomes(strategy)[0].tolist() == [
        ClientOutcome.BAD_UPDATE if i == 2 else ClientOutcome.COUNTED for i in range(SITES)
    ]


@pytest.mark.parametrize("key", [None, ConfigRecord({}), ConfigRecord({"key": b"none"}), ConfigRecord({"key": 3})])
def test_client_without_key_is_excluded(key):
    grid = RecordingGrid(make_app(), SITES)

    def change(content):
        del content[ROUND_KEY]
        if key is not None:
            content[ROUND_KEY] = key

    grid.changes = {(2, wire.REPORT, "reply"): change}
    assert outcomes(run(grid))[0].tolist() == [
        ClientOutcome.BAD_REPORT if i == 2 else ClientOutcome.COUNTED for i in range(SITES)
    ]


@pytest.mark.parametrize(
    "record",
    [
        ConfigRecord({}),
        ConfigRecord({"shares": [b""] * SITES, "masks": []}),
        ConfigRecord({"shares": [1], "masks": []}),
    ],
)
def test_missing_shares_of_one_client_are_tolerated(record):
    grid = RecordingGrid(make_app(), SITES)
    grid.changes = {(2, wire.UNMASK, "reply"): lambda sent: sent.update({UNMASKING: record})}
    assert (outcomes(run(grid))[0] == ClientOutcome.COUNTED).all()


def test_unreadable_shares_are_tolerated():
    grid = RecordingGrid(make_app(), SITES)

    def change(content):
        content[SHARES]["shares"] = [b"", b"x", *content[SHARES]["shares"][2:]]

    grid.changes = {(2, wire.UPDATE, "reply"): change}
    assert (outcomes(run(grid))[0] == ClientOutcome.COUNTED).all()


# ---- an active server


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
    strategy = run(RecordingGrid(make_app(signed=signed), SITES))
    assert (outcomes(strategy)[0] == ClientOutcome.COUNTED).all()
    grid = RecordingGrid(make_app(signed=signed), SITES)
    grid.changes = {(0, wire.UPDATE): change_terms(keys=lambda keys: [*keys[:-1], secrets.generate_key_pair()[1]])}
    assert outcomes(run(grid))[0, 0] == ClientOutcome.REFUSED
    assert "the key of 'site 5' for this round is not signed by its owner" in caplog.text
    grid.changes = {(0, wire.UPDATE): change_terms(signatures=[])}
    assert outcomes(run(grid))[0, 0] == ClientOutcome.REFUSED
    assert "the keys of the other clients are not signed" in caplog.text
    (tmp_path / "site 5.pub").unlink()
    assert (outcomes(run(RecordingGrid(make_app(signed=signed), SITES)))[0, :5] == ClientOutcome.REFUSED).all()
    assert "'site 5' is in the sum, but not in its list of clients" in caplog.text


def test_active_server_without_signatures_reads_direction():
    """The documented attack: the server replaces the keys of all other sites and removes every mask."""
    grid, server_keys = RecordingGrid(make_app(), SITES), [secrets.generate_key_pair() for _ in range(SITES)]
    captured = {}

    def intercept(content):
        content[TERMS]["keys"] = [content[TERMS]["keys"][0], *(public for _, public in server_keys[1:])]
        captured["terms"] = parse_terms(content[TERMS])

    grid.changes = {(0, wire.UPDATE): intercept}
    run(grid)
    (sent,) = (reply for site, kind, _, reply in grid.messages if site == 0 and kind == wire.UPDATE)
    terms, sealed_shares = captured["terms"], sent.content[SHARES]["shares"]
    public = bytes_to_public_key(terms.keys[0])
    shared_keys = {i: generate_shared_key(bytes_to_private_key(server_keys[i][0]), public) for i in range(1, SITES)}
    total, digest = wire.from_record(sent.content[MASKED])["sum"], terms.digest()
    shares = [
        secrets.decrypt(secrets.derive_share_key(shared_keys[i], 0, i, digest), sealed_shares[i]) for i in shared_keys
    ]
    total = total - secrets.generate_mask(secrets.combine_shares(shares[: terms.shares]), FEATURES)
    for i in shared_keys:
        total = total - secrets.generate_mask(secrets.derive_key(shared_keys[i], b"mask", digest), FEATURES)
    read = dequantize(total, LIMIT, {"w": wire.ArraySpec((FEATURES,), "float64")})["w"] / terms.weights[0]
    np.testing.assert_allclose(read, direction_at_start(0), atol=1e-6)


class UnmaskingExchange:
    """Clients that have sent masked directions, and a server that can send different arrivals to each."""

    def __init__(self, count, shares, min_clients=2):
        pairs = [secrets.generate_key_pair() for _ in range(count)]
        names, keys = [f"site {i}" for i in range(count)], [public for _, public in pairs]
        self.terms = AggregationTerms(4, names, keys, [1 / count] * count, shares, LIMIT, [])
        self.directions = np.random.default_rng(0).normal(size=(count, 3))
        self.everyone, self.min_clients, self.sums, self.sealed_shares, self._contexts = (
            range(count),
            min_clients,
            [],
            [],
            [],
        )
        for i, (private, public) in enumerate(pairs):
            context = Context(7, i, {}, RecordDict(), {})
            context.state[ROUND_KEY] = ConfigRecord({"round": 4, "private": private, "public": public})
            direction = {"w": self.directions[i]}
            sent = secrets.mask_direction(direction, self.terms, names[i], context, min_clients, None)
            self._contexts.append(context)
            self.sums.append(wire.from_record(sent[MASKED])["sum"])
            self.sealed_shares.append(sent[SHARES]["shares"])

    def unmask(self, i, arrived, sealed=None):
        """Return the shares and pairwise masks of client i by position, for these arrivals."""
        sealed = [self.sealed_shares[j][i] for j in arrived] if sealed is None else sealed
        record = ConfigRecord({"arrived": list(arrived), "shares": sealed})
        message = type("Asked", (), {"content": RecordDict({SHARES: record})})
        reply = secrets.unmask(message, self._contexts[i], self.min_clients)
        lost = [j for j in self.everyone if j not in arrived]
        return dict(zip(arrived, reply["shares"], strict=True)), dict(zip(lost, reply["masks"], strict=True))

    def sum_of(self, summed, shares, masks):
        """Return Σ u_i over some clients, from shares of their own masks and pairwise masks with the rest."""
        total = np.zeros(3, np.uint32)
        for i in summed:
            total += self.sums[i] - secrets.generate_mask(secrets.combine_shares(shares[i][: self.terms.shares]), 3)
            for j in set(self.everyone) - set(summed):
                mask = secrets.generate_mask(masks[i, j], 3)
                total = total - mask if j > i else total + mask
        return dequantize(total, LIMIT, {"w": wire.ArraySpec((3,), "float64")})["w"] * len(self.everyone)


def test_returned_shares_are_not_decrypted():
    """Decrypting returned shares would reveal the client's own mask, in addition to the pairwise masks."""
    sums = UnmaskingExchange(6, shares=4)
    shares, _ = sums.unmask(0, sums.everyone, sealed=[sums.sealed_shares[0][j] for j in sums.everyone])
    assert shares[0]
    assert all(share == b"" for place, share in shares.items() if place)


def revealed_sum(count, shares, group_size):
    """Return the sum over the first clients that a server learns by sending different arrivals."""
    sums = UnmaskingExchange(count, shares)
    group, other_clients = list(range(group_size)), list(range(group_size, count))
    colluding = other_clients[
        : shares - group_size
    ]  # they receive that ``group`` is lost, and ``group`` that they arrived
    own_shares, masks = {i: [] for i in group}, {}
    for i in sums.everyone:
        arrived = group + colluding if i in group else other_clients if i in colluding else list(sums.everyone)
        share, common = sums.unmask(i, arrived)
        for j in group:
            own_shares[j] += [share[j]] if j in share else []
            masks |= {(i, j): seed for j, seed in common.items()} | {(j, i): seed for j, seed in common.items()}
    return sums.sum_of(group, own_shares, masks), sums.directions[group].sum(axis=0)


@pytest.mark.parametrize(("count", "group_size"), [(5, 1), (6, 2), (9, 1), (9, 3)])
def test_false_arrivals_reveal_sums_below_threshold(count, group_size):
    """With a threshold of t of n clients, a malicious server learns sums of 2t − n, so signed keys need a larger t."""
    threshold = malicious_server_threshold(count, group_size)
    revealed, expected = revealed_sum(count, threshold, group_size)
    np.testing.assert_allclose(revealed, expected, atol=1e-6)
    with pytest.raises((ValueError, fl.RefusalError), match=r"combine|together|directions arrived"):
        revealed_sum(count, malicious_server_threshold(count, group_size + 1), group_size)


def test_signing_client_requires_higher_threshold(tmp_path, caplog):
    signed = make_signing_keys(tmp_path, "ed25519")
    grid = RecordingGrid(make_app(signed=signed), SITES)
    assert (outcomes(run(grid))[0] == ClientOutcome.COUNTED).all()
    assert sent_terms(grid)[0].shares == malicious_server_threshold(SITES, 3) == 5
    policy = fl.ClientPolicy(min_rows=1, min_class_rows=1, min_secure_clients=5)
    grid = RecordingGrid(make_app(policy, signed), SITES)
    method = ss.SoftmaxSGM(alpha=0.0, step_size=0.2, tolerance=0.1)
    assert (outcomes(run(grid, method=method))[0] == ClientOutcome.REFUSED).all()
    assert "5 of 6 clients can remove the masks, but it requires 6" in caplog.text


def test_client_refuses_dominant_weight(caplog):
    """An effective number of 5 can also mean one client with weight 0.44 among a thousand others."""
    terms, pairs = make_terms()
    names, keys = [f"site {i}" for i in range(200)], [pairs[0][1], *(b"%d" % i for i in range(199))]
    weights = [0.44] + [0.56 / 199] * 199
    assert effective_clients(weights) > 5
    context = Context(7, 0, {}, RecordDict(), {})
    context.state[ROUND_KEY] = ConfigRecord({"round": 4, "private": pairs[0][0], "public": pairs[0][1]})
    heavy = terms._replace(names=names, keys=keys, weights=weights, shares=101)
    with pytest.raises(fl.RefusalError, match="it would have 44% of the weight in the sum"):
        secrets.mask_direction({"w": np.ones(3)}, heavy, "site 0", context, 5, None)


# ---- incompatible settings


def test_incompatible_settings_are_rejected():
    secure = fl.SecureAggregation()
    for settings, message in (
        ({}, "secure needs clip_norm"),
        ({"clip_norm": 1.0, "names": ["a", "b"]}, "secure hides a client among 5"),
    ):
        with pytest.raises(ValueError, match=message):
            fl.SwitchingStrategy(RULE, secure=secure, **settings)
    for method, message in (
        (ss.SoftmaxSGM(alpha=100.0, step_size=0.1, tolerance=0.1, robust=1), "robust=1 compares"),
        (
            ss.SoftmaxSGM(alpha=100.0, step_size=0.1, tolerance=0.1, at_clients=Compression(up=TopK(0.5))),
            "secure or Compression",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            run(FaultyGrid(make_app(), SITES), method=method)
    with pytest.raises(TypeError, match="secure must be a SecureAggregation"):
        fl.StrategySettings(clip_norm=1.0, secure=True)
    for options in ({"min_clients": 1}, {"min_weight": 0.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            fl.SecureAggregation(**options)


def test_memory_and_automatic_settings():
    grid = RecordingGrid(make_app(), SITES)
    strategy = run(grid, 5, ss.Automatic(tolerance=0.1), participation=0.7, seed=1)
    assert "memory" in strategy.result.state.parts
    assert (outcomes(strategy) == ClientOutcome.COUNTED).all()


@pytest.mark.parametrize("weights", [[0.2] * 5, [0.5, 0.5], [1.0, 0.0], []])
def test_effective_number(weights):
    assert effective_clients(weights) == pytest.approx({5: 5.0, 2: 2.0 - (0.0 in weights), 0: 0.0}[len(weights)])


def test_masked_run_matches_capped_compiled_run():
    """The compiled run with capped weights has the same trajectory, and the cap changes it."""
    data = breast_cancer(6)
    settings = {"alpha": 50.0, "step_size": 0.5, "tolerance": 0.1}
    options = {"rounds": 4, "batch_size": None}
    compiled = flat.solve(data.problem, data.train, CappedSGM(most=1 / 3, **settings), **options)
    uncapped = flat.solve(data.problem, data.train, CappedSGM(most=1.0, **settings), **options)
    strategy = fl.SwitchingStrategy(
        ss.SoftmaxSGM(**settings), clip_norm=LIMIT, secure=fl.SecureAggregation(min_clients=3), simulation=True
    )
    strategy.start(fl.InProcessGrid(app_of_data(data), 6), fl.initial_arrays(data.problem.start), 4)
    (masked,) = strategy.result.last.values()
    np.testing.assert_allclose(masked, compiled.last, atol=2e-5)
    assert np.abs(np.asarray(uncapped.last) - masked).max() > 1e-3
