"""A privacy audit: an attacker who knows all rows except one stays below the stated ε."""

import numpy as np
import pytest

from benchmarks.privacy_audit import KINDS, audit, bound_by_low_bits


@pytest.mark.parametrize("rate", [1.0, pytest.param(0.3, marks=pytest.mark.slow)])
def test_attacks_stay_below_stated_epsilon(rate):
    rows = list(audit(800, noise=0.7, rate=rate))
    assert [row.kind for row in rows] == list(KINDS)
    for row in rows:
        assert max(row.by_value, row.by_low_bits) <= row.stated, row
    if rate == 1:
        assert max(row.by_value for row in rows) > 0.3 * rows[0].stated, rows  # the attack must be effective


def test_audit_detects_too_little_noise(monkeypatch):
    monkeypatch.setattr("benchmarks.privacy_audit.compute_epsilon", lambda *given: 0.8)  # as if noise were 3 times more
    assert any(row.by_value > row.stated for row in audit(800, noise=0.7))


def test_audit_detects_a_lattice_of_floats():
    """Noise on even numbers only: a row that moves the sum by 1 shows in the lowest bit."""
    generator = np.random.default_rng(0)
    noise = generator.integers(-50, 50, size=(2, 2000)) * 2
    present, absent = ((noise[i] + i + 1000 + 2.0**52) for i in (1, 0))
    assert bound_by_low_bits(present, absent) > 4
