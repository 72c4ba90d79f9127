"""Who goes to which device, and what is drawn there."""

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
def test_everyone_has_a_place_and_every_row_is_there_once(drawn):
    stratum_sizes, devices = drawn
    n, sizes = len(stratum_sizes), stratum_sizes.sum(axis=1)
    placement = place_clients(stratum_sizes, devices)
    held = np.bincount(placement.owner, minlength=devices)
    assert held.max() - held.min() <= 1
    assert sorted(placement.members[placement.members < n]) == list(range(n))
    first_rows = np.cumsum(sizes) - sizes
    seen = []
    for device in range(devices):
        rows = placement.device_rows(device, first_rows, sizes)
        assert len(rows) <= placement.capacity
        seen.extend(rows)
        within = np.cumsum(stratum_sizes, axis=1) - stratum_sizes
        for client in np.flatnonzero(placement.owner == device):
            for stratum, size in enumerate(stratum_sizes[client]):
                begin = first_rows[client] + within[client, stratum]
                offset = placement.offsets[client, stratum]
                assert rows[offset : offset + size].tolist() == list(range(begin, begin + size))
    assert sorted(seen) == list(range(sizes.sum()))


@given(sizes_and_devices())
def test_no_device_has_many_more_rows_than_another(drawn):
    """Dealt in rounds, the largest first: two devices differ by no more than the largest client."""
    stratum_sizes, devices = drawn
    sizes = stratum_sizes.sum(axis=1)
    rows = np.bincount(place_clients(stratum_sizes, devices).owner, sizes, devices)
    assert rows.max() - rows.min() <= sizes.max()


@pytest.mark.parametrize("seed", [0, 7])
def test_words_from_a_position_on_are_those_of_the_whole_block(seed):
    key = jax.random.fold_in(jax.random.key(seed), 3)
    words = jax.random.bits(key, (200,), jnp.uint32)
    np.testing.assert_array_equal(words_at(jax.random.key_data(key), jnp.uint32(77), 9), words[77:86])
    np.testing.assert_array_equal(jax.random.bits(key, (5,), jnp.uint32), words[:5])


def test_what_cannot_be_counted_is_known():
    assert can_index_words(jax.random.key(0), 1000)
    assert not can_index_words(jax.random.key(0), 2**32)
    assert not can_index_words(jax.random.key(0, impl="rbg"), 1000)
