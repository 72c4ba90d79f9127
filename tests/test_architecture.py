"""The folder list is the architecture: lower folders never import higher ones, and one name has one meaning."""

import ast
import re
from collections import defaultdict
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "softswitch"
FOLDERS = (
    "support",
    "problem",
    "method",
    "clients",
    "results",
    "runs",
    "guarantees",
    "engines",
    "tasks",
    "tables",
    "paper",
    "leaderboard",
    "cli",
)
"""From the lowest to the highest."""
DOORS = ("__init__", "__main__", "flower", "rules", "theory", "trackers")
"""Public names and where they live, nothing else: they may import from anywhere, and nobody imports them."""


def modules():
    return {".".join(f.relative_to(PACKAGE).with_suffix("").parts): f for f in sorted(PACKAGE.rglob("*.py"))}


def trees():
    return {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in modules().items()}


def imported(tree, known):
    """All modules of the package that a file imports, wherever in it: at its top, in a function, for types only."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("softswitch")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "softswitch":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}".removeprefix("softswitch.")
                found.add(f"softswitch.{inner}" if inner in known else node.module)
    return {name.removeprefix("softswitch").removeprefix(".") or "__init__" for name in found}


KNOWN = set(modules())


def is_above(importer, other):
    return FOLDERS.index(other.split(".")[0]) > FOLDERS.index(importer.split(".")[0])


def test_every_file_has_its_folder():
    tops = {name.split(".")[0] for name in KNOWN}
    assert tops == set(FOLDERS) | set(DOORS)
    crowds = defaultdict(int)
    for name in KNOWN:
        crowds[name.rpartition(".")[0]] += 1
    assert max(crowds.values()) <= 20, dict(crowds)


def test_no_file_imports_a_higher_folder_not_even_lazily():
    upward = [
        (name, other)
        for name, tree in trees().items()
        if name not in DOORS
        for other in imported(tree, KNOWN)
        if other in DOORS or is_above(name, other)
    ]
    assert upward == []


def test_no_file_imports_itself_by_a_detour():
    graph = {name: {o for o in imported(tree, KNOWN) if o in KNOWN} for name, tree in trees().items()}
    visited, path = set(), []

    def walk(name):
        if name in path:
            pytest.fail(" → ".join([*path[path.index(name) :], name]))
        if name in visited:
            return
        path.append(name)
        for other in sorted(graph[name]):
            walk(other)
        path.pop()
        visited.add(name)

    for name in graph:
        walk(name)


def test_the_rule_can_be_broken():
    """The tests above see an import that is hidden in a function, for types only, or by a folder's name."""
    hidden = "def f():\n    from softswitch.engines.flower import wire\nif True:\n    import softswitch.cli.main\n"
    assert imported(ast.parse(hidden), KNOWN) == {"engines.flower.wire", "cli.main"}
    assert is_above("results.history", "engines.compiled")
    assert not is_above("engines.solve", "engines.flower.client_app")


def test_no_two_files_or_types_have_the_same_name():
    """Also none that differ by an ending only, such as plan and plans, or certify and certifying."""
    stems, classes = defaultdict(list), defaultdict(list)
    for name, tree in trees().items():
        if name.endswith("__init__") or name in DOORS:
            continue
        stems[re.sub(r"(ing|er|s)$", "", name.rpartition(".")[2])].append(name)
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(name)
    for folder in FOLDERS:  # a folder's own noun may be one of its files
        twins = stems[re.sub(r"(ing|er|s)$", "", folder)]
        assert all(name.startswith(f"{folder}.") for name in twins), (folder, twins)
    assert {stem: names for stem, names in stems.items() if len(names) > 1} == {}
    assert {kind: names for kind, names in classes.items() if len(names) > 1} == {}


def test_the_map_shows_every_folder_in_order():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^  (\w+)/ ", page, flags=re.M)
    assert tuple(drawn) == FOLDERS
    named = set(re.findall(r"\b(\w+)\.py\b", page))
    assert named <= {name.rpartition(".")[2] for name in KNOWN} | {"reference"}


def test_public_names_are_listed_once():
    """What static tools read is what is imported when it is first used."""
    for module in map(import_module, ("softswitch", *(f"softswitch.{door}" for door in DOORS[2:]))):
        with open(module.__file__, encoding="utf-8") as source:
            named = {line.split(" as ")[1].strip() for line in source if " as " in line and "import" in line}
        assert named == set(module.__all__)
        for name in module.__all__:
            assert getattr(module, name) is not None
        with pytest.raises(AttributeError, match="nonsense"):
            module.nonsense  # noqa: B018
