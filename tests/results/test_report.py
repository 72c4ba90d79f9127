"""The report: its words, and the page as a browser shows it."""

import json
import os
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import sync_playwright

from softswitch.results.folder import Run, open_run
from softswitch.results.report import write_report
from softswitch.results.report.clients import judge_run, summarise_clients
from softswitch.support.text import format_number
from softswitch.tables import training

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two runs on a small table, the second shorter; client names that a careless page would break on."""
    home = tmp_path_factory.mktemp("report")
    generator = np.random.default_rng(0)
    table = pd.DataFrame(generator.normal(size=(600, 3)), columns=["a", "b", "c"])
    table["y"] = (table["a"] + 0.5 * generator.normal(size=600) > 0).astype(int)
    table["ward"] = generator.choice(["<b>north</b>", 'so"uth', "west & co", "</script>", "<!--<script>"], 600)
    table.to_csv(home / "cases.csv", index=False)
    made = []
    for name, rounds in (("long", 300), ("short", 40)):
        data = '[data]\nfile = "cases.csv"\nlabel = "y"\nclient = "ward"\n'
        method = '[method]\nname = "softmax"\n'
        settings = f"{data}[task]\nbound = 0.4\n{method}[run]\nrounds = {rounds}\n"
        (home / f"{name}.toml").write_text(settings)
        made.append(training.train(home / f"{name}.toml").folder)
    return made


@pytest.fixture(scope="module")
def single(folders):
    """The report of the first run."""
    return write_report(folders[:1])


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        assert "NEEDS_BROWSER" not in os.environ, "Chromium is needed to look at the report: apt-get install chromium"
        pytest.skip("there is no Chromium to look at the report with")
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def look(browser):
    """Opens a page, and at the end asserts that the browser had nothing to complain of."""
    complaints, pages = [], []

    def at(file, width=1200, scheme="light"):
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

    yield at
    for page in pages:
        page.close()
    assert complaints == []


def shown(page, chart):
    """The picture of a chart."""
    return page.locator(f"[data-chart={chart}] svg:visible")


def test_the_page_as_a_browser_shows_it(folders, single, look):
    page = look(single)
    run = open_run(folders[0])
    short = judge_run(run, summarise_clients(run))
    assert page.inner_text(".verdict h1") == short.headline
    assert page.inner_text(".verdict .counts") == f"{short.counts}."
    assert page.inner_text(".verdict .requirement") == run.about["requirement"]
    assert short.level in page.get_attribute(".verdict", "class")
    for chart in ("curves-0", "clients-0"):
        assert shown(page, chart).count() == 1
    names = shown(page, "clients-0").locator("text").all_text_contents()
    assert set(run.clients["client"]) <= set(names)


def test_sorting_by_a_click(single, look):
    page = look(single)
    table = "table.clients"
    heads = page.locator(f"{table} th button").all_inner_texts()

    def column(head):
        place = heads.index(head) + 1
        return place, [float(text) for text in page.locator(f"{table} tbody td:nth-child({place})").all_inner_texts()]

    place, rows = column("training rows")
    assert rows != sorted(rows)
    page.click(f"{table} th:nth-child({place}) button")
    assert column("training rows")[1] == sorted(rows)
    assert page.get_attribute(f"{table} th:nth-child({place})", "aria-sort") == "ascending"
    page.click(f"{table} th:nth-child({place}) button")
    assert column("training rows")[1] == sorted(rows, reverse=True)


def test_a_phone_shows_the_verdict_first_and_needs_no_sideways_scroll(single, look):
    page = look(single, width=360)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert shown(page, "curves-0").bounding_box()["width"] <= 360
    size = shown(page, "curves-0").locator("text").first.evaluate("e => e.getBoundingClientRect().height")
    assert size >= 9  # pixels
    for part in ("h1", ".counts", ".requirement", ".use"):
        box = page.locator(f".verdict {part}").bounding_box()
        assert box["y"] + box["height"] < 700


def test_the_theme_follows_the_system(single, look):
    grounds = {}
    for scheme in ("light", "dark"):
        page = look(single, scheme=scheme)
        body = page.evaluate("getComputedStyle(document.body).backgroundColor")
        text = shown(page, "curves-0").locator("text").first.evaluate("e => getComputedStyle(e).fill")
        grounds[scheme] = (body, text)
    assert grounds["light"] == ("rgb(255, 255, 255)", "rgb(28, 36, 48)")
    assert grounds["dark"] == ("rgb(20, 24, 31)", "rgb(230, 234, 240)")


def test_several_runs_side_by_side(folders, look, tmp_path):
    page = look(write_report(folders, tmp_path / "both.html"))
    assert page.inner_text("h1") == "2 runs"
    assert page.locator("details.run").count() == 2
    page.click("details.run summary")
    run = open_run(folders[0])
    assert page.locator(".verdict .counts").first.inner_text() == f"{judge_run(run, summarise_clients(run)).counts}."
    assert shown(page, "curves-0").count() == 1


@pytest.fixture(scope="module")
def crowd(folders, tmp_path_factory):
    """A run's folder in which there are 10,000 clients: 9 violate, 3 are undecided."""
    kept = tmp_path_factory.mktemp("crowd") / "run"
    shutil.copytree(folders[0], kept)
    names = [f"ward {i}" for i in range(10_000)]
    lines = ["client,rows,rows_held_out,held_out_miss_rate,constant_miss_rate,objective,constraint"]
    lines += [f"{name},{30_000 + i},7,0.25,1.0,{i / 10_000},0.1" for i, name in enumerate(names)]
    (kept / "clients.csv").write_text("\n".join(lines))
    told = json.loads((kept / "certificate.json").read_text())
    interval = told["clients"][0]["objective"] | {"estimate": 0.1, "lower": 0.0, "upper": 0.3}
    verdicts = {i: "violates" if i < 9 else "undecided" for i in range(12)}
    told["clients"] = [
        {
            "client": name,
            "objective": interval,
            "constraints": [interval | ({"estimate": 0.1 + i / 100, "upper": 0.5} if i in verdicts else {})],
            "verdict": verdicts.get(i, "meets"),
            "rows_needed": 120 if verdicts.get(i) == "undecided" else None,
        }
        for i, name in enumerate(names)
    ]
    (kept / "certificate.json").write_text(json.dumps(told | {"verdict": "violates"}))
    return kept


def test_of_very_many_clients_the_worst_are_shown(crowd, look):
    file = write_report([crowd])
    assert file.stat().st_size < 3e6
    page = look(file)
    assert page.evaluate("document.documentElement.scrollHeight") < 8000
    counts = page.inner_text(".verdict .counts")
    assert counts.startswith("9,988 of 10,000 meet, 9 violate (ward 8, ward 7, ward 6 and 6 more), 3 undecided (")
    assert counts.endswith("(ward 11: about 120 more rows, ward 10: about 120 more rows, ward 9: about 120 more rows).")
    rows = page.locator("table.clients tbody tr")
    assert rows.count() == 20
    classes = [rows.nth(i).get_attribute("class") for i in range(20)]
    assert classes == ["violates"] * 9 + ["undecided"] * 3 + ["meets"] * 8
    assert rows.first.locator("td").first.inner_text() == "ward 8"
    assert shown(page, "clients-0").count() == 1
    assert "although its simultaneous limit is above it" not in page.inner_text("main")


def test_other_models_beside_the_answer(folders, single):
    page = single.read_text(encoding="utf-8")
    assert "Comparison with other models" in page
    assert "<td>best constant prediction</td>" in page
    assert f"The constraint costs the worst client {format_number(open_run(folders[0]).about['price'])}." in page
    assert "No constant prediction is feasible" not in page


def test_what_was_chosen_and_what_no_constant_can_do(folders, tmp_path):
    """Also in a folder without them."""
    kept = tmp_path / "run"
    shutil.copytree(folders[0], kept)
    about = json.loads((kept / "run.json").read_text())
    about["auto_settings"] = {"rounds": "at most 7,000"}
    first = about["restarts"][0]
    for one in about["models"]:
        one["feasible"] = False
    (kept / "run.json").write_text(json.dumps(about))
    page = write_report([kept]).read_text(encoding="utf-8")
    cycle = f"rounds 0 to {first['end'] - 1}, step {first['step_size']:.3g} decaying to 0"
    for words in ("rounds: at most 7,000", cycle, "No constant prediction is feasible"):
        assert words in page
    for name in ("auto_settings", "restarts", "models", "price"):
        del about[name]
    (kept / "run.json").write_text(json.dumps(about))
    assert "Comparison with other models" not in write_report([kept]).read_text(encoding="utf-8")


def told(code="feasible", violating=(), verdicts=None, needed=None, approximate=False, aim=None):
    """The verdict on a run with clients a, b, c, …; ``verdicts``: the certificate's, None without one."""
    names = "abcdefghi"[: len(verdicts or "abc")]
    about = {
        "status": {"code": code, "message": "in round 7 something happened"},
        "violating": list(violating),
        "clients": len(names),
        "tolerance": 0.1,
        "rounds": 1000,
        "certification": aim,
    }
    run = Run(folder=None, about=about)
    levels = [0.2 if name in violating else 0.05 for name in names]
    interval = {"estimate": 0.1, "lower": -0.1, "upper": 0.3}
    clients = [
        {"client": name, "verdict": word, "constraints": [interval], "rows_needed": (needed or {}).get(name)}
        for name, word in zip(names, verdicts or (), strict=False)
    ]
    certificate = {"confidence": 0.95, "approximate": approximate, "clients": clients}
    run.__dict__.update(
        {
            "certificate": None if verdicts is None else certificate,
            "clients": {"client": list(names), "constraint": levels},
        }
    )
    return judge_run(run, summarise_clients(run))


def test_verdicts_in_words():
    short = told(verdicts=["meets"] * 3)
    assert short == (
        "good",
        "Certified",
        "All 3 meet",
        "Based on held-out rows, with 95% confidence. On their training rows all 3 meet.",
    )
    assert told(verdicts=["meets"] * 3, aim={"certified": True}).headline == "Certified"
    assert told(verdicts=["meets"] * 3, aim={"certified": False})[:2] == ("unsure", "Not certified")
    assert told(verdicts=["meets"] * 3, approximate=True).headline == "Certified, approximately"
    short = told(verdicts=["meets", "undecided", "meets", "meets"], needed={"b": 120})
    assert short[:3] == ("unsure", "Not certified", "3 of 4 meet, 1 undecided (b: about 120 more rows)")
    short = told(verdicts=["meets", "undecided", "violates"])
    assert short[:3] == ("bad", "Violated", "1 of 3 meet, 1 violates (c), 1 undecided (b)")
    many = told(verdicts=["undecided"] * 6, needed={"a": 9, "b": 1200, "c": 30, "d": 31})
    assert many.counts.startswith("0 of 6 meet, 6 undecided (a: about 9 more rows, b: about 1,200 more rows, ")
    assert told(verdicts=["meets", "unknown"]).counts == "1 of 2 meet, 1 undecided (b: no relevant held-out rows)"
    short = told("answer-violates", ["a"], ["meets"] * 3)
    assert short[:2] == ("bad", "Certified, but violated on training rows")
    assert short.details.endswith("On their training rows 1 of 3 is above the bound: a.")
    assert told()[:3] == ("unsure", "Not certified", "All 3 meet")
    assert "There is no certificate" in told().details
    assert told(violating=["a"])[:2] == ("bad", "Violated on training rows")
    assert told("stopped", verdicts=["meets"])[:2] == ("unsure", "Stopped early")
    assert "stopped after 1,000 rounds" in told("stopped").details
    assert told("diverged")[:2] == ("bad", "The run diverged")
    assert told("no-feasible-round")[:2] == ("bad", "No round was feasible")


def test_a_limit_above_the_bound_of_a_client_that_meets_is_explained(folders, tmp_path):
    kept = tmp_path / "run"
    shutil.copytree(folders[0], kept)
    told = json.loads((kept / "certificate.json").read_text())
    for one in told["clients"]:
        one["verdict"], one["constraints"][0]["upper"] = "meets", 0.41
    (kept / "certificate.json").write_text(json.dumps(told))
    assert "although its simultaneous limit is above it" in write_report([kept]).read_text(encoding="utf-8")


def test_a_client_that_a_certificate_of_an_earlier_version_left_out_is_undecided(folders, tmp_path):
    kept = tmp_path / "run"
    shutil.copytree(folders[0], kept)
    told = json.loads((kept / "certificate.json").read_text())
    gone = told["clients"].pop(0)["client"]
    (kept / "certificate.json").write_text(json.dumps(told))
    (one,) = [one for one in summarise_clients(open_run(kept)) if one.name == gone]
    assert (one.verdict, one.reason) == ("undecided", "no held-out rows")


def test_what_cannot_be_reported(folders, tmp_path):
    with pytest.raises(ValueError, match="folders must have at least one run"):
        write_report([])
    (tmp_path / "run.json").write_text(json.dumps({"format": "softswitch run 1"}))
    with pytest.raises(ValueError, match="is not finished; resume it: softswitch resume"):
        write_report([tmp_path])


def test_everything_is_in_the_one_file(single):
    text = single.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=\"(?!data:)", text)
