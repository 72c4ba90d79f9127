"""``softswitch train`` with a [privacy] section: every use of the rows is accounted for or rejected."""

import json
import re
import tomllib
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import softswitch as ss
from softswitch.cli import app
from softswitch.results.folder import open_run
from softswitch.tables import training
from softswitch.tables.preparation import prepare_table
from softswitch.tables.settings import parse_config, read_config, write_config

SETTINGS = """
[data]
file = "cases.csv"
label = "ill"
client = "ward"
[task]
kind = "miss-rate"
bound = 0.3
[run]
rounds = 15
aim = "bare"
[privacy]
epsilon = 4
delta = 1e-4
certificate_epsilon = 2
ranges = ["age: 20 to 80", "dose: -1.5 to 1e1"]
levels = ["sex: F, M"]
"""


def cases(seed=0, rows=900):
    generator = np.random.default_rng(seed)
    age = generator.uniform(20, 80, rows)
    sex = generator.choice(["F", "M"], rows)
    ill = (age + 10 * (sex == "M") + generator.normal(0, 8, rows) > 55).astype(int)
    ward = generator.choice(["a", "b"], rows)
    return pd.DataFrame({"age": age, "dose": generator.normal(size=rows), "sex": sex, "ill": ill, "ward": ward})


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("private")
    cases().to_csv(folder / "cases.csv", index=False)
    (folder / "settings.toml").write_text(SETTINGS)
    return folder


def write_settings(home, old, new, name="other.toml"):
    assert old in SETTINGS
    (home / name).write_text(SETTINGS.replace(old, new))
    return home / name


@pytest.fixture(scope="module")
def trained(home):
    result = CliRunner().invoke(app, ["train", str(home / "settings.toml")])
    assert result.exit_code in (0, 1), result.output
    return open_run(max((home / "runs").iterdir())), result.output


def test_train_command_with_privacy(trained, home):
    run, printed = trained
    assert run.about["privacy"]["delta"] == 1e-4
    assert all(3.9 < epsilon <= 4 for epsilon in run.about["privacy"]["epsilon"])
    assert run.certificate["epsilon"] == pytest.approx(2, abs=0.05)
    assert "ε = " in printed
    assert run.about["data"]["sha256"] == "withheld: private data"
    content = (run.folder / "run.json").read_text()
    for name in ("baselines", "groups", "certification"):
        assert name not in json.loads(content) or not json.loads(content)[name]
    expected_columns = {"client", "times_heard", "last_heard_in_round", "epsilon", "objective", "constraint"}
    assert set(run.clients) == expected_columns  # no error rates on held-out rows, which are not accounted for
    predicted = ss.load(run.folder).predict(cases(1, 50))
    assert len(predicted) == 50


def test_features_use_declared_ranges_only(home):
    """Features do not depend on means, deviations or levels of the rows."""
    config = parse_config({**settings_dict(), "data": {**settings_dict()["data"], "file": "cases.csv"}})
    ready = prepare_table(config, home)
    assert ready.encoding.features == ("age", "dose", "sex=M")
    row = pd.DataFrame({"age": [65.0], "dose": [np.nan], "sex": ["?"]})
    np.testing.assert_allclose(ready.encoding.encode(row), [[0.5, 0.0, 0.0]])
    shifted = cases()
    shifted["age"] = shifted["age"] / 2 + 20
    shifted.to_csv(home / "shifted.csv", index=False)
    other = prepare_table(
        parse_config({**settings_dict(), "data": {**settings_dict()["data"], "file": "shifted.csv"}}), home
    )
    assert other.encoding == ready.encoding


def test_values_outside_declared_ranges_are_clipped(home):
    config = parse_config(settings_dict())
    row = pd.DataFrame({"age": [1e9, -5.0], "dose": [0.0, 0.0], "sex": ["F", "M"]})
    assert prepare_table(config, home).encoding.encode(row)[:, 0].tolist() == [1.0, -1.0]


def test_removing_a_row_does_not_move_others_between_splits(home):
    """Rows are held out by their contents."""
    config = parse_config(settings_dict())
    splits = []
    for table in (cases(), cases().drop(index=[5, 17])):
        table.to_csv(home / "cases.csv", index=False)
        prepared = prepare_table(config, home)
        splits.append(
            [
                set(map(tuple, np.asarray(rows.rows.columns["x"]).tolist()))
                for rows in (prepared.train, prepared.held_out)
            ]
        )
    cases().to_csv(home / "cases.csv", index=False)
    (train, held_out), (fewer_train, fewer_held_out) = splits
    assert fewer_train <= train
    assert fewer_held_out <= held_out
    assert len(train) + len(held_out) - len(fewer_train) - len(fewer_held_out) == 2
    assert 0.2 < len(held_out) / 900 < 0.3


ODD_CELLS = [
    {"sex": "X"},
    {"sex": ""},
    {"sex": "é"},
    {"age": "30.5"},
    {"age": "1,500"},
    {"dose": "?"},
    {"dose": "5 %"},
    {"dose": "1e3"},
    {"ill": "1.0"},
    {"ward": "3"},
]


def read_rows(folder, table, encoding):
    """Return the training and the held-out rows of a table, as sets."""
    table.to_csv(folder / "cases.csv", index=False, encoding=encoding)
    sections = settings_dict()
    sections["privacy"] |= {"levels": ["sex: 01, 02, X"]}
    ready = prepare_table(parse_config(sections), folder)
    return [
        sorted(zip(np.repeat(rows.names, rows.sizes), *(column.tolist() for column in np.asarray(arrays)), strict=True))
        for rows in (ready.train, ready.held_out)
        for arrays in [np.column_stack([rows.rows.columns["y"], rows.rows.columns["x"]]).T]
    ]


@pytest.mark.parametrize("cell", ODD_CELLS)
def test_row_does_not_change_how_others_are_read(tmp_path, cell):
    """A text in a column of numbers, say, must not turn the other cells into text: it would change every row."""
    table = cases(rows=120).round(2).astype(str)
    table["sex"] = table["sex"].map({"F": "01", "M": "02"})
    odd = pd.concat([table, table.iloc[[0]].assign(**cell)])
    encoding = "cp1252" if cell == {"sex": "é"} else "utf-8"
    if encoding == "cp1252":
        with pytest.raises(ValueError, match="utf-8"):
            read_rows(tmp_path, odd, encoding)
        return
    before, after = read_rows(tmp_path, table, encoding), read_rows(tmp_path, odd, encoding)
    moved = [Counter(new) - Counter(old) for old, new in zip(before, after, strict=True)]
    lost = [Counter(old) - Counter(new) for old, new in zip(before, after, strict=True)]
    assert sum(map(len, moved)) == 1
    assert sum(map(len, lost)) == 0


def settings_dict():
    return tomllib.loads(SETTINGS)


def test_numeric_label_is_scaled_by_range(home):
    table = cases()
    table["stay"] = np.clip(table["age"] / 4, 0, 30)
    table.drop(columns="ill").to_csv(home / "stays.csv", index=False)
    sections = settings_dict()
    sections["data"] |= {"file": "stays.csv", "label": "stay"}
    sections["task"] = {"kind": "absolute-error", "bound": 5.0}
    with pytest.raises(ValueError, match=r"data.label_range must be set with privacy"):
        prepare_table(parse_config(sections), home)
    sections["data"]["label_range"] = [0, 30]
    assert (
        prepare_table(parse_config(sections), home).label.mean,
        prepare_table(parse_config(sections), home).label.scale,
    ) == (15, 15)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('aim = "bare"', 'aim = "certified"', "run.aim must be 'bare' with privacy"),
        ("certificate_epsilon = 2", "", "data.held_out must be 0 with privacy if privacy.certificate_epsilon"),
        ('"dose: -1.5 to 1e1"', "", "must declare every feature, but lack 'dose'"),
        ('"age: 20 to 80"', '"age: 80 to 20"', "privacy.ranges must be strings like 'age: 18 to 90'"),
        ('"age: 20 to 80"', '"age: 0 to 1e999"', "privacy.ranges must be strings like"),
        ('"sex: F, M"', '"sex: F"', "privacy.levels must be strings like 'sex: F, M'"),
        ("epsilon = 4", "", "privacy.epsilon must be set if other settings"),
        ("delta = 1e-4", "delta = 2.0", "privacy.delta must be"),
        ('kind = "miss-rate"', 'kind = "error-rate"\nregret = true', "task.regret must be false with privacy"),
        ("rounds = 15", "rounds = 15\nseconds = 5.0", "seconds must keep its default with privacy"),
        ("rounds = 15", "rounds = 15\nbatch_size = 8", "batch_size must keep its default with privacy"),
        ('kind = "miss-rate"', 'kind = "neyman-pearson"', "data.held_out must be 0 with privacy if task.kind"),
        (
            'kind = "miss-rate"',
            'kind = "demographic-parity"\nsensitive = "sex"\nprotected = "F"',
            "cannot be reported privately",
        ),
    ],
)
def test_unaccounted_row_access_is_rejected(home, old, new, message):
    before = sorted((home / "runs").iterdir()) if (home / "runs").exists() else []
    with pytest.raises(ValueError, match=re.escape(message)):
        training.train(write_settings(home, old, new))
    assert before == (sorted((home / "runs").iterdir()) if (home / "runs").exists() else [])


def test_private_run_resumes_and_certifies_once(home):
    """A stopped run is not certified. A resumed run is, once, and a finished one cannot be resumed."""
    stopped = training.train(home / "settings.toml", callbacks=[lambda chunk: chunk.round == 10], progress=False)
    assert stopped.result.status.code is ss.StatusCode.STOPPED
    assert stopped.certificate is None
    with pytest.raises(ValueError, match="counts the releases of"):
        training.resume(stopped.folder, rounds=20)
    resumed = training.resume(stopped.folder, progress=False)
    assert resumed.certificate is not None
    assert resumed.result.privacy.releases == ((15, 15, 1),) * 2
    with pytest.raises(ValueError, match=r"is finished: .* privacy budget"):
        training.resume(resumed.folder)


def test_interrupted_certificate_stays_spent(home, monkeypatch, caplog):
    class Killed(BaseException):
        pass

    def die(*arguments, **options):
        raise Killed

    monkeypatch.setattr(training, "certify", die)
    with pytest.raises(Killed):
        training.train(home / "settings.toml", progress=False)
    monkeypatch.undo()
    folder = max((home / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    resumed = training.resume(folder, progress=False)
    assert resumed.certificate is None
    assert "no certificate" in caplog.text


def test_frontier_is_rejected_with_privacy(home):
    result = CliRunner().invoke(app, ["frontier", str(home / "settings.toml")])
    assert result.exit_code != 0
    assert "privacy.epsilon must not be set" in re.sub(r"[\s│]+", " ", result.output)


def test_settings_round_trip(home):
    config = read_config(home / "settings.toml")
    (home / "written.toml").write_text(write_config(config))
    assert read_config(home / "written.toml") == config
    plain = parse_config({name: part for name, part in settings_dict().items() if name != "privacy"})
    assert "privacy" not in write_config(plain)
