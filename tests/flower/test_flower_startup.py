"""Flower starts a process for every message: a client imports what it computes with, and no more."""

import json
import subprocess
import sys

LOOK = """
import json, sys
from softswitch.flower import ClientPolicy, NumpyClient, client_app
print(json.dumps(sorted(sys.modules)))
"""


def test_a_client_that_computes_with_numpy_imports_neither_jax_nor_scipy():
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    imported = json.loads(done.stdout)
    assert "softswitch.flower.numpy_client" in imported
    assert [name for name in ("jax", "optax", "scipy", "torch") if name in imported] == []
