"""Rates of NumPy and PyTorch clients are certified even without errors on held-out rows."""

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
"""Parameters without missed rows."""


def make_rows():
    """Rows with two features: the first is above 0 for positive rows, and a third of the rows are negative."""
    generator = np.random.default_rng(0)
    y = (np.arange(ROWS) % 3 > 0).astype(np.float32)
    x = generator.normal(size=(ROWS, 2)).astype(np.float32)
    x[y == 1, 0] = 1 + np.abs(x[y == 1, 0])
    return {"x": x, "y": y}


def missed_share(score, y):
    return (score <= 0)[y == 1].mean() if (y == 1).any() else -np.inf


def any_missed(score, y):
    """A function that is not a mean over rows, but equals one if no row is missed."""
    return float((score <= 0)[y == 1].any()) if (y == 1).any() else -np.inf


def numpy_client(rate, **options):
    def objective(params, batch):
        return float((params["weight"] ** 2).sum()), {"weight": 2 * params["weight"]}

    def constraint(params, batch):
        return rate(batch["x"] @ params["weight"][0], batch["y"]), None

    def surrogate(params, batch):
        return 0.0, {"weight": np.zeros((1, 2))}

    start = {"weight": np.zeros((1, 2), np.float32)}
    options |= {"name": "a", "held_out": make_rows(), "constraint_surrogate": surrogate}
    return fl.NumpyClient(objective, constraint, make_rows(), start, **options)


def torch_client(rate, **options):
    def constraint(module, batch):
        return torch.tensor(rate(module(batch[0])[:, 0].numpy(), batch[1].numpy()))

    columns = make_rows()
    data = torch.utils.data.TensorDataset(*(torch.from_numpy(columns[name]) for name in "xy"))
    module = torch.nn.Linear(2, 1, bias=False)

    def size(module, batch):
        return (module.weight**2).sum()

    options |= {"name": "a", "held_out": data, "constraint_surrogate": size}
    return fl.TorchClient(module, size, constraint, data, **options)


@pytest.mark.parametrize("make", [numpy_client, torch_client])
def test_rate_without_errors_is_certified(make):
    client = make(missed_share, constraint_range={0, 1})
    interval = client.certify(PARAMS, LEVELS, [None, None])[1]
    assert interval.method is IntervalMethod.BINOMIAL
    assert not interval.approximate
    assert interval.rows == ROWS * 2 / 3
    assert interval.estimate == 0
    assert interval.marginal_upper == pytest.approx(1 - ERROR ** (1 / interval.rows))
    assert interval.meets_at == pytest.approx(stats.binom.cdf(0, interval.rows, 0.05))
    assert interval.meets_at <= ERROR


@pytest.mark.parametrize("make", [numpy_client, torch_client])
def test_server_can_declare_range(make):
    declared = make(missed_share, constraint_range={0, 1}).certify(
        PARAMS, ErrorLevels(ERROR, ERROR, math.nan), [None, None]
    )
    with_range = make(missed_share).certify(PARAMS, ErrorLevels(ERROR, ERROR, math.nan), [None, frozenset((0.0, 1.0))])
    assert with_range == declared
    without_range = make(missed_share).certify(PARAMS, ErrorLevels(ERROR, ERROR, math.nan), [None, None])[1]
    assert without_range.approximate


@pytest.mark.parametrize("make", [numpy_client, torch_client])
def test_non_mean_is_not_treated_as_mean(make):
    client = make(any_missed, constraint_range={0, 1})
    interval = client.certify(PARAMS, LEVELS, [None, None])[1]
    assert interval.approximate
    assert interval.meets_at > ERROR


def test_client_ranges_are_validated():
    with pytest.raises(ValueError, match="constraint_range must be one range, or one for each of 1 constraints"):
        numpy_client(missed_share, constraint_range=[{0, 1}, {0, 1}])
    with pytest.raises(ValueError, match="objective_range must be"):
        torch_client(missed_share, objective_range=(1.0, 0.0))
