"""Shared by the tests over Flower."""

import logging

import pytest


@pytest.fixture
def quiet():
    """Without Flower's lines of every round."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)
