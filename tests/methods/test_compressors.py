"""Compressors by hand-computed values: what arrives, in how many bytes, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from softswitch.methods import Compression, Quantised, TopK

F32 = np.dtype(np.float32)
WAYS = (
    TopK(0.01),
    TopK(0.4),
    TopK(0.1, 8),
    TopK(0.2, 2),
    TopK(0.9, 3),
    Quantised(2, 32),
    Quantised(8, 300),
)


def test_top_k_by_hand():
    vector = np.array([0.5, -3.0, 1.0, 3.0, -1.0, 0.0], np.float32)
    np.testing.assert_array_equal(TopK(0.5)(vector), [0, -3, 1, 3, 0, 0])  # of 1 and −1 the first
    # Three places of 3 bits are more than one bit each for six numbers: 1 byte, and three float32.
    assert TopK(0.5).encode(vector) == bytes([0b01110000]) + np.array([-3, 1, 3], "<f4").tobytes()
    # One place of 3 bits (001), and then −3.
    assert TopK(1 / 6).encode(vector) == bytes([0b00100000]) + np.array([-3], "<f4").tobytes()
    # In 3 bits: multiples −3 to 3 of the scale 3/3 = 1, sent as 0, 4, 6; a scale is the upper half of a float32.
    scale = (np.array([1.0], "<f4").view("<u4") >> 16).astype("<u2").tobytes()
    assert TopK(0.5, 3).encode(vector) == bytes([0b01110000]) + scale + bytes([0b00010011, 0b00000000])


def test_quantised_by_hand():
    vector = np.array([7.0, -3.4, 0.4, 0.6, 14.0, -1.0], np.float32)
    np.testing.assert_array_equal(Quantised(4, block=4)(vector), [7, -3, 0, 1, 14, -0.0])  # scales 1 and 2
    assert Quantised(4, block=4).size(6, 4) == 2 * 2 + 3


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("numbers", [1, 7, 700])
def test_the_same_arrives_in_a_program_and_in_bytes(way, numbers):
    vector = np.random.default_rng(numbers).normal(size=numbers).astype(np.float32)
    code = way.encode(vector)
    arrived = way.decode(code, numbers, F32)
    assert len(code) == way.size(numbers, 4)
    np.testing.assert_array_equal(way(vector), arrived)
    np.testing.assert_array_equal(jax.jit(way)(jnp.asarray(vector)), arrived)
    np.testing.assert_array_equal(way.decode(way.encode(arrived), numbers, F32), arrived)
    assert np.square(vector - arrived).sum() < np.square(vector).sum()


def bits(text):
    return int(text.replace(" ", ""), 2).to_bytes(len(text.replace(" ", "")) // 8, "big")


ZEROS = bytes(8)
BAD = {
    "a byte more": (TopK(0.02), 100, bits("0000001 0000011 00") + ZEROS + b"0", "expected 10 bytes"),
    "a place twice": (TopK(0.02), 100, bits("0000001 0000001 00") + ZEROS, "positions must be increasing"),
    "places in no order": (TopK(0.02), 100, bits("0000011 0000001 00") + ZEROS, "positions must be increasing"),
    "a place beyond": (TopK(0.02), 100, bits("0000001 1100100 00") + ZEROS, "below 100"),
    "something after it": (TopK(0.02), 100, bits("0000001 0000011 01") + ZEROS, "after the last number"),
    "too many places": (TopK(0.5), 4, bits("1110 0000") + ZEROS, "expected 2 positions, but there are 3"),
    "no multiple": (Quantised(4), 2, b"\x80\x3f" + bits("1111 0000"), "from -7 to 7"),
    "a scale that is NaN": (Quantised(4), 2, b"\xc0\x7f" + bits("0000 0000"), "scales must be finite"),
    "a negative scale": (TopK(0.5, 4), 2, bits("0000 0000") + b"\x80\xbf" + b"\x00", "scales must be finite"),
}


@pytest.mark.parametrize("name", BAD)
def test_bytes_that_no_encoder_makes_are_refused(name):
    way, numbers, code, why = BAD[name]
    with pytest.raises(ValueError, match=why):
        way.decode(code, numbers, F32)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: TopK(0.0), "share must be"),
        (lambda: TopK(1.0), "share must be"),
        (lambda: Quantised(9), "bits must be an integer from 2 to 8"),
        (lambda: Quantised(1), "bits must be"),
        (lambda: Quantised(4, 2**16), "block must be"),
        (lambda: Compression(), "up or down must be a compressor"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, why):
    with pytest.raises(ValueError, match=why):
        make()


def test_what_is_not_a_compressor_is_refused():
    with pytest.raises(TypeError, match="up must be a TopK"):
        Compression(up=0.01)
