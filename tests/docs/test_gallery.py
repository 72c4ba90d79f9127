"""The gallery shows the claims, seeds and durations of the experiments."""

import re
import sys
from pathlib import Path

import pytest

from softswitch_experiments.paper import EXPERIMENTS

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import gallery  # noqa: E402


def make_outputs():
    claims = [
        {"statement": "it works", "held": True, "measured": "1"},
        {"statement": "so", "held": False, "measured": "2"},
    ]
    return {
        name: {"seconds": 10.0 + i, "seeds": experiment.seeds, "claims": claims, "summary": experiment.summary}
        for i, (name, experiment) in enumerate(EXPERIMENTS.items())
    }


def test_every_experiment_has_section():
    page = gallery.render_page(make_outputs())
    for name, entry in EXPERIMENTS.items():
        section = page.split(f"\n### {gallery.TITLES[name]} {{ #{name} }}\n\n`{name}`: {entry.summary}.\n")[1].split(
            "\n##"
        )[0]
        assert (
            f"![{entry.summary}](images/paper/{name}.png)\n\n    softswitch paper {name}\n\n{entry.seeds} seeds.\n"
            in section
        )
        assert "- **held**: it works — 1\n- **did not hold**: so — 2\n" in section


def test_contents_list_every_figure_in_order():
    page = gallery.render_page(make_outputs())
    contents = page.split("\n## Contents\n")[1].split("\n## ")[0]
    names = re.findall(r"\(images/paper/([\w-]+)\.png\){ loading=lazy }\]\(#\1\)", contents)
    assert names == re.findall(r"^### .* { #([\w-]+) }$", page, flags=re.MULTILINE)
    assert set(names) == set(EXPERIMENTS)
    for name in names:
        assert f"[{gallery.TITLES[name]}](#{name})  \n    1 of 2 claims held\n" in contents
    assert contents.count("<div") == contents.count("</div>") == 4
    assert "In short" not in contents, "only headings with experiments below them"


def test_page_has_one_top_heading():
    assert re.findall(r"^# .*$", gallery.render_page(make_outputs()), flags=re.MULTILINE) == [
        "# Gallery: the paper's figures, regenerated"
    ]


def test_experiment_titles_are_unique():
    assert set(gallery.TITLES) == set(EXPERIMENTS)
    assert len(set(gallery.TITLES.values())) == len(EXPERIMENTS)


def test_smaller_seed_count_is_stated():
    experiment_outputs = make_outputs()
    experiment_outputs["safe-rl-alpha"]["seeds"] = 3
    page = gallery.render_page(experiment_outputs)
    assert page.count("3 seeds, from an earlier run; the command now takes 10.") == 1


def test_durations_are_sorted():
    lines = gallery.render_durations(make_outputs()).splitlines()[2:]
    last, first = list(EXPERIMENTS)[-1], next(iter(EXPERIMENTS))
    assert lines[0] == f"| [{last}](#{last}) | {9 + len(EXPERIMENTS)} |"
    assert lines[-2] == f"| [{first}](#{first}) | 10 |"
    assert lines[-1] == f"| all | {sum(10 + i for i in range(len(EXPERIMENTS)))} |"


def test_unfilled_placeholder_is_rejected():
    experiment_outputs = make_outputs()
    del experiment_outputs["np-comparison"]
    with pytest.raises(ValueError, match="np-comparison"):
        gallery.render_page(experiment_outputs)
