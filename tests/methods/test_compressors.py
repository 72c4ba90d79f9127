"""Compressors: decoded values, byte counts and invalid input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from softswitch.methods import Compression, TopK

F32 = np.dtype(np.float32)
COMPRESSORS = (
    TopK(0.01),
    TopK(0.4),
    TopK(0.1, 8),
    TopK(0.2, 2),
    TopK(0.9, 3),
)


def test_top_k():
    vector = np.array([0.5, -3.0, 1.0, 3.0, -1.0, 0.0], np.float32)
    np.testing.assert_array_equal(TopK(0.5)(vector), [0, -3, 1, 3, 0, 0])  # ties: the first of 1 and −1
    # Three positions of 3 bits need more than a bitmap of six numbers: 1 byte and three float32.
    assert TopK(0.5).encode(vector) == bytes([0b01110000]) + np.array([-3, 1, 3], "<f4").tobytes()
    # One position of 3 bits (001), then −3.
    assert TopK(1 / 6).encode(vector) == bytes([0b00100000]) + np.array([-3], "<f4").tobytes()
    # In 3 bits: multiples −3 to 3 of the scale 3/3 = 1, sent as 0, 4, 6; a scale is the upper half of a float32.
    scale = (np.array([1.0], "<f4").view("<u4") >> 16).astype("<u2").tobytes()
    assert TopK(0.5, 3).encode(vector) == bytes([0b01110000]) + scale + bytes([0b00010011, 0b00000000])


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
@pytest.mark.parametrize("numbers", [1, 7, 700])
def test_program_and_bytes_decode_equally(compressor, numbers):
    vector = np.random.default_rng(numbers).normal(size=numbers).astype(np.float32)
    code = compressor.encode(vector)
    decoded = compressor.decode(code, numbers, F32)
    assert len(code) == compressor.size(numbers, 4)
    np.testing.assert_array_equal(compressor(vector), decoded)
    np.testing.assert_array_equal(jax.jit(compressor)(jnp.asarray(vector)), decoded)
    np.testing.assert_array_equal(compressor.decode(compressor.encode(decoded), numbers, F32), decoded)
    assert np.square(vector - decoded).sum() < np.square(vector).sum()


def bits(text):
    return int(text.replace(" ", ""), 2).to_bytes(len(text.replace(" ", "")) // 8, "big")


ZEROS = bytes(8)
INVALID_CODES = {
    "extra byte": (TopK(0.02), 100, bits("0000001 0000011 00") + ZEROS + b"0", "expected 10 bytes"),
    "repeated position": (TopK(0.02), 100, bits("0000001 0000001 00") + ZEROS, "positions must be increasing"),
    "places in no order": (TopK(0.02), 100, bits("0000011 0000001 00") + ZEROS, "positions must be increasing"),
    "a place beyond": (TopK(0.02), 100, bits("0000001 1100100 00") + ZEROS, "below 100"),
    "something after it": (TopK(0.02), 100, bits("0000001 0000011 01") + ZEROS, "after the last number"),
    "too many positions": (TopK(0.5), 4, bits("1110 0000") + ZEROS, "expected 2 positions, but there are 3"),
    "no multiple": (TopK(0.5, 4), 2, bits("1000 0000") + b"\x80\x3f" + bits("1111 0000"), "from -7 to 7"),
    "NaN scale": (TopK(0.5, 4), 2, bits("1000 0000") + b"\xc0\x7f" + b"\x00", "the scale must be finite"),
    "a negative scale": (TopK(0.5, 4), 2, bits("0000 0000") + b"\x80\xbf" + b"\x00", "the scale must be finite"),
}


@pytest.mark.parametrize("name", INVALID_CODES)
def test_invalid_bytes_are_rejected(name):
    compressor, numbers, code, message = INVALID_CODES[name]
    with pytest.raises(ValueError, match=message):
        compressor.decode(code, numbers, F32)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopK(0.0), "share must be"),
        (lambda: TopK(1.0), "share must be"),
        (lambda: TopK(0.5, 9), "bits must be an integer from 2 to 8"),
        (lambda: TopK(0.5, 1), "bits must be"),
        (lambda: Compression(), "up or down must be a compressor"),
    ],
)
def test_invalid_settings_are_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_non_compressor_is_rejected():
    with pytest.raises(TypeError, match="up must be a TopK"):
        Compression(up=0.01)
