"""A rule in words and numbers, and back: for files."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import optax

from softswitch.method import rules
from softswitch.method.proximal import Proximal
from softswitch.method.rules import Rule
from softswitch.method.steps import FallingStep, NormalizedAdam
from softswitch.support import checks

OWN = (FallingStep, NormalizedAdam, Proximal)


def describe_rule(rule: Rule) -> dict[str, Any]:
    """The rule for JSON: its kind, and its settings. Of optax's functions the name is kept, of others their repr."""
    return {
        "kind": type(rule).__name__,
        "module": type(rule).__module__,
        "settings": {field.name: _described(getattr(rule, field.name)) for field in fields(rule)},
    }


def rule_described(told: dict[str, Any]) -> Rule:
    """The rule of a description; raise where it is of a user's own kind, or holds functions of their own."""
    kind, settings = told["kind"], told["settings"]
    own = [name for name, value in settings.items() if isinstance(value, dict) and "repr" in value]
    if not told["module"].startswith(f"{rules.__name__}.") or own:
        what = f"is a {kind}" if not own else f"has functions of its own for {' and '.join(own)}"
        raise ValueError(f"the rule {what}, which no file can hold; hand it in: rule=…")
    made: Rule = getattr(rules, kind)(**{name: _value(value) for name, value in settings.items()})
    return made


def same_rule(rule: Rule, told: dict[str, Any]) -> Rule:
    """The rule that is handed in, or raise where it is not the one described, as far as a description goes."""
    checks.expect("rule", rule, Rule)
    here = describe_rule(rule)
    if here["kind"] != told["kind"]:
        raise ValueError(f"rule must be a {told['kind']}, as was saved, but is {rule!r}")
    for name, value in told["settings"].items():
        functions = any(isinstance(one, dict) and "repr" in one for one in (value, here["settings"].get(name)))
        if not functions and here["settings"].get(name) != value:
            raise ValueError(f"rule must have {name} = {value!r}, as was saved, but is {rule!r}")
    return rule


def _described(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if type(value) in OWN:
        return {"own": type(value).__name__, **asdict(value)}
    name = getattr(value, "__name__", "")
    return {"optax": name} if name and getattr(optax, name, None) is value else {"repr": repr(value)}


def _value(told: Any) -> Any:
    if not isinstance(told, dict):
        return told
    if "optax" in told:
        return getattr(optax, told["optax"])
    numbers = dict(told)
    return {kind.__name__: kind for kind in OWN}[numbers.pop("own")](**numbers)
