"""Figures as SVG inside the page: their colours become those of its theme, light or dark."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping
from html import escape

import matplotlib
from matplotlib.figure import Figure

from softswitch.support.plotting import BLUE, GREEN, GREY, PURPLE, VERMILLION

AMBER, DEEP_GREEN, FAINT, BLACK = "#96690a", "#00795a", "#a9b8c8", "#000000"
VARIABLES = {
    BLUE: "first",
    GREY: "quiet",
    GREEN: "third",
    PURPLE: "fourth",
    VERMILLION: "bad",
    AMBER: "unsure",
    DEEP_GREEN: "good",
    FAINT: "faint",
    BLACK: "text",
    "#b0b0b0": "line",
    "#cccccc": "line",
}
"""The page's variable for each colour that figures have."""
OWN_IDS = re.compile(r' id="[a-zA-Z0-9]+_\d+"')
"""Names that matplotlib gives to groups, the same in every figure."""
PLACES, DIGITS = re.compile(r' (?:d|x|y|transform)="[^"]*"'), re.compile(r"(\d+\.\d\d)\d+")
"""Where things are; a hundredth of a point is enough."""


def themed_svg(figure: Figure, key: str, tips: Mapping[str, str] | None = None) -> str:
    """The figure as an SVG element.

    Args:
        figure: it; its grounds are left out.
        key: tells it from the page's other figures: names in it are made of this.
        tips: what is told where the mouse rests on an artist, by its ``gid``.
    """
    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)
    stream = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": key}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # text is drawn by the browser, with its own letters
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = stream.getvalue()
    text = re.sub(r"<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL).strip()
    text = OWN_IDS.sub("", text)
    for gid, tip in (tips or {}).items():
        text = text.replace(f'<g id="{gid}">', f"<g><title>{escape(tip)}</title>")
    for colour, name in VARIABLES.items():
        text = re.sub(rf"{colour}(?![0-9a-f])", f"var(--{name})", text, flags=re.IGNORECASE)
    text = PLACES.sub(lambda places: DIGITS.sub(r"\1", places[0]), text)
    return re.sub(r'<svg([^>]*?) width="[^"]*"( height="[^"]*")?', r"<svg\1", text, count=1)
