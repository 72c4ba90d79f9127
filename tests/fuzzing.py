"""Fuzzing: any file content leads to clear errors only, which the command line prints in one line.

The suite tries few cases, the same each time. ``SOFTSWITCH_FUZZ=10000 pytest -k fuzz`` tries 10,000 random cases per
test.
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
    """Settings with ``quick`` cases in the suite, and a share of ``SOFTSWITCH_FUZZ`` cases in a long run."""
    if LONG:
        options = {"max_examples": max(1, round(LONG * of_long)), "derandomize": False}
    else:
        options = {"max_examples": quick, "derandomize": True}
    return settings(**options, database=None, deadline=None, suppress_health_check=list(HealthCheck))


def only_clear_errors(work):
    """Call ``work``. An error must be a builtin one that the command line prints, with a message."""
    try:
        return work()
    except (ValueError, OSError, EOFError) as error:
        caught = error
    assert type(caught).__module__ == "builtins", repr(caught)
    assert not isinstance(caught, UnicodeError), repr(caught)
    assert str(caught).strip(), repr(caught)
    return None


@st.composite
def broken_bytes(draw, content):
    """The bytes, with some cut off, flipped, replaced, repeated, inserted or removed."""
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
def broken_json(draw, content, values=None):
    """The same JSON, with some values replaced, removed or renamed."""
    content = [copy.deepcopy(content)]
    for _ in range(draw(st.integers(1, 3))):
        container, key = content, 0
        deep = draw(st.integers(0, 6))
        while isinstance(container[key], dict | list) and container[key] and (container is content or deep > 0):
            deep -= 1
            container = container[key]
            key = draw(
                st.sampled_from(sorted(container, key=str) if isinstance(container, dict) else range(len(container)))
            )
        how = draw(st.sampled_from(["value", "value", "value", "remove", "rename"]))
        if how == "value" or container is content:
            container[key] = copy.deepcopy(draw(st.sampled_from(HOSTILE) if values is None else values))
        elif how == "remove":
            del container[key]
        elif isinstance(container, dict):
            container[draw(st.sampled_from(["x", "", "kind", "format"]))] = container.pop(key)
    return content[0]
