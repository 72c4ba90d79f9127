"""Fuzzing of settings: any file is either read or rejected with a clear error."""

import copy
import math
import tomllib
from dataclasses import fields

import hypothesis.strategies as st
import pytest
from hypothesis import given

from fuzzing import HOSTILE, broken_bytes, broken_json, cases, only_clear_errors
from small_run import SETTINGS, table
from softswitch.support import checks
from softswitch.support.checks import call_all
from softswitch.tables import training
from softswitch.tables.constraints import KINDS
from softswitch.tables.preparation import build_method, prepare_table
from softswitch.tables.settings import SECTIONS, Config, parse_config, read_config, write_config

WHOLE = write_config(parse_config(tomllib.loads(SETTINGS)))
KEYS = {section: [entry.name for entry in fields(kind)] for section, kind in SECTIONS.items()}
WORDS = [
    "y",
    "ward",
    "a",
    "kind",
    "seen",
    "all",
    "same",
    "on",
    "off",
    "adam",
    "penalty",
    "number",
    "multiclass",
    ",",
    *KINDS,
]
VALUES = st.sampled_from([*HOSTILE, *WORDS, math.nan, math.inf, -math.inf, ["a"], ["a", "b"], [0, 1], [4], [10**12]])


@given(st.one_of(broken_bytes(WHOLE.encode()), broken_bytes(SETTINGS.encode()), st.binary(), st.text().map(str.encode)))
@cases(150)
def test_fuzz_settings_text(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "fuzz-settings.toml"
    file.write_bytes(content)
    config = only_clear_errors(lambda: read_config(file))
    if config is not None:
        assert isinstance(config, Config)
        only_clear_errors(lambda: write_config(config))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings")
    table().to_csv(folder / "cases.csv", index=False)
    return folder


@st.composite
def mutated_settings(draw):
    sections = copy.deepcopy(tomllib.loads(WHOLE if draw(st.booleans()) else SETTINGS))
    for _ in range(draw(st.integers(1, 4))):
        section = draw(st.sampled_from(list(KEYS)))
        if isinstance(sections.get(section, {}), dict):
            sections.setdefault(section, {})[draw(st.sampled_from(KEYS[section]))] = copy.deepcopy(draw(VALUES))
    return draw(broken_json(sections, VALUES)) if not draw(st.integers(0, 3)) else sections


@given(mutated_settings())
@cases(100, 0.4)
def test_fuzz_settings_with_table(home, sections):
    """Run the steps of ``softswitch train`` that precede the creation of the run folder."""

    def prepare():
        config = parse_config(sections)
        call_all(
            lambda: prepare_table(config, home),
            lambda: build_method(config),
            lambda: checks.check_seed("run.seed", config.run.seed),
            lambda: checks.check_probability("run.confidence", config.run.confidence),
        )
        training.solve_options(config)
        assert parse_config(tomllib.loads(write_config(config))) == config

    if isinstance(sections, dict):
        only_clear_errors(prepare)
