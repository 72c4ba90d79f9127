"""softswitch train with a [privacy] section: nothing looks at rows uncounted, and what would is refused."""

import json
import re
import tomllib

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

import softswitch as ss
from softswitch.cli import app
from softswitch.cli.train import print_outcome
from softswitch.results.folder import open_run
from softswitch.tables import training
from softswitch.tables.preparation import prepare_table
from softswitch.tables.private import noise_key
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


def settings(home, old, new, name="other.toml"):
    assert old in SETTINGS
    (home / name).write_text(SETTINGS.replace(old, new))
    return home / name


@pytest.fixture(scope="module")
def trained(home):
    done = CliRunner().invoke(app, ["train", str(home / "settings.toml")])
    assert done.exit_code in (0, 1), done.output
    return open_run(max((home / "runs").iterdir())), done.output


def test_a_run_is_private_and_certified_from_the_command_line(trained, home):
    run, said = trained
    assert run.about["privacy"]["delta"] == 1e-4
    assert all(3.9 < own <= 4 for own in run.about["privacy"]["epsilon"])
    assert run.certificate["epsilon"] == pytest.approx(2, abs=0.05)
    assert "ε = " in said
    assert run.about["data"]["sha256"] == "withheld: private data"
    told = (run.folder / "run.json").read_text()
    for name in ("baselines", "groups", "certification"):
        assert name not in json.loads(told) or not json.loads(told)[name]
    told_of_clients = {"client", "times_heard", "last_heard_in_round", "epsilon", "objective", "constraint"}
    assert set(run.clients) == told_of_clients  # no miss rates or the like of held-out rows, which nobody counted
    predicted = ss.load(run.folder).predict(cases(1, 50))
    assert len(predicted) == 50


def test_features_are_made_of_what_is_declared_alone(home):
    """Other rows, the same features of a row: no mean, deviation or level of rows is in them."""
    config = parse_config({**_told(), "data": {**_told()["data"], "file": "cases.csv"}})
    ready = prepare_table(config, home)
    assert ready.encoding.features == ("age", "dose", "sex=M")
    row = pd.DataFrame({"age": [65.0], "dose": [np.nan], "sex": ["?"]})
    np.testing.assert_allclose(ready.encoding.encode(row), [[0.5, 0.0, 0.0]])
    shifted = cases()
    shifted["age"] = shifted["age"] / 2 + 20
    shifted.to_csv(home / "shifted.csv", index=False)
    other = prepare_table(parse_config({**_told(), "data": {**_told()["data"], "file": "shifted.csv"}}), home)
    assert other.encoding == ready.encoding


def _told():
    return tomllib.loads(SETTINGS)


def test_a_label_that_is_a_number_is_scaled_by_its_range(home):
    table = cases()
    table["stay"] = np.clip(table["age"] / 4, 0, 30)
    table.drop(columns="ill").to_csv(home / "stays.csv", index=False)
    told = _told()
    told["data"] |= {"file": "stays.csv", "label": "stay"}
    told["task"] = {"kind": "absolute-error", "bound": 5.0}
    with pytest.raises(ValueError, match=r"data.label_range must be set with privacy"):
        prepare_table(parse_config(told), home)
    told["data"]["label_range"] = [0, 30]
    assert (
        prepare_table(parse_config(told), home).label.mean,
        prepare_table(parse_config(told), home).label.scale,
    ) == (15, 15)


@pytest.mark.parametrize(
    ("old", "new", "said"),
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
def test_what_would_look_at_rows_uncounted_is_refused_before_a_folder_is_made(home, old, new, said):
    before = sorted((home / "runs").iterdir()) if (home / "runs").exists() else []
    with pytest.raises(ValueError, match=re.escape(said)):
        training.train(settings(home, old, new))
    assert before == (sorted((home / "runs").iterdir()) if (home / "runs").exists() else [])


def test_a_private_run_goes_on_and_is_certified_once(home, trained, monkeypatch, capsys):
    """Ended after some rounds it is neither judged nor certified; resumed it is what it would have been.

    Its noise is drawn by a secret beside the seed, which stands in the settings; it is gone when the run is over.
    """
    monkeypatch.setattr("softswitch.engine.compiled.CHUNK_ROUNDS", 5)
    monkeypatch.setattr("os.urandom", lambda many: b"\x07" * many)

    def train(*callbacks):
        return training.train(home / "settings.toml", callbacks=callbacks, progress=False)

    whole, stopped = train(), train(lambda chunk: chunk.round == 5)
    assert stopped.result.status.code is ss.StatusCode.STOPPED
    assert stopped.certificate is None
    with pytest.raises(typer.Exit):
        print_outcome(stopped)
    assert "keep this folder secret: checkpoints/noise.key" in capsys.readouterr().out
    key = stopped.folder / "checkpoints" / "noise.key"
    assert key.stat().st_mode & 0o077 == 0
    with pytest.raises(ValueError, match="its privacy is"):
        training.resume(stopped.folder, rounds=20)
    found = training.resume(stopped.folder, progress=False)
    np.testing.assert_array_equal(found.result.client_constraint, whole.result.client_constraint)
    assert found.certificate is not None
    assert not key.exists()
    with pytest.raises(ValueError, match=r"is finished: .* privacy budget"):
        training.resume(found.folder)
    other = trained[0].clients["constraint"]  # of the same seed, and another secret
    assert (np.abs(whole.result.client_constraint[:, 0] - other) > 1e-6).all()


def test_a_run_whose_secret_is_gone_cannot_go_on(tmp_path):
    words = noise_key(tmp_path)
    assert len(words) == 2
    assert noise_key(tmp_path) == words
    (tmp_path / "round-000000005.safetensors").touch()
    (tmp_path / "noise.key").unlink()
    with pytest.raises(ValueError, match=r"noise.key is .*start a new run"):
        noise_key(tmp_path)


def test_the_frontier_is_refused(home):
    done = CliRunner().invoke(app, ["frontier", str(home / "settings.toml")])
    assert done.exit_code != 0
    assert "privacy.epsilon must not be set" in re.sub(r"[\s│]+", " ", done.output)


def test_settings_are_written_and_read_back(home):
    config = read_config(home / "settings.toml")
    (home / "written.toml").write_text(write_config(config))
    assert read_config(home / "written.toml") == config
    plain = parse_config({name: part for name, part in _told().items() if name != "privacy"})
    assert "privacy" not in write_config(plain)
