"""The folder list is the architecture: a folder imports only itself and the folders listed before it."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
FOLDERS = (
    "support",
    "problem",
    "methods",
    "data",
    "oracles",
    "privacy",
    "results",
    "theory",
    "certification",
    "engine",
    "flower",
    "tables",
    "cli",
)
"""From the lowest layer to the highest."""
EXPERIMENTS = "softswitch_experiments"
EXPORTS = (
    "softswitch",
    "softswitch.flower",
    "softswitch.methods",
    "softswitch.testing",
    "softswitch.theory",
    "softswitch.trackers",
)
"""Modules that only export public names. They may import from any layer, and no module imports them."""


def module_name(file):
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in sorted(SOURCE.rglob("*.py"))}


def find_imports(tree):
    """Return all modules of both packages that a file imports, anywhere in the file."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                modules.add(inner if inner in MODULES else node.module)
    return {name for name in modules if name.split(".")[0] in ("softswitch", EXPERIMENTS)}


GRAPH = {name: find_imports(ast.parse(file.read_text(encoding="utf-8"))) for name, file in MODULES.items()}


def layer(name):
    package, _, rest = name.partition(".")
    if package == EXPERIMENTS:
        return len(FOLDERS) - 1.5  # above the library and below the command line
    return FOLDERS.index(rest.split(".")[0])


def test_every_file_is_in_a_known_folder():
    folders = {name.split(".")[1] for name in MODULES if name.startswith("softswitch.")}
    assert folders == {*FOLDERS, "__main__", "testing", "trackers"}


def test_no_file_imports_a_higher_layer():
    upward = [
        (name, other)
        for name, others in GRAPH.items()
        if name not in EXPORTS and name != "softswitch.__main__"
        for other in others
        if other != "softswitch.methods" and (other in EXPORTS or layer(other) > layer(name))
    ]
    assert upward == []


def test_there_are_no_import_cycles():
    visited, path = set(), []

    def walk(name):
        if name in path:
            pytest.fail(" → ".join([*path[path.index(name) :], name]))
        if name in visited or name in EXPORTS:
            return
        path.append(name)
        for other in sorted(GRAPH.get(name, ())):
            walk(other)
        path.pop()
        visited.add(name)

    for name in GRAPH:
        walk(name)


def test_nested_imports_are_detected():
    source = "def f():\n    from softswitch.flower import messages\nif True:\n    import softswitch.cli.main\n"
    assert find_imports(ast.parse(source)) == {"softswitch.flower.messages", "softswitch.cli.main"}
    assert layer("softswitch.results.history") < layer("softswitch.engine.compiled") < layer(f"{EXPERIMENTS}.paper")
    assert layer(f"{EXPERIMENTS}.paper") < layer("softswitch.cli.main")


def test_only_command_line_imports_experiments():
    importers = {name for name, others in GRAPH.items() if any(other.startswith(EXPERIMENTS) for other in others)}
    assert {name for name in importers if not name.startswith((EXPERIMENTS, "softswitch.cli."))} == set()


def test_architecture_page_lists_every_folder_in_order():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^  (\w+)/ ", page, flags=re.M)) == FOLDERS
    files = {file.relative_to(SOURCE).as_posix() for file in MODULES.values()}
    listed = re.findall(r"`((?:\w+/)+\w+\.py)`", page)
    assert [path for path in listed if f"softswitch/{path}" not in files and not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", EXPORTS)
def test_public_names_are_listed_once(name):
    """The names in the stubs for static tools equal the lazily imported names."""
    module = import_module(name)
    with open(module.__file__, encoding="utf-8") as source:
        typed = {line.split(" as ")[1].strip() for line in source if " as " in line and "import" in line}
    assert typed == set(module.__all__)
    for public in module.__all__:
        assert getattr(module, public) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        module.nonsense  # noqa: B018
