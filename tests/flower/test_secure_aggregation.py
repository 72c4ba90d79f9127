"""Sums of masked directions: the server gets the weighted mean and nothing of a single client, or a void round."""

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


class Overhearing(FaultyGrid):
    """A grid that keeps every message and answer, and can change either."""

    def __init__(self, app, nodes, **options):
        super().__init__(app, nodes, **options)
        self.heard, self.changes = [], {}

    def deliver(self, message):
        kind, site = message.metadata.message_type, message.metadata.dst_node_id - 100
        if (site, kind) in self.changes:
            self.changes[site, kind](message.content)
        reply = super().deliver(message)
        if reply is not None and (site, kind, "reply") in self.changes:
            self.changes[site, kind, "reply"](reply.content)
        self.heard.append((site, kind, message, reply))
        return reply

    def answers(self, kind, record):
        """The records of one kind, by site, of the last round."""
        return {
            site: reply.content[record] for site, what, _, reply in self.heard if what == kind and reply is not None
        }


def app_of(policy=None, signed=None):
    """Sites with a policy of their own, and keys to sign by."""

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
    """A strategy after its run."""
    options = {"report_timeout": 0.5, "update_timeout": 0.5, "wait": 0.0, "patience": 10**6, "clip_norm": LIMIT}
    secure = secure or fl.SecureAggregation(min_clients=3)
    strategy = fl.SwitchingStrategy(method, **{**options, "secure": secure, **settings})
    strategy.start(grid, zeros(), rounds)
    return strategy


def terms_told(grid):
    """The terms of all sums."""
    return [parse_terms(message.content[TERMS]) for _, kind, message, _ in grid.heard if kind == wire.UPDATE]


def outcomes(strategy):
    """Of every client in every round."""
    return strategy.result.history.per_client.outcomes


def test_the_sum_is_the_plain_run():
    """With weights below the cap nothing but rounding differs: 2⁻³⁰ of the limit in each entry."""
    grid = Overhearing(app_of(), SITES)
    masked = run(grid, 6, secure=fl.SecureAggregation(min_clients=2)).result
    assert max(max(terms.weights) for terms in terms_told(grid)) < 0.5
    plain = fl.SwitchingStrategy(RULE, clip_norm=LIMIT, wait=0.0)
    plain.start(FaultyGrid(app_of(), SITES), zeros(), 6)
    assert (masked.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    np.testing.assert_array_equal(masked.history.feasible, plain.result.history.feasible)
    np.testing.assert_allclose(masked.last["w"], plain.result.last["w"], atol=2e-7)
    assert np.abs(masked.last["w"]).max() > 0.1


def test_nothing_that_is_sent_is_a_direction():
    """No array of floats, and masked numbers that are spread over all of 0 … 2³², however small the direction."""
    grid = Overhearing(app_of(), SITES)
    run(grid, 10)
    seen = []
    for _, kind, _, reply in grid.heard:
        if kind == wire.UPDATE:
            assert wire.DIRECTION not in reply.content
            seen.append(wire.from_record(reply.content[MASKED])["sum"])
    seen = np.array(seen)
    assert seen.dtype == np.uint32
    shares = np.histogram(seen, bins=4, range=(0, 2**32))[0] / seen.size  # 180 numbers: deviation 0.032
    assert np.abs(shares - 0.25).max() < 0.16
    assert len(np.unique(seen)) == seen.size


def test_masks_cancel_in_the_sum_of_all_and_in_no_other():
    """Three clients by hand: the masks of a pair cancel, each one's own is left until the shares come."""
    terms, pairs = three()
    directions = [np.array([1.0, -2.0, 0.5]), np.array([0.25, 0.0, -1.0]), np.array([3.0, 1.0, 1.0])]
    contexts = [Context(7, i, {}, RecordDict(), {}) for i in range(3)]
    sent = []
    for i, context in enumerate(contexts):
        context.state[ROUND_KEY] = ConfigRecord({"round": 4, "private": pairs[i][0], "public": pairs[i][1]})
        answer = secrets.mask_direction({"w": directions[i]}, terms, terms.names[i], context, 2, None)
        sent.append((wire.from_record(answer[MASKED])["sum"], answer[SHARES]["shares"]))
    arrived = [0, 1, 2]
    told = []
    for i, context in enumerate(contexts):
        letters = ConfigRecord({"arrived": arrived, "shares": [sent[j][1][i] for j in arrived]})
        message = type("Asked", (), {"content": RecordDict({SHARES: letters})})
        told.append(secrets.unmask(message, context, 2))
        with pytest.raises(fl.RefusalError, match="already revealed"):
            secrets.unmask(message, context, 2)
    total = np.sum([numbers for numbers, _ in sent], axis=0, dtype=np.uint32)
    expected = 0.5 * directions[0] + 0.25 * directions[1] + 0.25 * directions[2]
    like = {"w": wire.ArraySpec((3,), "float64")}
    assert np.abs(dequantize(total, LIMIT, like)["w"] - expected).max() > 1e-3
    for i in arrived:
        own = secrets.combine_shares([told[0]["shares"][i], told[2]["shares"][i]])  # two of three are enough
        total = total - secrets.generate_mask(own, 3)
    np.testing.assert_allclose(dequantize(total, LIMIT, like)["w"], expected, atol=3 * LIMIT / 2**31)
    assert all(record["masks"] == [] for record in told)


def three():
    """AggregationTerms of three clients, and their keys."""
    pairs = [secrets.generate_key_pair() for _ in range(3)]
    told = {"round": 4, "names": ["a", "b", "c"], "keys": [public for _, public in pairs]}
    told |= {"weights": [0.5, 0.25, 0.25], "shares": 2, "limit": LIMIT, "signatures": []}
    return AggregationTerms(**told), pairs


def test_one_share_tells_nothing_and_two_tell_all():
    own = b"0123456789abcdef" * 2
    shares = create_shares(own, 2, 3)
    assert all(secrets.combine_shares(list(two)) == own for two in itertools.combinations(shares, 2))
    assert all(own not in share for share in shares)


def test_whole_numbers_and_back():
    direction = {"b": np.array([[0.5, -0.25]]), "a": np.array([-3.0])}
    units = quantize(direction, 0.5, 4.0)
    assert units.tolist() == [2**32 - 3 * 2**27, 2**26, 2**32 - 2**25]  # −3·½·2³⁰/4, ½·½·2³⁰/4, −¼·½·2³⁰/4
    back = dequantize(units, 4.0, wire.array_specs(direction))
    np.testing.assert_allclose(back["a"], [-1.5])
    np.testing.assert_allclose(back["b"], [[0.25, -0.125]])
    most = quantize({"w": np.array([4.0])}, 1.0, 4.0)
    assert dequantize(most, 4.0, {"w": wire.ArraySpec((1,), "float64")})["w"] == 4.0


def test_nobody_weighs_more_than_the_cap():
    """At α = 6400 one client has all of the weight; under a cap of a third at least three share it."""
    sharp = ss.SoftmaxSGM(alpha=6400.0, step_size=0.1, tolerance=0.1)
    grid = Overhearing(app_of(), SITES)
    result = run(grid, 5, sharp).result
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    told = terms_told(grid)
    assert max(max(terms.weights) for terms in told) <= 1.001 / 3
    assert min(effective_clients(terms.weights) for terms in told) > 2.97
    reports = result.history.per_client.objective[0]
    alone = np.exp(6400.0 * (reports - reports.max()))
    assert effective_clients(alone / alone.sum()) == pytest.approx(1.0)


class Plain:
    """The objective by itself."""

    objective, constraint, penalty, tolerance = 1.0, np.zeros(1), 0.0, 0.0


def own_direction(i):
    """Of site i at the start."""
    return quadratic(i).update({"w": np.zeros(FEATURES, np.float32)}, fl.Task(0, 0, 1, 0.1, True), Plain)["w"]


def mean_of(sites, grid):
    """Σ r_i u_i / Σ r_i of some sites at the start, by the weights that the server told."""
    weights = terms_told(grid)[0].weights
    total = np.zeros(FEATURES)
    for i in sites:
        total += weights[i] * own_direction(i)
    return total / sum(weights[i] for i in sites)


@pytest.mark.parametrize("lost", [(2,), (0, 5)])
@pytest.mark.parametrize("fault", ["silent", "raises", "restarted", "refuses"])
def test_clients_lost_before_their_direction_are_left_out_of_the_mean(lost, fault):
    """The others tell the masks in common with them; the sum is divided by the weight that is left."""
    grid = Overhearing(app_of(), SITES)
    grid.faults = {(i, wire.UPDATE): fault for i in lost}
    strategy = run(grid)
    here = [i for i in range(SITES) if i not in lost]
    gone = ClientOutcome.REFUSED if fault in ("restarted", "refuses") else ClientOutcome.NO_UPDATE
    assert outcomes(strategy)[0].tolist() == [gone if i in lost else ClientOutcome.COUNTED for i in range(SITES)]
    expected = -RULE.step_size * mean_of(here, grid)
    np.testing.assert_allclose(strategy.result.last["w"], expected, atol=1e-6)


def test_a_client_lost_after_its_direction_still_counts():
    """Shares of its own mask are with the others; where another's direction is lost too, the round is void."""
    grid = Overhearing(app_of(), SITES)
    grid.faults = {(4, wire.UNMASK): "silent"}
    strategy = run(grid)
    assert (outcomes(strategy)[0] == ClientOutcome.COUNTED).all()
    everyone = mean_of(range(SITES), grid)
    np.testing.assert_allclose(strategy.result.last["w"], -RULE.step_size * everyone, atol=1e-6)
    grid = Overhearing(app_of(), SITES)
    grid.faults = {(4, wire.UNMASK): "silent", (1, wire.UPDATE): "silent"}
    strategy = run(grid)
    assert (np.delete(outcomes(strategy)[0], 1) == ClientOutcome.VOID).all()
    np.testing.assert_array_equal(strategy.result.last["w"], 0)


@pytest.mark.parametrize(
    ("faults", "secure", "why"),
    [
        ({(i, wire.UPDATE): "silent" for i in (0, 1, 2)}, {}, "3 of 6 directions came, with"),
        ({(i, wire.UPDATE): "silent" for i in (0, 1)}, {"min_weight": 0.9}, "4 of 6 directions came, with"),
        ({(0, wire.UPDATE): "silent"}, {"min_clients": 6}, "the effective number of clients is"),
        ({(i, wire.UNMASK): "silent" for i in (0, 1, 2)}, {}, "3 shares of the mask of 'site 0' came, 4 are needed"),
    ],
)
def test_rounds_that_would_show_too_much_or_cannot_be_unmasked_are_void(faults, secure, why, caplog, tmp_path):
    grid = Overhearing(app_of(), SITES)
    grid.faults = faults
    alike = ss.SoftmaxSGM(alpha=0.0, step_size=0.2, tolerance=0.1)
    options = {"min_clients": 3, **secure}
    strategy = run(
        grid, method=alike, secure=fl.SecureAggregation(**options), min_clients=1, events=tmp_path / "events"
    )
    assert not (outcomes(strategy)[0] == ClientOutcome.COUNTED).any()
    np.testing.assert_array_equal(strategy.result.last["w"], 0)
    assert f"directions are not aggregated: {why}" in caplog.text
    assert any(event["what"] == "not aggregated" for event in fl.read_events(tmp_path / "events"))


def test_too_few_clients_that_weigh_anything_are_not_summed(caplog):
    """Only two sites have a constraint: in a round of it they alone would be in the sum."""

    def factory(context):
        client = quadratic(context.node_config["partition-id"])
        report = client.report
        if context.node_config["partition-id"] > 1:
            client.report = lambda params, task: wire.Values(report(params, task).objective, [-np.inf])
        else:
            client.report = lambda params, task: wire.Values(report(params, task).objective, [1.0])
        return client

    strategy = run(Overhearing(simulated(factory), SITES))
    assert (outcomes(strategy)[0] == ClientOutcome.VOID).all()
    assert "directions are not aggregated: the effective number of clients would be 2.00" in caplog.text


# ---- what a client refuses, whatever the server says


def test_a_client_sends_one_masked_direction_a_key_and_answers_once():
    """Asked again, before and after the masks are off: two directions under one mask would tell their difference."""
    grid, said = Overhearing(app_of(), SITES), []

    def again(*kinds):
        first = {kind: message for site, kind, message, _ in grid.heard if site == 0}
        for kind in kinds:
            reply = FaultyGrid.deliver(grid, Message(first[kind].content, 100, kind, group_id="0"))
            said.append(wire.read_refusal(reply.content))

    grid.changes = {(1, wire.UPDATE): lambda content: again(wire.UPDATE)}
    assert (outcomes(run(grid))[0] == ClientOutcome.COUNTED).all()
    again(wire.UPDATE, wire.UNMASK)
    assert "a key masks one direction only" in said[0]
    assert "it lost its key for the round" in said[1]
    assert "or has already revealed" in said[2]


@pytest.mark.parametrize("least", [4, 7])
def test_a_client_asks_for_company_of_its_own(least, caplog):
    """Its policy has the last word, also where the server does not mask at all."""
    alike = ss.SoftmaxSGM(alpha=0.0, step_size=0.2, tolerance=0.1)
    policy = fl.ClientPolicy(min_rows=1, min_class_rows=1, min_secure_clients=least)
    strategy = run(Overhearing(app_of(policy), SITES), method=alike)
    counted = (outcomes(strategy)[0] == ClientOutcome.COUNTED).all()
    assert counted == (least <= SITES)
    if least > SITES:
        assert "the effective number of clients in the sum is 6.00, but it requires 7" in caplog.text
    grid = Overhearing(app_of(policy), SITES)
    plain = fl.SwitchingStrategy(RULE, wait=0.0)
    plain.start(grid, zeros(), 1)
    assert (plain.result.history.per_client.outcomes[0] == ClientOutcome.REFUSED).all()
    assert "it sends directions only with secure aggregation" in caplog.text


def changed(**told):
    """Change what the server tells of the terms."""

    def change(content):
        record = content[TERMS]
        for name, value in told.items():
            record[name] = value(record[name]) if callable(value) else value

    return change


def test_weights_told_differently_do_not_cancel(caplog):
    """A server that tells one site that all weigh alike, and the others that they weigh nothing, gets nothing."""
    grid = Overhearing(app_of(), SITES)
    tiny = changed(weights=lambda own: [1e-9 * weight for weight in own])
    grid.changes = {(i, wire.UPDATE): tiny for i in range(1, SITES)}
    strategy = run(grid)
    assert (outcomes(strategy)[0] == ClientOutcome.VOID).all()
    assert "1 shares of the mask of 'site 0' came, 4 are needed" in caplog.text  # letters are sealed by the same terms


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (changed(weights=lambda own: [1.0] + [0.0] * 5), "the effective number of clients in the sum is 1.00"),
        (changed(weights=lambda own: own[:-1]), "one name, key and weight"),
        (changed(weights=[0.5] * 6), "a sum of at most 1"),
        (changed(keys=lambda own: [*own[:-1], own[0]]), "one name, key and weight"),
        (changed(keys=lambda own: [*own[:-1], b"no key"]), "its terms contain an invalid key"),
        (changed(keys=lambda own: [secrets.generate_key_pair()[1], *own[1:]]), "its terms do not contain this client"),
        (changed(shares=3), "more than half"),
        (changed(limit=0.0), "limit must be positive"),
        (changed(round=9), "it lost its key for the round"),
        (changed(names="abcdef"), "a list of names"),
        (lambda content: content.update({TERMS: ConfigRecord({})}), "a list of names"),
    ],
)
def test_a_client_refuses_terms_that_do_not_hide_it(change, why, caplog):
    grid = Overhearing(app_of(), SITES)
    grid.changes = {(0, wire.UPDATE): change}
    strategy = run(grid)
    assert outcomes(strategy)[0, 0] == ClientOutcome.REFUSED
    assert why in caplog.text


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"arrived": [1, 2, 3, 4]}, "with its own"),
        ({"arrived": [0, 1, 2]}, "3 of 6 directions arrived"),
        ({"arrived": [0, 1, 1, 2]}, "or one twice"),
        ({"arrived": [0, 1, 2, 9]}, "not in the sum"),
        ({"arrived": "all"}, "a list of arrived"),
    ],
)
def test_a_client_tells_masks_only_where_enough_arrived(asked, why, caplog):
    grid = Overhearing(app_of(), SITES)

    def change(content):
        content[SHARES]["arrived"] = asked["arrived"]
        content[SHARES]["shares"] = [b""] * len(asked["arrived"])

    grid.changes = {(0, wire.UNMASK): change}
    run(grid)
    assert why in caplog.text
    assert "masks are not removed" in caplog.text


def test_of_another_client_either_its_own_mask_or_the_common_one_is_told():
    """The server says to some that site 1 arrived, to others that it did not: it gets no site's both."""
    grid = Overhearing(app_of(), SITES)

    def without(content):
        arrived = content[SHARES]["arrived"]
        place = arrived.index(1)
        for name in ("arrived", "shares"):
            content[SHARES][name] = [own for i, own in enumerate(content[SHARES][name]) if i != place]

    grid.changes = {(i, wire.UNMASK): without for i in (3, 4, 5)}
    strategy = run(grid)
    assert not (outcomes(strategy)[0] == ClientOutcome.COUNTED).all()
    told = grid.answers(wire.UNMASK, UNMASKING)
    for site in range(SITES):
        shares, masks = told[site]["shares"], told[site]["masks"]
        assert (len(shares), len(masks)) == ((5, 1) if site > 2 else (6, 0))


# ---- what clients send that cannot be used


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
def test_a_masked_direction_that_is_none_is_rejected(record, content):
    grid = Overhearing(app_of(), SITES)
    grid.changes = {(2, wire.UPDATE, "reply"): lambda sent: sent.update({record: content})}
    strategy = run(grid)
    assert outcomes(strategy)[0].tolist() == [
        ClientOutcome.BAD_UPDATE if i == 2 else ClientOutcome.COUNTED for i in range(SITES)
    ]


@pytest.mark.parametrize("key", [None, ConfigRecord({}), ConfigRecord({"key": b"none"}), ConfigRecord({"key": 3})])
def test_a_client_without_a_key_is_not_in_the_round(key):
    grid = Overhearing(app_of(), SITES)

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
def test_one_client_that_tells_no_shares_holds_nobody_up(record):
    grid = Overhearing(app_of(), SITES)
    grid.changes = {(2, wire.UNMASK, "reply"): lambda sent: sent.update({UNMASKING: record})}
    assert (outcomes(run(grid))[0] == ClientOutcome.COUNTED).all()


def test_letters_that_cannot_be_read_hold_nobody_up():
    grid = Overhearing(app_of(), SITES)

    def change(content):
        content[SHARES]["shares"] = [b"", b"x", *content[SHARES]["shares"][2:]]

    grid.changes = {(2, wire.UPDATE, "reply"): change}
    assert (outcomes(run(grid))[0] == ClientOutcome.COUNTED).all()


# ---- an active server


def signing(tmp_path, kind):
    """Keys of all sites in files; and how site i signs."""
    for i in range(SITES):
        if kind == "ed25519":
            own = ed25519.Ed25519PrivateKey.generate()
        else:
            own = ec.derive_private_key(1000 + i, ec.SECP384R1())
        nothing = serialization.NoEncryption()
        form = serialization.PrivateFormat
        text = own.private_bytes(serialization.Encoding.PEM, form.OpenSSH if i % 2 else form.PKCS8, nothing)
        (tmp_path / f"site {i}").write_bytes(text)
        public = own.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        (tmp_path / f"site {i}.pub").write_bytes(public)
    return lambda i: fl.SigningKeys(tmp_path / f"site {i}", tmp_path)


@pytest.mark.parametrize("kind", ["ecdsa", "ed25519"])
def test_signed_keys_keep_the_server_out(tmp_path, kind, caplog):
    signed = signing(tmp_path, kind)
    strategy = run(Overhearing(app_of(signed=signed), SITES))
    assert (outcomes(strategy)[0] == ClientOutcome.COUNTED).all()
    grid = Overhearing(app_of(signed=signed), SITES)
    grid.changes = {(0, wire.UPDATE): changed(keys=lambda own: [*own[:-1], secrets.generate_key_pair()[1]])}
    assert outcomes(run(grid))[0, 0] == ClientOutcome.REFUSED
    assert "the key of 'site 5' for this round is not signed by its owner" in caplog.text
    grid.changes = {(0, wire.UPDATE): changed(signatures=[])}
    assert outcomes(run(grid))[0, 0] == ClientOutcome.REFUSED
    assert "the keys of the other clients are not signed" in caplog.text
    (tmp_path / "site 5.pub").unlink()
    assert (outcomes(run(Overhearing(app_of(signed=signed), SITES)))[0, :5] == ClientOutcome.REFUSED).all()
    assert "'site 5' is in the sum, but not in its list of clients" in caplog.text


def test_without_signatures_an_active_server_reads_a_direction():
    """What the page says: it gives a site keys of its own for all others, and takes every mask off."""
    grid, own = Overhearing(app_of(), SITES), [secrets.generate_key_pair() for _ in range(SITES)]
    kept = {}

    def in_the_middle(content):
        content[TERMS]["keys"] = [content[TERMS]["keys"][0], *(public for _, public in own[1:])]
        kept["terms"] = parse_terms(content[TERMS])

    grid.changes = {(0, wire.UPDATE): in_the_middle}
    run(grid)
    (sent,) = (reply for site, kind, _, reply in grid.heard if site == 0 and kind == wire.UPDATE)
    terms, letters = kept["terms"], sent.content[SHARES]["shares"]
    public = bytes_to_public_key(terms.keys[0])
    common = {i: generate_shared_key(bytes_to_private_key(own[i][0]), public) for i in range(1, SITES)}
    total, digest = wire.from_record(sent.content[MASKED])["sum"], terms.digest()
    shares = [secrets.decrypt(secrets.derive_share_key(common[i], 0, i, digest), letters[i]) for i in common]
    total = total - secrets.generate_mask(secrets.combine_shares(shares[: terms.shares]), FEATURES)
    for i in common:
        total = total - secrets.generate_mask(secrets.derive_key(common[i], b"mask", digest), FEATURES)
    read = dequantize(total, LIMIT, {"w": wire.ArraySpec((FEATURES,), "float64")})["w"] / terms.weights[0]
    np.testing.assert_allclose(read, own_direction(0), atol=1e-6)


class AtTheThirdExchange:
    """Clients that have sent their directions under masks, and a server that may say to each what it likes."""

    def __init__(self, many, shares, least=2):
        pairs = [secrets.generate_key_pair() for _ in range(many)]
        names, keys = [f"site {i}" for i in range(many)], [public for _, public in pairs]
        self.terms = AggregationTerms(4, names, keys, [1 / many] * many, shares, LIMIT, [])
        self.directions = np.random.default_rng(0).normal(size=(many, 3))
        self.everyone, self.least, self.sums, self.letters, self._contexts = range(many), least, [], [], []
        for i, (private, public) in enumerate(pairs):
            context = Context(7, i, {}, RecordDict(), {})
            context.state[ROUND_KEY] = ConfigRecord({"round": 4, "private": private, "public": public})
            own = {"w": self.directions[i]}
            sent = secrets.mask_direction(own, self.terms, names[i], context, least, None)
            self._contexts.append(context)
            self.sums.append(wire.from_record(sent[MASKED])["sum"])
            self.letters.append(sent[SHARES]["shares"])

    def tells(self, i, arrived, letters=None):
        """By place: the shares of client i, told that these arrived, and its masks in common with the others."""
        letters = [self.letters[j][i] for j in arrived] if letters is None else letters
        record = ConfigRecord({"arrived": list(arrived), "shares": letters})
        message = type("Asked", (), {"content": RecordDict({SHARES: record})})
        told = secrets.unmask(message, self._contexts[i], self.least)
        lost = [j for j in self.everyone if j not in arrived]
        return dict(zip(arrived, told["shares"], strict=True)), dict(zip(lost, told["masks"], strict=True))

    def sum_of(self, some, shares, masks):
        """Σ u_i over some, by shares of each one's own mask and its masks in common with the rest."""
        total = np.zeros(3, np.uint32)
        for i in some:
            total += self.sums[i] - secrets.generate_mask(secrets.combine_shares(shares[i][: self.terms.shares]), 3)
            for j in set(self.everyone) - set(some):
                common = secrets.generate_mask(masks[i, j], 3)
                total = total - common if j > i else total + common
        return dequantize(total, LIMIT, {"w": wire.ArraySpec((3,), "float64")})["w"] * len(self.everyone)


def test_letters_carried_back_to_their_sender_are_not_read():
    """Read, they would be all shares of its own mask; and whoever is told that it is lost tells the masks in common."""
    sums = AtTheThirdExchange(6, shares=4)
    shares, _ = sums.tells(0, sums.everyone, letters=[sums.letters[0][j] for j in sums.everyone])
    assert shares[0]
    assert all(share == b"" for place, share in shares.items() if place)


def lies(many, shares, together):
    """The sum over the first clients as a server sees it that says to some that they arrived, to others that not."""
    sums = AtTheThirdExchange(many, shares)
    some, rest = list(range(together)), list(range(together, many))
    with_them = rest[: shares - together]  # they are told that ``some`` are lost, and ``some`` that they arrived
    found, masks = {i: [] for i in some}, {}
    for i in sums.everyone:
        arrived = some + with_them if i in some else rest if i in with_them else list(sums.everyone)
        own, common = sums.tells(i, arrived)
        for j in some:
            found[j] += [own[j]] if j in own else []
            masks |= {(i, j): seed for j, seed in common.items()} | {(j, i): seed for j, seed in common.items()}
    return sums.sum_of(some, found, masks), sums.directions[some].sum(axis=0)


@pytest.mark.parametrize(("many", "together"), [(5, 1), (6, 2), (9, 1), (9, 3)])
def test_lies_about_who_arrived_show_a_sum_of_few_unless_more_clients_share_masks(many, together):
    """Where t clients of n take masks off, a lying server sees sums of 2t − n: so with signed keys t is larger."""
    enough = malicious_server_threshold(many, together)
    seen, true = lies(many, enough, together)
    np.testing.assert_allclose(seen, true, atol=1e-6)
    with pytest.raises((ValueError, fl.RefusalError), match=r"combine|together|directions arrived"):
        lies(many, malicious_server_threshold(many, together + 1), together)


def test_a_client_that_signs_asks_for_as_many_shares(tmp_path, caplog):
    signed = signing(tmp_path, "ed25519")
    grid = Overhearing(app_of(signed=signed), SITES)
    assert (outcomes(run(grid))[0] == ClientOutcome.COUNTED).all()
    assert terms_told(grid)[0].shares == malicious_server_threshold(SITES, 3) == 5
    policy = fl.ClientPolicy(min_rows=1, min_class_rows=1, min_secure_clients=5)
    grid = Overhearing(app_of(policy, signed), SITES)
    alike = ss.SoftmaxSGM(alpha=0.0, step_size=0.2, tolerance=0.1)
    assert (outcomes(run(grid, method=alike))[0] == ClientOutcome.REFUSED).all()
    assert "5 of 6 clients can remove the masks, but it requires 6" in caplog.text


def test_a_client_is_hidden_by_others_that_weigh_as_much(caplog):
    """An effective number of 5 is also that of one with 0.44 of the weight and a thousand others."""
    terms, pairs = three()
    names, keys = [f"site {i}" for i in range(200)], [pairs[0][1], *(b"%d" % i for i in range(199))]
    weights = [0.44] + [0.56 / 199] * 199
    assert effective_clients(weights) > 5
    context = Context(7, 0, {}, RecordDict(), {})
    context.state[ROUND_KEY] = ConfigRecord({"round": 4, "private": pairs[0][0], "public": pairs[0][1]})
    heavy = terms._replace(names=names, keys=keys, weights=weights, shares=101)
    with pytest.raises(fl.RefusalError, match="it would have 44% of the weight in the sum"):
        secrets.mask_direction({"w": np.ones(3)}, heavy, "site 0", context, 5, None)


# ---- what does not go together


def test_what_does_not_go_together_is_refused():
    secure = fl.SecureAggregation()
    for settings, why in (
        ({}, "secure needs clip_norm"),
        ({"clip_norm": 1.0, "names": ["a", "b"]}, "secure hides a client among 5"),
    ):
        with pytest.raises(ValueError, match=why):
            fl.SwitchingStrategy(RULE, secure=secure, **settings)
    for method, why in (
        (ss.SoftmaxSGM(alpha=100.0, step_size=0.1, tolerance=0.1, robust=1), "robust=1 compares"),
        (
            ss.SoftmaxSGM(alpha=100.0, step_size=0.1, tolerance=0.1, at_clients=Compression(up=TopK(0.5))),
            "secure or Compression",
        ),
    ):
        with pytest.raises(ValueError, match=why):
            run(FaultyGrid(app_of(), SITES), method=method)
    with pytest.raises(TypeError, match="secure must be a SecureAggregation"):
        fl.StrategySettings(clip_norm=1.0, secure=True)
    for wrong in ({"min_clients": 1}, {"min_weight": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            fl.SecureAggregation(**wrong)


def test_it_goes_with_memory_and_settings_that_choose_themselves():
    grid = Overhearing(app_of(), SITES)
    strategy = run(grid, 5, ss.Automatic(tolerance=0.1), participation=0.7, seed=1)
    assert "memory" in strategy.result.state.parts
    assert (outcomes(strategy) == ClientOutcome.COUNTED).all()


@pytest.mark.parametrize("weights", [[0.2] * 5, [0.5, 0.5], [1.0, 0.0], []])
def test_the_effective_number(weights):
    assert effective_clients(weights) == pytest.approx({5: 5.0, 2: 2.0 - (0.0 in weights), 0: 0.0}[len(weights)])


def test_a_masked_run_is_the_compiled_engines_with_a_cap():
    """As the benchmark of the cap has it; and there the cap is what changes the run."""
    data = breast_cancer(6)
    settings = {"alpha": 50.0, "step_size": 0.5, "tolerance": 0.1}
    options = {"rounds": 4, "batch_size": None}
    ours = flat.solve(data.problem, data.train, CappedSGM(most=1 / 3, **settings), **options)
    uncapped = flat.solve(data.problem, data.train, CappedSGM(most=1.0, **settings), **options)
    strategy = fl.SwitchingStrategy(
        ss.SoftmaxSGM(**settings), clip_norm=LIMIT, secure=fl.SecureAggregation(min_clients=3)
    )
    strategy.start(fl.InProcessGrid(app_of_data(data), 6), fl.initial_arrays(data.problem.start), 4)
    (theirs,) = strategy.result.last.values()
    np.testing.assert_allclose(theirs, ours.last, atol=2e-5)
    assert np.abs(np.asarray(uncapped.last) - theirs).max() > 1e-3
