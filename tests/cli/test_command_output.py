"""What commands print: errors, "latest", and tables that fit a terminal of 80 columns."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from softswitch.cli import app
from softswitch.cli.train import certification_warnings
from softswitch.results.baseline import Usefulness
from softswitch.results.certificate import Certificate, ClientCertificate, Interval, Outcome, Verdict
from softswitch.results.folder import open_run
from softswitch.tables.constraints import KINDS


def invoke(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "80"})
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("report", "nowhere"), "Error: 'nowhere' must be the folder of a run, but has no run.json\n"),
        (("train",), "Missing argument 'SETTINGS'."),
        (("train", "--bad"), "No such option"),
        (("nosuch",), "No such command 'nosuch'."),
        (("init", "--kind", "x"), "Missing argument 'TABLE'."),
        (("plan", "--clients", "0"), "Invalid value for '--clients'"),
    ],
)
def test_an_error_names_the_argument(words, said):
    assert said in invoke(*words, code=2)


def test_a_long_error_is_one_line_to_copy(tmp_path):
    folder = tmp_path / ("deep" * 30)
    assert invoke("report", folder, code=2).splitlines()[0].count(str(folder)) == 1


def write_run(folder, started, **settings):
    """A run's folder, as far as lists of runs look into it."""
    folder.mkdir(parents=True)
    about = {
        "format": "softswitch run 1",
        "started": started,
        "finished": started,
        "status": {"code": "answer-violates", "message": ""},
        "worst_objective": 1 / 3,
        "worst_constraint": 1 / 7,
        "tolerance": 0.05,
        "rounds": 20_000,
        "description": asdict(KINDS["miss-rate"].description),
        "answer": "",
        "method": "",
        "seed": 0,
        "clients": 1,
        "seconds": 1.0,
        "switch_share": None,
        "violating": [],
        "diagnostics": [],
        "versions": {},
    }
    (folder / "run.json").write_text(json.dumps(about))
    certificate = {"verdict": "undecided", "outcome": "too few rows", "message": "Reason.", "confidence": 0.95}
    certificate |= {"approximate": False, "clients": []}
    (folder / "certificate.json").write_text(json.dumps(certificate))
    told = {"seed": 0, "rounds": 100} | settings
    lines = [f"{name} = {value!r}" for name, value in told.items()]
    (folder / "config.toml").write_text("\n".join(['[task]\nkind = "miss-rate"', "[run]", *lines]))
    return folder


@pytest.fixture
def three(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ("breast-cancer-20261115-120000", "z-20261114-120000", "a-20261113-120000")
    return [
        write_run(tmp_path / "runs" / name, f"2026-11-{15 - i}T12:00:00", alpha=69.31471805599453 + i)
        for i, name in enumerate(names)
    ]


def test_latest_is_the_newest_run(three, tmp_path):
    printed = invoke("compare", "latest", three[1])
    assert printed.index("breast-cancer-20261115-120000") < printed.index("z-20261114-120000")
    assert "breast-cancer" in invoke("compare", "runs/latest", three[1])
    newer = write_run(tmp_path / "elsewhere" / "b", "2026-11-16T12:00:00")
    assert newer.name in invoke("compare", "elsewhere/latest", three[1])
    for words in (("resume", "latest"), ("predict", "latest", "x.csv")):
        assert "breast-cancer-20261115-120000" in invoke(*words, code=2)


def test_where_there_are_no_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    missing = "Error: runs does not exist; softswitch train creates it, or give the folder of your runs\n"
    for words in (("runs",), ("report", "latest"), ("resume", "latest"), ("compare", "latest")):
        assert invoke(*words, code=2) == missing
    (tmp_path / "runs").mkdir()
    assert invoke("report", "latest", code=2).startswith("Error: there is no run below runs")
    assert invoke("runs") == "There are no runs below runs.\n"


def test_tables_of_runs_fit(three):
    for words in (("runs",), ("compare", *three)):
        printed = invoke(*words)
        assert max(map(len, printed.splitlines())) <= 80
        assert "…" not in printed
        for shown in ("breast-cancer-20261115-120000", "14.3%", "5%", "0.3333", "undecided"):
            assert shown in printed


def test_only_settings_that_differ_are_compared(three):
    printed = invoke("compare", *three)
    assert "run.alpha" in printed
    assert "69.31 " in printed
    assert "run.seed" not in printed
    same = invoke("compare", three[0], three[0])
    assert "All settings are the same." in same


def certificate(many):
    def one(i):
        verdict = (Verdict.MEETS, Verdict.UNDECIDED, Verdict.UNKNOWN, Verdict.VIOLATES)[i % 4]
        interval = Interval(i / many, 0.01, 0.123456, 30_400, 1.0, approximate=True)
        needed = 120 if verdict is Verdict.UNDECIDED else None
        return ClientCertificate(f"hospital number {i:05}", interval, (interval,), verdict, needed)

    return Certificate(0.05, 0.95, tuple(map(one, range(many))))


def test_the_certificates_table_fits_with_what_matters_first():
    console = Console(width=80)
    with console.capture() as capture:
        console.print(certificate(8).table())
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in capture.get()
    whole = " ".join(capture.get().split())
    for words in ("30,400", "≈ 0.1235", "120 more rows", "hospital number 00007"):
        assert words in whole
    order = [line.split("hospital number ")[1][:5] for line in lines if "hospital number" in line]
    assert order == ["00007", "00003", "00006", "00005", "00002", "00001", "00004", "00000"]


def test_of_many_clients_the_worst_are_shown():
    text = str(certificate(10_000))
    assert text.count("hospital number") == 20
    told = "The worst 20 of 10,000 clients."
    assert told in " ".join(text.split())
    assert str(certificate(50)).count("hospital number") == 50


USEFULNESS = Usefulness(False, "false_alarm_rate", 1.0, 1.0, 1.0, 1.0, 0.95, "a", 9, 9, "y = 0", "y = 1").to_dict()


def write_certified_run(folder, outcome, verdicts, **entries):
    """Write a run folder with an outcome of certification and a client per verdict."""
    write_run(folder, "2026-11-15T12:00:00")
    about = json.loads((folder / "run.json").read_text())
    is_certified = Outcome(outcome).is_certified
    certification = {"outcome": outcome, "certified": is_certified, "message": "Reason. Advice.", "model": "the score"}
    certification |= {"models": 7, "earlier_certificates": 2}
    about |= {"certification": certification, "requirement": "At most 5% may be missed.", **entries}
    (folder / "run.json").write_text(json.dumps(about))
    interval = {"estimate": 0.1, "lower": 0.0, "upper": 0.2, "rows": 4}
    clients = [{"client": name, "verdict": v, "constraints": [interval]} for name, v in verdicts.items()]
    content = {"verdict": "meets", "outcome": outcome, "message": "Reason. Advice.", "confidence": 0.95}
    content |= {"approximate": False, "clients": clients}
    (folder / "certificate.json").write_text(json.dumps(content))
    lines = ["client,objective,constraint", *(f"{name},0.5,0.01" for name in verdicts)]
    (folder / "clients.csv").write_text("\n".join(lines))
    return folder


OUTCOMES = {
    "certified": (0, "✔ Certified"),
    "partly certified": (5, "? Partly certified"),
    "no better than a constant": (4, "? Certified, but no better than a constant"),
    "too few rows": (3, "? Not certified: too few rows"),
    "likely violates": (6, "✘ Not certified: likely violates the bound"),
    "incomplete": (1, "? Stopped early"),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_train_prints_the_verdict_first_and_exits_with_its_code(outcome, tmp_path, monkeypatch):
    folder = write_certified_run(tmp_path / "run", outcome, {"a": "meets", "b": "too few rows"}, usefulness=USEFULNESS)
    code, headline = OUTCOMES[outcome]
    aim = json.loads((folder / "run.json").read_text())["certification"]
    status = SimpleNamespace(code="feasible", ok=True)
    result = SimpleNamespace(status=status, explain=lambda: "EXPLANATION", privacy=None)
    trained = SimpleNamespace(
        folder=folder, result=result, certificate=None, aim=aim, is_usable=Outcome(outcome).is_certified
    )
    monkeypatch.setattr("softswitch.tables.training.train", lambda *args, **options: trained)
    printed = " ".join(invoke("train", "x.toml", code=code).split())
    assert printed.startswith(headline)
    assert printed.index("At most 5% may be missed.") < printed.index("always predicting y = 1")
    assert printed.index("The same rows have certified 2 models") < printed.index("EXPLANATION")
    assert "Reason. Advice." in printed
    assert ("softswitch predict" in printed) == (code in (0, 4, 5))


def test_exit_code_without_certification(tmp_path, monkeypatch):
    folder = write_certified_run(tmp_path / "run", "certified", {"a": "meets"}, certification=None)
    for ok, code in ((True, 0), (False, 1)):
        result = SimpleNamespace(status=SimpleNamespace(code="feasible", ok=ok), explain=str, privacy=None)
        trained = SimpleNamespace(folder=folder, result=result, certificate=None, aim=None, is_usable=True)
        monkeypatch.setattr("softswitch.tables.training.train", lambda *args, trained=trained, **options: trained)
        invoke("train", "x.toml", code=code)


def test_predict_warns_about_constants_and_uncertified_clients(tmp_path):
    both = {"a": "meets", "north ward": "too few rows"}
    run = open_run(write_certified_run(tmp_path / "1", "no better than a constant", both, usefulness=USEFULNESS))
    assert certification_warnings(run) == ["Reason. Advice."]
    assert certification_warnings(open_run(write_certified_run(tmp_path / "2", "certified", {"a": "meets"}))) == []
    run = open_run(write_certified_run(tmp_path / "3", "partly certified", both))
    assert certification_warnings(run) == ["Reason. Advice."]


def test_outcomes_are_listed(tmp_path):
    for outcome in OUTCOMES:
        write_certified_run(tmp_path / "runs" / outcome.replace(" ", "-"), outcome, {"a": "meets"})
    printed = invoke("runs", tmp_path / "runs")
    assert max(map(len, printed.splitlines())) <= 80
    for words in ("partly certified", "likely violates", "too few rows"):
        assert words in printed
