"""What a client takes part in is its own decision; and both sides say which protocol they speak."""

import json

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

import softswitch.flower as fl
from flower_clients import FaultyGrid, quadratic, zeros
from member_clients import start
from softswitch.engines.flower import wire
from softswitch.engines.flower.members import introduction
from softswitch.results.history import Fate
from softswitch.tasks.neyman_pearson import breast_cancer

pytestmark = pytest.mark.usefixtures("quiet")


def grid_with(policy, many=2, **changes):
    """Client 0 has a policy of its own, the others have none."""
    plain = fl.client_app(lambda context: quadratic(context.node_config["partition-id"]))
    strict = fl.client_app(lambda context: quadratic(0, **changes), policy=policy)
    return FaultyGrid(lambda message, context: (strict if context.node_id == 100 else plain)(message, context), many)


def test_a_client_takes_part_in_the_runs_it_wants(caplog):
    assert start(grid_with(fl.ClientPolicy(runs=lambda context: context.run_id > 0))).result.names[0] == "site 0"
    assert start(grid_with(fl.ClientPolicy(runs={10**9}))).result.names == ("site 1",)
    assert "it refused: it does not take part in run" in caplog.text
    grid = grid_with(None)
    assert start(grid_with(fl.ClientPolicy(runs=[grid.run + 1]))).result.names == ("site 0", "site 1")
    for wrong in ("abc", ["run"]):
        with pytest.raises((TypeError, ValueError), match="runs"):
            fl.ClientPolicy(runs=wrong)
    with pytest.raises(ValueError, match="most_rounds"):
        fl.ClientPolicy(most_rounds=-1)


@pytest.mark.parametrize(
    ("policy", "changes", "why"),
    [
        ({"least_rows": 9}, {}, "it has 8 rows, and answers only where there are 9"),
        ({"least_rows": 5}, {"batch_size": 4}, "it has 4 value rows"),
        ({"least_rows": 5}, {"held_out": {"x": np.zeros((3, 3), np.float32)}}, "it has 3 held out rows"),
        ({"least_class_rows": 3}, {}, "which it does not tell"),
    ],
)
def test_a_client_with_too_few_rows_refuses(policy, changes, why, caplog):
    assert start(grid_with(fl.ClientPolicy(**policy), **changes)).result.names == ("site 1",)
    assert why in caplog.text


@pytest.mark.parametrize(("sizes", "takes_part"), [({"sick": 3, "well": 5}, True), ([2, 6], False), ([], False)])
def test_the_smallest_class_counts(sizes, takes_part):
    def factory(context):
        client = quadratic(context.node_config["partition-id"])
        client.class_rows = sizes
        return client

    app = fl.client_app(factory, policy=fl.ClientPolicy(least_class_rows=3, least_rows=8))
    if takes_part:
        assert start(FaultyGrid(app, 2)).result.status.ok
    else:
        with pytest.raises(TimeoutError):
            start(FaultyGrid(app, 2))


def test_a_jax_client_tells_the_rows_of_its_strata():
    data = breast_cancer(4)
    columns = {name: data.train.rows.columns[name][:100] for name in ("x", "y")}
    client = fl.JaxClient(data.problem, columns, name="a", strata=columns["y"])
    assert sorted(client.class_rows) == sorted(np.bincount(columns["y"]).tolist())
    context = Context(1, 1, {}, RecordDict(), {})
    fl.ClientPolicy(least_class_rows=min(client.class_rows)).admit(client, wire.HELLO, context)
    with pytest.raises(fl.Refused, match="one of its classes"):
        fl.ClientPolicy(least_class_rows=min(client.class_rows) + 1).admit(client, wire.HELLO, context)


def test_a_client_takes_part_in_so_many_rounds_of_a_run():
    grid = grid_with(fl.ClientPolicy(most_rounds=3, most_evaluations=0))
    result = start(grid, rounds=5).result
    fates = result.history.per_client.fates[:, 0].tolist()
    assert fates == [Fate.COUNTED] * 3 + [Fate.REFUSED] * 2
    assert np.isnan(result.client_objective).tolist() == [True, False]
    grid.forget(100)  # a restart: Flower's context is gone, and with it the count
    assert start(grid, rounds=1).result.history.per_client.fates[0, 0] == Fate.COUNTED


def test_a_file_counts_over_restarts_and_runs(tmp_path, caplog):
    file = tmp_path / "budget" / "counted.json"
    policy = fl.ClientPolicy(most_rounds=3, counted_in=file)
    assert (start(grid_with(policy), rounds=2).result.history.per_client.fates == Fate.COUNTED).all()
    assert json.loads(file.read_text()) == {"reports": 2, "updates": 2}
    result = start(grid_with(policy), rounds=2).result
    assert result.history.per_client.fates[:, 0].tolist() == [Fate.COUNTED, Fate.REFUSED]
    assert "it has given 3 reports, and gives 3 at most" in caplog.text
    file.write_text("garbage")
    assert start(grid_with(policy)).result.history.per_client.fates[0, 0] == Fate.REFUSED  # never more than allowed


def test_a_direction_without_a_report_counts_too():
    """A server that sends the parameters again could else ask for any number of directions."""
    grid = grid_with(fl.ClientPolicy(most_rounds=2))
    settings = ConfigRecord({"round": 0, "seed": 0, "local_steps": 1, "step_size": 0.1, "switches": True})
    content = RecordDict({"params": zeros(), "settings": settings, "decision": ConfigRecord({"feasible": True})})
    replies = [next(iter(grid.send_and_receive([Message(content, 100, wire.UPDATE, group_id="0")]))) for _ in range(3)]
    assert [wire.refused(reply.content) is None for reply in replies] == [True, True, False]


# ---- the protocol's version


def hello(content):
    grid = FaultyGrid(fl.client_app(lambda context: quadratic(0)), 1)
    return next(iter(grid.send_and_receive([Message(content, 100, wire.HELLO, group_id="hello")]))).content


def test_a_client_refuses_a_server_of_another_protocol():
    assert wire.ABOUT in hello(introduction.greeting())
    assert "the server tells no version of the protocol, this client speaks version 2" in wire.refused(
        hello(RecordDict())
    )
    for other, older in ((1, "server"), (3, "client")):
        said = RecordDict({wire.SETTINGS: ConfigRecord({"protocol": other, "softswitch": "9.9"})})
        why = wire.refused(hello(said))
        assert (
            f"the server speaks version {other} of the protocol (softswitch 9.9), this client speaks version 2" in why
        )
        assert why.endswith(f"upgrade softswitch at the {older}")


def test_a_client_that_allows_nothing_refuses(caplog):
    result = start(grid_with(fl.ClientPolicy(most_rounds=0, most_evaluations=0))).result
    assert result.history.per_client.fates[0].tolist() == [Fate.REFUSED, Fate.COUNTED]
    assert "it has given 0 reports, and gives 0 at most" in caplog.text
    assert "it refused: it has given 0 evaluations, and gives 0 at most" in caplog.text


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({}, "the client tells no version of the protocol, this server speaks version 2"),
        ({"protocol": 1, "softswitch": "0.0.1"}, "the client speaks version 1 of the protocol (softswitch 0.0.1)"),
        ({"protocol": "two"}, "tells no version"),
    ],
)
def test_a_server_refuses_a_client_of_another_protocol(told, why, caplog):
    class Old(FaultyGrid):
        def deliver(self, message):
            reply = super().deliver(message)
            if message.metadata.dst_node_id == 100 and message.metadata.message_type == wire.HELLO:
                about = {k: v for k, v in reply.content[wire.ABOUT].items() if k not in ("protocol", "softswitch")}
                return wire.answer(message, **{wire.ABOUT: ConfigRecord(about | told)})
            return reply

    app = fl.client_app(lambda context: quadratic(context.node_config["partition-id"]))
    assert start(Old(app, 2)).result.names == ("site 1",)
    assert why in caplog.text
    assert "upgrade softswitch at the client" in caplog.text
