"""Defaults are those of the paper or chosen automatically; explicit settings are used unchanged."""

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


class EngineArgumentsError(Exception):
    """Carries the arguments of an engine."""


def intercept_engine(clients, method=BARE, problem=PROBLEM, **options):
    """Return the request and the method that solve() passes to its engine. Nothing is run."""

    def intercept(request, method, *rest):
        raise EngineArgumentsError(request, method)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solve, "run", intercept)
        with pytest.raises(EngineArgumentsError) as caught:
            flat.solve(problem, clients, method, **options)
    return caught.value.args


def engine_settings(request, clients):
    """Return every argument of solve() as the engine receives it."""
    oracle, options = request.oracle, request.options
    report, update = oracle.report_batching, oracle.update_batching
    return {
        "rounds": options.rounds,
        "seconds": options.seconds,
        "local_steps": oracle.local_steps,
        "participation": oracle.participants / len(clients),
        "batch_size": None if update.draws is None else update.width,
        "value_batch_size": None if report.draws is None else report.width,
        "replace": update.replace,
        "average_last": options.output.average_last,
        "answer": options.output.iterate,
        "eval_every": options.logging.eval_every,
        "record_clients": options.logging.record_clients,
        "memory": request.memory,
        "client_batch_size": None if oracle.by_size else oracle.slice_size,
    }


def test_explicit_arguments_are_used(clients):
    request, method = intercept_engine(clients, **EXPLICIT)
    assert engine_settings(request, clients) == EXPLICIT
    assert method == TEMPLATE
    assert (request.choice.rounds, request.choice.may_end) == (17, False)


@pytest.mark.parametrize("name", EXPLICIT)
def test_each_explicit_argument_is_used(clients, name):
    request, _ = intercept_engine(clients, **{name: EXPLICIT[name]})
    settings = engine_settings(request, clients)
    if name == "replace":  # without a batch size, nothing is drawn
        settings = engine_settings(intercept_engine(clients, replace=True, batch_size=4)[0], clients)
    assert settings[name] == EXPLICIT[name]


@pytest.mark.parametrize("given", [{"value_batch_size": None, "batch_size": 4}, {"batch_size": None}, {"memory": None}])
def test_explicit_none_is_used(clients, given):
    settings = engine_settings(intercept_engine(clients, participation=0.5, **given)[0], clients)
    assert {name: settings[name] for name in given} == given


@pytest.mark.parametrize("batch_size", [4, "auto", None])
def test_value_batch_size_same(monkeypatch, clients, batch_size):
    """Also if the work limit allows only few rows."""
    for work in (choice.WORK, 2**10):
        monkeypatch.setattr(choice, "WORK", work)
        settings = engine_settings(
            intercept_engine(clients, batch_size=batch_size, value_batch_size="same", rounds=50)[0], clients
        )
        assert settings["value_batch_size"] == settings["batch_size"]
        if batch_size != "auto":
            assert settings["batch_size"] == batch_size


def test_each_method_setting_is_used():
    first_restart = choice.choose_first_restart(jnp.zeros(4), 100, may_end=False, exact=True)
    given = {
        "threshold": 0.05,
        "slack": 2.0,
        "local_step_size": 0.01,
        "criterion": "mean",
        "optimizer": optax.adam,
        "alpha": 7.0,
    }
    step = FallingStep(first=first_restart.first_step, rounds=first_restart.first_length)
    chosen = first_restart.template(TEMPLATE)
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
        template = first_restart.template(dataclasses.replace(TEMPLATE, **{name: value}))
        changed = {name: value}
        if name == "slack":
            changed["threshold"] = None
        if name == "alpha":
            changed["alpha_scale"] = "raw"
        assert template == dataclasses.replace(chosen, **changed), name
    both = first_restart.template(dataclasses.replace(TEMPLATE, alpha=7.0, constraint_alpha=3.0, alpha_scale="spread"))
    assert (both.alpha, both.constraint_alpha, both.alpha_scale) == (7.0, 3.0, "spread")
    assert first_restart.template(dataclasses.replace(TEMPLATE, slack=1.0)).switch_at == pytest.approx(0.05)


@pytest.mark.parametrize(
    "method",
    [
        ss.Automatic(tolerance=0.1, method=ss.HardSGM),
        ss.Automatic(tolerance=0.1, criterion="softmax", method=ss.AverageSGM),
    ],
)
def test_other_methods_keep_their_criterion(method):
    first_restart = choice.choose_first_restart(jnp.zeros(4), 100, may_end=False, exact=True)
    method = method.template
    template = first_restart.template(method)
    assert (type(template), template.switches_on) == (type(method), method.switches_on)
    assert template.step_size is not None


def test_softmax_settings_require_alpha(clients):
    with pytest.raises(ValueError, match="constraint_alpha and alpha_scale need an alpha"):
        flat.solve(PROBLEM, clients, ss.Automatic(tolerance=0.1, constraint_alpha=3.0))
    with pytest.raises(ValueError, match="alpha_scale need an alpha"):
        flat.solve(PROBLEM, clients, ss.Automatic(tolerance=0.1, alpha_scale="spread"))


def test_defaults_for_small_data(clients):
    request, _ = intercept_engine(clients)
    settings = engine_settings(request, clients)
    assert (settings["batch_size"], settings["value_batch_size"], settings["memory"]) == (None, None, None)
    assert request.oracle.by_size
    assert request.choice.exact
    assert request.choice.may_end
    assert request.rounds == choice.MAX_ROUNDS
    assert (settings["answer"], settings["average_last"]) == ("auto", 0.5)


def test_defaults_for_limited_work(monkeypatch):
    """Gradient rows are reduced first, then report rows. Client memory is used if reports are noisy."""
    large = client_data(*regression(clients=3, sizes=(700, 900)))
    default_settings = engine_settings(intercept_engine(large, rounds=400)[0], large)
    assert (default_settings["batch_size"], default_settings["value_batch_size"]) == (None, None)
    rows = int(large.sizes.sum())
    monkeypatch.setattr(choice, "MIN_ROWS", (64, 256))
    monkeypatch.setattr(choice, "WORK", choice.MIN_PARAMETERS * choice.MIN_ROUNDS * int(2.5 * rows))
    request, _ = intercept_engine(large)
    settings = engine_settings(request, large)
    assert settings["value_batch_size"] is None, "exact reports have priority over exact gradients"
    assert 64 <= settings["batch_size"] < 900
    assert settings["memory"] is None
    assert request.choice.exact
    monkeypatch.setattr(choice, "WORK", choice.MIN_PARAMETERS * choice.MIN_ROUNDS * (rows // 3))
    request, _ = intercept_engine(large)
    settings = engine_settings(request, large)
    assert settings["value_batch_size"] == 256
    assert settings["batch_size"] == 64
    assert settings["memory"] == ss.Memory(corrected=True)
    assert not request.choice.exact
    assert intercept_engine(large, method=ss.Automatic(tolerance=0.1, robust=1))[0].memory == ss.Memory(
        smoothing=choice.SMOOTHING
    ), "Byzantine clients must not correct their own memory"


def test_partial_participation_uses_client_memory(clients):
    request, _ = intercept_engine(clients, participation=0.5)
    assert request.memory == ss.Memory(smoothing=0.0), "reports from all rows have no noise to smooth"
    assert not request.choice.exact


def test_step_size_gives_paper_defaults(clients):
    request, method = intercept_engine(clients, PAPER)
    settings = engine_settings(request, clients)
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
    assert {name: settings[name] for name in paper} == paper
    assert request.choice is None
    assert method == PAPER
    assert (method.switches_on, method.server_optimizer) == ("softmax", optax.sgd)
    assert method.switch_at == pytest.approx(0.1 / 1.1)


@pytest.mark.parametrize("local_steps", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_paper_defaults_equal_explicit_settings(clients, local_steps):
    """γ = η/E too."""
    options = {"local_steps": local_steps, "eval_every": 0, "seed": 3}
    default = flat.solve(PROBLEM, clients, PAPER, **options)
    explicit = ss.SoftmaxSGM(
        tolerance=0.1,
        step_size=0.1,
        alpha=10 * math.log(6) / 0.1,
        slack=10.0,
        local_step_size=0.1 / local_steps,
        criterion="softmax",
        optimizer=optax.sgd,
    )
    explicit_run = flat.solve(
        PROBLEM,
        clients,
        explicit,
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
    assert len(default.history) == 1000
    np.testing.assert_array_equal(default.params, explicit_run.params)
    np.testing.assert_array_equal(default.last, explicit_run.last)
    np.testing.assert_array_equal(default.history.criterion, explicit_run.history.criterion)
    assert default.selected == explicit_run.selected
    assert default.restarts == explicit_run.restarts == ()


def test_default_alpha():
    """ln(n)/α, the largest distance of the softmax mean from the maximum, is a tenth of the tolerance."""
    assert choice.default_alpha(20, 0.05) == pytest.approx(10 * math.log(20) / 0.05)
    assert choice.default_alpha(1, 0.05) == pytest.approx(10 / 0.05)
    with pytest.raises(ValueError, match="alpha must be given if the tolerance is 0"):
        choice.default_alpha(20, 0.0)


def test_mixed_automatic_and_manual_methods_are_rejected(clients):
    with pytest.raises(ValueError, match="methods must be all automatic"):
        is_automatic((TEMPLATE, PAPER))


@pytest.mark.parametrize(
    ("given", "message"),
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
def test_invalid_settings_are_rejected(clients, given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        flat.solve(PROBLEM, clients, BARE, **given)
