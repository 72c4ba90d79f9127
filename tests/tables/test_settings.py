"""Settings files: parsing, defaults and error messages."""

import sys
import tomllib
from contextlib import suppress
from dataclasses import fields

import optax
import pytest

import softswitch as ss
from small_run import SETTINGS, table
from softswitch.tables import training
from softswitch.tables.preparation import build_method
from softswitch.tables.settings import (
    SECTIONS,
    Config,
    DataSection,
    MethodSection,
    TaskSection,
    parse_config,
    read_config,
    write_config,
)

DATA = {"file": "a.csv", "label": "y", "client": "hospital"}


def test_settings_round_trip(tmp_path):
    config = Config(
        DataSection("a.csv", "y", "hospital", positive=1, ignore=("id",)),
        TaskSection(kind="equal-opportunity", bound=0.05, sensitive="sex", protected='"F" \\ ü'),
        method=MethodSection(alpha=12.5),
    )
    (tmp_path / "c.toml").write_text(write_config(config), encoding="utf-8")
    assert read_config(tmp_path / "c.toml") == config
    assert "# Column to predict." in write_config(config)
    written = write_config(config)
    assert "# seconds =" in written  # unset, but listed
    assert "alpha = 12.5" in written


AUTOMATIC = {
    "method": (
        "name",
        "alpha",
        "step_size",
        "optimizer",
        "criterion",
        "slack",
        "threshold",
        "local_step_size",
        "memory",
    ),
    "run": ("rounds", "batch_size", "value_batch_size", "average_last", "answer"),
}


def test_automatic_settings_can_be_overridden():
    sections = tomllib.loads(write_config(parse_config({"data": DATA})))
    for section, names in AUTOMATIC.items():
        assert {name for name, value in sections[section].items() if value == "auto"} == set(names)
    sections["method"] |= {
        "alpha": 3,
        "step_size": 0.1,
        "optimizer": "adam",
        "criterion": "max",
        "slack": 2,
        "threshold": 0.09,
        "local_step_size": 0.2,
        "memory": "corrected",
    }
    sections["run"] |= {
        "rounds": 7,
        "batch_size": "all",
        "value_batch_size": "same",
        "average_last": 0.5,
        "answer": "last",
    }
    sections["run"]["seconds"] = 60
    config = parse_config(sections)
    assert parse_config(tomllib.loads(write_config(config))) == config
    assert (config.method.slack, config.method.memory, config.run.seconds) == (2.0, "corrected", 60.0)
    method = build_method(config)
    assert (method.alpha, method.step_size, method.local_step_size) == (3.0, 0.1, 0.2)
    assert (method.criterion, method.slack, method.threshold, method.optimizer) == ("max", 2.0, 0.09, optax.adam)


def test_automatic_settings_are_unset_in_method():
    softmax = build_method(parse_config({"data": DATA, "method": {"name": "softmax"}}))
    assert softmax == ss.Automatic(tolerance=0.1, method=ss.SoftmaxSGM).template
    assert build_method(parse_config({"data": DATA})) == ss.Automatic(tolerance=0.1).template
    for name in ("alpha", "step_size", "criterion", "optimizer", "slack", "threshold", "local_step_size"):
        assert getattr(softmax, name) is None


def test_zero_is_a_setting():
    """Only "auto" leaves a setting open; 0 Byzantine clients are none."""
    section = {"threshold": 0.0, "alpha": 0.0, "robust": 0}
    method = build_method(parse_config({"data": DATA, "method": section}))
    assert (method.threshold, method.alpha, method.robust, method.step_size) == (0.0, 0.0, None, None)
    with pytest.raises(ValueError, match="step_size must be"):
        build_method(parse_config({"data": DATA, "method": {"step_size": 0.0}}))


def test_defaults():
    config = parse_config({"data": DATA})
    assert (config.task.kind, config.run.rounds, config.model.hidden) == ("neyman-pearson", "auto", ())


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({}, r"\[data\] is missing; it needs file, label and client"),
        ({"data": {"file": "a.csv", "client": "c"}}, "data.label is missing: Column to predict"),
        ({"data": DATA, "metod": {}}, "metod is not a setting; did you mean method"),
        ({"data": DATA, "run": {"round": 5}}, "run.round is not a setting; did you mean run.rounds"),
        ({"data": DATA, "run": {"xyzzy": 5}}, "run.xyzzy is not a setting; there are run.rounds, run.seconds"),
        ({"data": DATA, "run": {"rounds": "5"}}, "run.rounds must be an integer or \"auto\", but is '5'"),
        ({"data": DATA, "run": {"rounds": True}}, 'run.rounds must be an integer or "auto", but is True'),
        (
            {"data": DATA, "model": {"hidden": [64, "x"]}},
            r"model.hidden must be a list of integers, but is \[64, 'x'\]",
        ),
        ({"data": DATA, "model": {"hidden": 64}}, "model.hidden must be a list of integers, but is 64"),
        ({"data": DATA, "task": {"kind": "parity"}}, "task.kind must be one of miss-rate, .*, but is 'parity'"),
        ({"data": DATA, "method": {"alpha": "big"}}, "method.alpha must be a number or \"auto\", but is 'big'"),
        (
            {"data": DATA, "method": {"memory": "of"}},
            "method.memory must be one of auto, on, off, corrected, but is 'of'",
        ),
        (
            {"data": DATA, "run": {"batch_size": 2.5}},
            "run.batch_size must be an integer or one of auto, all, but is 2.5",
        ),
        ({"data": DATA, "run": {"seconds": "auto"}}, "run.seconds must be a number, but is 'auto'"),
        ({"data": DATA | {"positive": []}}, "data.positive must be a string or an integer or a number"),
        ({"data": DATA, "run": 3}, r"run must be a section, \[run\], but is 3"),
    ],
)
def test_invalid_settings_are_rejected(sections, message):
    with pytest.raises(ValueError, match=message):
        parse_config(sections)


def test_invalid_files_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="could not be read: No such file"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "c.toml").write_text("[data\n")
    with pytest.raises(ValueError, match=r"c.toml is not TOML: .*line 1"):
        read_config(tmp_path / "c.toml")


def test_integers_are_accepted_for_floats():
    assert parse_config({"data": DATA, "task": {"bound": 1}}).task.bound == 1.0
    assert tomllib.loads(write_config(parse_config({"data": DATA})))["run"]["seed"] == 0


NAMES = [
    (section, entry.name) for section, kind in SECTIONS.items() for entry in fields(kind) if entry.name != "folder"
]


def test_no_setting_runs_code(tmp_path, monkeypatch):
    """A settings file may come from a stranger, together with a module next to it."""
    (tmp_path / "intruder.py").write_text("def run(*arguments): ...", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    table(60).to_csv(tmp_path / "cases.csv", index=False)
    sections, accepted = tomllib.loads(SETTINGS), set()
    for section, name in NAMES:
        config = sections | {section: sections.get(section, {}) | {name: "intruder:run"}}
        lines = [f"[{part}]\n" + "\n".join(f"{k} = {v!r}" for k, v in rest.items()) for part, rest in config.items()]
        (tmp_path / "hostile.toml").write_text("\n".join(lines), encoding="utf-8")
        with suppress(ValueError):
            training.train(tmp_path / "hostile.toml", progress=False)
            accepted.add(name)
    assert accepted == {"sensitive", "protected"}  # names of a column and a value, which this kind does not use
    assert "intruder" not in sys.modules
