"""Figures for a narrow page: at most two panels in a row, and nothing wider than the page."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from softswitch_experiments import plotting


@pytest.mark.parametrize(("rows", "columns", "lines"), [(1, 2, 1), (2, 3, 4), (2, 4, 4), (1, 5, 3)])
def test_rows_have_two_panels(rows, columns, lines):
    figure, axes = plotting.make_narrow_panels(rows, columns, "a title")
    assert axes.shape == (rows, columns)
    assert figure.get_figwidth() == plotting.NARROW_WIDTH
    places = [panel.get_subplotspec() for panel in axes.flat]
    assert [(p.rowspan.start, p.colspan.start) for p in places] == [
        (row * (lines // rows) + column // 2, column % 2) for row in range(rows) for column in range(columns)
    ]
    wide = [len(p.colspan) == 2 for p in places]
    assert wide == [columns % 2 == 1 and column == columns - 1 for _ in range(rows) for column in range(columns)]


def draw(figure):
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return figure.bbox, canvas.get_renderer()


def test_long_text_fits_figure_and_panel():
    figure, axes = plotting.make_narrow_panels(1, 2, "many words " * 20)
    for panel in axes.flat:
        panel.set(title="the words above a panel " * 4)
        panel.plot([0, 1], label="a label of some length, with settings")
        panel.plot([1, 0], label="another label of some length, tuned")
    plotting.add_legend(figure, axes.flat, columns=6)
    page, renderer = draw(figure)
    for artist in (figure._suptitle, figure.legends[0], *(panel.title for panel in axes.flat)):
        extent = artist.get_window_extent(renderer)
        assert page.x0 <= extent.x0
        assert extent.x1 <= page.x1
    left, right = (panel.title.get_window_extent(renderer) for panel in axes[0])
    assert left.x1 < right.x0


def test_wide_panel_has_room_for_long_title():
    _, axes = plotting.make_narrow_panels(1, 3)
    for panel in axes.flat:
        panel.set(title="sixty letters, more than fit above a panel with one beside it")
    assert [panel.get_title().count("\n") for panel in axes.flat] == [1, 1, 0]


def test_wide_figure_keeps_legend_columns():
    figure, axes = plotting.make_panels(1, 3, width=5.0)
    for label in ("a label of some length, with settings", "b", "c"):
        axes[0, 0].plot([0, 1], label=label)
    plotting.add_legend(figure, axes.flat, columns=3)
    assert figure.legends[0]._ncols == 3
