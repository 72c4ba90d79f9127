"""The programs on the pages for users of other libraries print the outputs shown."""

import ast
import importlib.util
import logging
import math
import re
import textwrap
import warnings
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (
    "coming-from/fairlearn.md",
    "coming-from/cooper.md",
    "coming-from/flower.md",
    "coming-from/omnisafe.md",
)
FENCED = re.compile(r"^( *)```(python|text)\n(.*?)^\1```$", flags=re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"\d+\.?\d*")


def programs(page):
    """Return the programs of a page in order, each with the output shown."""
    fenced_blocks = [
        (language, textwrap.dedent(text))
        for _, language, text in FENCED.findall((DOCS / page).read_text(encoding="utf-8"))
    ]
    following_blocks = [*fenced_blocks[1:], ("", "")]
    return [
        (program, below if kind == "text" else "")
        for (language, program), (kind, below) in zip(fenced_blocks, following_blocks, strict=True)
        if language == "python"
    ]


def imported_packages(program):
    """Return the packages that a program imports."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.split(".")[0]


def run_programs(page, capsys):
    """Run the programs of a page whose libraries are installed; return printed and shown outputs."""
    names = {"__name__": page}
    outputs = []
    for program, shown in programs(page):
        if any(importlib.util.find_spec(package) is None for package in imported_packages(program)):
            assert page == "coming-from/omnisafe.md", "only OmniSafe may be missing"
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of other libraries
            exec(compile(program, page, "exec"), names)
        outputs.append((capsys.readouterr().out, shown))
    return outputs


def outputs_match(printed, shown):
    """Return whether the text is equal and numbers differ by at most 0.01."""
    if NUMBER.sub("#", printed) != NUMBER.sub("#", shown):
        return False
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True)
    return all(
        math.isclose(float(printed_number), float(shown_number), abs_tol=0.0101)
        for printed_number, shown_number in pairs
    )


def numbers_after(word, text):
    """Return the numbers after a word."""
    return [float(match) for match in re.findall(rf"{word} ([\d.]+)", text)]


@pytest.fixture
def flower_quiet():
    """Restore Flower's log level after the test."""
    log = logging.getLogger("flwr")
    level = log.level
    yield
    log.setLevel(level)


def test_text_and_numbers_are_compared():
    assert outputs_match("north: 0.10\n", "north: 0.11\n")
    assert not outputs_match("north: 0.10\n", "north: 0.12\n")
    assert not outputs_match("north: 0.10\n", "south: 0.10\n")


@pytest.mark.slow
def test_fairlearn(capsys):
    (_, _), fairlearn, softswitch_output = run_programs("coming-from/fairlearn.md", capsys)
    assert outputs_match(*fairlearn)
    assert outputs_match(*softswitch_output)
    pooled, _, by_site = fairlearn[0].split("site by site")
    assert max(numbers_after("gap of", pooled)) > 0.1, "gaps of sites must cancel"
    assert max(numbers_after("gap of", by_site)) <= 0.05
    assert max(numbers_after("gap of", softswitch_output[0])) <= 0.05


@pytest.mark.slow
def test_cooper(capsys):
    (_, _), cooper, softswitch_output = run_programs("coming-from/cooper.md", capsys)
    assert outputs_match(*cooper)
    assert outputs_match(*softswitch_output)
    assert max(numbers_after("constraint", cooper[0])) <= 0.151
    assert max(numbers_after("constraint", softswitch_output[0])) <= 0.15
    assert max(numbers_after("objective", softswitch_output[0])) == pytest.approx(
        max(numbers_after("objective", cooper[0])), rel=0.05
    )


@pytest.mark.slow
def test_flower(capsys, flower_quiet):
    (_, _), flower, softswitch_output = run_programs("coming-from/flower.md", capsys)
    assert outputs_match(*flower)
    assert outputs_match(*softswitch_output)
    assert max(numbers_after("malignant rows", flower[0])) > 0.2
    assert max(numbers_after("malignant rows", softswitch_output[0])) <= 0.15


@pytest.mark.slow
def test_omnisafe(capsys):
    """The output of OmniSafe is copied from a run: it does not support this version of Python."""
    *_, (output, shown) = run_programs("coming-from/omnisafe.md", capsys)
    assert NUMBER.sub("#", output) == NUMBER.sub("#", shown)
    for text in (output, shown):  # results depend on rounding and differ between machines
        assert max(numbers_after("cost", text)) <= 60
        assert min(numbers_after("1:", text)) > 150


@pytest.mark.parametrize("page", PAGES)
def test_both_programs_have_shown_output(page):
    assert all(shown for _, shown in programs(page)[-2:])
