"""Every parameter of every public name is documented and has a type."""

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
DOCUMENTED_AT = dict.fromkeys((JaxClient, NumpyClient, TorchClient, PrivateClient), (PerRowOracle, SecondOrderClient))
"""Classes whose methods implement protocols and are documented there."""
UNTYPED = {
    "Method.init return": "a method's state is any pytree of arrays",
    "Method.decide state": "the same",
    "AtClients.init return": "the method defines the state of clients",
    "AtClients.shift state": "the same",
    "AtClients.after state": "the same",
    "Oracle.draw return": "the oracle defines its draws",
    "Oracle.draw_randomness return": "the same",
    "Oracle.draw_for randomness": "the same",
    "Oracle.draw_for return": "the same",
    "Oracle.report draws": "the same",
    "Oracle.direction draws": "the same",
    "Oracle.direction kept": "the oracle defines the state of its report",
    "Oracle.direction step_size": "a number, or a traced number in compiled oracles",
    "Oracle.directions draws": "the same",
    "Oracle.directions kept": "the same",
    "Oracle.directions step_size": "the same",
    "Oracle.count_rows draws": "the same",
    "Oracle.cost row_count": "the return value of count_rows, for one or several rounds",
    "Automatic settings": "the same",
    "Sampling.automatic given": "the same",
    "AtClients.after_void before": "the method defines the state of clients",
    "AtClients.after_void after": "the same",
    "AtClients.after_void return": "the same",
    "server_app changes": "the same",
    "SwitchingStrategy changes": "the same",
}
"""Parameters for which Any is the best type, with reasons. Methods of subclasses count as those of ``Method``."""
SECTION = re.compile(r"^(Args|Attributes|Parameters):$")
ENTRY = re.compile(r"^    ([*\w]+(?:, [*\w]+)*)(?: \([^)]*\))?: \S")


def documented_names(doc):
    """Return the names that a Google-style docstring documents."""
    names, is_in_section = set(), False
    for line in inspect.cleandoc(doc or "").splitlines():
        if SECTION.match(line):
            is_in_section = True
        elif line and not line.startswith(" "):
            is_in_section = False
        elif is_in_section and (entry := ENTRY.match(line)):
            names |= {name.strip().lstrip("*") for name in entry[1].split(",")}
    return names


def public_objects():
    """Return every public function and class once, by name."""
    objects = {}
    for module in MODULES:
        namespace = import_module(module)
        for name in namespace.__all__:
            value = getattr(namespace, name)
            if callable(value) and not (isinstance(value, type) and issubclass(value, enum.Enum | BaseException)):
                objects[name] = value
    return objects


def methods(cls):
    """Return the public methods of a class and its bases, except those defined by other libraries."""
    names = {name for name in dir(cls) if not name.startswith("_")}
    for name in sorted(names):
        owners = [base for base in cls.__mro__ if name in vars(base)]
        if not all(base.__module__.startswith("softswitch") for base in owners):
            continue
        method = vars(owners[0])[name]
        function = method.__func__ if isinstance(method, classmethod | staticmethod) else method
        if inspect.isfunction(function):
            docs = [vars(base)[name].__doc__ for base in owners]
            if cls in DOCUMENTED_AT:
                docs += [getattr(protocol, name, function).__doc__ for protocol in DOCUMENTED_AT[cls]]
            yield f"{owners[-1].__name__}.{name}", function, docs


def signatures():
    """Return (name, signature, docstrings) of every callable."""
    entries = {}
    for name, value in public_objects().items():
        if not isinstance(value, type):
            entries[name] = (inspect.signature(value), [value.__doc__])
            continue
        if not getattr(value, "_is_protocol", False):
            entries[name] = (inspect.signature(value), [base.__doc__ for base in value.__mro__])
        for label, function, docs in methods(value):
            docstrings = entries.get(label, (None, []))[1]
            entries[label] = (inspect.signature(function), [*docstrings, *docs])
    return entries


SIGNATURES = signatures()


@pytest.mark.parametrize("module", MODULES)
def test_reference_lists_every_public_name(module):
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    listed = set(re.findall(r"^::: [\w.]+\.(\w+)$", pages, flags=re.MULTILINE))
    assert not set(import_module(module).__all__) - listed


def parameters(signature):
    return [p for p in signature.parameters.values() if p.name not in ("self", "cls") and not p.name.startswith("_")]


def test_docstring_parsing():
    assert documented_names(
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
def test_every_parameter_is_documented(name):
    signature, docs = SIGNATURES[name]
    missing = {p.name for p in parameters(signature)} - set().union(*map(documented_names, docs))
    assert not missing, f"{name} does not document {sorted(missing)}"


def is_untyped(annotation):
    """Return whether an annotation is missing, Any, or Any or None."""
    return annotation in (inspect.Parameter.empty, "Any", "Any | None") or str(annotation) == "typing.Any"


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_parameter_has_type(name):
    signature, _ = SIGNATURES[name]
    untyped = [p.name for p in parameters(signature) if is_untyped(p.annotation)]
    if "." in name and is_untyped(signature.return_annotation):
        untyped.append("return")
    untyped = [parameter_name for parameter_name in untyped if f"{name} {parameter_name}" not in UNTYPED]
    assert not untyped, f"{name} has parameters without types: {untyped}"


def test_exceptions_exist():
    for exception in UNTYPED:
        name, parameter = exception.split()
        assert name in SIGNATURES
        assert parameter == "return" or parameter in SIGNATURES[name][0].parameters
