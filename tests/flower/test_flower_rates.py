"""Rates of clients with NumPy and PyTorch: certified also where nobody held out is decided wrongly."""

import math

import numpy as np
import pytest
from scipy import stats

import softswitch.flower as fl
from softswitch.certification.intervals import ErrorLevels
from softswitch.results.certificate import IntervalMethod

torch = pytest.importorskip("torch")

ROWS, ERROR = 90, 0.05
LEVELS = ErrorLevels(ERROR / 3, ERROR, 0.05)
PARAMS = {"weight": np.array([[1.0, 0.0]], np.float32)}
"""At which nobody is missed."""


def rows_of():
    """The first of two features is above 0 wherever a row is positive; a third of the rows are negative."""
    generator = np.random.default_rng(0)
    y = (np.arange(ROWS) % 3 > 0).astype(np.float32)
    x = generator.normal(size=(ROWS, 2)).astype(np.float32)
    x[y == 1, 0] = 1 + np.abs(x[y == 1, 0])
    return {"x": x, "y": y}


def missed_share(score, y):
    return (score <= 0)[y == 1].mean() if (y == 1).any() else -np.inf


def any_missed(score, y):
    """No mean over rows, though it looks like one where nobody is missed."""
    return float((score <= 0)[y == 1].any()) if (y == 1).any() else -np.inf


def numpy_client(rate, **options):
    def objective(params, batch):
        return float((params["weight"] ** 2).sum()), {"weight": 2 * params["weight"]}

    def constraint(params, batch):
        return rate(batch["x"] @ params["weight"][0], batch["y"]), None

    def stand_in(params, batch):
        return 0.0, {"weight": np.zeros((1, 2))}

    start = {"weight": np.zeros((1, 2), np.float32)}
    options |= {"name": "a", "held_out": rows_of(), "constraint_surrogate": stand_in}
    return fl.NumpyClient(objective, constraint, rows_of(), start, **options)


def torch_client(rate, **options):
    def constraint(module, batch):
        return torch.tensor(rate(module(batch[0])[:, 0].numpy(), batch[1].numpy()))

    columns = rows_of()
    data = torch.utils.data.TensorDataset(*(torch.from_numpy(columns[name]) for name in "xy"))
    module = torch.nn.Linear(2, 1, bias=False)

    def size(module, batch):
        return (module.weight**2).sum()

    options |= {"name": "a", "held_out": data, "constraint_surrogate": size}
    return fl.TorchClient(module, size, constraint, data, **options)


@pytest.mark.parametrize("make", [numpy_client, torch_client])
def test_a_rate_without_errors_is_certified(make):
    client = make(missed_share, constraint_range={0, 1})
    found = client.certify(PARAMS, LEVELS, [None, None])[1]
    assert found.method is IntervalMethod.BINOMIAL
    assert not found.approximate
    assert found.rows == ROWS * 2 / 3
    assert found.estimate == 0
    assert found.marginal_upper == pytest.approx(1 - ERROR ** (1 / found.rows))
    assert found.meets_at == pytest.approx(stats.binom.cdf(0, found.rows, 0.05))
    assert found.meets_at <= ERROR


@pytest.mark.parametrize("make", [numpy_client, torch_client])
def test_the_server_may_say_it_instead(make):
    declared = make(missed_share, constraint_range={0, 1}).certify(
        PARAMS, ErrorLevels(ERROR, ERROR, math.nan), [None, None]
    )
    told = make(missed_share).certify(PARAMS, ErrorLevels(ERROR, ERROR, math.nan), [None, frozenset((0.0, 1.0))])
    assert told == declared
    nothing_said = make(missed_share).certify(PARAMS, ErrorLevels(ERROR, ERROR, math.nan), [None, None])[1]
    assert nothing_said.approximate


@pytest.mark.parametrize("make", [numpy_client, torch_client])
def test_what_is_no_mean_is_not_taken_for_one(make):
    client = make(any_missed, constraint_range={0, 1})
    found = client.certify(PARAMS, LEVELS, [None, None])[1]
    assert found.approximate
    assert found.meets_at > ERROR


def test_ranges_of_clients_are_checked():
    with pytest.raises(ValueError, match="constraint_range must be one range, or one for each of 1 constraints"):
        numpy_client(missed_share, constraint_range=[{0, 1}, {0, 1}])
    with pytest.raises(ValueError, match="objective_range must be"):
        torch_client(missed_share, objective_range=(1.0, 0.0))
