"""The comparison with other libraries: equal work, correct evaluation, and a complete page."""

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import same_steps, solutions, updates, workers
from benchmarks.peers.candidates import CALL, CANDIDATES, OURS, Candidate, chosen
from benchmarks.peers.environments import PACKAGES, python_of
from benchmarks.peers.workloads import WORKLOADS
from benchmarks.tables.cases import CASES
from benchmarks.tables.opponents import Judge

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
LEAN = Candidate("PyTorch, lean loop", "torch", "with_torch.py", word="lean")


@pytest.fixture
def load_round_script(monkeypatch):
    """The scripts of the rounds, as modules."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "peers" / "rounds"))
    return importlib.import_module


@pytest.fixture
def temporary_folder(monkeypatch, tmp_path):
    """Run in a temporary folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def no_images(folder):
    generator = np.random.default_rng(0)
    x, y = generator.uniform(size=(400, 28, 28, 1)).astype(np.float32), generator.integers(10, size=400, dtype=np.int32)
    return x, y, x[:50], y[:50]


@pytest.mark.parametrize(
    "model", ["logistic", *(pytest.param(model, marks=pytest.mark.slow) for model in ("mlp", "cnn"))]
)
def test_softswitch_and_pytorch_rounds_are_equal(model, load_round_script, temporary_folder, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.workloads.mnist", no_images)
    workload = next(
        candidate_workload
        for candidate_workload in WORKLOADS
        if candidate_workload.model == model and candidate_workload.steps > 1
    )
    path = workload.small.write(temporary_folder / "work.npz", temporary_folder)
    work = load_round_script("serve").Work(str(path))
    softswitch_params, _ = load_round_script("with_softswitch").Softswitch(work, "averaging").train(1, True, 0, None, 1)
    assert updates.difference(softswitch_params, work.start) > 1e-3
    for variant in ("usual", "lean", "vmap"):
        torch_params, seconds = load_round_script("with_torch").Torch(work, variant).train(1, True, 0, None, 1)
        assert updates.difference(softswitch_params, torch_params) < 1e-5
        assert seconds > 0


def test_worker_replies(temporary_folder):
    workload = WORKLOADS[0].small
    path = workload.write(temporary_folder / "work.npz", temporary_folder)
    with workers.Worker(LEAN, path, 1) as worker:
        assert np.shape(worker.ask("check")["params"]["w"]) == (workload.features,)
        timing = worker.ask("time", rounds=3, seed=1)
        assert timing["updates"] == 3 * workload.participants
        assert timing["seconds"] > 0
        race_result = worker.ask("race", accuracy=0.6, rounds=40, every=2, seed=0)
        assert race_result["accuracy"] >= 0.6
        assert race_result["rounds"] == 2 * len(race_result["seen"]) < 40
        assert "torch" in worker.ask("versions")["versions"]


def test_worker_failure_is_reported(temporary_folder):
    path = WORKLOADS[0].small.write(temporary_folder / "work.npz", temporary_folder)
    with (
        workers.Worker(replace(LEAN, word="nonsense"), path, 1) as worker,
        pytest.raises(RuntimeError, match="KeyError: 'nonsense'"),
    ):
        worker.ask("versions")


def test_other_workload_is_rejected(temporary_folder, monkeypatch):
    class StubWorker:
        def __init__(self, candidate, work, threads):
            self.off = 0.0 if candidate is OURS else 1e-3

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def ask(self, do):
            return {"params": {"w": [1.0 + self.off]}}

    monkeypatch.setattr(updates, "Worker", StubWorker)
    assert updates.disagreement(WORKLOADS[0], [OURS]) == {OURS.name: 0.0}
    with pytest.raises(RuntimeError, match=r"not the same work.*lean"):
        updates.disagreement(WORKLOADS[0], [OURS, LEAN])


def test_ratios_use_equal_rows():
    def row(name, rate):
        return {"work": "some", "name": name, "rate": rate, "slowest": rate, "fastest": rate, "threads": None}

    lines = list(updates.table([row(OURS.name, 1000.0), row(CALL.name, 500.0), row("FedJAX", 10.0)]))
    assert lines[-2] == "| FedJAX | 10.0 | 10.0 to 10.0 | 100× | 50× |"


def test_solver_that_reaches_optimum(temporary_folder):
    case = next(case for case in CASES if case.table == "cancer")
    judge = Judge(case)
    work = solutions.write(case, judge, temporary_folder / "case.npz", 1.0)
    (evaluation,) = solutions.judged(solutions.SOLVERS["slsqp"], judge, work)
    optimum = solutions.known(case).optimum
    assert evaluation["best"] == pytest.approx(optimum, rel=1e-6)
    assert evaluation["constraint"] <= case.tolerance + solutions.SLACK
    one_percent, tenth = evaluation["first"]
    assert 0 < one_percent <= tenth <= evaluation["seconds"]
    text = "\n".join(solutions.table(case, [{"name": "SLSQP (SciPy)", "case": case.name, **evaluation}]))
    assert "(+0.00%)" in text
    unsolved = evaluation | {"first": [None, None], "processor": None, "best": np.inf, "name": "nobody"}
    assert "| nobody | never | never | never | none |" in "\n".join(solutions.table(case, [unsolved]))


def test_solver_without_result_has_row_with_reason(temporary_folder, monkeypatch):
    monkeypatch.setattr(solutions, "PATIENCE", 0.01)
    (case,) = solutions.cases(quick=True)
    rows = solutions.solved(case, ["slsqp"], quick=True)
    assert [row["none"] for row in rows] == ["no answer in 0 s"] * 2
    assert "| SLSQP (SciPy) | no answer in 0 s |" in "\n".join(solutions.table(case, rows))


def test_selected_peers():
    assert {candidate.peer for candidate in chosen(["flower"])} == {"softswitch", "flower"}
    assert chosen([]) == CANDIDATES


def test_environment_is_created_once(temporary_folder, monkeypatch):
    calls = []

    def run(line, check):
        calls.append(line)
        (temporary_folder / "drjax").mkdir(exist_ok=True)

    monkeypatch.setattr("benchmarks.peers.environments.subprocess.run", run)
    (temporary_folder / "drjax").mkdir()
    (temporary_folder / "drjax" / "left by an interrupted one").touch()
    for _ in range(2):
        assert python_of("drjax", temporary_folder) == temporary_folder / "drjax" / "bin" / "python"
    assert len(calls) == 2
    assert calls[1][-2:] == list(PACKAGES["drjax"])
    assert [file.name for file in (temporary_folder / "drjax").iterdir()] == ["whole"]


def test_page_lists_all_peers_and_workloads():
    for name in (
        *(candidate.name for candidate in CANDIDATES),
        *(candidate.name for candidate in solutions.SOLVERS.values()),
    ):
        assert f"| {name}" in PAGE, name
    for workload in WORKLOADS:
        assert f"**{workload.name}**" in PAGE
    for case in solutions.cases(quick=False):
        assert f"**{case.name}**" in PAGE
    for packages in PACKAGES.values():
        assert packages[0] in PAGE
    for pair in same_steps.PAIRS:
        assert f"| {pair.label} | {pair.peer} | " in PAGE


def test_differing_methods_are_reported_or_rejected(monkeypatch):
    """Equal methods must agree; known differences are reported."""
    monkeypatch.setattr(same_steps, "ours", lambda method, columns: np.zeros(4))
    monkeypatch.setattr(same_steps, "theirs", lambda pair, columns: np.full(4, 0.0 if pair.within else 2e-3))
    rows = same_steps.compared(["humancompatible"])
    assert [row["apart"] for row in rows] == [0.0, 0.0, 0.0, 2e-3]
    assert list(same_steps.table(rows))[-2].startswith("| νPI multipliers | humancompatible | 2e-03 | ")
    monkeypatch.setattr(same_steps, "theirs", lambda pair, columns: np.full(4, 1e-9))
    with pytest.raises(RuntimeError, match="hard SGM and humancompatible's switching are 1e-09 apart"):
        same_steps.compared()
