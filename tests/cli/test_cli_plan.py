"""softswitch plan."""

import json

from typer.testing import CliRunner

from softswitch.cli import app

WISH = ["plan", "--clients", "20", "--diameter", "2", "--lipschitz", "1"]


def invoke(*more):
    return CliRunner().invoke(app, [*WISH, *more])


def test_table_and_json_agree():
    shown = invoke("--epsilon", "0.3", "--value-noise", "0.2")
    assert shown.exit_code == 0, shown.output
    printed = json.loads(invoke("--epsilon", "0.3", "--value-noise", "0.2", "--json").output)
    assert printed["met"] is True
    assert printed["bound"]["epsilon"] <= 0.3
    assert f"{printed['setting']['rounds']:,}" in shown.output
    assert "dominates" in shown.output


def test_a_wish_that_cannot_be_met_ends_in_an_error_code():
    refused = invoke("--epsilon", "0.3", "--participation", "0.5", "--heterogeneity", "0.3")
    assert refused.exit_code == 1
    assert "cannot be met" in refused.output
    assert "at least" in refused.output


def test_bad_wishes_name_the_argument():
    assert "--epsilon" in invoke().output
    bad = invoke("--epsilon", "-1")
    assert bad.exit_code == 2
    assert "epsilon must be a finite number and > 0" in " ".join(bad.output.replace("│", " ").split())


def test_warnings_are_printed():
    assert "Warning: B_g·E = 32" in invoke("--epsilon", "1", "--gradient-noise", "9").output
