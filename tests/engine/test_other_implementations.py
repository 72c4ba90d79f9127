"""Methods that others have published as programs: the same steps, to rounding, as Cooper's and Flower's.

All clients take part with all of their rows, so that nothing is drawn.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from problems import LEVEL, OFFSET, client_data, least_squares, regression, two_constraints, watched
from softswitch import methods as methods

cooper = pytest.importorskip("cooper")
torch = pytest.importorskip("torch")
strategies = pytest.importorskip("flwr.serverapp.strategy")
app = pytest.importorskip("flwr.app")

ROUNDS, ETA, EPS = 25, 0.1, 0.05
N, C, D, STEPS = 6, 2, 4, 3
COMMON = {"step_size": ETA, "tolerance": EPS}
HOW = {"rounds": ROUNDS, "batch_size": None, "memory": None, "answer": "last"}


@pytest.fixture(scope="module")
def table():
    return regression()


def ours(monkeypatch, table, method, **how):
    """Our iterates w_0, w_1, …."""
    problem = ss.Problem(least_squares, two_constraints, jnp.zeros(D, dtype=jnp.float64))
    return watched(monkeypatch, problem, client_data(*table), method, **HOW | how)[0]


class TorchTwin:
    """The clients' functions of all of their rows, in PyTorch and float64."""

    def __init__(self, table):
        data, owner = table
        self.clients = [{name: torch.tensor(column[owner == i]) for name, column in data.items()} for i in range(N)]

    def objective(self, w):
        return torch.stack([0.5 * ((rows["a"] @ w - rows["b"]) ** 2).mean() for rows in self.clients])

    def constraint(self, w):
        return torch.stack(
            [
                torch.stack(
                    [torch.nn.functional.softplus(rows["c"] @ w).mean() - LEVEL, (rows["h"] @ w).mean() - OFFSET]
                )
                for rows in self.clients
            ]
        )


def cooper_iterates(table, violation, multipliers, start, dual, formulation, coefficient=None):
    """Cooper's iterates: the clients' mean objective under constraints, both sides moved at once."""
    twin = TorchTwin(table)

    class Mean(cooper.ConstrainedMinimizationProblem):
        def __init__(self):
            super().__init__()
            first = torch.full((multipliers,), start, dtype=torch.float64)
            own = cooper.multipliers.DenseMultiplier(init=first, dtype=torch.float64)
            more = {}
            if coefficient is not None:
                size = torch.full((multipliers,), coefficient, dtype=torch.float64)
                more["penalty_coefficient"] = cooper.penalty_coefficients.DensePenaltyCoefficient(init=size)
            self.bounds = cooper.Constraint(
                constraint_type=cooper.ConstraintType.INEQUALITY,
                multiplier=own,
                formulation_type=formulation,
                **more,
            )

        def compute_cmp_state(self, w):
            state = cooper.ConstraintState(violation=violation(twin.constraint(w)) - EPS)
            return cooper.CMPState(loss=twin.objective(w).mean(), observed_constraints={self.bounds: state})

    w, bounded = torch.zeros(D, dtype=torch.float64, requires_grad=True), Mean()
    both = cooper.optim.SimultaneousOptimizer(
        cmp=bounded,
        primal_optimizers=torch.optim.SGD([w], lr=ETA),
        dual_optimizers=dual(list(bounded.dual_parameters())),
    )
    iterates = [w.detach().numpy().copy()]
    for _ in range(ROUNDS):
        both.roll(compute_cmp_state_kwargs={"w": w})
        iterates.append(w.detach().numpy().copy())
    return np.array(iterates), bounded.bounds.multiplier().detach().numpy()


def of_each(g):
    return g.ravel()


def of_all(g):
    return g.mean(dim=0)


def ascent(parameters):
    return torch.optim.SGD(parameters, lr=0.1, maximize=True)


def nu_pi(parameters):
    proportional, integral = torch.tensor([0.4, 0.1], dtype=torch.float64)  # made float32 where they are numbers
    return cooper.optim.nuPI(parameters, lr=1.0, Kp=proportional, Ki=integral, ema_nu=0.3, maximize=True)


LAGRANGIAN, AUGMENTED = cooper.formulations.Lagrangian, cooper.formulations.AugmentedLagrangian
COOPERS = {
    "primal–dual": (
        methods.PrimalDual(multiplier=0.3, dual_step_size=0.1, **COMMON),
        (of_all, C, 0.3, ascent, LAGRANGIAN),
    ),
    "νPI": (
        methods.NuPI(multiplier=0.3, integral=0.1, proportional=0.4, smoothing=0.3, **COMMON),
        (of_each, N * C, 0.3, nu_pi, LAGRANGIAN),
    ),
    "augmented Lagrangian": (
        methods.AugmentedLagrangian(penalty=0.5, dual_step_size=0.1, multiplier=0.1, **COMMON),
        (of_each, N * C, 0.1, ascent, AUGMENTED, 0.5),
    ),
}


@pytest.mark.parametrize("name", COOPERS)
def test_multipliers_are_coopers(monkeypatch, x64, table, name):
    method, how = COOPERS[name]
    expected, multipliers = cooper_iterates(table, *how)
    assert (multipliers == 0).any() or multipliers.size == C, "some multiplier must have been cut off at 0"
    assert (multipliers > 0).any()
    np.testing.assert_allclose(ours(monkeypatch, table, method), expected, rtol=1e-10, atol=1e-12)


def trained(twin, place, w):
    """A client's parameters after so many gradient steps of η/E, as any Flower client would train them."""
    v = torch.tensor(w, requires_grad=True)
    for _ in range(STEPS):
        (slope,) = torch.autograd.grad(twin.objective(v)[place], v)
        v = (v - ETA / STEPS * slope).detach().requires_grad_()
    return v.detach().numpy()


def flower_iterates(table, strategy):
    """What Flower's strategy makes of the clients' parameters, round by round; all of them weigh the same."""
    twin, w = TorchTwin(table), np.zeros(D)
    iterates = [w]
    for k in range(ROUNDS):
        replies = []
        for i in range(N):
            losses = {"train_loss": float(twin.objective(torch.tensor(w))[i]), "num-examples": 1}
            told = {"arrays": app.ArrayRecord([trained(twin, i, w)]), "metrics": app.MetricRecord(losses)}
            sender = app.Metadata(1, "", i + 1, 1, "", "", 0.0, 1.0, app.MessageType.TRAIN)
            replies.append(app.Message(app.RecordDict(told), metadata=sender))
        strategy.current_arrays = app.ArrayRecord([w])  # what configure_train keeps before it asks the clients
        arrays, _ = strategy.aggregate_train(k + 1, replies)
        (w,) = arrays.to_numpy_ndarrays()
        iterates.append(w)
    return np.array(iterates)


@pytest.fixture
def uncollected(monkeypatch):
    """Flower frees memory after every array that it reads; with all that tests have imported that takes a second."""
    monkeypatch.setattr("gc.collect", lambda *_: 0)


def test_averaging_is_flowers(uncollected, monkeypatch, x64, table):
    expected = flower_iterates(table, strategies.FedAvg())
    found = ours(monkeypatch, table, methods.FedAvg(**COMMON), local_steps=STEPS)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_q_fed_avg_is_flowers(uncollected, monkeypatch, x64, table):
    expected = flower_iterates(table, strategies.QFedAvg(client_learning_rate=ETA, q=1.5))
    found = ours(monkeypatch, table, methods.QFedAvg(power=1.5, **COMMON), local_steps=STEPS)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
