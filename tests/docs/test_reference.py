"""Every parameter of every public name is explained, and says what type it wants."""

import enum
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

from softswitch.flower import (
    JaxClient,
    NumpyClient,
    PerRowOracle,
    PrivateClient,
    RegretClient,
    SecondOrderClient,
    TorchClient,
)

DOCS = Path(__file__).parents[2] / "docs"
MODULES = (
    "softswitch",
    "softswitch.flower",
    "softswitch.methods",
    "softswitch.testing",
    "softswitch.theory",
    "softswitch.trackers",
)
EXPLAINED_AT = dict.fromkeys(
    (JaxClient, NumpyClient, TorchClient, PrivateClient, RegretClient), (PerRowOracle, SecondOrderClient)
)
"""Classes whose methods are those of protocols, and are explained there."""
ANYTHING = {
    "Method.init return": "a method's memory is any tree of arrays",
    "Method.decide state": "the same",
    "AtClients.init return": "what clients keep is a method's own affair",
    "AtClients.shift state": "the same",
    "AtClients.after state": "the same",
    "Oracle.draw return": "what an oracle draws is its own affair",
    "Oracle.draw_randomness return": "the same",
    "Oracle.draw_for randomness": "the same",
    "Oracle.draw_for return": "the same",
    "Oracle.report draws": "the same",
    "Oracle.direction draws": "the same",
    "Oracle.direction kept": "what it kept of its report, likewise",
    "Oracle.direction step_size": "a number, or a traced one in oracles that are compiled",
    "Oracle.directions draws": "the same",
    "Oracle.directions kept": "the same",
    "Oracle.directions step_size": "the same",
    "Oracle.count_rows draws": "the same",
    "Oracle.cost row_count": "what the oracle's own count_rows returns, of one round or of many",
    "Automatic settings": "the same",
    "Sampling.automatic given": "the same",
    "AtClients.after_void before": "what clients keep is a method's own affair",
    "AtClients.after_void after": "the same",
    "AtClients.after_void return": "the same",
    "server_app changes": "the same",
    "SwitchingStrategy changes": "the same",
}
"""Where no better type than Any is true, and why. A rule's own methods count as those of ``Method``."""
SECTION = re.compile(r"^(Args|Attributes|Parameters):$")
ENTRY = re.compile(r"^    ([*\w]+(?:, [*\w]+)*)(?: \([^)]*\))?: \S")


def explained(doc):
    """The names that a docstring in Google's style explains."""
    names, inside = set(), False
    for line in inspect.cleandoc(doc or "").splitlines():
        if SECTION.match(line):
            inside = True
        elif line and not line.startswith(" "):
            inside = False
        elif inside and (entry := ENTRY.match(line)):
            names |= {name.strip().lstrip("*") for name in entry[1].split(",")}
    return names


def public():
    """Every public function and class by its name; once, wherever it can be imported from."""
    found = {}
    for module in MODULES:
        home = import_module(module)
        for name in home.__all__:
            thing = getattr(home, name)
            if callable(thing) and not (isinstance(thing, type) and issubclass(thing, enum.Enum | BaseException)):
                found[name] = thing
    return found


def methods(cls):
    """A class's own public methods, and those of its bases here, but for what another library's class defines."""
    names = {name for name in dir(cls) if not name.startswith("_")}
    for name in sorted(names):
        owners = [base for base in cls.__mro__ if name in vars(base)]
        if not all(base.__module__.startswith("softswitch") for base in owners):
            continue
        method = vars(owners[0])[name]
        function = method.__func__ if isinstance(method, classmethod | staticmethod) else method
        if inspect.isfunction(function):
            docs = [vars(base)[name].__doc__ for base in owners]
            if cls in EXPLAINED_AT:
                docs += [getattr(protocol, name, function).__doc__ for protocol in EXPLAINED_AT[cls]]
            yield f"{owners[-1].__name__}.{name}", function, docs


def signatures():
    """(name, signature, docstrings) of everything that can be called."""
    seen = {}
    for name, thing in public().items():
        if not isinstance(thing, type):
            seen[name] = (inspect.signature(thing), [thing.__doc__])
            continue
        if not getattr(thing, "_is_protocol", False):
            seen[name] = (inspect.signature(thing), [base.__doc__ for base in thing.__mro__])
        for label, function, docs in methods(thing):
            before = seen.get(label, (None, []))[1]
            seen[label] = (inspect.signature(function), [*before, *docs])
    return seen


SIGNATURES = signatures()


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_its_place_in_the_reference(module):
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    shown = set(re.findall(r"^::: [\w.]+\.(\w+)$", pages, flags=re.MULTILINE))
    assert not set(import_module(module).__all__) - shown


def parameters(signature):
    return [p for p in signature.parameters.values() if p.name not in ("self", "cls") and not p.name.startswith("_")]


def test_docstrings_are_read():
    assert explained(
        "Do it.\n\n    Args:\n        one: this.\n            more: of it.\n        a, b: those.\n    "
    ) == {
        "one",
        "a",
        "b",
    }
    assert "solve" in SIGNATURES
    assert "Method.decide" in SIGNATURES
    assert len(SIGNATURES) > 150


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_parameter_is_explained(name):
    signature, docs = SIGNATURES[name]
    missing = {p.name for p in parameters(signature)} - set().union(*map(explained, docs))
    assert not missing, f"{name} does not explain {sorted(missing)}"


def bare(annotation):
    """Whether an annotation says nothing: none, Any, or Any or None."""
    return annotation in (inspect.Parameter.empty, "Any", "Any | None") or str(annotation) == "typing.Any"


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_type_is_told(name):
    signature, _ = SIGNATURES[name]
    untold = [p.name for p in parameters(signature) if bare(p.annotation)]
    if "." in name and bare(signature.return_annotation):
        untold.append("return")
    untold = [one for one in untold if f"{name} {one}" not in ANYTHING]
    assert not untold, f"{name} does not say what type it wants of {untold}"


def test_the_exceptions_are_of_things_that_exist():
    for exception in ANYTHING:
        name, parameter = exception.split()
        assert name in SIGNATURES
        assert parameter == "return" or parameter in SIGNATURES[name][0].parameters
