"""Placement of clients on devices, and random draws there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softswitch.data.sampling import can_index_words, words_at
from softswitch.oracles.sharded import place_clients


@st.composite
def sizes_and_devices(draw):
    clients = draw(st.integers(1, 40))
    strata = draw(st.integers(1, 3))
    cells = st.lists(st.integers(0, 50), min_size=strata, max_size=strata)
    sizes = np.array(draw(st.lists(cells, min_size=clients, max_size=clients)))
    sizes[:, 0] += sizes.sum(axis=1) == 0
    return sizes, draw(st.integers(1, clients))


@given(sizes_and_devices())
def test_every_client_and_row_is_placed_once(sizes_and_count):
    stratum_sizes, devices = sizes_and_count
    n, sizes = len(stratum_sizes), stratum_sizes.sum(axis=1)
    placement = place_clients(stratum_sizes, devices)
    clients_per_device = np.bincount(placement.owner, minlength=devices)
    assert clients_per_device.max() - clients_per_device.min() <= 1
    assert sorted(placement.members[placement.members < n]) == list(range(n))
    first_rows = np.cumsum(sizes) - sizes
    row_indices = []
    for device in range(devices):
        rows = placement.device_rows(device, first_rows, sizes)
        assert len(rows) <= placement.capacity
        row_indices.extend(rows)
        stratum_offsets = np.cumsum(stratum_sizes, axis=1) - stratum_sizes
        for client in np.flatnonzero(placement.owner == device):
            for stratum, size in enumerate(stratum_sizes[client]):
                start = first_rows[client] + stratum_offsets[client, stratum]
                offset = placement.offsets[client, stratum]
                assert rows[offset : offset + size].tolist() == list(range(start, start + size))
    assert sorted(row_indices) == list(range(sizes.sum()))


@given(sizes_and_devices())
def test_rows_are_balanced_over_devices(sizes_and_count):
    """Row counts of two devices differ by at most the largest client."""
    stratum_sizes, devices = sizes_and_count
    sizes = stratum_sizes.sum(axis=1)
    rows = np.bincount(place_clients(stratum_sizes, devices).owner, sizes, devices)
    assert rows.max() - rows.min() <= sizes.max()


@pytest.mark.parametrize("seed", [0, 7])
def test_random_bits_from_offset_match_full_block(seed):
    key = jax.random.fold_in(jax.random.key(seed), 3)
    bits = jax.random.bits(key, (200,), jnp.uint32)
    np.testing.assert_array_equal(words_at(jax.random.key_data(key), jnp.uint32(77), 9), bits[77:86])
    np.testing.assert_array_equal(jax.random.bits(key, (5,), jnp.uint32), bits[:5])


def test_unsupported_generators_are_detected():
    assert can_index_words(jax.random.key(0), 1000)
    assert not can_index_words(jax.random.key(0), 2**32)
    assert not can_index_words(jax.random.key(0, impl="rbg"), 1000)
