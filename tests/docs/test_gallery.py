"""The gallery shows the claims, seeds and durations of the experiments."""

import re
import sys
from pathlib import Path

import pytest

from softswitch_experiments.paper import EXPERIMENTS

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import gallery  # noqa: E402


def outputs():
    claims = [
        {"statement": "it works", "held": True, "measured": "1"},
        {"statement": "so", "held": False, "measured": "2"},
    ]
    return {
        name: {"seconds": 10.0 + i, "seeds": one.seeds, "claims": claims, "summary": one.summary}
        for i, (name, one) in enumerate(EXPERIMENTS.items())
    }


def test_every_experiment_has_its_section_with_command_seeds_and_claims():
    page = gallery.render_page(outputs())
    for name, one in EXPERIMENTS.items():
        section = page.split(f"\n### {gallery.TITLES[name]} {{ #{name} }}\n\n`{name}`: {one.summary}.\n")[1].split(
            "\n##"
        )[0]
        assert (
            f"![{one.summary}](images/paper/{name}.png)\n\n    softswitch paper {name}\n\n{one.seeds} seeds.\n"
            in section
        )
        assert "- **held**: it works — 1\n- **did not hold**: so — 2\n" in section


def test_contents_have_every_picture_once_and_in_order():
    page = gallery.render_page(outputs())
    contents = page.split("\n## Contents\n")[1].split("\n## ")[0]
    names = re.findall(r"\(images/paper/([\w-]+)\.png\){ loading=lazy }\]\(#\1\)", contents)
    assert names == re.findall(r"^### .* { #([\w-]+) }$", page, flags=re.MULTILINE)
    assert set(names) == set(EXPERIMENTS)
    for name in names:
        assert f"[{gallery.TITLES[name]}](#{name})  \n    1 of 2 claims held\n" in contents
    assert contents.count("<div") == contents.count("</div>") == 4
    assert "In short" not in contents, "only headings with experiments below them"


def test_there_is_one_heading_of_the_first_level():
    assert re.findall(r"^# .*$", gallery.render_page(outputs()), flags=re.MULTILINE) == [
        "# Gallery: the paper's figures, regenerated"
    ]


def test_every_experiment_has_a_title_of_its_own():
    assert set(gallery.TITLES) == set(EXPERIMENTS)
    assert len(set(gallery.TITLES.values())) == len(EXPERIMENTS)


def test_fewer_seeds_than_an_experiment_has_are_said():
    found = outputs()
    found["safe-rl-alpha"]["seeds"] = 3
    page = gallery.render_page(found)
    assert page.count("3 seeds, from an earlier run; the command now takes 10.") == 1


def test_times_are_listed_the_longest_first():
    lines = gallery.render_durations(outputs()).splitlines()[2:]
    last, first = list(EXPERIMENTS)[-1], next(iter(EXPERIMENTS))
    assert lines[0] == f"| [{last}](#{last}) | {9 + len(EXPERIMENTS)} |"
    assert lines[-2] == f"| [{first}](#{first}) | 10 |"
    assert lines[-1] == f"| all | {sum(10 + i for i in range(len(EXPERIMENTS)))} |"


def test_a_place_that_nothing_fills_is_refused():
    found = outputs()
    del found["np-comparison"]
    with pytest.raises(ValueError, match="np-comparison"):
        gallery.render_page(found)
