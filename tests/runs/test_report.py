"""The report: its words, and the page as a browser shows it."""

import json
import os
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import sync_playwright

from softswitch.runs.folder import Run, open_run
from softswitch.runs.report import write_report
from softswitch.runs.report.verdict import verdict
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
        settings = f"{data}[task]\nat_most = 0.4\n[run]\nrounds = {rounds}\n"
        (home / f"{name}.toml").write_text(settings)
        made.append(training.train(home / f"{name}.toml").folder)
    return made


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
        page.wait_for_function("document.querySelectorAll('.js-plotly-plot').length >= 1")
        pages.append(page)
        return page

    yield at
    for page in pages:
        page.close()
    assert complaints == []


def test_the_page_as_a_browser_shows_it(folders, look):
    page = look(write_report(folders[:1]))
    run = open_run(folders[0])
    level, words = verdict(run)
    assert page.inner_text(".verdict .words") == words
    assert level in page.get_attribute(".verdict", "class")
    assert page.locator(".js-plotly-plot").count() == 3
    # The charts hold what the run holds.
    drawn = page.evaluate("document.querySelector('[data-chart=clients-0]').data[0]")
    assert sorted(drawn["y"]) == pytest.approx(sorted(run.clients["constraint"]))
    assert set(drawn["x"]) == set(run.clients["client"])
    lines = page.locator("[data-chart=curves-0] .scatterlayer .trace").count()
    assert lines == 8
    assert page.evaluate("document.querySelector('[data-chart=curves-0]').layout.shapes[0].y0") == 0.4
    assert page.locator("[data-chart=heat-0] .heatmaplayer image").count() == 1


def test_sorting_by_a_click(folders, look):
    page = look(write_report(folders[:1]))
    table = "section:has(h2:text-is('Clients')) table.sortable"

    def column(number):
        return [float(text) for text in page.locator(f"{table} tbody td:nth-child({number})").all_inner_texts()]

    assert column(4) == sorted(column(4), reverse=True)  # the worst first
    page.click(f"{table} th:nth-child(2) button")
    assert column(2) == sorted(column(2))
    assert page.get_attribute(f"{table} th:nth-child(2)", "aria-sort") == "ascending"
    page.click(f"{table} th:nth-child(2) button")
    assert column(2) == sorted(column(2), reverse=True)


def test_hovering_tells_the_value(folders, look):
    page = look(write_report(folders[:1]))
    bars = page.locator("[data-chart=clients-0]")
    bars.scroll_into_view_if_needed()
    box = bars.locator(".bars .point path").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 10, box["y"] + box["height"] / 2)
    page.wait_for_selector("[data-chart=clients-0] .hoverlayer .hovertext")
    worst = max(open_run(folders[0]).clients["constraint"])
    shown = page.text_content("[data-chart=clients-0] .hoverlayer .hovertext")
    assert float(re.search(r"[\d.]+(?=\))", shown)[0]) == pytest.approx(worst, abs=1e-3)


def test_a_phone_needs_no_sideways_scroll(folders, look):
    page = look(write_report(folders[:1]), width=360)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.locator(".js-plotly-plot").first.bounding_box()["width"] <= 360


def test_the_theme_follows_the_system(folders, look):
    file = write_report(folders[:1])
    grounds = {}
    for scheme in ("light", "dark"):
        page = look(file, scheme=scheme)
        body = page.evaluate("getComputedStyle(document.body).backgroundColor")
        text = page.evaluate("document.querySelector('[data-chart=curves-0]').layout.font.color")
        grounds[scheme] = (body, text)
    assert grounds["light"][0] == "rgb(255, 255, 255)"
    assert grounds["dark"] != grounds["light"]
    assert grounds["dark"][1] == "#e6eaf0"


def test_several_runs_side_by_side(folders, look, tmp_path):
    page = look(write_report(folders, tmp_path / "both.html"))
    assert "2 runs side by side" in page.inner_text("h1")
    assert page.locator("details.run").count() == 2
    assert page.evaluate("document.querySelector('[data-chart=comparison]').data.length") == 4
    page.click("details.run summary")
    page.wait_for_selector("[data-chart=curves-0].js-plotly-plot .scatterlayer")
    assert page.inner_text(".verdict .words") == verdict(open_run(folders[0]))[1]


def test_other_models_beside_the_answer(folders):
    page = write_report(folders[:1]).read_text(encoding="utf-8")
    assert "Is it of any use?" in page
    assert "<td>best constant prediction</td>" in page
    assert f"The constraint costs the worst client {open_run(folders[0]).about['price']:.4g}." in page
    assert "No constant prediction is feasible" not in page


def test_what_was_chosen_and_what_no_constant_can_do(folders, tmp_path):
    """Also in a folder of an earlier version, which knew nothing of it."""
    kept = tmp_path / "run"
    shutil.copytree(folders[0], kept)
    about = json.loads((kept / "run.json").read_text())
    about["chosen"] = {"rounds": "at most 7,000"}
    first = about["cycles"][0]
    for one in about["beside"]:
        one["feasible"] = False
    (kept / "run.json").write_text(json.dumps(about))
    page = write_report([kept]).read_text(encoding="utf-8")
    cycle = f"rounds 0 to {first['end'] - 1}, step {first['step_size']:.3g} falling to 0"
    for words in ("rounds: at most 7,000", cycle, "No constant prediction is feasible"):
        assert words in page
    for name in ("chosen", "cycles", "beside", "price"):
        del about[name]
    (kept / "run.json").write_text(json.dumps(about))
    assert "Is it of any use?" not in write_report([kept]).read_text(encoding="utf-8")


def told(code="feasible", violating=(), certificate=None, clients=3):
    about = {
        "status": {"code": code, "message": "in round 7 something happened"},
        "violating": list(violating),
        "clients": clients,
        "tolerance": 0.1,
        "rounds": 1000,
    }
    run = Run(folder=None, about=about)
    run.__dict__["certificate"] = certificate
    return verdict(run)


def certificate(*verdicts, approximate=False):
    order = ("violates", "unknown", "cannot tell", "meets")
    return {
        "verdict": next(word for word in order if word in verdicts),
        "confidence": 0.95,
        "approximate": approximate,
        "clients": [{"client": name, "verdict": word} for name, word in zip("abcdefgh", verdicts, strict=False)],
    }


def test_verdicts_in_words():
    level, words = told(certificate=certificate("meets", "meets", "meets"))
    assert (level, words) == (
        "good",
        "On their training rows all 3 clients meet the bound 0.1. "
        "On held-out rows every one of 3 clients meets it, with 95% confidence.",
    )
    level, words = told(certificate=certificate("meets", "cannot tell", "violates", approximate=True))
    assert level == "bad"
    assert words.endswith(
        "On held-out rows 1 of 3 clients meet it, 1 violates it (c), for 1 there are too few rows to tell (b), "
        "approximately, with 95% confidence."
    )
    assert told(certificate=certificate("meets", "cannot tell", "meets"))[0] == "unsure"
    level, words = told("answer-violates", ["a"], certificate("meets", "meets", "meets"))
    assert level == "bad"
    assert "1 of 3 client is above the bound 0.1: a." in words
    assert told()[0] == "unsure"
    assert "nothing is certified" in told()[1]
    assert told("stopped", certificate=certificate("meets"))[0] == "unsure"
    assert "stopped after 1,000 rounds" in told("stopped")[1]
    assert told("diverged") == ("bad", "The run diverged: in round 7 something happened.")
    assert told("no-feasible-round")[0] == "bad"
    some = told(certificate=certificate("meets", "meets"), clients=5)
    assert some[0] == "unsure"
    assert some[1].endswith("Of 3 of 5 clients nothing is certified: no row of theirs is held out.")
    level, words = told(certificate=certificate("meets", "unknown", "meets"))
    assert level == "unsure"
    assert "of 1 nothing is known, since no row of theirs is held out (b)" in words
    many = told("answer-violates", list("abcdefg"), clients=9)[1]
    assert "7 of 9 clients are above the bound 0.1: a, b, c, d, e and 2 more." in many


def test_what_cannot_be_reported(folders, tmp_path):
    with pytest.raises(ValueError, match="at least one run's folder is needed"):
        write_report([])
    (tmp_path / "run.json").write_text(json.dumps({"format": "softswitch run 1"}))
    with pytest.raises(ValueError, match="is not finished; softswitch resume"):
        write_report([tmp_path])


def test_everything_is_in_the_one_file(folders):
    text = write_report(folders[:1]).read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=\"(?!data:)", text)
