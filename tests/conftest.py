"""Compiler settings, memory limits and fixtures of all tests. Array shapes in type hints are checked in every test."""

import atexit
import ctypes
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Tests compile many small programs and run each one briefly, so fast compilation matters more than fast programs. Some
# tests compare results bit for bit and need the default compiler: see ``pytest_pyfunc_call``.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + ("" if "SOFTSWITCH_DEFAULT_COMPILER" in os.environ else " --xla_cpu_parallel_codegen_split_count=1")
    + " --xla_cpu_use_fusion_emitters=false"
).strip()
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "0" if "SOFTSWITCH_DEFAULT_COMPILER" in os.environ else "1"
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"

# Threads of PyTorch and NumPy do not help with small arrays, and idle ones spin.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

# Tests and the processes they start share compiled programs. Each worker has a separate folder because JAX does not
# write the files atomically.
if "PYTEST_XDIST_WORKER" in os.environ or "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    COMPILATION_CACHE = tempfile.mkdtemp(prefix="softswitch-tests-")
    atexit.register(shutil.rmtree, COMPILATION_CACHE, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = COMPILATION_CACHE
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"

import hypothesis
import jax
import pytest
from jaxtyping import install_import_hook

# Clients count their answers below this folder.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="softswitch-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# Inner modules, whose functions take arrays. Public functions check their arguments.
INNER = (
    "softswitch.data.sampling",
    "softswitch.oracles.gradient",
    "softswitch.oracles.evaluation",
    "softswitch.methods.state",
    "softswitch.engine.server_step",
    "softswitch.engine.compiled",
    "softswitch_experiments.tasks.neyman_pearson",
)
install_import_hook(INNER, "typechecking.check_outer")

hypothesis.settings.register_profile("quick", deadline=None, max_examples=50)
hypothesis.settings.register_profile("long", deadline=None, max_examples=200)


def pytest_configure(config):
    """Try fewer examples of property tests if slow tests are excluded."""
    hypothesis.settings.load_profile("quick" if config.option.markexpr == "not slow" else "long")


def pytest_pyfunc_call(pyfuncitem):
    """Run a test marked ``default_compiler`` in a separate process, with the compiler's default optimization."""
    if pyfuncitem.get_closest_marker("default_compiler") is None or "SOFTSWITCH_DEFAULT_COMPILER" in os.environ:
        return None
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("XLA_FLAGS", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    done = subprocess.run(
        command,
        cwd=pyfuncitem.config.rootpath,
        env=environment | {"SOFTSWITCH_DEFAULT_COMPILER": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "1 passed" in done.stdout
    return True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Run tests with ``x64_isolated`` last, because caches are cleared before them."""
    items.sort(key=lambda item: "x64_isolated" in item.fixturenames)


def pytest_collection_finish():
    """Exclude imported modules from garbage collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


PAGE = os.sysconf("SC_PAGE_SIZE")
MAX_MEMORY = 1_400_000_000
"""Bytes of resident memory above which a worker releases memory after a test."""
MAX_MAPS = 45_000
"""Memory maps above which a worker drops compiled programs. A program has about ten; Linux allows 65,530 in all."""


def resident_memory():
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE


def trim_heap():
    """Return freed memory to the system. glibc keeps gigabytes that XLA's compiler threads have freed."""
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Limit the memory of a worker: trim the heap first, then drop compiled programs."""
    if not Path("/proc/self/statm").exists():
        return
    module_ends = nextitem is None or nextitem.path != item.path
    drop_programs = module_ends and Path("/proc/self/maps").read_bytes().count(b"\n") > MAX_MAPS
    if resident_memory() > MAX_MEMORY:
        trim_heap()
        drop_programs |= resident_memory() > 0.85 * MAX_MEMORY
    if drop_programs:
        jax.clear_caches()
        gc.collect()
        trim_heap()


@pytest.fixture
def x64():
    """Compute in float64 within this test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def x64_isolated():
    """Compute in float64, with caches cleared first, because JAX reuses some traced loops of float32."""
    with jax.enable_x64(True):
        yield


ISOLATED = pytest.StashKey[bool]()


def pytest_runtest_setup(item):
    """Clear caches between tests with and without ``x64_isolated``."""
    isolated = "x64_isolated" in item.fixturenames
    if isolated != item.config.stash.get(ISOLATED, False):
        jax.clear_caches()
    item.config.stash[ISOLATED] = isolated


@pytest.fixture(scope="module")
def optimised():
    """Optimize compiled programs from here to the end of the file, for tests that run longer than they compile."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
