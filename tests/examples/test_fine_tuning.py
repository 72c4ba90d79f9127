"""The example of fine-tuning trains only the adapters, and meets its bound at every hospital."""

import importlib.util
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # small problems run faster on one thread
FILE = Path(__file__).parents[2] / "examples" / "fine_tuning.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("fine_tuning", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_adapters_meet_the_bound(example, capsys):
    result = example.main(rounds=25, hospitals=4, rows=200, pretraining=80)
    printed = capsys.readouterr().out
    assert result.status.ok
    assert result.worst_constraint <= example.BOUND
    assert result.auto_settings["clients"].startswith("computed one after another")  # faster for models of this size
    trained = sum(weight.size for weight in result.params.values())
    assert f"{trained:,} of" in printed
    assert f"{trained:,} numbers" in FILE.read_text(encoding="utf-8")
    assert all("layer" not in name for name in result.params)


def test_adapter_changes_nothing_at_the_start(example):
    layer, x = torch.nn.Linear(8, 8), torch.randn(3, 8)
    assert torch.equal(example.Adapted(layer)(x), layer(x))
