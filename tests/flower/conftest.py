"""Fixtures of the Flower tests."""

import logging

import pytest


@pytest.fixture
def quiet():
    """Suppress the log lines that Flower writes each round."""
    logger = logging.getLogger("flwr")
    old_level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(old_level)
