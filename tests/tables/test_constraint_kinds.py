"""Registry of constraint kinds: descriptions, and registration of a new kind."""

import jax.numpy as jnp
import pytest

import softswitch as ss
from small_run import SETTINGS, table
from softswitch.problem.networks import batch_scores, logistic_objective
from softswitch.results.descriptions import ConstraintDescription
from softswitch.results.folder import open_run
from softswitch.results.report.page import write_report
from softswitch.tables import training
from softswitch.tables.constraints import KINDS, ConstraintKind, ProblemFunctions, build_problem, kind_names
from softswitch.tables.labels import NumberLabel
from softswitch.tables.settings import parse_config

NAMES = {
    "client": "hospital",
    "label": "diagnosis",
    "positive": "malignant",
    "group": "sex = F",
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_description(kind):
    sentence = KINDS[kind].describe_bound(0.05, **NAMES)
    assert sentence.startswith("At every hospital, ")
    assert sentence.endswith(".")
    assert ("0.05" in sentence) != ("5%" in sentence or "5 percentage points" in sentence)
    assert ("sex = F" in sentence) == KINDS[kind].uses_groups


def test_descriptions():
    missed = KINDS["miss-rate"].describe_bound(0.05, **NAMES)
    assert missed == (
        "At every hospital, at most 5% of the rows with diagnosis = malignant may be missed (classified otherwise)."
    )
    unknown = {"label": "label", "positive": None}
    assert "the rows with a positive label may be missed" in KINDS["miss-rate"].describe_bound(0.1, **NAMES | unknown)
    assert "at most 1 percentage point between" in KINDS["decision-parity"].describe_bound(0.01, **NAMES)


def test_kinds_by_label_type():
    assert kind_names("multiclass") == ("error-rate", "class-miss-rate")
    assert kind_names("number") == ("mean-error", "absolute-error", "coverage")
    assert set(kind_names("binary", "multiclass")) | set(kind_names("number")) == set(KINDS)
    with pytest.raises(ValueError, match=r"task\.kind must be one of mean-error, .* 'number', but is 'miss-rate'"):
        build_problem("miss-rate", 2, label=NumberLabel())


def toy_functions(**options):
    """Bound the mean squared score."""

    def constraint(params, batch):
        return jnp.average(jnp.square(batch_scores(params, batch)), weights=batch["weight"])

    return ProblemFunctions(logistic_objective, constraint, is_convex_if_linear=True)


@pytest.fixture
def toy():
    description = ConstraintDescription("squared score", "mean log loss", is_nonnegative=True)
    sentence = "the mean squared score of {label} may be at most {bound}."
    kind = ConstraintKind("squared-score", toy_functions, description, sentence, strata="y", default_bound=0.5)
    KINDS[kind.name] = kind
    yield kind
    del KINDS[kind.name]


def test_registered_kind_is_trained_and_reported(toy, tmp_path):
    table().to_csv(tmp_path / "cases.csv", index=False)
    (tmp_path / "toy.toml").write_text(SETTINGS.replace("[task]", '[task]\nkind = "squared-score"'))
    trained = training.train(tmp_path / "toy.toml", progress=False)
    assert 0 < trained.result.worst_constraint <= 0.5
    run = open_run(trained.folder)
    assert run.about["requirement"] == "At every ward, the mean squared score of y may be at most 0.5."
    page = write_report([trained.folder], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "squared score, worst ward, training rows" in page
    assert set(ss.load(trained.folder).predict(table())) == {0, 1}
    assert "squared-score" in kind_names("binary")


def test_estimator_accepts_registered_kind(toy):
    x, y = table()[["a", "b"]], table()["y"]
    model = ss.BoundedClassifier("squared-score", 0.5, rounds=20, step_size=0.5).fit(x, y, clients=table()["ward"])
    assert model.worst_constraint_ <= 0.5


def test_settings_accept_registered_kind(toy):
    data = {"file": "a.csv", "label": "y", "client": "ward"}
    assert parse_config({"data": data, "task": {"kind": toy.name}}).task.kind == toy.name
    with pytest.raises(ValueError, match=r"task\.kind must be one of .*squared-score, but is 'cubed-score'"):
        parse_config({"data": data, "task": {"kind": "cubed-score"}})
