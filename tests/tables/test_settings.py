"""Settings from a file: every mistake is named before any work."""

import tomllib

import pytest

from softswitch.tables.settings import (
    Config,
    DataSection,
    MethodSection,
    TaskSection,
    config_from,
    read_config,
    write_config,
)

DATA = {"file": "a.csv", "label": "y", "client": "hospital"}


def test_what_is_written_is_read_again(tmp_path):
    config = Config(
        DataSection("a.csv", "y", "hospital", positive=1, ignore=("id",)),
        TaskSection(kind="equal-opportunity", at_most=0.05, sensitive="sex", protected='"F" \\ ü'),
        method=MethodSection(alpha=12.5),
    )
    for comments in (True, False):
        (tmp_path / "c.toml").write_text(write_config(config, comments=comments), encoding="utf-8")
        assert read_config(tmp_path / "c.toml") == config
    assert "# The column to predict." in write_config(config)
    assert "# optimizer =" in write_config(config)  # no value, but shown


def test_defaults():
    config = config_from({"data": DATA})
    assert (config.task.kind, config.run.rounds, config.model.hidden) == ("neyman-pearson", 1000, ())


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({}, r"\[data\] is missing; it needs file, label and client"),
        ({"data": {"file": "a.csv", "client": "c"}}, "data.label is missing: The column to predict"),
        ({"data": DATA, "metod": {}}, "metod is not a setting; did you mean method"),
        ({"data": DATA, "run": {"round": 5}}, "run.round is not a setting; did you mean run.rounds"),
        ({"data": DATA, "run": {"xyzzy": 5}}, "run.xyzzy is not a setting; there are run.rounds, run.local_steps"),
        ({"data": DATA, "run": {"rounds": "5"}}, "run.rounds must be int, but is '5'"),
        ({"data": DATA, "run": {"rounds": True}}, "run.rounds must be int, but is True"),
        ({"data": DATA, "model": {"hidden": [64, "x"]}}, r"model.hidden must be a list of int, but is \[64, 'x'\]"),
        ({"data": DATA, "model": {"hidden": 64}}, "model.hidden must be a list of int, but is 64"),
        ({"data": DATA, "task": {"kind": "parity"}}, "task.kind must be one of neyman-pearson, .*, but is 'parity'"),
        ({"data": DATA, "method": {"alpha": "big"}}, "method.alpha must be float, but is 'big'"),
        ({"data": DATA, "run": 3}, r"run must be a section, \[run\], but is 3"),
    ],
)
def test_mistakes_are_named(told, message):
    with pytest.raises(ValueError, match=message):
        config_from(told)


def test_files_that_are_not_settings(tmp_path):
    with pytest.raises(ValueError, match="could not be read: No such file"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "c.toml").write_text("[data\n")
    with pytest.raises(ValueError, match=r"c.toml is not TOML: .*line 1"):
        read_config(tmp_path / "c.toml")


def test_whole_numbers_may_stand_for_real_ones():
    assert config_from({"data": DATA, "task": {"at_most": 1}}).task.at_most == 1.0
    assert tomllib.loads(write_config(config_from({"data": DATA})))["run"]["seed"] == 0
