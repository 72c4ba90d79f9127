"""The hospital example in one process: its policy allows its method."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from softswitch.flower import InProcessGrid
from softswitch.results.folder import find_runs

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals"


@pytest.mark.slow
def test_linear_model_reaches_optimum_in_twelve_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXAMPLE), *sys.path])
    import_module("data").main(tmp_path / "data")
    config = {"data": str(tmp_path / "data"), "out": str(tmp_path / "runs"), "rounds": 30}
    client, server = (import_module(f"hospitals.{name}_app").app for name in ("client", "server"))
    server(InProcessGrid(client, 5, config), Context(1, 0, {}, RecordDict(), config))
    (run,) = find_runs(tmp_path / "runs")
    assert run.about["status"]["code"] == "feasible"
    assert len(run.history) <= 12
    assert run.about["lower_bound"]["certified"]
    assert run.about["lower_bound"]["objective"] - run.about["lower_bound"]["value"] <= 1e-6
    assert len(run.certificate["clients"]) == 5


def test_deployment_needs_keys(tmp_path, monkeypatch):
    """In a simulation names are enough, which are no list of who may take part."""
    monkeypatch.setattr(sys, "path", [str(EXAMPLE), *sys.path])
    client, server = (import_module(f"hospitals.{name}_app") for name in ("client", "server"))
    config = {"out": str(tmp_path / "runs"), "clients": "", "data": ""}
    grid = InProcessGrid(client.app, 1, config)
    with pytest.raises(ValueError, match="clients must be the folder"):
        server.app(grid, Context(1, 0, {}, RecordDict(), config))
    monkeypatch.setattr(server, "CLIENTS", str(tmp_path / "keys"))
    with pytest.raises(ValueError, match=r"one file NAME\.pub per client"):
        server.app(grid, Context(1, 0, {}, RecordDict(), config))
