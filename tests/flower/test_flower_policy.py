"""Client policies and protocol versions."""

import json
import zlib
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from torch.utils.data import TensorDataset

import softswitch.flower as fl
from flower_clients import FaultyGrid, quadratic, quadratics, simulated, zeros
from member_clients import run_strategy
from softswitch.flower import membership
from softswitch.flower import messages as wire
from softswitch.flower.client import MessageHandlers, find_counter_file
from softswitch.flower.jax_client import flatten_params
from softswitch.methods.messages import LocalLoss
from softswitch.oracles.batch_sizes import draw_rows
from softswitch.results.history import ClientOutcome
from softswitch_experiments.tasks.neyman_pearson import neyman_pearson

pytestmark = pytest.mark.usefixtures("quiet")


def make_policy(**changes):
    """Return a policy without limits except for these changes."""
    return fl.ClientPolicy(**{"min_rows": 1, "min_class_rows": 1, **changes})


def make_grid(policy, clients=2, **changes):
    """Return a grid with this policy at client 0."""
    default_app = simulated(lambda context: quadratic(context.node_config["partition-id"]))
    restricted_app = fl.client_app(lambda context: quadratic(0, **changes), policy=policy)
    return FaultyGrid(
        lambda message, context: (restricted_app if context.node_id == 100 else default_app)(message, context), clients
    )


def test_factory_refuses_runs(caplog):
    def factory(context):
        if context.node_id == 100:
            raise fl.RefusalError(f"it does not participate in run {context.run_id}")
        return quadratic(context.node_config["partition-id"])

    assert run_strategy(FaultyGrid(simulated(factory), 2)).result.names == ("site 1",)
    assert "it refused: it does not participate in run" in caplog.text
    with pytest.raises(ValueError, match="max_rounds"):
        make_policy(max_rounds=-1)


@pytest.mark.parametrize(
    ("policy", "changes", "reason"),
    [
        ({"min_rows": 9}, {}, "it has 8 rows, but its policy requires 9"),
        ({"min_rows": 5}, {"batch_size": 4}, "it has 4 value rows"),
        ({"min_rows": 5}, {"held_out": {"x": np.zeros((3, 3), np.float32)}}, "it has 3 held out rows"),
        ({"min_class_rows": 3}, {}, "its classes are not declared"),
    ],
)
def test_client_with_too_few_rows_refuses(policy, changes, reason, caplog):
    assert run_strategy(make_grid(make_policy(**policy), **changes)).result.names == ("site 1",)
    assert reason in caplog.text


@pytest.mark.parametrize(
    ("sizes", "participates"), [({"sick": 3, "well": 5}, True), ({"sick": 2, "well": 6}, False), ({}, False)]
)
def test_policy_uses_smallest_class(sizes, participates):
    def factory(context):
        client = quadratic(context.node_config["partition-id"])
        client.class_rows = sizes
        return client

    app = fl.client_app(factory, policy=make_policy(min_class_rows=3, min_rows=8))
    if participates:
        assert run_strategy(FaultyGrid(app, 2)).result.status.ok
    else:
        with pytest.raises(TimeoutError):
            run_strategy(FaultyGrid(app, 2))


def make_columns(rare, common=30, seed=0):
    """Return columns with ``rare`` rows of a rare class and ``common`` rows of a common class."""
    generator = np.random.default_rng(seed)
    y = np.r_[np.ones(rare), np.zeros(common)].astype(np.int32)
    x = np.c_[generator.normal(size=(rare + common, 2)) + y[:, None], np.ones(rare + common)].astype(np.float32)
    order = generator.permutation(len(y))
    return {"x": x[order], "y": y[order]}


def class_means(params, batch, label):
    """Return the mean logistic loss of one class and its gradient in NumPy, or −∞ without such rows."""
    x, sign = batch["x"][batch["y"] == label], 1 - 2 * label
    if not len(x):
        return -np.inf, {"w": np.zeros(3, np.float32)}
    score = sign * (x @ params["w"])
    return np.logaddexp(0, score).mean(), {"w": (sign * x.T @ (1 / (1 + np.exp(-score))) / len(x)).astype(np.float32)}


def torch_loss(module, batch, label):
    """Return the mean logistic loss of one class in PyTorch."""
    x, y = batch
    if not (y == label).any():
        return torch.tensor(-torch.inf)
    score = (1 - 2 * label) * module(x[y == label])[:, 0]
    return torch.nn.functional.softplus(score).mean()


def make_client(kind, columns, held_out, **changes):
    """Return a client with JAX, PyTorch or NumPy."""
    options = {"name": kind, "batch_size": None, **changes}
    if kind == "jax":
        return fl.JaxClient(neyman_pearson(3), columns, held_out=held_out, **{"strata": "y", **options})
    if kind == "numpy":
        functions = (partial(class_means, label=label) for label in (0, 1))
        run_strategy = {"w": np.zeros(3, np.float32)}
        return fl.NumpyClient(*functions, columns, run_strategy, held_out=held_out, **{"classes": "y", **options})
    sets = [
        TensorDataset(*(torch.from_numpy(columns_part[key]) for key in ("x", "y")))
        for columns_part in (columns, held_out)
    ]
    functions = (partial(torch_loss, label=label) for label in (0, 1))
    declared = {"classes": columns["y"], "held_out_classes": held_out["y"], **options}
    return fl.TorchClient(torch.nn.Linear(3, 1, bias=False), *functions, sets[0], held_out=sets[1], **declared)


LIBRARIES = ("jax", "torch", "numpy")


def make_params(library):
    """Return parameters in the format of a library."""
    w = np.array([0.5, -1.0, 0.25], np.float32)
    return flatten_params(w) if library == "jax" else {"weight": w[None]} if library == "torch" else {"w": w}


def get_replies(client, library):
    """Return a client's report and evaluation at w, and its direction on the constraint."""
    w = make_params(library)
    task = fl.Task(0, 0, 1, 0.1, True)
    direction = client.update(w, task, LocalLoss(0.0, np.ones(1, np.float32), 0.0, 0.0))
    return client.report(w, task), client.evaluate(w), np.concatenate([array.ravel() for array in direction.values()])


@pytest.mark.parametrize("library", LIBRARIES)
def test_client_with_small_class_refuses(library):
    held_out = make_columns(12, 20, seed=1)
    small_class, large_class = (make_client(library, make_columns(rare), held_out) for rare in (9, 10))
    with pytest.raises(fl.RefusalError, match="it has a class of fewer than 10 rows"):
        MessageHandlers(fl.ClientPolicy()).check(small_class, wire.REPORT)
    MessageHandlers(fl.ClientPolicy()).check(large_class, wire.REPORT)
    MessageHandlers(fl.ClientPolicy.for_simulations()).check(small_class, wire.REPORT)


@pytest.mark.parametrize("library", LIBRARIES)
def test_client_without_rows_of_small_class_participates(library):
    columns, held_out = make_columns(9), make_columns(12, 20, seed=1)
    without_class = {key: column[columns["y"] == 0] for key, column in columns.items()}
    client = make_client(library, without_class, held_out)
    MessageHandlers(fl.ClientPolicy()).check(client, wire.REPORT)
    report, evaluation, direction = get_replies(client, library)
    assert report.constraint == evaluation.constraint == [-np.inf]
    np.testing.assert_array_equal(direction, 0)
    expected, _ = class_means({"w": np.array([0.5, -1.0, 0.25])}, without_class, 0)
    assert report.objective == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("library", LIBRARIES)
def test_intervals_of_small_held_out_class_are_refused(library):
    client = make_client(library, make_columns(12), make_columns(3, 20, seed=1))
    MessageHandlers(fl.ClientPolicy()).check(client, wire.EVALUATE)
    with pytest.raises(fl.RefusalError, match="it has a held-out class of fewer than 10 rows"):
        MessageHandlers(fl.ClientPolicy()).check(client, wire.CERTIFY)


def test_client_without_declared_classes_refuses():
    client = make_client("numpy", make_columns(12), make_columns(12, seed=1), classes=None)
    with pytest.raises(fl.RefusalError, match="its classes are not declared"):
        MessageHandlers(fl.ClientPolicy()).check(client, wire.REPORT)


@pytest.mark.parametrize("library", LIBRARIES)
def test_client_refuses_batches_with_small_classes(library):
    """With 40 of 160 rows in the rare class, a batch of 32 has 8 of them, or 16 if it is stratified."""
    columns = make_columns(40, 120)
    for size, is_allowed in ((32, library == "jax"), (40, True), (None, True)):
        client = make_client(library, columns, make_columns(12, seed=1), batch_size=size)
        if is_allowed:
            MessageHandlers(fl.ClientPolicy()).check(client, wire.REGISTER)
        else:
            with pytest.raises(fl.RefusalError, match="its batches have 8 rows of its rarest class"):
                MessageHandlers(fl.ClientPolicy()).check(client, wire.REGISTER)


def test_known_batch_seeds_reveal_single_rows():
    """The documented attack: 120 allowed batches of 30 rows at one iterate reveal all 60 rows."""
    x = np.column_stack([np.ones(60), np.random.default_rng(5).normal(size=(60, 3))])

    def loss(params, batch):
        slopes = 1 / (1 + np.exp(-batch["x"] @ params["w"]))
        return -np.log1p(-slopes).mean(), {"w": (slopes[:, None] * batch["x"]).mean(axis=0)}

    nowhere = {"w": np.zeros(4)}
    client = fl.NumpyClient(loss, loss, {"x": x}, nowhere, name="a", batch_size=30, classes=np.zeros(60))
    MessageHandlers(fl.ClientPolicy()).check(client, wire.UPDATE)
    shares, received = np.zeros((120, 60)), []
    for k in range(120):
        task = fl.Task(round=k, seed=0, local_steps=1, step_size=0.1, switches=True)
        received.append(client.update(nowhere, task, LocalLoss(1.0, np.zeros(1), 0.0, 0.0))["w"])
        generator = np.random.default_rng((0, k, zlib.crc32(b"a"), 1))
        np.add.at(shares[k], draw_rows(generator, 60, 30, True), 1 / 30)
    solution = np.linalg.lstsq(shares, np.array(received), rcond=None)[0]
    np.testing.assert_allclose(solution / solution[:, :1], x, atol=1e-10)


class TrapServer:
    """A server that reads a row from reported objectives alone, by parameters at which one row has a loss.

    At w = T (e_0 − c e_3), where feature 3 is 1, a row of label 0 has the loss T (x_0 − c) if x_0 > c, and 0 otherwise.
    """

    SLOPE = 1e4

    def __init__(self, client, policy):
        self.grid = fl.InProcessGrid(fl.client_app(lambda context: client, policy), 1)
        self.reports, self.class_rows = 0, client.class_rows["0"]

    def losses(self, threshold, change=0.0, feature=0):
        """Return the sum of the reported losses; a refusal raises."""
        w = self.SLOPE * np.array([1.0, 0.0, 0.0, -threshold])
        w[feature] += change
        self.reports += 1
        settings = ConfigRecord({"round": 0, "seed": 0, "local_steps": 1, "step_size": 0.1, "switches": True})
        content = RecordDict({wire.PARAMS: wire.to_record({"w": w}), wire.SETTINGS: settings})
        (reply,) = self.grid.send_and_receive([Message(content, 100, wire.REPORT, group_id="0")])
        if refusal := wire.read_refusal(reply.content):
            raise fl.RefusalError(refusal)
        return self.class_rows * reply.content[wire.VALUES]["objective"]

    def read_row(self):
        """Return the row with the largest feature 0."""
        low, high = -8.0, 8.0
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (middle, high) if self.losses(middle) > 1 else (low, middle)
        threshold = high - 0.01  # below the largest value and above the second largest
        return np.array([self.losses(threshold, 1.0, k) - self.losses(threshold) for k in range(4)])


def trapped_client(rows=200):
    """Return a client with large classes, and its row with the largest feature 0 of label 0."""
    generator = np.random.default_rng(3)
    columns = {"x": np.c_[generator.normal(size=(rows, 3)), np.ones(rows)], "y": np.arange(rows) % 2}

    def loss(params, batch, label):
        score = (1 - 2 * label) * batch["x"][batch["y"] == label] @ params["w"]
        return np.logaddexp(0, score).mean(), {"w": np.zeros(4)}

    functions = (partial(loss, label=label) for label in (0, 1))
    client = fl.NumpyClient(*functions, columns, {"w": np.zeros(4)}, name="a", classes="y", batch_size=None)
    x = columns["x"][columns["y"] == 0]
    return client, x[x[:, 0].argmax()]


def test_reports_alone_reveal_row_of_large_class(tmp_path, monkeypatch):
    """The documented attack. A limit on the distance refuses its parameters, and one on rounds its many reports."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    client, row = trapped_client()
    server = TrapServer(client, fl.ClientPolicy())
    np.testing.assert_allclose(server.read_row(), row, atol=1e-9)
    assert server.reports == 28
    server = TrapServer(client, fl.ClientPolicy(max_distance=100.0))
    with pytest.raises(fl.RefusalError, match="from its start, but its policy allows 100"):
        server.read_row()
    assert server.reports == 1
    with pytest.raises(fl.RefusalError, match="it has answered 40 reports"):
        [TrapServer(client, fl.ClientPolicy(max_rounds=40)).read_row() for _ in range(2)]  # over both runs


def test_distance_is_limited_in_all_requests():
    """From the start, and not from the previous parameters: small steps do not lead farther."""
    client, limit = quadratic(0), 1.0
    handlers = MessageHandlers(make_policy(max_distance=limit, max_rounds=None, max_evaluations=None))
    near, far = ({"w": np.full(3, value, np.float32)} for value in (0.5, 0.6))
    kinds = (wire.REPORT, wire.UPDATE, wire.EVALUATE, wire.DERIVATIVES, wire.CERTIFY)
    for kind in kinds:
        handlers._admit(client, kind, near)
        for points in ([far], [near, far]):  # a report may also be at the previous parameters
            with pytest.raises(fl.RefusalError, match="max_distance"):
                handlers._admit(client, kind, *points)
    with pytest.raises(wire.InvalidMessageError, match="must have the shapes"):
        handlers._admit(client, wire.REPORT, {"w": np.zeros(4)})
    with pytest.raises(wire.InvalidMessageError, match="must have real numbers"):  # complex ones have another distance
        wire.from_record(wire.to_record({"w": np.full(3, 1e9j)}))
    result = run_strategy(make_grid(make_policy(max_distance=1e-6)), rounds=2).result
    outcomes = result.history.per_client.outcomes[:, 0].tolist()
    assert outcomes == [ClientOutcome.COUNTED, ClientOutcome.REFUSED]
    assert np.isnan(result.client_objective[0])
    with pytest.raises(ValueError, match="max_distance"):
        make_policy(max_distance=0.0)


@pytest.mark.parametrize("library", LIBRARIES)
def test_start_is_independent_of_requests(library):
    client = make_client(library, make_columns(12), make_columns(12, seed=1))
    before = {name: np.array(array) for name, array in client.start.items()}
    client.evaluate(make_params(library))
    assert all(np.array_equal(client.start[name], array) for name, array in before.items())


@pytest.mark.parametrize("library", LIBRARIES)
def test_secret_batches_are_independent_of_run_seed(library):
    """Repeated requests give equal replies with the run's seed, and different ones with secret batches."""
    client = make_client(library, make_columns(40, 120), make_columns(12, seed=1), batch_size=80)
    params, task = make_params(library), fl.Task(round=3, seed=5, local_steps=2, step_size=0.1, switches=True)
    for policy, are_equal in ((make_policy(), True), (make_policy(secret_batches=True), False)):
        first_report, second_report = (
            client.report(params, MessageHandlers(policy).seed_batches(task)) for _ in range(2)
        )
        assert (first_report.objective == second_report.objective) == are_equal
        loss = LocalLoss(1.0, np.zeros(1), 0.0, 0.0)
        first_direction, second_direction = (
            client.update(params, MessageHandlers(policy).seed_batches(task), loss) for _ in range(2)
        )
        assert all(np.array_equal(first_direction[name], second_direction[name]) for name in params) == are_equal
    seeds = {MessageHandlers(make_policy(secret_batches=True)).seed_batches(task).seed for _ in range(20)}
    assert len(seeds) == 20
    assert max(seeds) > 2**80
    with pytest.raises(TypeError, match="secret_batches"):
        make_policy(secret_batches=1)


def test_intervals_without_declared_classes_are_refused():
    client = make_client("torch", make_columns(12), make_columns(12, seed=1), held_out_classes=None)
    MessageHandlers(fl.ClientPolicy()).check(client, wire.REPORT)
    with pytest.raises(fl.RefusalError, match="held_out_classes"):
        MessageHandlers(fl.ClientPolicy()).check(client, wire.CERTIFY)


def test_classes_are_columns_or_labels():
    columns = make_columns(2, 3) | {"sex": np.array(["f", "m", "f", "m", "m"])}
    run_strategy, functions = {"w": np.zeros(3, np.float32)}, [partial(class_means, label=0)] * 2
    client = fl.NumpyClient(*functions, columns, run_strategy, name="a", classes=("y", "sex"))
    pairs = zip(columns["y"].tolist(), columns["sex"].tolist(), strict=True)
    assert client.class_rows == dict(Counter(f"{label} × {sex}" for label, sex in pairs))
    with pytest.raises(ValueError, match="columns x, y, sex, but names 'age'"):
        fl.NumpyClient(*functions, columns, run_strategy, name="a", classes="age")
    with pytest.raises(ValueError, match="one label for each of 5 rows"):
        fl.NumpyClient(*functions, columns, run_strategy, name="a", classes=[1, 2])


def test_policy_limits_rounds(tmp_path):
    grid = make_grid(make_policy(max_rounds=3, max_evaluations=0, counter_file=tmp_path / "counted.json"))
    result = run_strategy(grid, rounds=5).result
    outcomes = result.history.per_client.outcomes[:, 0].tolist()
    assert outcomes == [ClientOutcome.COUNTED] * 3 + [ClientOutcome.REFUSED] * 2
    assert np.isnan(result.client_objective).tolist() == [True, False]


def test_default_policy_counts_answers_by_data(tmp_path, monkeypatch):
    """Without a counter file, answers are counted in the user's state folder, for each name and data set."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    default = fl.ClientPolicy()
    assert (default.max_rounds, default.max_evaluations, default.max_distance) == (10_000, 1_000, None)
    policy, outcomes = make_policy(max_rounds=3), []
    for _ in range(2):  # two runs
        result = run_strategy(make_grid(policy), rounds=2).result
        outcomes += result.history.per_client.outcomes[:, 0].tolist()
    assert outcomes == [ClientOutcome.COUNTED] * 3 + [ClientOutcome.REFUSED]
    result = run_strategy(make_grid(policy, rows=9)).result  # other data
    assert result.history.per_client.outcomes[:, 0].tolist() == [ClientOutcome.COUNTED]
    counts = [json.loads(file.read_text()) for file in (tmp_path / "softswitch" / "answers").glob("*.json")]
    assert sorted(count["reports"] for count in counts) == [1, 3]
    run_strategy(FaultyGrid(quadratics(1), 1), rounds=5)  # the policy for simulations counts nothing
    assert len(list((tmp_path / "softswitch" / "answers").glob("*.json"))) == 2
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert find_counter_file(quadratic(0)).parts[:3] == ("~", ".local", "state")


def test_client_that_cannot_count_refuses(tmp_path, caplog):
    with pytest.raises(TypeError, match="counter_file"):
        make_policy(counter_file=5)
    (tmp_path / "file").write_text("")
    result = run_strategy(make_grid(make_policy(counter_file=tmp_path / "file" / "counted.json"))).result
    assert result.history.per_client.outcomes[0, 0] == ClientOutcome.REFUSED
    assert "its counter_file cannot be read or written" in caplog.text


@pytest.mark.parametrize("library", LIBRARIES)
def test_digest_identifies_data(library):
    held_out = make_columns(12, seed=1)
    digests = [make_client(library, make_columns(12, seed=seed), held_out).data_digest for seed in (0, 0, 2)]
    assert digests[0] == digests[1] != digests[2]


def test_digest_of_objects():
    functions, start = [partial(class_means, label=0)] * 2, {"w": np.zeros(3, np.float32)}
    columns = [make_columns(1, 1) | {"sex": np.array([a + "e", "male"], object)} for a in ("femal", "femal", "mal")]
    digests = [fl.NumpyClient(*functions, data, start, name="a").data_digest for data in columns]
    assert digests[0] == digests[1] != digests[2]


def test_state_file_counts_over_restarts_and_runs(tmp_path, caplog):
    file = tmp_path / "budget" / "counted.json"
    policy = make_policy(max_rounds=3, counter_file=file)
    assert (run_strategy(make_grid(policy), rounds=2).result.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    assert json.loads(file.read_text()) == {"reports": 2, "updates": 2, "evaluations": 1}
    result = run_strategy(make_grid(policy), rounds=2).result
    assert result.history.per_client.outcomes[:, 0].tolist() == [ClientOutcome.COUNTED, ClientOutcome.REFUSED]
    assert "it has answered 3 reports (client policy: max_rounds)" in caplog.text
    file.write_text("garbage")
    assert (
        run_strategy(make_grid(policy)).result.history.per_client.outcomes[0, 0] == ClientOutcome.REFUSED
    )  # at most the allowed number


def test_repeated_directions_are_counted(tmp_path):
    """Otherwise a server could request any number of directions."""
    grid = make_grid(make_policy(max_rounds=2, counter_file=tmp_path / "counted.json"))
    settings = ConfigRecord({"round": 0, "seed": 0, "local_steps": 1, "step_size": 0.1, "switches": True})
    report = RecordDict({"params": zeros(), "settings": settings})
    grid.send_and_receive([Message(report, 100, wire.REPORT, group_id="0")])
    content = RecordDict({"decision": ConfigRecord({"feasible": True})})
    replies = [next(iter(grid.send_and_receive([Message(content, 100, wire.UPDATE, group_id="0")]))) for _ in range(3)]
    assert [wire.read_refusal(reply.content) is None for reply in replies] == [True, True, False]


# ---- the protocol's version


def register(content):
    grid = FaultyGrid(simulated(lambda context: quadratic(0)), 1)
    return next(iter(grid.send_and_receive([Message(content, 100, wire.REGISTER, group_id="hello")]))).content


def test_client_refuses_server_with_other_protocol():
    assert wire.REGISTRATION in register(RecordDict({wire.SETTINGS: ConfigRecord(membership.get_version())}))
    client_version = f"this client uses version {wire.PROTOCOL}"
    reason = wire.read_refusal(register(RecordDict()))
    assert f"the server uses version None of the protocol (softswitch None), {client_version}" in reason
    for server_version, outdated in ((wire.PROTOCOL - 1, "server"), (wire.PROTOCOL + 1, "client")):
        request = RecordDict({wire.SETTINGS: ConfigRecord({"protocol": server_version, "softswitch": "9.9"})})
        refusal = wire.read_refusal(register(request))
        assert f"the server uses version {server_version} of the protocol (softswitch 9.9), {client_version}" in refusal
        assert refusal.endswith(f"upgrade softswitch at the {outdated}")


def test_policy_with_zero_budget_refuses(tmp_path, caplog):
    policy = make_policy(max_rounds=0, max_evaluations=0, counter_file=tmp_path / "counted.json")
    result = run_strategy(make_grid(policy)).result
    assert result.history.per_client.outcomes[0].tolist() == [ClientOutcome.REFUSED, ClientOutcome.COUNTED]
    assert "it has answered 0 reports (client policy: max_rounds)" in caplog.text
    assert "it refused: it has answered 0 evaluations (client policy: max_evaluations)" in caplog.text


@pytest.mark.parametrize(
    ("registration", "reason"),
    [
        ({}, f"version None of the protocol (softswitch None), this server uses version {wire.PROTOCOL}"),
        ({"protocol": 1, "softswitch": "0.0.1"}, "the client uses version 1 of the protocol (softswitch 0.0.1)"),
        ({"protocol": "two"}, "the client uses version two of the protocol"),
    ],
)
def test_server_rejects_client_with_other_protocol(registration, reason, caplog):
    class Old(FaultyGrid):
        def deliver(self, message):
            reply = super().deliver(message)
            if message.metadata.dst_node_id == 100 and message.metadata.message_type == wire.REGISTER:
                fields = {
                    k: v for k, v in reply.content[wire.REGISTRATION].items() if k not in ("protocol", "softswitch")
                }
                return wire.reply(message, **{wire.REGISTRATION: ConfigRecord(fields | registration)})
            return reply

    app = simulated(lambda context: quadratic(context.node_config["partition-id"]))
    assert run_strategy(Old(app, 2)).result.names == ("site 1",)
    assert reason in caplog.text
    assert "upgrade softswitch at the client" in caplog.text
