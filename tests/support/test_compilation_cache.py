"""Compiled programs are cached in the user's cache folder by default."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from softswitch.support.startup import cache_folder, enable_compilation_cache

NAMES = ("JAX_COMPILATION_CACHE_DIR", "JAX_COMPILATION_CACHE_MAX_SIZE", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")


@pytest.fixture
def without_settings(monkeypatch, tmp_path):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_user_settings_are_kept(without_settings, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    enable_compilation_cache()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "elsewhere"
    assert NAMES[1] not in os.environ


def test_cache_is_shared_between_processes(without_settings, tmp_path):
    code = (
        "from softswitch.support.startup import enable_compilation_cache; enable_compilation_cache()\n"
        "import jax, jax.numpy as jnp\n"
        "hits = []\n"
        "jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))\n"
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)\n"
        "jax.jit(lambda x: jnp.sin(x) + 3)(1.0)\n"
        "print(sum('cache_hits' in name for name in hits))"
    )
    outputs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        for _ in range(2)
    ]
    assert outputs[0] == "0"
    assert int(outputs[1]) >= 1
    assert any((tmp_path / "softswitch" / "programs").iterdir())


def test_default_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "softswitch" / "programs"


def test_no_cache_without_home_folder(without_settings, monkeypatch):
    def raise_error():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", raise_error)
    enable_compilation_cache()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
