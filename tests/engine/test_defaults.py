"""What is left out is filled in, as in the paper or as chosen; what is given is obeyed."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import softswitch as ss
from benchmarks import flat
from problems import client_data, least_squares, regression, softplus_level
from softswitch.engine import auto_tuning as choice
from softswitch.engine import solve
from softswitch.engine.request import is_automatic
from softswitch.methods.schedules import FallingStep, NormalizedAdam

PROBLEM = ss.Problem(least_squares, softplus_level, jnp.zeros(4))
BARE = ss.Automatic(tolerance=0.1, method=ss.SoftmaxSGM)
TEMPLATE = BARE.template
PAPER = ss.SoftmaxSGM(tolerance=0.1, step_size=0.1, alpha=10 * math.log(6) / 0.1)
EXPLICIT = {
    "rounds": 17,
    "seconds": 3.0,
    "local_steps": 2,
    "participation": 0.5,
    "batch_size": 4,
    "value_batch_size": 6,
    "replace": True,
    "average_last": 0.25,
    "answer": "last",
    "eval_every": 5,
    "record_clients": True,
    "memory": ss.Memory(smoothing=0.3),
    "client_batch_size": 2,
}


@pytest.fixture(scope="module")
def clients():
    """Six clients, of 20 to 59 rows."""
    return client_data(*regression(sizes=(20, 60)))


class SeenError(Exception):
    """What an engine was asked for."""


def asked(clients, method=BARE, problem=PROBLEM, **options):
    """The request and the rule that solve() hands to its engine: nothing is run."""

    def look(request, method, *rest):
        raise SeenError(request, method)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solve, "run", look)
        with pytest.raises(SeenError) as seen:
            flat.solve(problem, clients, method, **options)
    return seen.value.args


def shown(request, clients):
    """Every argument of solve() as the engine sees it."""
    oracle, settings = request.oracle, request.settings
    report, update = oracle.report_batching, oracle.update_batching
    return {
        "rounds": settings.rounds,
        "seconds": settings.seconds,
        "local_steps": oracle.local_steps,
        "participation": oracle.participants / len(clients),
        "batch_size": None if update.draws is None else update.width,
        "value_batch_size": None if report.draws is None else report.width,
        "replace": update.replace,
        "average_last": settings.average_last,
        "answer": settings.answer,
        "eval_every": settings.eval_every,
        "record_clients": settings.record_clients,
        "memory": settings.memory,
        "client_batch_size": None if oracle.by_size else oracle.slice_size,
    }


def test_all_that_is_given_is_obeyed_without_a_step_size(clients):
    request, method = asked(clients, **EXPLICIT)
    assert shown(request, clients) == EXPLICIT
    assert method == TEMPLATE
    assert (request.choice.rounds, request.choice.may_end) == (17, False)


@pytest.mark.parametrize("name", EXPLICIT)
def test_each_argument_alone_is_obeyed_without_a_step_size(clients, name):
    request, _ = asked(clients, **{name: EXPLICIT[name]})
    told = shown(request, clients)
    if name == "replace":  # nothing is drawn by itself here
        told = shown(asked(clients, replace=True, batch_size=4)[0], clients)
    assert told[name] == EXPLICIT[name]


@pytest.mark.parametrize("given", [{"value_batch_size": None, "batch_size": 4}, {"batch_size": None}, {"memory": None}])
def test_none_is_a_value_too(clients, given):
    told = shown(asked(clients, participation=0.5, **given)[0], clients)
    assert {name: told[name] for name in given} == given


@pytest.mark.parametrize("batch_size", [4, "auto", None])
def test_the_same_rows_for_reports_as_for_gradients_where_that_is_asked_for(monkeypatch, clients, batch_size):
    """Also where there is work for few rows only."""
    for work in (choice.WORK, 2**10):
        monkeypatch.setattr(choice, "WORK", work)
        told = shown(asked(clients, batch_size=batch_size, value_batch_size="same", rounds=50)[0], clients)
        assert told["value_batch_size"] == told["batch_size"]
        if batch_size != "auto":
            assert told["batch_size"] == batch_size


def test_the_settings_of_a_rule_are_obeyed_one_by_one():
    made = choice.choose_first_restart(jnp.zeros(4), 100, may_end=False, exact=True)
    given = {
        "threshold": 0.05,
        "slack": 2.0,
        "local_step_size": 0.01,
        "criterion": "mean",
        "optimizer": optax.adam,
        "alpha": 7.0,
    }
    step = FallingStep(first=made.first_step, rounds=made.first_length)
    chosen = made.template(TEMPLATE)
    assert chosen == dataclasses.replace(
        TEMPLATE,
        step_size=step,
        local_step_size=step,
        threshold=0.1,
        criterion="max",
        optimizer=NormalizedAdam(momentum=0.9),
        alpha=0.3,
        alpha_scale="change",
    )
    for name, value in given.items():
        template = made.template(dataclasses.replace(TEMPLATE, **{name: value}))
        changed = {name: value}
        if name == "slack":
            changed["threshold"] = None
        if name == "alpha":
            changed["alpha_scale"] = "raw"
        assert template == dataclasses.replace(chosen, **changed), name
    both = made.template(dataclasses.replace(TEMPLATE, alpha=7.0, constraint_alpha=3.0, alpha_scale="spread"))
    assert (both.alpha, both.constraint_alpha, both.alpha_scale) == (7.0, 3.0, "spread")
    assert made.template(dataclasses.replace(TEMPLATE, slack=1.0)).switch_at == pytest.approx(0.05)


@pytest.mark.parametrize(
    "method",
    [
        ss.Automatic(tolerance=0.1, method=ss.HardSGM),
        ss.Automatic(tolerance=0.1, criterion="softmax", method=ss.AverageSGM),
    ],
)
def test_other_rules_keep_their_own_criterion(method):
    made = choice.choose_first_restart(jnp.zeros(4), 100, may_end=False, exact=True)
    method = method.template
    template = made.template(method)
    assert (type(template), template.switches_on) == (type(method), method.switches_on)
    assert template.step_size is not None


def test_a_setting_of_a_softmax_alone_needs_its_alpha(clients):
    with pytest.raises(ValueError, match="constraint_alpha and alpha_scale need an alpha"):
        flat.solve(PROBLEM, clients, ss.Automatic(tolerance=0.1, constraint_alpha=3.0))
    with pytest.raises(ValueError, match="alpha_scale need an alpha"):
        flat.solve(PROBLEM, clients, ss.Automatic(tolerance=0.1, alpha_scale="spread"))


def test_what_is_chosen_for_small_data(clients):
    request, _ = asked(clients)
    told = shown(request, clients)
    assert (told["batch_size"], told["value_batch_size"], told["memory"]) == (None, None, None)
    assert request.oracle.by_size
    assert request.choice.exact
    assert request.choice.may_end
    assert request.rounds == choice.MAX_ROUNDS
    assert (told["answer"], told["average_last"]) == ("auto", 0.5)


def test_what_is_chosen_where_there_is_work_for_few_rows_only(monkeypatch):
    """Fewer rows of gradients, then of reports too; clients are remembered where reports are noisy."""
    large = client_data(*regression(clients=3, sizes=(700, 900)))
    some = shown(asked(large, rounds=400)[0], large)
    assert (some["batch_size"], some["value_batch_size"]) == (None, None)
    rows = int(large.sizes.sum())
    monkeypatch.setattr(choice, "MIN_ROWS", (64, 256))
    monkeypatch.setattr(choice, "WORK", choice.MIN_PARAMETERS * choice.MIN_ROUNDS * int(2.5 * rows))
    request, _ = asked(large)
    told = shown(request, large)
    assert told["value_batch_size"] is None, "exact reports come before exact gradients"
    assert 64 <= told["batch_size"] < 900
    assert told["memory"] is None
    assert request.choice.exact
    monkeypatch.setattr(choice, "WORK", choice.MIN_PARAMETERS * choice.MIN_ROUNDS * (rows // 3))
    request, _ = asked(large)
    told = shown(request, large)
    assert told["value_batch_size"] == 256
    assert told["batch_size"] == 64
    assert told["memory"] == ss.Memory(corrected=True)
    assert not request.choice.exact
    assert asked(large, method=ss.Automatic(tolerance=0.1, robust=1))[0].settings.memory == ss.Memory(
        smoothing=choice.SMOOTHING
    ), "who may lie is not asked to correct what is believed of it"


def test_who_does_not_take_part_is_remembered(clients):
    request, _ = asked(clients, participation=0.5)
    assert request.settings.memory == ss.Memory(smoothing=0.0), "what all rows report has no noise to smooth"
    assert not request.choice.exact


def test_with_a_step_size_the_rest_is_as_in_the_paper(clients):
    given, method = asked(clients, PAPER)
    told = shown(given, clients)
    paper = {
        "rounds": 1000,
        "seconds": None,
        "local_steps": 1,
        "participation": 1.0,
        "batch_size": 32,
        "value_batch_size": 32,
        "replace": None,
        "average_last": 1.0,
        "answer": "average",
        "memory": None,
    }
    assert {name: told[name] for name in paper} == paper
    assert given.choice is None
    assert method == PAPER
    assert (method.switches_on, method.server_optimizer) == ("softmax", optax.sgd)
    assert method.switch_at == pytest.approx(0.1 / 1.1)


@pytest.mark.parametrize("local_steps", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_with_a_step_size_equal_bits_to_naming_all_of_the_papers_settings(clients, local_steps):
    """γ = η/E too."""
    options = {"local_steps": local_steps, "eval_every": 0, "seed": 3}
    left_out = flat.solve(PROBLEM, clients, PAPER, **options)
    named = ss.SoftmaxSGM(
        tolerance=0.1,
        step_size=0.1,
        alpha=10 * math.log(6) / 0.1,
        slack=10.0,
        local_step_size=0.1 / local_steps,
        criterion="softmax",
        optimizer=optax.sgd,
    )
    all_named = flat.solve(
        PROBLEM,
        clients,
        named,
        rounds=1000,
        batch_size=32,
        value_batch_size="same",
        participation=1.0,
        average_last=1.0,
        answer="average",
        memory=None,
        replace=None,
        **options,
    )
    assert len(left_out.history) == 1000
    np.testing.assert_array_equal(left_out.params, all_named.params)
    np.testing.assert_array_equal(left_out.last, all_named.last)
    np.testing.assert_array_equal(left_out.history.criterion, all_named.history.criterion)
    assert left_out.selected == all_named.selected
    assert left_out.restarts == all_named.restarts == ()


def test_the_alpha_of_the_paper():
    """ln(n)/α, how far the softmax mean may lie below the maximum, is a tenth of the tolerance."""
    assert choice.default_alpha(20, 0.05) == pytest.approx(10 * math.log(20) / 0.05)
    assert choice.default_alpha(1, 0.05) == pytest.approx(10 / 0.05)
    with pytest.raises(ValueError, match="alpha must be given if the tolerance is 0"):
        choice.default_alpha(20, 0.0)


def test_rules_with_and_without_a_step_size_share_nothing(clients):
    with pytest.raises(ValueError, match="methods must be all automatic"):
        is_automatic((TEMPLATE, PAPER))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rounds": 0}, "rounds must be"),
        ({"seconds": 0}, "seconds must be"),
        ({"answer": "first"}, "iterate must be one of"),
        ({"average_last": 0}, "average_last must be"),
        ({"memory": "never"}, "memory must be"),
        ({"batch_size": "all"}, "batch_size must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"value_batch_size": "few"}, "value_batch_size must be"),
        ({"eval_every": -1}, "eval_every must be"),
        ({"local_steps": 0}, "local_steps must be"),
    ],
)
def test_what_cannot_be_is_refused_in_words_without_a_step_size(clients, given, words):
    with pytest.raises((ValueError, TypeError), match=words):
        flat.solve(PROBLEM, clients, BARE, **given)
