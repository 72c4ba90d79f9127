"""softswitch frontier: from a file of settings to a figure, a table, models to use, and a report."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import softswitch as ss
from softswitch.cli import app
from softswitch.results.folder import find_runs, open_run, read_frontier
from softswitch.tables.frontier import train_frontier

SETTINGS = """
[data]
file = "cases.csv"
label = "ill"
client = "ward"
[task]
kind = "miss-rate"
bound = {bound}
[run]
rounds = 100
"""


def invoke(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return re.sub(r"[\s│╭╮╰╯─┃━┏┓┗┛┡┩╇┳┻┴┬┼]+", " ", done.output)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frontier")
    generator = np.random.default_rng(0)
    table = pd.DataFrame(generator.normal(size=(700, 2)), columns=["a", "b"])
    table["ill"] = generator.integers(0, 2, 700)
    table["a"] += 2.2 * table["ill"]
    table["ward"] = np.where(generator.random(700) < 0.5, "<north>", "south")
    table.to_csv(folder / "cases.csv", index=False)
    (folder / "cases.toml").write_text(SETTINGS.format(bound=0.2))
    return folder


@pytest.fixture(scope="module")
def made(home):
    """The frontier's folder, and what the command printed."""
    bounds = [word for bound in (0.02, 0.4, 0.2) for word in ("--bound", bound)]
    printed = invoke("frontier", home / "cases.toml", *bounds)
    (folder,) = (home / "runs").iterdir()
    return folder, printed


def test_what_it_prints_and_writes(made):
    folder, printed = made
    assert folder.name.startswith("cases-frontier-20")
    found = read_frontier(folder)
    assert [point.bound for point in found.points] == [0.4, 0.2, 0.02]
    assert found.points[0].outcome == "certified"
    assert found.points[-1].outcome == "too few rows"
    # Before training, what these rows can certify at the tightest bound.
    before, after = printed.split("trained for 0.4:")
    assert "miss-rate at most 0.4, 0.2, 0.02." in before
    assert "Certifying 0.02 at all 2 clients" in before
    assert "Too few rows for any model at" in before
    for words in (*found.summary, "40%", "too few rows", str(folder)):
        assert words in after
    assert {file.name for file in folder.iterdir() if file.is_file()} == {
        "frontier.json",
        "frontier.png",
    }
    told = json.loads((folder / "frontier.json").read_text())
    assert told["about"]["earlier_certificates"] == 0
    for point in found.points:
        assert 0.5 < point.measures["accuracy, worst client"] <= point.measures["accuracy, all rows"] < 1


def test_its_models_can_be_used_where_they_are_certified(made, home):
    folder, _ = made
    runs = find_runs(folder)
    assert sorted(run.name for run in runs) == ["bound-0.02", "bound-0.2", "bound-0.4"]
    table = pd.read_csv(home / "cases.csv")
    model = ss.load(folder / "bound-0.4")
    missed = (model.predict(table) != 1)[table["ill"] == 1]
    assert missed.mean() < 0.4
    assert open_run(folder / "bound-0.4").certificate["verdict"] == "meets"
    assert open_run(folder / "bound-0.02").certificate["verdict"] == "too few rows"
    assert open_run(folder / "bound-0.02").about["tolerance"] == 0.02
    with pytest.raises(ValueError, match=r"no certified model.*too few rows"):
        ss.load(folder / "bound-0.02").predict(table)


def test_the_report_of_its_own_folder_has_all_models_side_by_side(made):
    folder, _ = made
    invoke("report", folder)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert f"<h1>{len(find_runs(folder))} runs</h1>" in page
    for words in ("bound-0.4", "bound-0.02", "The smallest certified bound is"):
        assert words in page
    assert "<td>too few rows</td>" in page
    assert "&lt;north&gt;" in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--bound", 1.5), "--bound must be below 1, the largest value of the constraint miss-rate, but is 1.5"),
        (("--bound", -0.1), "--bound must be a finite number and >= 0, but is -0.1"),
        (("--bound", "nan"), "--bound must be a finite number"),
        (("--bound", 0.1, "--bound", 0.1), "--bound must not have a number twice"),
    ],
)
def test_bad_input_names_the_argument(home, words, said):
    before = sorted((home / "runs").glob("*")) if (home / "runs").exists() else []
    assert said in invoke("frontier", home / "cases.toml", *words, code=2)
    assert (sorted((home / "runs").glob("*")) if (home / "runs").exists() else []) == before


def test_settings_that_leave_no_room(home):
    zero = home / "zero.toml"
    zero.write_text(SETTINGS.format(bound=0.0))
    assert "task.bound is 0, which has no multiples" in invoke("frontier", zero, code=2)
    none = home / "none.toml"
    none.write_text(SETTINGS.format(bound=0.2).replace("[task]", "held_out = 0.0\n[task]"))
    assert "data.held_out must be above 0" in invoke("frontier", none, code=2)


class Enough(Exception):  # noqa: N818
    """What is needed has been seen."""


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (0.2, [0.8, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05]),
        (0.3, [0.6, 0.45, 0.3, 0.225, 0.15, 0.075]),  # a share of 1.2 would be no bound
    ],
)
def test_bounds_about_that_of_the_settings(home, bound, expected):
    assert intended(home, bound) == pytest.approx(expected)


def test_bounds_that_rows_can_certify_are_added_where_none_is(home):
    loose, less, *rest = intended(home, 0.001)
    assert rest == pytest.approx([0.004, 0.002, 0.0015, 0.001, 0.00075, 0.0005, 0.00025])
    assert loose > less > 0.02


def intended(home, bound):
    """The bounds that would be tried."""
    file = home / "ladder.toml"
    file.write_text(SETTINGS.format(bound=bound))

    def say(text):
        raise Enough(text)

    with pytest.raises(Enough) as stopped:
        train_frontier(file, say=say)
    return [float(bound) for bound in re.findall(r"[\d.]+\d", str(stopped.value))]
