"""The notebooks reproduce their stored outputs and become pages of the site."""

import json
import sys
from pathlib import Path

import pytest

from test_code_blocks import check_names, outputs_match

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import notebook_pages  # noqa: E402

NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def output_texts(notebook):
    """Yield the outputs of a notebook's cells as text, with a placeholder for pictures."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            text = "a picture" if "image/png" in data else "".join(output.get("text", data.get("text/plain", "")))
            if text.strip():
                yield text


def test_notebooks_are_found():
    assert len(NOTEBOOKS) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_reproduces_stored_output(path, monkeypatch):
    for setting in ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS"):
        monkeypatch.delenv(setting)  # the kernel compiles with the default optimization
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    stored = list(output_texts(json.loads(path.read_text(encoding="utf-8"))))
    assert stored
    outputs = [output for cell in json.loads(path.read_text("utf-8"))["cells"] for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.get("name") == "stderr"]  # a warning is a mistake
    for printed, stored_text in zip(output_texts(notebook_pages.run(path)), stored, strict=True):
        assert outputs_match(printed, stored_text), printed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_uses_existing_names(path):
    names: dict = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            check_names("".join(cell["source"]), names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_page_has_programs_outputs_and_figures(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    page, pictures = notebook_pages.as_page(notebook, path.stem)
    assert page.startswith("# ")
    programs = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert page.count("```python\n") == len(programs)
    assert page.count("```text\n") + len(pictures) == len(list(output_texts(notebook)))
    for file, picture in pictures.items():
        assert f"]({file})" in page
        assert picture.startswith(b"\x89PNG")


def test_notebook_links_point_to_pages():
    class Page:
        class file:  # noqa: N801
            src_uri = "index.md"

    text = "[a](notebooks/first-model.ipynb) and [b](../notebooks/x-y.ipynb), not [c](other.ipynb)"
    expected = "[a](notebooks/first-model.md) and [b](../notebooks/x-y.md), not [c](other.ipynb)"
    assert notebook_pages.on_page_markdown(text, Page) == expected
    Page.file.src_uri = "notebooks/first-model.md"
    assert notebook_pages.on_page_markdown(text, Page) == text
