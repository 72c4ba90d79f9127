"""Parsing of dates and times of day, and their encoding as features."""

import datetime

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import given

from softswitch.tables.cells import parse_datetimes
from softswitch.tables.features import Encoding

FORMATS = (
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d-%m-%Y",
    "%d %b %Y",
    "%d-%b-%y",
    "%B %d, %Y",
    "%Y%m%d",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%d %H:%M:%S.%f",
    "%Y-%m-%dT%H:%M:%SZ",
    "%m/%d/%Y %I:%M %p",
)


@given(
    moments=st.lists(
        st.datetimes(datetime.datetime(1971, 1, 1), datetime.datetime(2069, 1, 1)), min_size=1, max_size=6
    ),
    date_format=st.sampled_from(FORMATS),
)
def test_dates_are_parsed_in_every_format(moments, date_format):
    order = "mdy" if date_format.startswith("%m") else "dmy"
    exact = [datetime.datetime.strptime(one.strftime(date_format), date_format) for one in moments]
    values = pd.Series([*(one.strftime(date_format) for one in moments), None], name="date")
    parsed = parse_datetimes(values, order)
    days = [(one - datetime.datetime(1970, 1, 1)).days for one in exact]
    np.testing.assert_array_equal(parsed.days, [*days, np.nan])
    if "%M" in date_format:
        hours = [one.hour + one.minute / 60 + (one.second + one.microsecond / 1e6) / 3600 for one in exact]
        np.testing.assert_allclose(parsed.hours, [*hours, np.nan], atol=1e-9)
    else:
        assert np.isnan(parsed.hours).all()


@pytest.mark.parametrize(
    ("cells", "orders"),
    [
        (["05/01/2013", "13/01/2013"], ("dmy", "dmy")),
        (["05/01/2013", "01/13/2013"], ("mdy", "mdy")),
        (["05/01/2013", "06/01/2013"], ("dmy", "mdy")),
        (["2013-01-05", "2013-01-13"], (None, None)),
    ],
)
def test_day_month_order_is_inferred_from_column(cells, orders):
    assert tuple(parse_datetimes(pd.Series(cells), order).order for order in ("dmy", "mdy")) == orders


@pytest.mark.parametrize(
    "cells",
    [
        ["13/01/2013", "01/13/2013"],
        ["2013-02-30"],
        ["yesterday"],
        ["1.5"],
        ["12"],
        ["25:00"],
        ["2013-01-05", "soon"],
        ["5 apples 2013"],
        [None],
    ],
)
def test_non_dates_are_not_parsed(cells):
    assert parse_datetimes(pd.Series(cells)) is None


def test_date_features():
    """Encode two dates a year apart, one in between, and an empty cell."""
    table = pd.DataFrame({"d": ["2013-01-01", "2014-01-01", "2013-07-02", None]})
    encoding = Encoding.fit(table, ["d"])
    assert encoding.features == ("d day", "d season sin", "d season cos", "d Wednesday", "d is empty")
    days = np.array([0, 365, 182])
    trend = (days - days.mean()) / days.std()
    angle = 2 * np.pi * np.array([0, 0, 182]) / 365.25
    expected = np.stack([trend, np.sin(angle), np.cos(angle), [0, 1, 0], np.zeros(3)], axis=1)
    encoded = encoding.encode(table)
    np.testing.assert_allclose(encoded[:3], expected, atol=1e-6)
    np.testing.assert_array_equal(encoded[3], [0, 0, 0, 0, 1])


def test_time_features():
    table = pd.DataFrame({"t": ["00:00", "06:00", "18:00"]})
    encoding = Encoding.fit(table, ["t"])
    assert encoding.features == ("t hour sin", "t hour cos")
    np.testing.assert_allclose(encoding.encode(table), [[0, 1], [1, 0], [-1, 0]], atol=1e-6)


def test_ambiguous_dates_use_training_order():
    """Ambiguous dates have the order of the training rows unless the new column determines another."""
    encoding = Encoding.fit(pd.DataFrame({"d": ["01/13/2013", "05/02/2013", "12/24/2013"]}), ["d"])
    same = encoding.encode(pd.DataFrame({"d": ["2013-05-02"]}))
    np.testing.assert_array_equal(encoding.encode(pd.DataFrame({"d": ["05/02/2013"]})), same)
    both = encoding.encode(pd.DataFrame({"d": ["02/05/2013", "31/05/2013"]}))
    np.testing.assert_array_equal(both[:1], same)
    with pytest.raises(ValueError, match="column 'd' must hold dates, as in training, but holds 'soon'"):
        encoding.encode(pd.DataFrame({"d": ["soon"]}))
    with pytest.raises(ValueError, match="column 'd' must hold dates, as in training, but holds '12:30'"):
        encoding.encode(pd.DataFrame({"d": ["12:30"]}))


def test_date_order_is_inferred_from_all_rows():
    """The training rows alone are ambiguous."""
    whole = pd.DataFrame({"d": ["05/02/2013", "06/03/2013", "12/24/2013"]})
    encoding = Encoding.fit(whole.iloc[:2], ["d"], whole)
    assert encoding.columns[0].order == "mdy"
    assert encoding.columns[0].mean == pytest.approx(
        np.mean([(datetime.date(2013, m, d) - datetime.date(1970, 1, 1)).days for m, d in ((5, 2), (6, 3))])
    )
