"""Every program on a page runs and prints the output shown; every command line is valid."""

import ast
import importlib
import inspect
import math
import re
import shlex
import textwrap
import warnings
from importlib.metadata import version
from pathlib import Path

import click
import pytest
import typer

from softswitch.cli import app

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")))
TESTED_ELSEWHERE = {
    "README.md": "test_readme.py",
    "docs/choosing.md": "test_readme.py",
    "docs/coming-from/cooper.md": "test_coming_from.py",
    "docs/coming-from/fairlearn.md": "test_coming_from.py",
    "docs/coming-from/flower.md": "test_coming_from.py",
    "docs/coming-from/omnisafe.md": "test_coming_from.py",
    "docs/fairness.md": "test_readme.py",
    "docs/memory.md": "test_readme.py",
    "docs/python.md": "test_readme.py",
    "docs/rates.md": "test_readme.py",
    "docs/safe-rl.md": "test_readme.py",
    "docs/tutorial.md": "test_tutorial.py",
    "docs/own-data.md": "test_tutorial.py",
}
"""Pages whose programs are run by another test file."""
SLOW = (
    "beyond-memory",
    "federated/privacy-accounting",
    "federated/when-clients-lie",
    "frontier",
    "how-good",
    "many-devices",
    "networks",
    "pytorch",
    "regression",
    "regret",
)
"""Pages in docs whose programs take more than five seconds."""
FENCED = re.compile(
    r"^(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e-?\d+)?")


def blocks(page):
    """Return the fenced blocks of a page as (language, text), in order."""
    return [
        (match["language"], textwrap.dedent(match["text"]))
        for match in FENCED.finditer((ROOT / page).read_text(encoding="utf-8"))
    ]


def programs(page):
    """Return the programs of a page, each with the output that the page shows, or None."""
    fenced_blocks = blocks(page)
    following_blocks = [*fenced_blocks, ("", "")][1:]
    return [
        (text, shown if kind == "text" else None)
        for (language, text), (kind, shown) in zip(fenced_blocks, following_blocks, strict=True)
        if language == "python"
    ]


def outputs_match(printed, shown):
    """Return whether the text is equal, and numbers differ by at most 5% or 0.01."""
    if NUMBER.sub("#", " ".join(printed.split())) != NUMBER.sub("#", " ".join(shown.split())):
        return False
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True)
    numbers = (
        (float(printed_number.replace(",", "")), float(shown_number.replace(",", "")))
        for printed_number, shown_number in pairs
    )
    return all(
        math.isclose(printed_number, shown_number, rel_tol=0.05, abs_tol=0.0101)
        for printed_number, shown_number in numbers
    )


def test_text_and_numbers_are_compared():
    assert outputs_match("a 1.00 b", "a   1.01\nb")
    assert not outputs_match("a 1.00 b", "a 1.06 b")
    assert not outputs_match("a 1 b", "a 1 c")


WITH_PROGRAMS = [page for page in PAGES if programs(page)]
TESTED_HERE = [
    pytest.param(page, marks=pytest.mark.slow if page in [f"docs/{name}.md" for name in SLOW] else ())
    for page in WITH_PROGRAMS
    if page not in TESTED_ELSEWHERE
]


def resolve(node, names):
    """Return the object of softswitch that a name or an attribute refers to, or None."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and (owner := resolve(node.value, names)) is not None:
        target = getattr(owner, node.attr, None)
        assert target is not None or not inspect.ismodule(owner), f"{owner.__name__} has no {node.attr}"
        return target
    return None


def check_names(program, names):
    """Check that a program parses, and that names and keyword arguments of softswitch exist."""
    nodes = list(ast.walk(ast.parse(program)))
    for node in nodes:
        if isinstance(node, ast.Import):
            modules = [name for name in node.names if name.name.split(".")[0] == "softswitch"]
            names.update({item.asname or "softswitch": importlib.import_module(item.name) for item in modules})
        elif isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "softswitch":
            module = importlib.import_module(node.module)
            names.update({item.asname or item.name: getattr(module, item.name) for item in node.names})
    for node in nodes:
        target = resolve(node.func if isinstance(node, ast.Call) else node, names)
        if isinstance(node, ast.Call) and callable(target):
            parameters = inspect.signature(target).parameters
            unknown = {keyword.arg for keyword in node.keywords if keyword.arg} - set(parameters)
            flexible = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values())
            assert flexible or not unknown, f"{target} has no parameters {unknown}"


@pytest.mark.parametrize("page", WITH_PROGRAMS)
def test_programs_use_existing_names(page):
    """Check all programs without running them, also those of slow pages."""
    names: dict = {}
    for program, _ in programs(page):
        check_names(program, names)


@pytest.mark.parametrize("program", ["ss.solv(1)", "ss.solve(p, c, round=1)", "from softswitch import solv"])
def test_unknown_names_are_detected(program):
    with pytest.raises((AssertionError, AttributeError)):
        check_names(f"import softswitch as ss\n{program}", {})


@pytest.mark.parametrize("page", TESTED_HERE)
def test_programs_print_shown_output(page, capsys, monkeypatch, tmp_path):
    """Run all programs of a page in order, with shared names."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": page}
    for number, (program, shown) in enumerate(programs(page)):
        exec(compile(program, f"{page}, program {number + 1}", "exec"), names)
        output = capsys.readouterr().out
        assert shown is None or outputs_match(output, shown), output


@pytest.mark.parametrize("page", TESTED_ELSEWHERE)
def test_other_file_tests_page(page):
    text = (Path(__file__).parent / TESTED_ELSEWHERE[page]).read_text(encoding="utf-8")
    assert page in text or f'"{page.removeprefix("docs/")}"' in text


def commands():
    """Yield all command lines on all pages, from shell blocks and indented blocks."""
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        shells = [body for language, body in blocks(page) if language in ("", "sh", "console", "bash")]
        indented = re.findall(r"^    (softswitch .*)$", FENCED.sub("", text), flags=re.MULTILINE)
        for line in "\n".join([*shells, *indented]).splitlines():
            line = line.strip().removeprefix("$ ")
            if line.startswith("softswitch "):
                yield page, line.split("||")[0]


@pytest.mark.skipif(
    version("click") >= "8.5",
    reason="typer 0.20 loses the help of arguments with click 8.5; constraints.txt has 8.4",
)
def test_arguments_and_options_have_help():
    group = typer.main.get_command(app)
    without_help = [
        f"{name} {parameter.name}"
        for name, command in group.commands.items()
        for parameter in command.params
        if not parameter.help
    ]
    assert not without_help


COMMANDS = sorted(set(commands()))


def test_commands_are_found():
    assert len(COMMANDS) > 30


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[line for _, line in COMMANDS])
def test_command_line_is_valid(page, line):
    """Parse the command, its options and arguments without running it."""
    arguments = shlex.split(line, comments=True)[1:]
    group = typer.main.get_command(app)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        name, command, rest = group.resolve_command(click.Context(group), arguments)
        command.make_context(name, [word for word in rest if word != "…"], resilient_parsing=False)
