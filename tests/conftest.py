"""Shapes in type hints are checked in every test; float64 where a test asks for it."""

import atexit
import gc
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Tests compile hundreds of small programs and run each for a moment: the compiler need not take pains, nor divide each
# program into parts to be compiled side by side, which also take twice the memory maps; and nobody reads where an
# operation was written down. But bits that are promised to be equal are those of programs as users compile them: see
# ``pytest_pyfunc_call``.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + ("" if "AS_USERS_COMPILE" in os.environ else " --xla_cpu_parallel_codegen_split_count=1")
    + " --xla_cpu_use_fusion_emitters=false"
).strip()
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "0" if "AS_USERS_COMPILE" in os.environ else "1"
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"

# Nor do PyTorch's and NumPy's threads gain anything on arrays so small: those of two workers only wait for each other,
# and such waiting takes the whole core.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

# And many of them are the same: what one test has compiled, the next and the processes that it starts read from a
# folder. Each worker has its own, so that nobody reads what another is just writing.
if "PYTEST_XDIST_WORKER" in os.environ or "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    KEPT_PROGRAMS = tempfile.mkdtemp(prefix="softswitch-tests-")
    atexit.register(shutil.rmtree, KEPT_PROGRAMS, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = KEPT_PROGRAMS
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"

import hypothesis
import jax
import pytest
from jaxtyping import install_import_hook

# The inner modules, whose arguments are arrays. What users call checks its arguments itself.
INNER = (
    "softswitch.data.sampling",
    "softswitch.oracles.gradient",
    "softswitch.oracles.losses",
    "softswitch.oracles.evaluation",
    "softswitch.methods.round",
    "softswitch.engine.compiled",
    "softswitch_experiments.tasks.neyman_pearson",
)
install_import_hook(INNER, "beartype.beartype")

hypothesis.settings.register_profile("softswitch", deadline=None, max_examples=200)
hypothesis.settings.load_profile("softswitch")


def pytest_pyfunc_call(pyfuncitem):
    """A test marked ``as_users_compile`` runs in a process of its own, where the compiler takes its pains."""
    if pyfuncitem.get_closest_marker("as_users_compile") is None or "AS_USERS_COMPILE" in os.environ:
        return None
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("XLA_FLAGS", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    done = subprocess.run(
        command,
        cwd=pyfuncitem.config.rootpath,
        env=environment | {"AS_USERS_COMPILE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "1 passed" in done.stdout
    return True


def pytest_collection_finish():
    """What was imported stays: that it is not looked through for garbage, and the rest less often, saves a while."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture
def x64():
    """Compute in float64 within this test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def optimised():
    """The compiler takes its pains from here to the file's end: for tests that compute far longer than they compile."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def x64_alone():
    """The same with nothing kept before and after: what JAX keeps of some loops does not fit the other precision."""
    jax.clear_caches()
    with jax.enable_x64(True):
        yield
    jax.clear_caches()


TESTS = itertools.count(1)
MOST_MAPS = 45_000
"""A compiled program holds some ten memory maps, and a process may have 65,530: beyond that the compiler crashes."""


@pytest.fixture(autouse=True)
def few_programs():
    """Let go of compiled programs where there are very many."""
    yield
    maps = Path("/proc/self/maps")
    if next(TESTS) % 10 == 0 and maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()
