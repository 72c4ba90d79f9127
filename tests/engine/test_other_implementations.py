"""Methods with published implementations: the same steps as in Cooper and Flower, up to rounding.

All clients participate with all of their rows, so that nothing is random.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from problems import LEVEL, OFFSET, client_data, least_squares, record_iterates, regression, two_constraints
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


def softswitch_iterates(monkeypatch, table, method, **how):
    """The iterates w_0, w_1, … of softswitch."""
    problem = ss.Problem(least_squares, two_constraints, jnp.zeros(D, dtype=jnp.float64))
    return record_iterates(monkeypatch, problem, client_data(*table), method, **HOW | how)[0]


class TorchTwin:
    """Objectives and constraints of all clients on all rows, in PyTorch and float64."""

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
    """Cooper's iterates: the mean objective under constraints, with simultaneous primal and dual updates."""
    twin = TorchTwin(table)

    class Mean(cooper.ConstrainedMinimizationProblem):
        def __init__(self):
            super().__init__()
            first = torch.full((multipliers,), start, dtype=torch.float64)
            multiplier = cooper.multipliers.DenseMultiplier(init=first, dtype=torch.float64)
            options = {}
            if coefficient is not None:
                size = torch.full((multipliers,), coefficient, dtype=torch.float64)
                options["penalty_coefficient"] = cooper.penalty_coefficients.DensePenaltyCoefficient(init=size)
            self.bounds = cooper.Constraint(
                constraint_type=cooper.ConstraintType.INEQUALITY,
                multiplier=multiplier,
                formulation_type=formulation,
                **options,
            )

        def compute_cmp_state(self, w):
            state = cooper.ConstraintState(violation=violation(twin.constraint(w)) - EPS)
            return cooper.CMPState(loss=twin.objective(w).mean(), observed_constraints={self.bounds: state})

    w, problem = torch.zeros(D, dtype=torch.float64, requires_grad=True), Mean()
    optimizer = cooper.optim.SimultaneousOptimizer(
        cmp=problem,
        primal_optimizers=torch.optim.SGD([w], lr=ETA),
        dual_optimizers=dual(list(problem.dual_parameters())),
    )
    iterates = [w.detach().numpy().copy()]
    for _ in range(ROUNDS):
        optimizer.roll(compute_cmp_state_kwargs={"w": w})
        iterates.append(w.detach().numpy().copy())
    return np.array(iterates), problem.bounds.multiplier().detach().numpy()


def each_client(g):
    return g.ravel()


def mean_client(g):
    return g.mean(dim=0)


def ascent(parameters):
    return torch.optim.SGD(parameters, lr=0.1, maximize=True)


def nu_pi(parameters):
    proportional, integral = torch.tensor([0.4, 0.1], dtype=torch.float64)  # as plain numbers they would become float32
    return cooper.optim.nuPI(parameters, lr=1.0, Kp=proportional, Ki=integral, ema_nu=0.3, maximize=True)


LAGRANGIAN, AUGMENTED = cooper.formulations.Lagrangian, cooper.formulations.AugmentedLagrangian
COOPERS = {
    "primal–dual": (
        methods.PrimalDual(multiplier=0.3, dual_step_size=0.1, **COMMON),
        (mean_client, C, 0.3, ascent, LAGRANGIAN),
    ),
    "νPI": (
        methods.NuPI(multiplier=0.3, integral=0.1, proportional=0.4, smoothing=0.3, **COMMON),
        (each_client, N * C, 0.3, nu_pi, LAGRANGIAN),
    ),
    "augmented Lagrangian": (
        methods.AugmentedLagrangian(penalty=0.5, dual_step_size=0.1, multiplier=0.1, **COMMON),
        (each_client, N * C, 0.1, ascent, AUGMENTED, 0.5),
    ),
}


@pytest.mark.parametrize("name", COOPERS)
def test_multiplier_methods_match_cooper(monkeypatch, x64, table, name):
    method, arguments = COOPERS[name]
    expected, multipliers = cooper_iterates(table, *arguments)
    assert (multipliers == 0).any() or multipliers.size == C, "some multiplier must have been cut off at 0"
    assert (multipliers > 0).any()
    np.testing.assert_allclose(softswitch_iterates(monkeypatch, table, method), expected, rtol=1e-10, atol=1e-12)


def train_client(twin, place, w):
    """A client's parameters after E gradient steps of size η/E."""
    v = torch.tensor(w, requires_grad=True)
    for _ in range(STEPS):
        (slope,) = torch.autograd.grad(twin.objective(v)[place], v)
        v = (v - ETA / STEPS * slope).detach().requires_grad_()
    return v.detach().numpy()


def flower_iterates(table, strategy):
    """Parameters that Flower's strategy aggregates in each round, with equal weights."""
    twin, w = TorchTwin(table), np.zeros(D)
    iterates = [w]
    for k in range(ROUNDS):
        replies = []
        for i in range(N):
            losses = {"train_loss": float(twin.objective(torch.tensor(w))[i]), "num-examples": 1}
            content = {"arrays": app.ArrayRecord([train_client(twin, i, w)]), "metrics": app.MetricRecord(losses)}
            sender = app.Metadata(1, "", i + 1, 1, "", "", 0.0, 1.0, app.MessageType.TRAIN)
            replies.append(app.Message(app.RecordDict(content), metadata=sender))
        strategy.current_arrays = app.ArrayRecord([w])  # set by configure_train before training messages are sent
        arrays, _ = strategy.aggregate_train(k + 1, replies)
        (w,) = arrays.to_numpy_ndarrays()
        iterates.append(w)
    return np.array(iterates)


@pytest.fixture
def no_garbage_collection(monkeypatch):
    """Disable garbage collection, which Flower runs after every array and which takes a second in the tests."""
    monkeypatch.setattr("gc.collect", lambda *_: 0)


def test_fedavg_matches_flower(no_garbage_collection, monkeypatch, x64, table):
    expected = flower_iterates(table, strategies.FedAvg())
    iterates = softswitch_iterates(monkeypatch, table, methods.FedAvg(**COMMON), local_steps=STEPS)
    np.testing.assert_allclose(iterates, expected, rtol=1e-10, atol=1e-12)


def test_qfedavg_matches_flower(no_garbage_collection, monkeypatch, x64, table):
    expected = flower_iterates(table, strategies.QFedAvg(client_learning_rate=ETA, q=1.5))
    iterates = softswitch_iterates(monkeypatch, table, methods.QFedAvg(power=1.5, **COMMON), local_steps=STEPS)
    np.testing.assert_allclose(iterates, expected, rtol=1e-10, atol=1e-12)
