"""Flower starts a process for every message, so a client must not import unused libraries."""

import json
import subprocess
import sys

SCRIPT = """
import json, sys
from softswitch.flower import ClientPolicy, NumpyClient, client_app
print(json.dumps(sorted(sys.modules)))
"""


def test_numpy_client_imports_neither_jax_nor_scipy():
    process = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    imported = json.loads(process.stdout)
    assert "softswitch.flower.local_client" in imported
    assert [name for name in ("jax", "optax", "scipy", "torch") if name in imported] == []
