"""The report: texts, and the page in a browser."""

import json
import math
import os
import re
import shutil
import sys

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import sync_playwright
from typer.testing import CliRunner

from softswitch.cli import app
from softswitch.cli.terminal import OUTCOME_CODES, ExitCode
from softswitch.results.certificate import Outcome
from softswitch.results.folder import Run, open_run
from softswitch.results.report.clients import HEADLINES, judge_run, natural_frequencies, summarise_clients
from softswitch.results.report.page import write_report
from softswitch.tables import training
from softswitch.tables.metrics import judge_rate

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two runs on a small table, the second shorter, with client names that need escaping."""
    folder = tmp_path_factory.mktemp("report")
    generator = np.random.default_rng(0)
    table = pd.DataFrame(generator.normal(size=(600, 3)), columns=["a", "b", "c"])
    table["y"] = (table["a"] + 0.5 * generator.normal(size=600) > 0).astype(int)
    table["ward"] = generator.choice(["<b>north</b>", 'so"uth', "west & co", "</script>", "<!--<script>"], 600)
    table.to_csv(folder / "cases.csv", index=False)
    run_folders = []
    for name, rounds in (("long", 300), ("short", 40)):
        data = '[data]\nfile = "cases.csv"\nlabel = "y"\nclient = "ward"\n'
        method = '[method]\nname = "softmax"\n'
        settings = f"{data}[task]\nbound = 0.4\n{method}[run]\nrounds = {rounds}\n"
        (folder / f"{name}.toml").write_text(settings)
        run_folders.append(training.train(folder / f"{name}.toml").folder)
    return run_folders


@pytest.fixture(scope="module")
def single(folders):
    """The report of the first run."""
    return write_report(folders[:1])


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        assert "NEEDS_BROWSER" not in os.environ, "Chromium is needed to open the report: apt-get install chromium"
        pytest.skip("Chromium is not installed")
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def open_page(browser):
    """Return a function that opens a page, and assert at the end that the browser had no errors."""
    complaints, pages = [], []

    def load_page(file, width=1200, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith(("file:", "data:", "blob:")) else complaints.append(request.url)
            ),
        )
        page.goto(file.as_uri())
        pages.append(page)
        return page

    yield load_page
    for page in pages:
        page.close()
    assert complaints == []


def chart_image(page, chart):
    """Return the image of a chart."""
    return page.locator(f"[data-chart={chart}] svg:visible")


def test_page_in_browser(folders, single, open_page):
    page = open_page(single)
    run = open_run(folders[0])
    verdict = judge_run(run)
    assert page.inner_text(".verdict h1") == verdict.headline
    assert page.inner_text(".verdict .new-data") == verdict.new_data
    assert page.inner_text(".verdict .requirement") == run.about["requirement"]
    assert verdict.level in page.get_attribute(".verdict", "class")
    for chart in ("curves-0", "clients-0"):
        assert chart_image(page, chart).count() == 1
    names = chart_image(page, "clients-0").locator("text").all_text_contents()
    assert set(run.clients["client"]) <= set(names)


def test_table_is_sorted_by_click(single, open_page):
    page = open_page(single)
    table = "table.clients"
    heads = page.locator(f"{table} th button").all_inner_texts()

    def column(head):
        index = heads.index(head) + 1
        return index, [float(text) for text in page.locator(f"{table} tbody td:nth-child({index})").all_inner_texts()]

    index, rows = column("training rows")
    assert rows != sorted(rows)
    page.click(f"{table} th:nth-child({index}) button")
    assert column("training rows")[1] == sorted(rows)
    assert page.get_attribute(f"{table} th:nth-child({index})", "aria-sort") == "ascending"
    page.click(f"{table} th:nth-child({index}) button")
    assert column("training rows")[1] == sorted(rows, reverse=True)


def test_mobile_layout(single, open_page):
    page = open_page(single, width=360)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert chart_image(page, "curves-0").bounding_box()["width"] <= 360
    size = chart_image(page, "curves-0").locator("text").first.evaluate("e => e.getBoundingClientRect().height")
    assert size >= 9  # pixels
    for selector in ("h1", ".new-data", ".requirement", ".use"):
        bounding_box = page.locator(f".verdict {selector}").bounding_box()
        assert bounding_box["y"] + bounding_box["height"] < 700


def test_theme_follows_system(single, open_page):
    grounds = {}
    for scheme in ("light", "dark"):
        page = open_page(single, scheme=scheme)
        body = page.evaluate("getComputedStyle(document.body).backgroundColor")
        text = chart_image(page, "curves-0").locator("text").first.evaluate("e => getComputedStyle(e).fill")
        grounds[scheme] = (body, text)
    assert grounds["light"] == ("rgb(255, 255, 255)", "rgb(28, 36, 48)")
    assert grounds["dark"] == ("rgb(20, 24, 31)", "rgb(230, 234, 240)")


def test_comparison_of_runs(folders, open_page, tmp_path):
    page = open_page(write_report(folders, tmp_path / "both.html"))
    assert page.inner_text("h1") == "2 runs"
    assert page.locator("details.run").count() == 2
    page.click("details.run summary")
    run = open_run(folders[0])
    assert page.locator(".verdict .new-data").first.inner_text() == judge_run(run).new_data
    assert chart_image(page, "curves-0").count() == 1


@pytest.fixture(scope="module")
def many_clients_folder(folders, tmp_path_factory):
    """The folder of a run with 10,000 clients, of which 9 violate and 3 are undecided."""
    run_folder = tmp_path_factory.mktemp("crowd") / "run"
    shutil.copytree(folders[0], run_folder)
    names = [f"ward {i}" for i in range(10_000)]
    lines = ["client,rows,rows_held_out,held_out_miss_rate,constant_miss_rate,objective,constraint"]
    lines += [f"{name},{30_000 + i},7,0.25,1.0,{i / 10_000},0.1" for i, name in enumerate(names)]
    (run_folder / "clients.csv").write_text("\n".join(lines))
    certificate = json.loads((run_folder / "certificate.json").read_text())
    interval = certificate["clients"][0]["objective"] | {"estimate": 0.1, "lower": 0.0, "upper": 0.3}
    verdicts = {i: "violates" if i < 9 else "undecided" for i in range(12)}
    certificate["clients"] = [
        {
            "client": name,
            "objective": interval,
            "constraints": [interval | ({"estimate": 0.1 + i / 100, "upper": 0.5} if i in verdicts else {})],
            "verdict": verdicts.get(i, "meets"),
            "rows_needed": 120 if verdicts.get(i) == "undecided" else None,
        }
        for i, name in enumerate(names)
    ]
    (run_folder / "certificate.json").write_text(json.dumps(certificate | {"verdict": "violates"}))
    return run_folder


def test_worst_of_many_clients_are_shown(many_clients_folder, open_page):
    file = write_report([many_clients_folder])
    assert file.stat().st_size < 3e6
    page = open_page(file)
    assert page.evaluate("document.documentElement.scrollHeight") < 8000
    rows = page.locator("table.clients tbody tr")
    assert rows.count() == 20
    classes = [rows.nth(i).get_attribute("class") for i in range(20)]
    assert classes == ["violates"] * 9 + ["undecided"] * 3 + ["meets"] * 8
    assert rows.first.locator("td").first.inner_text() == "ward 8"
    assert chart_image(page, "clients-0").count() == 1
    assert "although its simultaneous limit is above it" not in page.inner_text("main")


def test_baselines_are_shown(single):
    page = single.read_text(encoding="utf-8")
    assert "Comparison with other models" in page
    assert "<td>best constant prediction</td>" in page
    assert "The constraint costs" not in page  # a first-order run has no model without the constraint
    assert "No constant prediction is feasible" not in page


def test_auto_settings_and_infeasible_constants(folders, tmp_path):
    """These also appear for a folder without baselines."""
    run_folder = tmp_path / "run"
    shutil.copytree(folders[0], run_folder)
    run_json = json.loads((run_folder / "run.json").read_text())
    run_json |= {"auto_settings": {"rounds": "at most 7,000"}, "price": 0.125}
    first = run_json["restarts"][0]
    for model in run_json["models"]:
        model["feasible"] = False
    (run_folder / "run.json").write_text(json.dumps(run_json))
    page = write_report([run_folder]).read_text(encoding="utf-8")
    cycle = f"rounds 0 to {first['end'] - 1}, step {first['step_size']:.3g} decaying to 0"
    price = "The constraint costs the worst client 0.125."
    for text in ("rounds: at most 7,000", cycle, "No constant prediction is feasible", price):
        assert text in page
    for name in ("auto_settings", "restarts", "models", "price"):
        del run_json[name]
    (run_folder / "run.json").write_text(json.dumps(run_json))
    assert "Comparison with other models" not in write_report([run_folder]).read_text(encoding="utf-8")


def judge(code="feasible", violating=(), outcome=None, approximate=False, aim=None, clients=3, **entries):
    """Return the verdict on a run; ``outcome`` is that of the certificate, None without one."""
    about = {
        "status": {"code": code, "message": "in round 7 something happened"},
        "violating": list(violating),
        "clients": clients,
        "tolerance": 0.1,
        "rounds": 1000,
        "certification": aim,
        **entries,
    }
    certificate = {"outcome": outcome, "message": "Of the certificate.", "approximate": approximate}
    return judge_run(make_run(about, {}, None if outcome is None else certificate))


def make_run(about, clients, certificate=None):
    """Return a run without a folder."""
    run = Run(folder=None, about=about)
    run.__dict__.update({"certificate": certificate, "clients": clients, "settings": {"data.client": "ward"}})
    return run


@pytest.mark.parametrize(
    ("outcome", "level", "headline"),
    [
        ("certified", "good", "Certified and useful"),
        ("partly certified", "unsure", "Partly certified"),
        ("no better than a constant", "unsure", "Certified, but no better than a constant"),
        ("too few rows", "unsure", "Not certified: too few rows"),
        ("likely violates", "bad", "Not certified: likely violates the bound"),
        ("incomplete", "unsure", "Stopped early"),
    ],
)
def test_headline_follows_outcome(outcome, level, headline):
    aim = {"outcome": outcome, "certified": False, "message": "Reason and advice."}
    verdict = judge(outcome="certified", aim=aim, usefulness={"is_useful": True})
    assert verdict[:3] == (level, headline, "Reason and advice.")


def test_every_outcome_has_headline_and_exit_code():
    assert set(HEADLINES) == set(Outcome)
    assert set(OUTCOME_CODES) == set(map(str, Outcome))


def test_verdict_from_certificate():
    assert judge(outcome="certified") == (
        "good",
        "Certified",
        "Of the certificate.",
        "On their training rows all 3 meet.",
    )
    assert judge(outcome="certified", approximate=True).headline == "Certified, approximately"
    verdict = judge("answer-violates", ["a"], "certified")
    assert verdict[:2] == ("bad", "Certified, but violated on training rows")
    assert verdict.details == "On their training rows 1 of 3 is above the bound: a."


@pytest.mark.parametrize(
    ("verdict", "rows", "reason"),
    [
        ("too few rows", 6, "6 rows, not enough for any model"),
        ("undecided", 6, "about 120 more rows"),
        ("unknown", 0, "no relevant held-out rows"),
        ("meets", 6, ""),
    ],
)
def test_reason_of_client(verdict, rows, reason):
    interval = {"estimate": 0.1, "lower": -0.1, "upper": 0.3, "rows": rows}
    client = {"client": "a", "verdict": verdict, "constraints": [interval], "rows_needed": 120}
    run = make_run({"tolerance": 0.1}, {"client": ["a"], "constraint": [0.05]}, {"clients": [client]})
    (summary,) = summarise_clients(run)
    assert summary.reason == reason


def test_verdict_without_certificate_or_after_a_stop():
    assert judge()[:2] == ("unsure", "Not certified")
    assert "There is no certificate" in judge().new_data
    assert judge(violating=["a"])[:2] == ("bad", "Violated on training rows")
    assert judge("stopped", outcome="certified")[:2] == ("unsure", "Stopped early")
    assert "stopped after 1,000 rounds" in judge("stopped").details
    assert judge("diverged")[:2] == ("bad", "The run diverged")
    assert judge("no-feasible-round")[:2] == ("bad", "No round was feasible")


def test_natural_frequencies_of_worst_clients_and_average():
    """North misses 10 of 100 and calls 30 of 300 positive; south misses 1 of 20 and calls 40 of 80 positive."""
    columns = {"client": ["north", "south"], "rows_held_out": [400, 100], "positives_held_out": [100, 20]}
    columns |= {"held_out_miss_rate": [0.1, 0.05], "held_out_false_alarm_rate": [0.1, 0.5]}
    north, south, average = natural_frequencies(make_run({}, columns))
    assert north[:5] == ("north: most missed", 250, 25, 750, 75)
    assert north.basis == "estimated from 100 and 300 held-out rows"
    assert south[:5] == ("south: most false alarms", 200, 10, 800, 400)
    assert average == ("Average ward", 225, 17, 775, 232, "")


def test_natural_frequencies_of_small_and_single_clients():
    """A client with two negative rows is not the worst for false alarms."""
    columns = {"client": ["a", "b"], "rows_held_out": [40, 32], "positives_held_out": [20, 30]}
    columns |= {"held_out_miss_rate": [0.2, 0.1], "held_out_false_alarm_rate": [0.5, 1.0]}
    entries = natural_frequencies(make_run({}, columns))
    assert [one.where for one in entries] == ["a: most missed and most false alarms", "Average ward"]
    assert natural_frequencies(make_run({}, {"client": ["a"]})) == []
    (single,) = natural_frequencies(make_run({}, {name: column[:1] for name, column in columns.items()}))
    assert single.positives == 500
    unknown = {name: [math.nan] * 2 for name in columns if name.startswith("held_out")}
    assert natural_frequencies(make_run({}, columns | unknown)) == []


def edit_run(folder, **entries):
    """Change entries of run.json."""
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(about | entries))


def test_first_screen_of_a_rate(folders, tmp_path, open_page):
    folder = tmp_path / "run"
    shutil.copytree(folders[0], folder)
    errors = {"north": np.arange(145) < 45}
    usefulness = judge_rate("false_alarm_rate", errors, condition="y = 0", prediction="y = 1").to_dict()
    bins = [{"predicted": p, "observed": p, "lower": p / 2, "upper": p, "rows": 10} for p in (0.2, 0.8)]
    classes = {"negative": "y = 0", "positive": "y = 1"}
    reliability = {"all": bins, "clients": {"north": bins}}
    edit_run(folder, usefulness=usefulness, classes=classes, reliability=reliability, certification=None)
    page = open_page(write_report([folder]))
    assert page.inner_text(".verdict .use").startswith("Useful: at the worst ward (north), 31% of the rows with y = 0")
    assert page.locator(".card").count() >= 2
    assert "have y = 1" in page.locator(".card").first.inner_text()
    assert chart_image(page, "reliability-0").count() == 1
    assert "Slope and intercept" in page.inner_text("main")
    edit_run(folder, usefulness=usefulness | {"rows": "many"})
    with pytest.raises(ValueError, match=r"usefulness.rows"):
        write_report([folder])


@pytest.mark.parametrize(
    ("outcome", "sentence"), [("certified", "No problems detected."), ("likely violates", "See the verdict at the top")]
)
def test_no_problems_are_reported_only_with_a_good_verdict(folders, tmp_path, outcome, sentence):
    folder = tmp_path / "run"
    shutil.copytree(folders[0], folder)
    certification = {"outcome": outcome, "certified": outcome == "certified", "message": "Reason."}
    edit_run(folder, diagnostics=[], certification=certification, violating=[])
    assert sentence in write_report([folder]).read_text(encoding="utf-8")


def test_limit_above_bound_is_explained(folders, tmp_path):
    run_folder = tmp_path / "run"
    shutil.copytree(folders[0], run_folder)
    certificate = json.loads((run_folder / "certificate.json").read_text())
    for client in certificate["clients"]:
        client["verdict"], client["constraints"][0]["upper"] = "meets", 0.41
    (run_folder / "certificate.json").write_text(json.dumps(certificate))
    assert "although its simultaneous limit is above it" in write_report([run_folder]).read_text(encoding="utf-8")


def test_client_missing_from_certificate_is_undecided(folders, tmp_path):
    run_folder = tmp_path / "run"
    shutil.copytree(folders[0], run_folder)
    certificate = json.loads((run_folder / "certificate.json").read_text())
    missing = certificate["clients"].pop(0)["client"]
    (run_folder / "certificate.json").write_text(json.dumps(certificate))
    (client,) = [client for client in summarise_clients(open_run(run_folder)) if client.name == missing]
    assert (client.verdict, client.reason) == ("undecided", "no held-out rows")


def test_invalid_folders_are_rejected(folders, tmp_path):
    with pytest.raises(ValueError, match="folders must have at least one run"):
        write_report([])
    (tmp_path / "run.json").write_text(json.dumps({"format": "softswitch run 1"}))
    with pytest.raises(ValueError, match="is not finished; resume it: softswitch resume"):
        write_report([tmp_path])


def test_page_is_self_contained(single):
    text = single.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=\"(?!data:)", text)


def test_missing_package_is_named(folders, monkeypatch, tmp_path):
    """The run is not to blame: neither Python nor the command line call it damaged."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"softswitch\[report\]"):
        write_report(folders[:1], tmp_path / "report.html")
    printed = CliRunner().invoke(app, ["report", str(folders[0]), "--out", str(tmp_path / "report.html")])
    assert printed.exit_code == ExitCode.BAD_INPUT
    assert "softswitch[report]" in printed.output
    assert "damaged" not in printed.output


def test_errors_of_rendering_are_raised(folders, monkeypatch, tmp_path):
    def fail(*_):
        raise KeyError("colour")

    monkeypatch.setattr("softswitch.results.report.charts.plot_clients", fail)
    with pytest.raises(KeyError, match="colour"):
        write_report(folders[:1], tmp_path / "report.html")


@pytest.mark.parametrize(("name", "entry"), [("run.json", "certification"), ("certificate.json", None)])
def test_unknown_outcomes_are_rejected(folders, tmp_path, name, entry):
    folder = shutil.copytree(folders[0], tmp_path / "run")
    content = json.loads((folder / name).read_text(encoding="utf-8"))
    (content if entry is None else content[entry])["outcome"] = "perfect"
    (folder / name).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=f"{name} is damaged"):
        write_report([folder])
