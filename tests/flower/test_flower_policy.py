"""What a client takes part in is its own decision; and both sides say which protocol they speak."""

import json
import math
import zlib
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from torch.utils.data import DataLoader, TensorDataset

import softswitch as ss
import softswitch.flower as fl
from flower_clients import FaultyGrid, quadratic, simulated, zeros
from member_clients import start
from softswitch.certification.intervals import ErrorLevels
from softswitch.flower import membership
from softswitch.flower import messages as wire
from softswitch.flower.jax_client import flatten_params
from softswitch.methods.messages import LocalLoss
from softswitch.oracles.batch_sizes import draw_rows
from softswitch.results.history import ClientOutcome
from softswitch_experiments.tasks.neyman_pearson import neyman_pearson

pytestmark = pytest.mark.usefixtures("quiet")


def policy_of(**changes):
    """One that looks at what is changed only."""
    return fl.ClientPolicy(**{"min_rows": 1, "min_class_rows": 1, **changes})


def grid_with(policy, many=2, **changes):
    """Client 0 has a policy of its own, the others have none."""
    plain = simulated(lambda context: quadratic(context.node_config["partition-id"]))
    strict = fl.client_app(lambda context: quadratic(0, **changes), policy=policy)
    return FaultyGrid(lambda message, context: (strict if context.node_id == 100 else plain)(message, context), many)


def test_a_client_takes_part_in_the_runs_it_wants(caplog):
    assert start(grid_with(policy_of(runs=lambda context: context.run_id > 0))).result.names[0] == "site 0"
    assert start(grid_with(policy_of(runs={10**9}))).result.names == ("site 1",)
    assert "it refused: it does not participate in run" in caplog.text
    grid = grid_with(None)
    assert start(grid_with(policy_of(runs=[grid.run + 1]))).result.names == ("site 0", "site 1")
    for wrong in ("abc", ["run"]):
        with pytest.raises((TypeError, ValueError), match="runs"):
            policy_of(runs=wrong)
    with pytest.raises(ValueError, match="max_rounds"):
        policy_of(max_rounds=-1)


@pytest.mark.parametrize(
    ("policy", "changes", "why"),
    [
        ({"min_rows": 9}, {}, "it has 8 rows, but its policy requires 9"),
        ({"min_rows": 5}, {"batch_size": 4}, "it has 4 value rows"),
        ({"min_rows": 5}, {"held_out": {"x": np.zeros((3, 3), np.float32)}}, "it has 3 held out rows"),
        ({"min_class_rows": 3}, {}, "its classes are not declared"),
    ],
)
def test_a_client_with_too_few_rows_refuses(policy, changes, why, caplog):
    assert start(grid_with(policy_of(**policy), **changes)).result.names == ("site 1",)
    assert why in caplog.text


@pytest.mark.parametrize(("sizes", "takes_part"), [({"sick": 3, "well": 5}, True), ([2, 6], False), ([], False)])
def test_the_smallest_class_counts(sizes, takes_part):
    def factory(context):
        client = quadratic(context.node_config["partition-id"])
        client.class_rows = sizes
        return client

    app = fl.client_app(factory, policy=policy_of(min_class_rows=3, min_rows=8))
    if takes_part:
        assert start(FaultyGrid(app, 2)).result.status.ok
    else:
        with pytest.raises(TimeoutError):
            start(FaultyGrid(app, 2))


def rows_of(rare, common=30, seed=0):
    """Columns with a rare and a common class, ``rare`` rows of the first."""
    generator = np.random.default_rng(seed)
    y = np.r_[np.ones(rare), np.zeros(common)].astype(np.int32)
    x = np.c_[generator.normal(size=(rare + common, 2)) + y[:, None], np.ones(rare + common)].astype(np.float32)
    order = generator.permutation(len(y))
    return {"x": x[order], "y": y[order]}


def class_means(params, batch, label):
    """The mean logistic loss of one class and its gradient in plain NumPy; −∞ where there is no such row."""
    x, sign = batch["x"][batch["y"] == label], 1 - 2 * label
    if not len(x):
        return -np.inf, {"w": np.zeros(3, np.float32)}
    score = sign * (x @ params["w"])
    return np.logaddexp(0, score).mean(), {"w": (sign * x.T @ (1 / (1 + np.exp(-score))) / len(x)).astype(np.float32)}


def torch_loss(module, batch, label):
    """The same in PyTorch."""
    x, y = batch
    if not (y == label).any():
        return torch.tensor(-torch.inf)
    score = (1 - 2 * label) * module(x[y == label])[:, 0]
    return torch.nn.functional.softplus(score).mean()


def client_of(kind, columns, held_out, **changes):
    """The same client with JAX, PyTorch or NumPy."""
    options = {"name": kind, "batch_size": None, **changes}
    if kind == "jax":
        return fl.JaxClient(neyman_pearson(3), columns, held_out=held_out, **{"strata": "y", **options})
    if kind == "numpy":
        functions = (partial(class_means, label=label) for label in (0, 1))
        start = {"w": np.zeros(3, np.float32)}
        return fl.NumpyClient(*functions, columns, start, held_out=held_out, **{"classes": "y", **options})
    sets = [TensorDataset(*(torch.from_numpy(part[key]) for key in ("x", "y"))) for part in (columns, held_out)]
    functions = (partial(torch_loss, label=label) for label in (0, 1))
    told = {"classes": columns["y"], "held_out_classes": held_out["y"], **options}
    return fl.TorchClient(torch.nn.Linear(3, 1, bias=False), *functions, sets[0], held_out=sets[1], **told)


KINDS = ("jax", "torch", "numpy")


def iterate(what):
    """A w, as each of them has it."""
    w = np.array([0.5, -1.0, 0.25], np.float32)
    return flatten_params(w) if what == "jax" else {"weight": w[None]} if what == "torch" else {"w": w}


def asked(client, what):
    """What a client says at w, and whereto it goes on its constraint."""
    w = iterate(what)
    task = fl.Task(0, 0, 1, 0.1, True)
    direction = client.update(w, task, LocalLoss(0.0, np.ones(1, np.float32), 0.0, 0.0))
    return client.report(w, task), client.evaluate(w), np.concatenate([part.ravel() for part in direction.values()])


@pytest.mark.parametrize("what", KINDS)
def test_a_class_of_few_rows_is_left_out_as_if_there_were_none(what):
    """Nine rows of the rare class: no number that leaves the client depends on them, and the others' do not change."""
    held_out = rows_of(12, 20, seed=1)
    few, none = rows_of(9), rows_of(9)
    none = {key: column[none["y"] == 0] for key, column in none.items()}
    kept = fl.ClientPolicy()._restrict(client_of(what, few, held_out))
    report, judged, direction = asked(kept, what)
    assert (kept.rows, kept.held_out_rows, kept.excluded_classes) == (30, 20, 1)
    assert report.constraint == judged.constraint == [-np.inf]
    np.testing.assert_array_equal(direction, 0)
    expected, _ = class_means({"w": np.array([0.5, -1.0, 0.25])}, none, 0)
    assert report.objective == pytest.approx(expected, rel=1e-6)
    fl.ClientPolicy()._admit(kept, wire.REPORT, Context(1, 1, {}, RecordDict(), {}))
    whole = client_of(what, rows_of(10), held_out)
    assert fl.ClientPolicy()._restrict(whole) is whole  # ten are enough
    assert asked(whole, what)[0].constraint[0] > 0
    alone = client_of(what, few, held_out)
    assert fl.ClientPolicy.for_simulations()._restrict(alone) is alone


@pytest.mark.parametrize("what", KINDS)
def test_few_rows_of_a_class_are_left_out_of_those_held_out_too(what):
    kept = fl.ClientPolicy()._restrict(client_of(what, rows_of(12), rows_of(3, 20, seed=1)))
    assert (kept.rows, kept.held_out_rows, kept.excluded_classes) == (42, 20, 0)
    objective, constraint = kept.certify(iterate(what), ErrorLevels(0.05, 0.05, math.nan), [None, None])
    assert np.isfinite(objective.upper)
    assert constraint.upper == np.inf  # nothing is known of it


def test_a_client_stays_away_where_too_few_rows_would_be_left():
    policy, held_out = fl.ClientPolicy(), rows_of(12, seed=1)
    with pytest.raises(fl.RefusalError, match="it has 0 rows left"):
        policy._restrict(client_of("numpy", rows_of(3, 9), held_out))
    with pytest.raises(fl.RefusalError, match="its classes are not declared"):
        policy._restrict(client_of("numpy", rows_of(12), held_out, classes=None))
    mine = quadratic(0)
    mine.class_rows, mine.classes = [12, 9], None
    with pytest.raises(fl.RefusalError, match="cannot exclude these rows"):
        policy._restrict(mine)
    loader = DataLoader(TensorDataset(*map(torch.from_numpy, rows_of(3).values())), batch_size=16)
    torch_client = fl.TorchClient(
        torch.nn.Linear(3, 1, bias=False),
        partial(torch_loss, label=0),
        partial(torch_loss, label=1),
        loader,
        name="loader",
        classes=rows_of(3)["y"],
    )
    with pytest.raises(fl.RefusalError, match="DataLoader"):
        policy._restrict(torch_client)


@pytest.mark.parametrize("what", KINDS)
def test_a_client_refuses_batches_with_few_rows_of_a_class(what):
    """40 of 160 rows: of 32 drawn 8 are of the rare class, or 16 where a batch is drawn by class."""
    columns, context = rows_of(40, 120), Context(1, 1, {}, RecordDict(), {})
    for size, enough in ((32, what == "jax"), (40, True), (None, True)):
        client = client_of(what, columns, rows_of(12, seed=1), batch_size=size)
        if enough:
            fl.ClientPolicy()._admit(client, wire.REGISTER, context)
        else:
            with pytest.raises(fl.RefusalError, match="its batches have 8 rows of its rarest class"):
                fl.ClientPolicy()._admit(client, wire.REGISTER, context)


def test_batches_by_a_seed_that_the_server_knows_are_equations_for_single_rows():
    """What the page says: the policy allows batches of 30 rows, and 120 of them at one place give all 60 rows."""
    x = np.column_stack([np.ones(60), np.random.default_rng(5).normal(size=(60, 3))])

    def loss(params, batch):
        slopes = 1 / (1 + np.exp(-batch["x"] @ params["w"]))
        return -np.log1p(-slopes).mean(), {"w": (slopes[:, None] * batch["x"]).mean(axis=0)}

    nowhere = {"w": np.zeros(4)}
    client = fl.NumpyClient(loss, loss, {"x": x}, nowhere, name="a", batch_size=30, classes=np.zeros(60))
    client = fl.ClientPolicy()._restrict(client)
    fl.ClientPolicy()._admit(client, wire.UPDATE, Context(1, 1, {}, RecordDict(), {}))
    shares, heard = np.zeros((120, 60)), []
    for k in range(120):
        task = fl.Task(round=k, seed=0, local_steps=1, step_size=0.1, switches=True)
        heard.append(client.update(nowhere, task, LocalLoss(1.0, np.zeros(1), 0.0, 0.0))["w"])
        known = np.random.default_rng((0, k, zlib.crc32(b"a"), 1))
        np.add.at(shares[k], draw_rows(known, 60, 30, True), 1 / 30)
    found = np.linalg.lstsq(shares, np.array(heard), rcond=None)[0]
    np.testing.assert_allclose(found / found[:, :1], x, atol=1e-10)


@pytest.mark.parametrize("what", KINDS)
def test_secret_batches_are_drawn_by_no_seed_that_the_server_knows(what):
    """The same question twice: the same answers by the run's seed, others by chance of the client's own."""
    client = client_of(what, rows_of(40, 120), rows_of(12, seed=1), batch_size=80)
    params, task = iterate(what), fl.Task(round=3, seed=5, local_steps=2, step_size=0.1, switches=True)
    for policy, alike in ((policy_of(), True), (policy_of(secret_batches=True), False)):
        first, again = (client.report(params, policy._seed_batches(task)) for _ in range(2))
        assert (first.objective == again.objective) == alike
        loss = LocalLoss(1.0, np.zeros(1), 0.0, 0.0)
        one, other = (client.update(params, policy._seed_batches(task), loss) for _ in range(2))
        assert all(np.array_equal(one[name], other[name]) for name in params) == alike
    seeds = {policy_of(secret_batches=True)._seed_batches(task).seed for _ in range(20)}
    assert len(seeds) == 20
    assert max(seeds) > 2**80
    with pytest.raises(TypeError, match="secret_batches"):
        policy_of(secret_batches=1)


def test_intervals_of_rows_whose_classes_nobody_told_are_refused():
    client, context = client_of("torch", rows_of(12), rows_of(12, seed=1), held_out_classes=None), None
    context = Context(1, 1, {}, RecordDict(), {})
    fl.ClientPolicy()._admit(client, wire.REPORT, context)
    with pytest.raises(fl.RefusalError, match="held_out_classes"):
        fl.ClientPolicy()._admit(client, wire.CERTIFY, context)


def test_classes_are_columns_or_labels():
    columns = rows_of(2, 3) | {"sex": np.array(["f", "m", "f", "m", "m"])}
    start, functions = {"w": np.zeros(3, np.float32)}, [partial(class_means, label=0)] * 2
    client = fl.NumpyClient(*functions, columns, start, name="a", classes=("y", "sex"))
    pairs = zip(columns["y"].tolist(), columns["sex"].tolist(), strict=True)
    assert client.class_rows == dict(Counter(f"{label} × {sex}" for label, sex in pairs))
    with pytest.raises(ValueError, match="columns x, y, sex, but names 'age'"):
        fl.NumpyClient(*functions, columns, start, name="a", classes="age")
    with pytest.raises(ValueError, match="one label for each of 5 rows"):
        fl.NumpyClient(*functions, columns, start, name="a", classes=[1, 2])


def test_the_server_is_told_what_a_client_leaves_out(caplog, tmp_path):
    start_at, held_out = {"w": np.zeros(3, np.float32)}, rows_of(12, seed=1)

    def factory(context):
        number = context.node_config["partition-id"]
        return client_of("numpy", rows_of(3 if number == 1 else 12), held_out, name=f"site {number}")

    strategy = fl.SwitchingStrategy(
        ss.SoftmaxSGM(alpha=5.0, step_size=0.2, tolerance=0.1), wait=0.0, events=tmp_path / "events"
    )
    strategy.start(FaultyGrid(fl.client_app(factory), 3), fl.initial_arrays(start_at), 2)
    assert "client 'site 1': it leaves out 1 classes with too few rows (its own policy)" in caplog.text
    met = [event["why"] for event in fl.read_events(tmp_path / "events") if event["what"] == "met"]
    assert (
        met[1] == "it reports 30 rows and 30 held-out rows; it leaves out 1 classes with too few rows (its own policy)"
    )
    assert [f.code for f in strategy.result.diagnostics if "site 1" in f.evidence] == ["suppressed-classes"]
    assert strategy.result.client_constraint[1, 0] == -np.inf


def test_a_client_takes_part_in_so_many_rounds(tmp_path):
    grid = grid_with(policy_of(max_rounds=3, max_evaluations=0, counter_file=tmp_path / "counted.json"))
    result = start(grid, rounds=5).result
    outcomes = result.history.per_client.outcomes[:, 0].tolist()
    assert outcomes == [ClientOutcome.COUNTED] * 3 + [ClientOutcome.REFUSED] * 2
    assert np.isnan(result.client_objective).tolist() == [True, False]
    with pytest.raises(ValueError, match="counter_file is required"):
        policy_of(max_rounds=3)


def test_a_file_counts_over_restarts_and_runs(tmp_path, caplog):
    file = tmp_path / "budget" / "counted.json"
    policy = policy_of(max_rounds=3, counter_file=file)
    assert (start(grid_with(policy), rounds=2).result.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    assert json.loads(file.read_text()) == {"reports": 2, "updates": 2}
    result = start(grid_with(policy), rounds=2).result
    assert result.history.per_client.outcomes[:, 0].tolist() == [ClientOutcome.COUNTED, ClientOutcome.REFUSED]
    assert "it has answered 3 reports, and its policy allows 3" in caplog.text
    file.write_text("garbage")
    assert (
        start(grid_with(policy)).result.history.per_client.outcomes[0, 0] == ClientOutcome.REFUSED
    )  # never more than allowed


def test_directions_after_one_report_count_too(tmp_path):
    """A server could else ask for any number of directions."""
    grid = grid_with(policy_of(max_rounds=2, counter_file=tmp_path / "counted.json"))
    settings = ConfigRecord({"round": 0, "seed": 0, "local_steps": 1, "step_size": 0.1, "switches": True})
    report = RecordDict({"params": zeros(), "settings": settings})
    grid.send_and_receive([Message(report, 100, wire.REPORT, group_id="0")])
    content = RecordDict({"decision": ConfigRecord({"feasible": True})})
    replies = [next(iter(grid.send_and_receive([Message(content, 100, wire.UPDATE, group_id="0")]))) for _ in range(3)]
    assert [wire.read_refusal(reply.content) is None for reply in replies] == [True, True, False]


# ---- the protocol's version


def hello(content):
    grid = FaultyGrid(simulated(lambda context: quadratic(0)), 1)
    return next(iter(grid.send_and_receive([Message(content, 100, wire.REGISTER, group_id="hello")]))).content


def test_a_client_refuses_a_server_of_another_protocol():
    assert wire.REGISTRATION in hello(RecordDict({wire.SETTINGS: ConfigRecord(membership.get_version())}))
    ours = f"this client uses version {wire.PROTOCOL}"
    reason = wire.read_refusal(hello(RecordDict()))
    assert f"the server uses version None of the protocol (softswitch None), {ours}" in reason
    for other, older in ((wire.PROTOCOL - 1, "server"), (wire.PROTOCOL + 1, "client")):
        said = RecordDict({wire.SETTINGS: ConfigRecord({"protocol": other, "softswitch": "9.9"})})
        why = wire.read_refusal(hello(said))
        assert f"the server uses version {other} of the protocol (softswitch 9.9), {ours}" in why
        assert why.endswith(f"upgrade softswitch at the {older}")


def test_a_client_that_allows_nothing_refuses(tmp_path, caplog):
    policy = policy_of(max_rounds=0, max_evaluations=0, counter_file=tmp_path / "counted.json")
    result = start(grid_with(policy)).result
    assert result.history.per_client.outcomes[0].tolist() == [ClientOutcome.REFUSED, ClientOutcome.COUNTED]
    assert "it has answered 0 reports, and its policy allows 0" in caplog.text
    assert "it refused: it has answered 0 evaluations, and its policy allows 0" in caplog.text


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({}, f"version None of the protocol (softswitch None), this server uses version {wire.PROTOCOL}"),
        ({"protocol": 1, "softswitch": "0.0.1"}, "the client uses version 1 of the protocol (softswitch 0.0.1)"),
        ({"protocol": "two"}, "the client uses version two of the protocol"),
    ],
)
def test_a_server_refuses_a_client_of_another_protocol(told, why, caplog):
    class Old(FaultyGrid):
        def deliver(self, message):
            reply = super().deliver(message)
            if message.metadata.dst_node_id == 100 and message.metadata.message_type == wire.REGISTER:
                about = {
                    k: v for k, v in reply.content[wire.REGISTRATION].items() if k not in ("protocol", "softswitch")
                }
                return wire.reply(message, **{wire.REGISTRATION: ConfigRecord(about | told)})
            return reply

    app = simulated(lambda context: quadratic(context.node_config["partition-id"]))
    assert start(Old(app, 2)).result.names == ("site 1",)
    assert why in caplog.text
    assert "upgrade softswitch at the client" in caplog.text
