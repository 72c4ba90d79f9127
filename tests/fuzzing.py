"""Fuzzing: whatever a file says, only clear errors come out, such as the command line shows in one line.

In the suite the cases are few and always the same. For a long look: ``SOFTSWITCH_FUZZ=10000 pytest -k fuzz``, so many
cases a test, others every time.
"""

import copy
import os

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings

LONG = int(os.environ.get("SOFTSWITCH_FUZZ", "0"))
HOSTILE = [
    *(None, True, False, "", "x", "auto", "nan", "\0", "é" * 40, "=1+1", "../../etc/passwd"),
    *(0, -1, 1, 2, 10**6, 10**12, -(10**30), 10**400, 1e308, -1e308, 1e-320, 0.5, 1.5),
    *([], {}, [None], [[]], [1, "x"], [-1], {"": 1}, {"a": {"b": []}}, ["x"] * 50),
]


def cases(quick, of_long=1.0):
    """So many cases in the suite; in a long look a share of those asked for."""
    if LONG:
        many = {"max_examples": max(1, round(LONG * of_long)), "derandomize": False}
    else:
        many = {"max_examples": quick, "derandomize": True}
    return settings(**many, database=None, deadline=None, suppress_health_check=list(HealthCheck))


def only_clear_errors(work):
    """Call it; an error must be one of those that the command line tells, with a text, and not a library's own kind."""
    try:
        return work()
    except (ValueError, OSError, EOFError) as error:
        told = error
    assert type(told).__module__ == "builtins", repr(told)
    assert not isinstance(told, UnicodeError), repr(told)
    assert str(told).strip(), repr(told)
    return None


@st.composite
def broken_bytes(draw, content):
    """The bytes cut short, with some flipped, replaced, repeated or put in."""
    content = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        to = min(len(content), at + draw(st.integers(0, 40)))
        how = draw(st.sampled_from(["cut", "flip", "replace", "repeat", "insert", "remove"]))
        if how == "cut":
            del content[at:]
        elif how == "flip" and content:
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "replace":
            content[at:to] = draw(st.binary(max_size=40))
        elif how == "repeat":
            content[at:at] = content[at:to] * draw(st.integers(1, 50))
        elif how == "insert":
            content[at:at] = draw(
                st.sampled_from([b"\0", b"\xff", b'"', b"NaN", b"1e999", b"[" * 3000, b"\n", b"-", b","])
            )
        elif how == "remove":
            del content[at:to]
    return bytes(content)


@st.composite
def broken_json(draw, told, values=None):
    """The same with some values replaced by others, taken out or called otherwise."""
    told = [copy.deepcopy(told)]
    for _ in range(draw(st.integers(1, 3))):
        inside, key = told, 0
        deep = draw(st.integers(0, 6))
        while isinstance(inside[key], dict | list) and inside[key] and (inside is told or deep > 0):
            deep -= 1
            inside = inside[key]
            key = draw(st.sampled_from(sorted(inside, key=str) if isinstance(inside, dict) else range(len(inside))))
        how = draw(st.sampled_from(["value", "value", "value", "remove", "rename"]))
        if how == "value" or inside is told:
            inside[key] = copy.deepcopy(draw(st.sampled_from(HOSTILE) if values is None else values))
        elif how == "remove":
            del inside[key]
        elif isinstance(inside, dict):
            inside[draw(st.sampled_from(["x", "", "kind", "format"]))] = inside.pop(key)
    return told[0]
