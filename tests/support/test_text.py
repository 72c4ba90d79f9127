"""Formatting of numbers and lists."""

import math

import pytest

from softswitch.support.text import (
    format_duration,
    format_number,
    format_percent,
    format_value,
    join_first,
    shorten_numbers,
)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (30400.0, "30,400"),
        (30412.7, "30,413"),
        (999.96, "1,000"),
        (1234567, "1,234,567"),
        (69.31471805599453, "69.31"),
        (0.05, "0.05"),
        (0.1 + 0.2, "0.3"),
        (0.00012345, "0.0001234"),
        (-0.25, "-0.25"),
        (0, "0"),
        (12, "12"),
        (1e-9, "<0.000001"),
        (-1e-9, ">-0.000001"),
        (None, "—"),
        (math.nan, "—"),
        (-math.inf, "—"),
    ],
)
def test_number(value, written):
    assert format_number(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.05, "5%"),
        (0.0501, "5.01%"),
        (1 / 3, "33.3%"),
        (0.00035, "0.035%"),
        (0, "0%"),
        (1, "100%"),
        (0.9996, "99.96%"),
        (0.8, "80%"),
        (None, "—"),
        (math.inf, "—"),
    ],
)
def test_share(value, written):
    assert format_percent(value) == written


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0.04, "0.0 s"),
        (0.44, "0.4 s"),
        (9.96, "10 s"),
        (40, "40 s"),
        (59.6, "1 min"),
        (125, "2 min 5 s"),
        (3600, "1 h"),
        (3900, "1 h 5 min"),
    ],
)
def test_duration(seconds, written):
    assert format_duration(seconds) == written


def test_numbers_in_text_are_rounded():
    method = (
        "SoftmaxSGM(tolerance=0.05, alpha=69.31471805599453, step_size=1.2345678e-05, tiny=1.2345678e-09, seed=123456)"
    )
    assert (
        shorten_numbers(method)
        == "SoftmaxSGM(tolerance=0.05, alpha=69.31, step_size=0.00001235, tiny=1.235e-09, seed=123456)"
    )
    assert shorten_numbers("version 1.2.345678, 0.12345.csv") == "version 1.2.345678, 0.12345.csv"


def test_nonfinite_number_in_text():
    assert [format_value(value) for value in (30_400.0, math.inf, -math.inf, math.nan)] == [
        "30,400",
        "inf",
        "-inf",
        "nan",
    ]


def test_join_first():
    assert join_first(list("abc"), 2) == "a, b and 1 more"
    assert join_first(["a"] * 10_005, 1) == "a and 10,004 more"
