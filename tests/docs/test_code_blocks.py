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
RUN_ELSEWHERE = {
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
        (found["language"], textwrap.dedent(found["text"]))
        for found in FENCED.finditer((ROOT / page).read_text(encoding="utf-8"))
    ]


def programs(page):
    """Return the programs of a page, each with the output that the page shows, or None."""
    found = blocks(page)
    below = [*found, ("", "")][1:]
    return [
        (text, told if kind == "text" else None)
        for (language, text), (kind, told) in zip(found, below, strict=True)
        if language == "python"
    ]


def same(printed, told):
    """Return whether the text is equal, and numbers differ by at most 5% or 0.01."""
    if NUMBER.sub("#", " ".join(printed.split())) != NUMBER.sub("#", " ".join(told.split())):
        return False
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(told), strict=True)
    numbers = ((float(one.replace(",", "")), float(other.replace(",", ""))) for one, other in pairs)
    return all(math.isclose(one, other, rel_tol=0.05, abs_tol=0.0101) for one, other in numbers)


def test_words_and_numbers_are_compared():
    assert same("a 1.00 b", "a   1.01\nb")
    assert not same("a 1.00 b", "a 1.06 b")
    assert not same("a 1 b", "a 1 c")


WITH_PROGRAMS = [page for page in PAGES if programs(page)]
RUN_HERE = [
    pytest.param(page, marks=pytest.mark.slow if page in [f"docs/{name}.md" for name in SLOW] else ())
    for page in WITH_PROGRAMS
    if page not in RUN_ELSEWHERE
]


def resolve(node, names):
    """Return the object of softswitch that a name or an attribute refers to, or None."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and (owner := resolve(node.value, names)) is not None:
        found = getattr(owner, node.attr, None)
        assert found is not None or not inspect.ismodule(owner), f"{owner.__name__} has no {node.attr}"
        return found
    return None


def check_names(program, names):
    """Check that a program parses, and that names and keyword arguments of softswitch exist."""
    nodes = list(ast.walk(ast.parse(program)))
    for node in nodes:
        if isinstance(node, ast.Import):
            modules = [name for name in node.names if name.name.split(".")[0] == "softswitch"]
            names.update({one.asname or "softswitch": importlib.import_module(one.name) for one in modules})
        elif isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "softswitch":
            module = importlib.import_module(node.module)
            names.update({one.asname or one.name: getattr(module, one.name) for one in node.names})
    for node in nodes:
        found = resolve(node.func if isinstance(node, ast.Call) else node, names)
        if isinstance(node, ast.Call) and callable(found):
            parameters = inspect.signature(found).parameters
            unknown = {keyword.arg for keyword in node.keywords if keyword.arg} - set(parameters)
            flexible = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
            assert flexible or not unknown, f"{found} has no parameters {unknown}"


@pytest.mark.parametrize("page", WITH_PROGRAMS)
def test_programs_use_names_that_exist(page):
    """Check all programs without running them, also those of slow pages."""
    names: dict = {}
    for program, _ in programs(page):
        check_names(program, names)


@pytest.mark.parametrize("program", ["ss.solv(1)", "ss.solve(p, c, round=1)", "from softswitch import solv"])
def test_names_that_do_not_exist_are_noticed(program):
    with pytest.raises((AssertionError, AttributeError)):
        check_names(f"import softswitch as ss\n{program}", {})


@pytest.mark.parametrize("page", RUN_HERE)
def test_programs_run_as_printed(page, capsys, monkeypatch, tmp_path):
    """Run all programs of a page in order, with shared names."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": page}
    for number, (program, told) in enumerate(programs(page)):
        exec(compile(program, f"{page}, program {number + 1}", "exec"), names)
        printed = capsys.readouterr().out
        assert told is None or same(printed, told), printed


@pytest.mark.parametrize("page", RUN_ELSEWHERE)
def test_the_other_test_names_the_page(page):
    text = (Path(__file__).parent / RUN_ELSEWHERE[page]).read_text(encoding="utf-8")
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
def test_every_argument_and_option_is_explained():
    group = typer.main.get_command(app)
    silent = [
        f"{name} {parameter.name}"
        for name, command in group.commands.items()
        for parameter in command.params
        if not parameter.help
    ]
    assert not silent


COMMANDS = sorted(set(commands()))


def test_there_are_commands():
    assert len(COMMANDS) > 30


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[line for _, line in COMMANDS])
def test_a_command_line_exists(page, line):
    """Parse the command, its options and arguments without running it."""
    words = shlex.split(line, comments=True)[1:]
    group = typer.main.get_command(app)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        name, command, rest = group.resolve_command(click.Context(group), words)
        command.make_context(name, [word for word in rest if word != "…"], resilient_parsing=False)
