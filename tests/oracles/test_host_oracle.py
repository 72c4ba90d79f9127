"""Host oracles: clients in plain Python, with all features of a run."""

import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from softswitch.methods import QFedAvg, Reports
from softswitch.oracles.base import HostOracle


class Quadratics(HostOracle):
    """f_i = (w − c_i)², g_i = w − limit, in plain Python."""

    participants = 3
    constraints = 1

    def __init__(self, centres, limit=1.0, noise=0.0):
        self.centres, self.limit, self.noise = np.asarray(centres, np.float32), limit, noise

    @property
    def client_count(self):
        return len(self.centres)

    def report(self, params, draws):
        w = float(params["w"])
        disturbance = self.noise * np.random.default_rng(draws.seed).standard_normal(len(draws.clients))
        objective = ((w - self.centres[draws.clients]) ** 2 + disturbance).astype(np.float32)
        constraint = np.full((len(objective), 1), w - self.limit, np.float32)
        return Reports(objective, constraint, None, np.ones(len(objective), bool)), None

    def direction(self, params, draws, kept, decision, switches, step_size):
        w = float(params["w"])
        slopes = decision.local_loss.objective * 2 * (w - self.centres[draws.clients])
        return {"w": np.float32(decision.weights @ (slopes + decision.local_loss.constraint[:, 0]))}

    def evaluate(self, params):
        w = float(params["w"])
        values = ((w - self.centres) ** 2).astype(np.float32)
        return values, np.full((len(values), 1), w - self.limit, np.float32)

    def digest(self):
        return {"clients": str((self.centres.tolist(), self.limit))}


START = {"w": np.zeros((), np.float32)}
RULE = ss.SoftmaxSGM(alpha=50, step_size=0.05, tolerance=0.0)


def federation(**options):
    return ss.Federation(Quadratics([1.0, 2.0, 3.0], **options), START, ("a", "b", "c"))


def test_run_finds_optimum():
    """The third client is the worst. Its optimum of 3 is above the limit, so the solution is the limit."""
    result = flat.solve_federation(federation(), RULE, rounds=200, answer="last")
    assert float(result.params["w"]) == pytest.approx(1.0, abs=0.06)
    assert result.status.code == "feasible" or result.worst_constraint < 0.06
    unconstrained = flat.solve_federation(federation(limit=5.0), RULE, rounds=200, answer="last")
    assert float(unconstrained.params["w"]) == pytest.approx(2.0, abs=0.1)  # between the first and the third


def test_automatic_run():
    result = flat.solve_federation(federation(), ss.Automatic(tolerance=0.01), rounds=200)
    assert result.restarts
    assert result.worst_constraint <= 0.01
    assert result.worst_objective == pytest.approx(4.0, rel=0.02)


def test_randomness_depends_on_round_and_seed():
    objectives = [
        flat.solve_federation(federation(noise=0.3), RULE, rounds=40, seed=s).history.objective for s in (1, 1, 2)
    ]
    np.testing.assert_array_equal(objectives[0], objectives[1])
    assert np.abs(objectives[0] - objectives[2]).max() > 0.1


def test_nonfinite_report_stops_run():
    class Broken(Quadratics):
        def report(self, params, draws):
            reports, state = super().report(params, draws)
            if float(params["w"]) > 0.3:
                reports = reports._replace(objective=np.full_like(reports.objective, np.nan))
            return reports, state

    federation_with_nan = ss.Federation(Broken([1.0, 2.0, 3.0]), START, ("a", "b", "c"))
    result = flat.solve_federation(federation_with_nan, RULE, rounds=100)
    assert result.status.code == "diverged"
    assert np.isfinite(result.last["w"])
    assert len(result.history) < 100


def test_missing_methods_are_reported():
    class Incomplete(Quadratics):
        digest = HostOracle.digest

    with pytest.raises(TypeError, match="digest"):
        Incomplete([1.0])


def test_method_combines_directions():
    """q-FedAvg with q = 1 from w = 0: w_1 = −Σ f_i u_i / Σ (‖u_i‖² + f_i/η)."""
    method = QFedAvg(power=1.0, step_size=0.1, tolerance=0.0)
    result = flat.solve_federation(federation(limit=5.0), method, rounds=1, answer="last")
    values, slopes = np.array([1.0, 4.0, 9.0]), np.array([-2.0, -4.0, -6.0])
    expected = -(values @ slopes) / (slopes**2 + values / 0.1).sum()
    assert float(result.params["w"]) == pytest.approx(expected, rel=1e-5)
