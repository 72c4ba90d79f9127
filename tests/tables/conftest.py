"""Shared fixtures of the table tests."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def without_lower_bound():
    """Skip the lower bound of automatic runs. It takes a third of a short run and is tested in tests/certification."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("softswitch.engine.solve.with_lower_bound", lambda result, *_, **__: result)
        yield
