"""Several models tested in a fixed order on the same calibration rows, and certificates of the last that passed."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom

import softswitch as ss
from softswitch.certification.certify import certify, certify_path
from softswitch.certification.row_values import Kind
from softswitch.problem.ranges import ZERO_ONE
from softswitch.results.certificate import Outcome, Verdict, judge_certificate

BOUND, DRAWS = 0.2, 150


def error_rate(w, batch):
    """Return the share of the rows in which the column that w selects is below the bound."""
    return jnp.average(((batch["x"] @ w) < BOUND).astype(jnp.float32), weights=batch["weight"])


def objective(w, batch):
    return (batch["weight"] * (batch["x"] @ w)).sum()


COLUMNS = 8
PROBLEM = ss.Problem(objective, error_rate, jnp.zeros(COLUMNS), constraint_range=ZERO_ONE)
MODELS = list(np.eye(COLUMNS, dtype=np.float32))
KINDS = (Kind.MEAN, Kind.MEAN)


def make_rows(errors, rows=200, client=None):
    """Return one client, or several, with the given number of errors of each model."""
    x = np.ones((rows, COLUMNS), np.float32)
    for column, count in enumerate(errors):
        x[:count, column] = 0.0
    return ss.ClientData.from_arrays({"x": x}, np.zeros(rows, int) if client is None else client)


LIMIT = int(binom.ppf(0.05, 200, BOUND)) - 1  # largest number of errors with which 200 rows certify the bound


@pytest.mark.parametrize("is_monotone", [False, True])
@pytest.mark.parametrize("passing", [0, 1, 5, COLUMNS])
def test_answer_is_the_last_that_passed(passing, is_monotone):
    errors = [LIMIT if i < passing else LIMIT + 1 + i for i in range(COLUMNS)]
    options = {"tolerance": BOUND, "preferred": 3, "is_monotone": is_monotone, "kinds": KINDS}
    test = certify_path(MODELS, PROBLEM, make_rows(errors), 0.95, **options)
    assert (test.passed, test.answer) == (passing, passing - 1 if passing else 3)
    expected = Verdict.MEETS if passing else Verdict.UNDECIDED
    assert [client.verdict for client in test.certificate.clients] == [expected]
    assert test.certificate.tests == max(passing, 1)
    if passing > 1:
        assert test.certificate.clients[0].constraints[0].upper == BOUND, "the limit after several tests"


def test_models_after_the_first_failure_do_not_count():
    errors = [0, LIMIT + 1, *[0] * (COLUMNS - 2)]
    test = certify_path(MODELS, PROBLEM, make_rows(errors), 0.95, tolerance=BOUND, kinds=KINDS)
    assert (test.passed, test.answer) == (1, 0)


@pytest.mark.parametrize(
    ("wrong", "verdict", "outcome"),
    [(0, Verdict.TOO_FEW, Outcome.PARTLY), (5, Verdict.VIOLATES, Outcome.VIOLATES)],
)
def test_client_with_too_few_rows_is_not_tested(wrong, verdict, outcome):
    """5 rows cannot certify 20%, but 5 errors in 5 rows show a violation."""
    x = np.ones((205, COLUMNS), np.float32)
    x[200 : 200 + wrong] = 0.0
    client = np.array(["large"] * 200 + ["small"] * 5)
    data = ss.ClientData.from_arrays({"x": x}, client)
    test = certify_path(
        MODELS[:2], PROBLEM, data, 0.95, tolerance=BOUND, kinds=KINDS, names=["large", "small", "absent"]
    )
    verdicts = {one.client: one.verdict for one in test.certificate.clients}
    assert verdicts == {"large": Verdict.MEETS, "small": verdict, "absent": Verdict.TOO_FEW}
    assert test.passed == 2
    assert judge_certificate(test.certificate) is outcome
    needed = {one.client: one.rows_needed for one in test.certificate.clients}
    assert needed["small"] == (14 - 5 if verdict is Verdict.TOO_FEW else None), "0.8^14 < 5%"


def test_without_testable_clients_the_preferred_model_is_the_answer():
    test = certify_path(MODELS, PROBLEM, make_rows([0] * COLUMNS, rows=5), 0.95, tolerance=BOUND, preferred=2)
    assert (test.passed, test.answer) == (0, 2)
    assert judge_certificate(test.certificate) is Outcome.TOO_FEW_ROWS


def test_wrong_certificates_are_rare_at_the_bound():
    """Six of eight models have an error rate of exactly the bound; from the unsafe end on, too many pass wrongly."""
    generator = np.random.default_rng(0)
    rates = np.array([0.05, 0.1, *[BOUND] * 6])
    wrong = reverse = 0
    for _ in range(DRAWS):
        x = generator.random((200, COLUMNS)) * BOUND / rates
        data = ss.ClientData.from_arrays({"x": x.astype(np.float32)}, np.zeros(200, int))
        test = certify_path(MODELS, PROBLEM, data, 0.95, tolerance=BOUND, kinds=KINDS)
        wrong += test.passed > 2
        counts = (x[:, 2:] < BOUND).sum(axis=0)
        reverse += bool((binom.cdf(counts, 200, BOUND) <= 0.05).any())
    limit = int(binom.ppf(0.99, DRAWS, 0.05))
    assert wrong <= limit < reverse


def test_certificate_of_one_model_is_that_of_certify():
    data = make_rows([3] * COLUMNS)
    test = certify_path(MODELS[:1], PROBLEM, data, 0.95, tolerance=BOUND, kinds=KINDS)
    assert test.certificate.to_dict() == certify(MODELS[0], PROBLEM, data, tolerance=BOUND).to_dict()
