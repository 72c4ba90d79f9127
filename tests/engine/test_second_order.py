"""SQP against solvers, published optima and automatic differentiation; its checkpoints, messages and limits."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

import softswitch as ss
from benchmarks.optima.as_clients import as_clients
from benchmarks.optima.problems import half
from benchmarks.optima.scores import TOLERANCE, relaxed_optimum
from convex_problems import draw
from softswitch.methods.sqp import Query
from softswitch.oracles.derivatives import RowDerivatives
from softswitch.oracles.evaluation import few_widths
from softswitch.oracles.torch_derivatives import TorchDerivatives
from softswitch.oracles.torch_functions import ModuleFunctions, TorchRows
from softswitch.problem.fairness import demographic_parity
from softswitch.results.status import DiagnosticCode, StatusCode
from softswitch_experiments.tasks.neyman_pearson import breast_cancer


def make_parity_clients(rows=400, clients=5, dimension=4, seed=0):
    generator = np.random.default_rng(seed)
    x = np.c_[generator.normal(size=(rows, dimension - 1)), np.ones(rows)].astype(np.float32)
    owner = generator.choice(clients, rows, p=generator.dirichlet(np.full(clients, 5.0)))
    y = (x[:, 0] - x[:, 1] + generator.normal(size=rows) > 0).astype(np.float32)
    group = (x[:, 0] + generator.normal(size=rows) > 0).astype(int)
    return ss.ClientData.from_arrays({"x": x, "y": y, "group": group}, client=owner)


def cross_entropy(w, batch):
    score = batch["x"] @ w
    return (batch["weight"] * (jnp.logaddexp(0, score) - batch["y"] * score)).sum()


def probability(w, batch):
    return jax.nn.sigmoid(batch["x"] @ w)


PARITY = ss.Problem(cross_entropy, demographic_parity(probability), jnp.zeros(4))


def check_optimum(example, max_rounds):
    problem, clients = as_clients(example)
    result = ss.solve(problem, clients, ss.SQP(tolerance=TOLERANCE), output=ss.Output(lower_bound=False))
    best = relaxed_optimum(example)
    assert abs(result.worst_objective - best) <= 1e-6 * max(1, abs(best)), example.name
    assert result.worst_constraint <= TOLERANCE, example.name
    assert len(result.history) <= max_rounds, example.name
    return len(result.history)


@pytest.mark.parametrize("name", ["CB2", "Polak 2", "Rosen-Suzuki", "HS 29", "Wong 2 linear", "Pentagon"])
def test_published_optima(x64, name):
    (example,) = (candidate for candidate in half("all") if candidate.name == name)
    check_optimum(example, 25)


@pytest.mark.slow
def test_all_published_optima(x64):
    exchanges = [check_optimum(example, 80) for example in half("all")]
    assert len(exchanges) == 54
    assert sum(count <= 25 for count in exchanges) >= 50


def test_random_convex_problems(x64):
    for seed in range(20, 32):
        instance = draw(seed)
        _, (best, _) = instance.optimum()
        result = ss.solve(instance.problem, instance.clients, ss.SQP(tolerance=max(instance.tolerance, 0.0)))
        if instance.tolerance < 0:
            continue
        assert result.status.ok, seed
        assert result.worst_objective == pytest.approx(best, rel=1e-6, abs=1e-8), seed
        assert result.lower_bound.certified, seed
        assert -1e-9 <= result.gap <= 1e-6 * max(1, abs(best)), seed


def test_float32_parameters_and_precision_setting():
    clients = make_parity_clients()
    result = ss.solve(PARITY, clients, ss.SQP(tolerance=0.05))
    assert not jax.config.jax_enable_x64
    assert result.params.dtype == jnp.float32
    assert result.status.ok
    assert 0.0499 < result.worst_constraint <= 0.05
    first_order = ss.solve(PARITY, clients, tolerance=0.05, output=ss.Output(lower_bound=False))
    assert result.worst_objective <= first_order.worst_objective + 1e-5
    assert len(result.history) <= 12
    assert (result.history.full_rounds == np.arange(len(result.history))).all()


def derivatives_by_formula(x, y, group, w):
    """Cross-entropy and parity gap of some rows, with gradients and Hessians by their formulas."""
    p = 1 / (1 + np.exp(-x @ w))
    slope, bend = p * (1 - p), p * (1 - p) * (1 - 2 * p)
    signs = np.where(group == 1, 1 / (group == 1).sum(), -1 / (group != 1).sum())
    values = np.mean(np.logaddexp(0, x @ w) - y * (x @ w)), signs @ p
    gradients = x.T @ (p - y) / len(y), x.T @ (signs * slope)
    return values, gradients, ((x.T * slope) @ x / len(y), (x.T * (signs * bend)) @ x)


def test_derivatives_match_formulas():
    clients, generator = make_parity_clients(), np.random.default_rng(1)
    derivatives = RowDerivatives(PARITY, clients)
    assert derivatives.shape == (5, 2)
    assert derivatives.is_exact
    point, weights, multipliers = generator.normal(size=4), generator.uniform(size=5), generator.uniform(size=(5, 2))
    reply, total = derivatives.reply(Query(point, weights, multipliers)), np.zeros((4, 4))
    for i, (begin, size) in enumerate(zip(np.asarray(clients.rows.offsets[:, 0]), clients.sizes, strict=True)):
        rows = (np.asarray(clients.rows.columns[name], float)[begin : begin + size] for name in ("x", "y", "group"))
        values, gradients, hessians = derivatives_by_formula(*rows, point)
        np.testing.assert_allclose(np.r_[reply.objective[i], reply.constraint[i]], [*values, -values[1]], rtol=1e-12)
        np.testing.assert_allclose(reply.objective_gradient[i], gradients[0], rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(reply.constraint_gradient[i], [gradients[1], -gradients[1]], rtol=1e-10, atol=1e-13)
        total += weights[i] * hessians[0] + (multipliers[i] @ [1, -1]) * hessians[1]
    np.testing.assert_allclose(reply.hessian, total, rtol=1e-9, atol=1e-12)


def test_pooled_constraint_derivatives_by_chain_rule():
    clients, generator = make_parity_clients(), np.random.default_rng(2)
    derivatives = RowDerivatives(PARITY, clients, pooled=True)
    point, weights, multipliers = generator.normal(size=4), generator.uniform(size=5), np.array([[0.7, 0.2]])
    reply = derivatives.reply(Query(point, weights, multipliers))
    columns = (np.asarray(clients.rows.columns[name], float) for name in ("x", "y", "group"))
    (_, gap), (_, slope), (_, curvature) = derivatives_by_formula(*columns, point)
    np.testing.assert_allclose(reply.constraint, [[gap, -gap]], rtol=1e-10)
    np.testing.assert_allclose(reply.constraint_gradient[0], [slope, -slope], rtol=1e-9, atol=1e-12)
    unweighted = derivatives.reply(Query(point, weights, 0 * multipliers)).hessian
    np.testing.assert_allclose(reply.hessian - unweighted, 0.5 * curvature, rtol=1e-8, atol=1e-11)
    result = ss.solve(PARITY, clients, ss.SQP(tolerance=0.02, criterion="pooled"))
    assert 0.0199 < result.pooled_constraint.max() <= 0.02


def test_pooled_constraint_with_curved_statistic():
    """The square of the mean probability over all rows."""

    def sums(w, batch):
        return jnp.stack([(batch["weight"] * probability(w, batch)).sum(), batch["weight"].sum()])

    clients, point = make_parity_clients(), np.array([0.5, -0.3, 0.2, 0.1])
    squared = dataclasses.replace(PARITY, constraint=ss.PooledConstraint(sums, lambda s: (s[0] / s[1]) ** 2))
    reply = RowDerivatives(squared, clients, pooled=True).reply(Query(point, np.zeros(5), np.ones((1, 1))))
    x = np.asarray(clients.rows.columns["x"], float)
    p = 1 / (1 + np.exp(-x @ point))
    slope = x.T @ (p * (1 - p)) / len(p)
    bend = (x.T * (p * (1 - p) * (1 - 2 * p))) @ x / len(p)
    np.testing.assert_allclose(reply.constraint, [[p.mean() ** 2]], rtol=1e-10)
    np.testing.assert_allclose(reply.hessian, 2 * np.outer(slope, slope) + 2 * p.mean() * bend, rtol=1e-8, atol=1e-12)


def test_clients_without_value_are_excluded():
    task = breast_cancer(20, concentration=0.3)
    problem = dataclasses.replace(task.problem, domain=ss.Ball(3.0))
    result = ss.solve(problem, task.train, ss.SQP(tolerance=0.3))
    assert np.isneginf(result.client_objective).any() or np.isneginf(result.client_constraint).any()
    assert result.status.ok
    assert result.lower_bound.certified
    assert result.lower_bound.relative_gap < 1e-5
    assert result.history.absent[0] > 0


def test_more_clients_than_one_subproblem_holds(x64):
    """The reference optimum for objectives (w − a_i)²/2 + b_i of 700 clients comes from a bisection."""
    generator = np.random.default_rng(3)
    a, b = generator.normal(size=700), 0.3 * generator.normal(size=700)
    problem = ss.Problem(
        lambda w, batch: (batch["weight"] * ((w - batch["a"]) ** 2 / 2 + batch["b"])).sum(),
        lambda w, batch: (batch["weight"] * (batch["a"] * 0 - 1 + 0 * w)).sum(),
        jnp.zeros(()),
        convex=True,
    )
    clients = ss.ClientData.from_arrays({"a": a, "b": b}, client=np.arange(700))
    result = ss.solve(problem, clients, ss.SQP(tolerance=0.1))
    fine = np.linspace(-3, 3, 600_001)
    best = min(((w - a) ** 2 / 2 + b).max() for w in fine[np.abs(fine - float(result.params)) < 0.01])
    assert result.worst_objective <= best + 1e-9
    assert result.gap <= 1e-6


def test_resume_is_exact(tmp_path):
    clients, method = make_parity_clients(), ss.SQP(tolerance=0.05)
    uninterrupted = ss.solve(PARITY, clients, method, logging=ss.Logging(record_clients=True))
    logging = ss.Logging(record_clients=True, callbacks=[lambda chunk: chunk.round == 3])
    interrupted = ss.solve(PARITY, clients, method, logging=logging, checkpoints=ss.Checkpoints(tmp_path))
    assert interrupted.status.code is StatusCode.STOPPED
    assert len(interrupted.history) == 3
    logging = ss.Logging(record_clients=True)
    resumed = ss.solve(PARITY, clients, method, logging=logging, checkpoints=ss.Checkpoints(tmp_path))
    np.testing.assert_array_equal(resumed.params, uninterrupted.params)
    np.testing.assert_array_equal(resumed.history.objective, uninterrupted.history.objective)
    np.testing.assert_array_equal(resumed.history.per_client.constraint, uninterrupted.history.per_client.constraint)
    with pytest.raises(ValueError, match="method"):
        ss.solve(PARITY, clients, ss.SQP(tolerance=0.06), logging=logging, checkpoints=ss.Checkpoints(tmp_path))


def test_infeasible_problem_is_proved_infeasible(x64):
    problem = ss.Problem(
        lambda w, batch: (batch["weight"] * (w[0] - batch["a"]) ** 2).sum(),
        lambda w, batch: (batch["weight"] * (w[0] - batch["a"]) ** 2).sum() + 0 * w[1],
        jnp.array([3.0, 0.0]),
        domain=ss.Ball(10.0),
        convex=True,
    )
    clients = ss.ClientData.from_arrays({"a": np.array([-1.0, 1.0, 0.2])}, client=["left", "right", "middle"])
    result = ss.solve(problem, clients, ss.SQP(tolerance=0.5))  # w = 0 has the smallest largest constraint, 1
    assert result.status.code is StatusCode.VIOLATED
    (diagnostic,) = (item for item in result.diagnostics if item.code is DiagnosticCode.NEVER_FEASIBLE)
    assert "'left', 'right'" in diagnostic.evidence
    assert "middle" not in diagnostic.evidence
    assert result.worst_constraint == pytest.approx(1.0, abs=1e-6)
    feasible = ss.solve(problem, clients, ss.SQP(tolerance=1.01))
    assert not [item for item in feasible.diagnostics if item.code is DiagnosticCode.NEVER_FEASIBLE]


def test_float32_cast_is_diagnosed():
    def rough(w, batch):
        return (batch["weight"] * (batch["x"].astype(jnp.float32) @ w.astype(jnp.float32)) ** 2).sum() + w @ w

    clients = make_parity_clients()
    result = ss.solve(dataclasses.replace(PARITY, objective=rough), clients, ss.SQP(tolerance=0.05))
    assert DiagnosticCode.LIMITED_PRECISION in [diagnostic.code for diagnostic in result.diagnostics]


def test_nonfinite_values_are_reported():
    def broken(w, batch):
        return (batch["weight"] * jnp.log(batch["x"][:, 0] + w[0])).sum()

    result = ss.solve(dataclasses.replace(PARITY, objective=broken), make_parity_clients(), ss.SQP(tolerance=0.05))
    assert result.status.code is StatusCode.DIVERGED


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": ss.Sampling(batch_size=8)}, "batch_size must keep its default for SQP"),
        ({"sampling": ss.Sampling(participation=0.5)}, "participation must keep its default for SQP"),
        ({"compute": ss.Compute(client_batch_size=2)}, "client_batch_size must keep its default for SQP"),
        ({"output": ss.Output(iterate="average")}, "iterate must keep its default for SQP"),
    ],
)
def test_incompatible_options_name_alternative(options, message):
    with pytest.raises(ValueError, match=f"{message}.*use solve"):
        ss.solve(PARITY, make_parity_clients(), ss.SQP(tolerance=0.05), **options)


def test_incompatible_clients_name_alternative():
    method = ss.SQP(tolerance=0.05)
    with pytest.raises(
        TypeError, match=r"clients must be ClientData or StreamedData for SQP, but is object.*use solve"
    ):
        ss.solve(PARITY, object(), method)
    with pytest.raises(TypeError, match=r"problem must be a Problem with clients that hold rows for SQP.*use solve"):
        ss.solve(object.__new__(ss.Federation), None, method)
    with pytest.raises(ValueError, match=r"max_evaluation_rows must be None for SQP.*use SoftmaxSGM"):
        ss.solve(PARITY, out_of_core(make_parity_clients(), max_evaluation_rows=20), method)
    with pytest.raises(ValueError, match=r"devices must keep its default for SQP.*use solve"):
        ss.solve(PARITY, out_of_core(make_parity_clients()), method, compute=ss.Compute(devices=1))
    without_pooling = dataclasses.replace(PARITY, constraint=cross_entropy)
    with pytest.raises(ValueError, match="constraint must be a PooledConstraint"):
        ss.solve(without_pooling, make_parity_clients(), ss.SQP(tolerance=0.05, criterion="pooled"))


def test_bad_settings_are_rejected():
    with pytest.raises(ValueError, match="precision"):
        ss.SQP(tolerance=0.1, precision=0.0)
    with pytest.raises(ValueError, match="robust must be None for SQP"):
        ss.SQP(tolerance=0.1, robust=1)
    with pytest.raises(ValueError, match="criterion must be 'max' or 'pooled'"):
        ss.SQP(tolerance=0.1, criterion="mean")
    large = dataclasses.replace(PARITY, start=jnp.zeros(501))
    with pytest.raises(ValueError, match="at most 500 parameters for SQP, but has 501"):
        ss.solve(large, make_parity_clients(), ss.SQP(tolerance=0.1))
    surrogate = dataclasses.replace(PARITY, constraint_surrogate=lambda w, batch: cross_entropy(w, batch))
    with pytest.raises(ValueError, match="constraint must be smooth for SQP"):
        ss.solve(surrogate, make_parity_clients(), ss.SQP(tolerance=0.1))


def test_widths_cover_all_clients_with_little_padding():
    sizes = np.array([10, 12, 15, 1000, 1100, 90_000])
    (width,) = few_widths(sizes, 10**9, 3)
    assert width == 90_000
    widths = few_widths(sizes, 1, 3)
    assert list(widths) == [15, 1100, 90_000]
    assert math.isclose(sum(widths[np.searchsorted(widths, sizes)]), 3 * 15 + 2 * 1100 + 90_000)


def check_same_trajectory(result, expected):
    """The iterates, values and multipliers of two runs differ by rounding errors only."""
    assert len(result.history) == len(expected.history)
    for name in ("objective", "constraint"):
        np.testing.assert_allclose(getattr(result.history, name), getattr(expected.history, name), rtol=0, atol=1e-9)
    for actual, reference in zip(jax.tree.leaves(result.params), jax.tree.leaves(expected.params), strict=True):
        np.testing.assert_allclose(actual, reference, rtol=0, atol=1e-9)
    assert result.status == expected.status
    assert result.lower_bound.value == pytest.approx(expected.lower_bound.value, abs=1e-9)
    assert result.client_optimum is None


def out_of_core(clients, **options):
    columns = {name: np.asarray(column) for name, column in clients.rows.columns.items()}
    owner = np.repeat(clients.names, clients.sizes)
    return ss.StreamedData.from_arrays(columns, owner, buffer_bytes=16_000, **options)


@pytest.mark.parametrize("criterion", [None, "pooled"])
def test_streamed_rows_match_rows_in_memory(criterion):
    """Two of five clients fit into half of the buffer."""
    clients, method = make_parity_clients(), ss.SQP(tolerance=0.03, criterion=criterion)
    streamed, logging = out_of_core(clients), ss.Logging(held_out=clients)
    check_same_trajectory(
        ss.solve(PARITY, streamed, method, logging=logging), ss.solve(PARITY, clients, method, logging=logging)
    )


def test_resume_with_streamed_rows_is_exact(tmp_path):
    streamed = out_of_core(make_parity_clients())
    uninterrupted = ss.solve(PARITY, streamed, ss.SQP(tolerance=0.05))
    for rounds in (2, None):
        result = ss.solve(PARITY, streamed, ss.SQP(tolerance=0.05), rounds=rounds, checkpoints=ss.Checkpoints(tmp_path))
    np.testing.assert_array_equal(result.history.objective, uninterrupted.history.objective)
    np.testing.assert_array_equal(result.params, uninterrupted.params)


def torch_data(clients):
    names, ends = ("x", "y", "group"), np.cumsum(clients.sizes)
    columns = [torch.from_numpy(np.array(clients.rows.columns[name])) for name in names]
    return {
        name: TensorDataset(*(column[end - size : end] for column in columns))
        for name, size, end in zip(clients.names, clients.sizes, ends, strict=True)
    }


def torch_entropy(module, batch):
    """Outside the float64 mode of these runs, PyTorch computes this in float32, because of the labels."""
    return functional.binary_cross_entropy_with_logits(module(batch[0])[:, 0], batch[1].bool().float())


def torch_gap(module, batch):
    """Both differences, with casts and a float32 buffer."""
    p, first, pieces = torch.sigmoid(module(batch[0])[:, 0].float()), batch[2] == 1, torch.full((2,), -torch.inf)
    if first.any() and not first.all():
        pieces[0] = p[first].mean() - p[~first].mean()
        pieces[1] = -pieces[0]
    return pieces


def linear(*layers):
    module = torch.nn.Sequential(torch.nn.Linear(4, 1, bias=False), *layers)
    torch.nn.init.zeros_(module[0].weight)
    return module


def test_pytorch_modules_match_jax():
    clients, method, module = make_parity_clients(), ss.SQP(tolerance=0.05), linear()
    datasets = torch_data(clients)
    problem = ss.Problem(torch_entropy, torch_gap, module)
    logging = ss.Logging(held_out=datasets)
    result = ss.solve(problem, ss.TorchData(datasets), method, logging=logging)
    start = {"0.weight": jnp.zeros((1, 4))}
    twin = ss.Problem(
        lambda w, batch: cross_entropy(w["0.weight"][0], batch),
        demographic_parity(lambda w, batch: probability(w["0.weight"][0], batch)),
        start,
    )
    check_same_trajectory(result, ss.solve(twin, clients, method))
    assert not result.diagnostics
    np.testing.assert_array_equal(module[0].weight.detach(), result.params["0.weight"])
    np.testing.assert_allclose(result.history.held_out.objective, result.history.full.objective, rtol=1e-5)


def test_pytorch_regrets_and_checkpoints(tmp_path):
    task = ss.with_regret(
        ss.Problem(torch_entropy, torch_gap, linear()), ss.TorchData(torch_data(make_parity_clients()))
    )
    uninterrupted = ss.solve(task.problem, task.clients, ss.SQP(tolerance=0.05))
    np.testing.assert_array_equal(uninterrupted.client_optimum, task.client_optimum)
    assert uninterrupted.history.objective[0] == pytest.approx(np.log(2) - task.client_optimum.min())
    for rounds in (3, None):
        fresh = dataclasses.replace(task.problem, start=linear())
        checkpoints = ss.Checkpoints(tmp_path)
        result = ss.solve(fresh, task.clients, ss.SQP(tolerance=0.05), rounds=rounds, checkpoints=checkpoints)
    np.testing.assert_array_equal(result.history.objective, uninterrupted.history.objective)


def torch_client(module, objective=torch_entropy, constraint=torch_gap):
    """The second client of ``make_parity_clients`` alone, as a networked client holds it."""
    functions = ModuleFunctions(module, objective, constraint)
    return TorchDerivatives(functions, {"one": TorchRows("data", torch_data(make_parity_clients())[1], "cpu")})


def test_pytorch_derivatives_leave_module_unchanged():
    """A module with frozen parameters, a buffer, gradients, and modes that differ by layer."""
    layers = torch.nn.Linear(4, 3, bias=False), torch.nn.LayerNorm(3), torch.nn.Tanh(), torch.nn.Linear(3, 1)
    module = torch.nn.Sequential(*layers)
    module[3].requires_grad_(requires_grad=False)
    module.register_buffer("scale", torch.ones(1))
    module[2].eval()
    module[0].weight.grad = torch.ones(3, 4)
    original = [module[0].weight.grad, *(tensor.clone() for tensor in module.state_dict().values())]
    client = torch_client(module, lambda module, batch: torch_entropy(module, batch) * module.scale)
    assert client.size == 12 + 6
    assert client.shape == (1, 2)
    point, step = np.random.default_rng(0).normal(size=18), 1e-5
    query = Query(point, np.array([0.7]), np.array([[0.2, 0.1]]))

    def gradient(shift):
        reply = client.reply(query._replace(point=point + shift))
        return 0.7 * reply.objective_gradient[0] + [0.2, 0.1] @ reply.constraint_gradient[0]

    differences = [(gradient(step * unit) - gradient(-step * unit)) / (2 * step) for unit in np.eye(18)]
    np.testing.assert_allclose(client.reply(query).hessian, differences, rtol=1e-6, atol=1e-8)
    assert client.is_exact
    assert [layer.training for layer in module] == [True, True, False, True]
    for actual, saved in zip([module[0].weight.grad, *module.state_dict().values()], original, strict=True):
        assert actual.dtype == saved.dtype == torch.float32
        assert torch.equal(actual, saved)


def test_half_precision_pytorch_function_is_diagnosed():
    result = ss.solve(
        ss.Problem(lambda module, batch: module(batch[0]).bfloat16().float().square().mean(), torch_gap, linear()),
        ss.TorchData(torch_data(make_parity_clients())),
        ss.SQP(tolerance=0.05),
        rounds=3,
    )
    assert DiagnosticCode.LIMITED_PRECISION in [diagnostic.code for diagnostic in result.diagnostics]


def torch_distance(module, batch):
    return torch.cdist(module(batch[0]), batch[1][:, None]).mean()


@pytest.mark.parametrize(
    ("module", "objective", "message"),
    [
        (
            linear(torch.nn.BatchNorm1d(1)),
            torch_entropy,
            r"running means of normalisation \(1\) for SQP; use GroupNorm",
        ),
        (linear(torch.nn.Dropout(0.5)), torch_entropy, r"dropout \(1\) for SQP; set it to 0, or use SoftmaxSGM"),
        (
            linear(),
            lambda module, batch: functional.dropout(module(batch[0]), 0.5).mean(),
            r"must not draw random numbers for SQP; use SoftmaxSGM",
        ),
        (
            linear(),
            torch_distance,
            r"must be twice differentiable in float64 by PyTorch for SQP.*use SoftmaxSGM",
        ),
        (torch.nn.Linear(4, 126), torch_entropy, r"at most 500 parameters for SQP, but has 630"),
    ],
)
def test_incompatible_pytorch_modules_name_alternative(module, objective, message):
    problem = ss.Problem(objective, torch_gap, module)
    with pytest.raises((TypeError, ValueError), match=message):
        ss.solve(problem, ss.TorchData(torch_data(make_parity_clients())), ss.SQP(tolerance=0.05))


def test_other_functions_reject_sqp_before_computation():
    with pytest.raises(ValueError, match="method must not be SQP here: it needs second derivatives"):
        ss.sweep(PARITY, make_parity_clients(), [ss.SQP(tolerance=0.1)])


def test_warm_start_with_other_shapes_is_rejected():
    clients = make_parity_clients()
    first = ss.solve(PARITY, clients, ss.SQP(tolerance=0.05))
    warm = ss.solve(PARITY, clients, ss.SQP(tolerance=0.05), warm_start=first)
    assert len(warm.history) < len(first.history)
    other_problem = ss.Problem(
        lambda w, batch: cross_entropy(w["w"], batch), lambda w, batch: w["w"] @ w["w"], {"w": jnp.zeros(4)}
    )
    with pytest.raises(
        ValueError, match="warm_start must hold parameters of the problem's structure, shapes and dtypes"
    ):
        ss.solve(other_problem, clients, ss.SQP(tolerance=0.05), warm_start=first)


def test_time_limit_is_not_interruption():
    result = ss.solve(PARITY, make_parity_clients(), ss.SQP(tolerance=0.05), seconds=1e-9)
    assert len(result.history) == 1
    assert result.status.code is not StatusCode.STOPPED


def test_tolerance_alone_selects_second_order():
    clients = make_parity_clients()
    default, automatic = ss.solve(PARITY, clients, tolerance=0.05), ss.solve(PARITY, clients, ss.Automatic(0.05))
    requested = ss.solve(PARITY, clients, ss.SQP(tolerance=0.05))
    first = ss.solve(PARITY, clients, ss.Automatic(0.05, ss.SoftmaxSGM), rounds=60)
    np.testing.assert_array_equal(default.params, requested.params)
    np.testing.assert_array_equal(default.params, automatic.params)
    assert "4 parameters" in default.auto_settings["method"]
    assert requested.auto_settings == {}
    assert first.restarts
    assert first.worst_objective >= default.lower_bound.value - 1e-6
    runs = ss.sweep(PARITY, clients, [ss.Automatic(0.05)], seeds=2)
    for result in runs["Automatic()"]:
        np.testing.assert_array_equal(result.params, default.params)


def absolute_error(w, batch):
    return (batch["weight"] * jnp.abs(batch["x"] @ w - batch["y"])).sum()


def hidden_absolute_error(w, batch):
    """The absolute error by an operation that is not recognised as non-smooth."""
    error = batch["x"] @ w - batch["y"]
    return (batch["weight"] * jnp.where(error > 0, error, -error)).sum()


def network_loss(params, batch):
    score = jnp.tanh(batch["x"] @ params["first"]) @ params["second"]
    return (batch["weight"] * jnp.logaddexp(0, -score[:, 0] * (2 * batch["y"] - 1))).sum()


def noisy_loss(w, batch, key=None):
    return cross_entropy(w, batch)


LAYERS = {"first": jnp.ones((4, 2)), "second": jnp.ones((2, 1))}


@pytest.mark.parametrize(
    ("problem", "options", "reason"),
    [
        (dataclasses.replace(PARITY, objective=absolute_error), {}, "not smooth (abs)"),
        (ss.Problem(network_loss, network_loss, LAYERS), {}, "layers"),
        (dataclasses.replace(PARITY, objective=noisy_loss), {}, "random key"),
        (PARITY, {"sampling": ss.Sampling.automatic(participation=0.5)}, "participation"),
        (PARITY, {"sampling": ss.Sampling.automatic(batch_size=8)}, "batch_size"),
        (PARITY, {"output": ss.Output(iterate="average")}, "iterate"),
    ],
    ids=["kink", "layers", "random", "some clients", "batches", "average"],
)
def test_reasons_for_first_order(problem, options, reason):
    result = ss.solve(problem, make_parity_clients(), tolerance=0.7, rounds=2, **options)
    assert isinstance(result.method, ss.SoftmaxSGM)
    assert reason in result.auto_settings["method"]


def test_first_order_continues_after_second_order_stalls(tmp_path):
    """The better of both results is returned, and a second call resumes both parts."""
    problem = ss.Problem(hidden_absolute_error, lambda w, batch: (w**2).sum() - 1, jnp.zeros(4), convex=True)
    second = ss.solve(problem, make_parity_clients(), ss.SQP(tolerance=0.0))
    assert DiagnosticCode.STALLED in [diagnostic.code for diagnostic in second.diagnostics]
    folder = ss.Checkpoints(tmp_path)
    result = ss.solve(problem, make_parity_clients(), tolerance=0.0, checkpoints=folder)
    assert "did not converge" in result.auto_settings["method"]
    assert result.status.ok
    assert result.worst_objective <= second.worst_objective
    resumed = ss.solve(problem, make_parity_clients(), tolerance=0.0, checkpoints=folder)
    np.testing.assert_array_equal(resumed.params, result.params)


def torch_norm(module, batch):
    return module[0].weight.square().sum() - 9


def test_pytorch_runs_begin_at_start_and_module_has_better_answer():
    """A part of the objective without a gradient stalls ``SQP``, which is better than the first-order run after it."""

    def objective(module, batch):
        return torch_entropy(module, batch) + 0.1 * module[0].weight.detach().abs().sum()

    begins = []

    def watch(chunk):
        if chunk.round == len(chunk.history):
            begins.append(chunk.history.objective[0])

    module = linear()
    problem, clients = ss.Problem(objective, torch_norm, module), ss.TorchData(torch_data(make_parity_clients()))
    result = ss.solve(problem, clients, tolerance=0.0, rounds=40, logging=ss.Logging(callbacks=[watch]))
    assert isinstance(result.method, ss.SQP)
    assert DiagnosticCode.STALLED in [diagnostic.code for diagnostic in result.diagnostics]
    np.testing.assert_allclose(begins, [np.log(2), np.log(2)], rtol=1e-6)
    np.testing.assert_array_equal(module[0].weight.detach(), result.params["0.weight"])
    assert not module.training


def test_sweep_begins_every_second_order_run_at_start_of_module():
    problem, clients = ss.Problem(torch_entropy, torch_gap, linear()), ss.TorchData(torch_data(make_parity_clients()))
    sweep = ss.sweep(problem, [clients, clients], [ss.Automatic(0.05)], seeds=2)
    first, second = sweep.results[0]
    assert isinstance(second.method, ss.SQP)
    np.testing.assert_array_equal(second.history.objective, first.history.objective)


def test_time_limit_covers_attempt_and_first_order_run(monkeypatch):
    """Every call of the callback, after an exchange or a chunk of rounds, takes a second."""
    problem = ss.Problem(hidden_absolute_error, lambda w, batch: (w**2).sum() - 1, jnp.zeros(4), convex=True)
    ended = [0]
    monkeypatch.setattr("time.perf_counter", lambda: float(ended[0]))

    def wait(chunk):
        ended[0] += 1

    def run(seconds=None, **settings):
        ended[0] = 0
        logging = ss.Logging(callbacks=[wait], progress=False)
        return ss.solve(problem, make_parity_clients(), seconds=seconds, logging=logging, **settings)

    exchanges = len(run(method=ss.SQP(tolerance=0.0)).history)
    unlimited = run(tolerance=0.0, rounds=1000)
    assert unlimited.seconds == ended[0] > exchanges + 1
    limited = run(tolerance=0.0, seconds=exchanges + 1)
    assert limited.seconds == ended[0] == exchanges + 1
    at_end = run(tolerance=0.0, seconds=exchanges)
    assert at_end.seconds == ended[0] == exchanges
    assert isinstance(at_end.method, ss.SQP)


def test_separable_data_need_few_rounds():
    """The objective falls to 0 at infinity, where the multipliers vanish too."""
    task = breast_cancer(20)
    result = ss.solve(task.problem, task.train, ss.SQP(tolerance=0.1))
    assert result.status.ok
    assert len(result.history) <= 35
    assert -1e-9 <= result.gap <= 1e-6


def test_rounded_parameters_meet_tolerance_with_large_labels():
    """With labels of several hundred, errors of 0.5 are close to the precision of float32."""
    generator = np.random.default_rng(0)
    x = np.c_[generator.normal(size=(400, 3)), np.ones(400)].astype(np.float32)
    y = (x @ [10, -20, 5, 150] + 50 * generator.normal(size=400)).astype(np.float32)
    clients = ss.ClientData.from_arrays({"x": x, "y": y}, client=generator.integers(0, 4, 400))

    def error(w, batch):
        return (batch["weight"] * (batch["x"] @ w - batch["y"])).sum()

    def squared(w, batch):
        return (batch["weight"] * (batch["x"] @ w - batch["y"]) ** 2).sum()

    def signed(w, batch):
        return jnp.stack([error(w, batch), -error(w, batch)]) / 0.1

    problem = ss.Problem(squared, signed, jnp.zeros(4), convex=True)
    result = ss.solve(problem, clients, tolerance=5.0)
    assert isinstance(result.method, ss.SQP)
    assert result.status.ok
    assert 4.99 < result.worst_constraint <= 5.0
