"""Comparison with the best constant prediction: hand-computed limits, and error rates by simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from softswitch.results.baseline import Usefulness
from softswitch.tables.metrics import judge_mean, judge_rate


def errors(count, rows):
    return np.arange(rows) < count


def judge(**clients):
    given = {name: errors(*counts) for name, counts in clients.items()}
    return judge_rate("false_alarm_rate", given, condition="disease = 0", prediction="disease = 1")


def test_rate_is_judged_at_the_worst_client_with_enough_rows():
    judged = judge(north=(45, 145), south=(10, 100), tiny=(2, 2))
    upper = stats.binomtest(45, 145, alternative="less").proportion_ci(0.95).high
    assert judged.is_useful
    assert (judged.worst_client, judged.errors, judged.rows) == ("north", 45, 145)
    assert judged.upper == pytest.approx(upper)
    assert judged.worst == pytest.approx(45 / 145)
    assert judged.mean == pytest.approx((45 / 145 + 0.1 + 1) / 3)
    assert judged.constant == 1
    sentence = judged.describe("hospital")
    assert sentence == (
        "At the worst hospital with enough rows (north), 31% of the rows with disease = 0 are called positive (45 of "
        "145; at most 38% with 95% confidence); always predicting disease = 1 calls all of them positive. Too few rows "
        "to judge tiny (2 of 2)."
    )


def test_single_rows_do_not_decide():
    assert not judge(north=(100, 100)).is_useful
    assert not judge(north=(99, 100)).is_useful, "one row is within the sampling error"
    assert not judge(north=(98, 100)).is_useful
    assert judge(north=(90, 100)).is_useful


def test_limit_holds_for_the_worst_client():
    """The smaller client has a lower rate, but a higher limit."""
    judged = judge(large=(70, 100), small=(13, 20))
    assert judged.worst_client == "large"
    assert judged.upper == pytest.approx(stats.binomtest(13, 20, alternative="less").proportion_ci(0.95).high)


def test_small_clients_are_pooled():
    judged = judge(a=(1, 10), b=(2, 10), none=(0, 0))
    assert (judged.worst_client, judged.errors, judged.rows) == ("", 3, 20)
    assert judged.describe().startswith("Over all rows, 15% of the rows with disease = 0")
    assert judge(a=(0, 0)) is None


def test_misses_are_compared_with_always_predicting_the_negative_class():
    given = {"north": errors(20, 100)}
    judged = judge_rate("miss_rate", given, condition="disease = 1", prediction="disease = 0", is_held_out=False)
    assert judged.describe("hospital").startswith("On training rows: at the worst hospital (north), 20% of the rows")
    assert judged.describe().endswith("always predicting disease = 0 misses all of them.")


def test_mean_difference_matches_hand_computation():
    generator = np.random.default_rng(0)
    model = {name: generator.exponential(1.0, 50) for name in "ab"}
    constant = {name: generator.exponential(1.5, 50) for name in "ab"}
    judged = judge_mean("loss", model, constant)
    differences = [constant[name] - model[name] for name in "ab"]
    variance = sum(((one - one.mean()) ** 2).sum() for one in differences) / 98
    mean = np.mean([one.mean() for one in differences])
    assert judged.constant - judged.upper == pytest.approx(mean - 1.645 * math.sqrt(variance / 100))
    assert judged.is_useful == (judged.upper < judged.constant)
    assert judged.mean == pytest.approx(np.mean([rows.mean() for rows in model.values()]))


def test_error_rate_within_the_sampling_error_is_not_useful():
    constant = {"a": errors(30, 100)}
    one_better = {"a": errors(29, 100)}
    judged = judge_mean("error_rate", one_better, constant, prediction="income = 0")
    assert not judged.is_useful
    assert "compared with 30% for always predicting income = 0: a difference within the" in judged.describe()
    judged = judge_mean("error_rate", {"a": errors(15, 100)}, constant)
    assert judged.is_useful
    assert (judged.errors, judged.rows) == (15, 100)
    assert "no improvement" in judge_mean("error_rate", constant, constant).describe()


def test_infeasible_constant_and_too_few_rows():
    rows = {"a": np.ones(30)}
    judged = judge_mean("loss", rows, rows, constant_is_feasible=False)
    assert judged.is_useful
    assert judged.describe().endswith("No constant prediction meets the bound.")
    assert judge_mean("loss", {"a": np.ones(19)}, {"a": np.zeros(19)}) is None
    single = {str(i): np.array([float(i % 2)]) for i in range(30)}
    assert judge_mean("loss", single, dict.fromkeys(single, np.array([0.55]))).is_useful is False


def test_useless_models_are_rarely_called_useful():
    """At 5% in 2,000 draws with three clients; a binomial test at 1% allows 124."""
    generator = np.random.default_rng(1)
    false = 0
    for _ in range(2000):
        model = {i: generator.exponential(1.0, 20 + 30 * i) for i in range(3)}
        constant = {i: generator.exponential(1.0, 20 + 30 * i) for i in range(3)}
        false += judge_mean("loss", model, constant).is_useful
    assert false <= 124


def test_json_round_trip():
    judged = judge(north=(45, 145))
    assert Usefulness.from_dict(judged.to_dict()).describe("x") == judged.describe("x")
