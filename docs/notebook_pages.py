"""Notebooks as pages of the site, with the outputs that are stored in them. To run them anew: make notebooks.

MkDocs calls the functions whose names begin with ``on_`` (``hooks:`` in mkdocs.yml). A notebook becomes a Markdown page
and its pictures files beside it, so that it looks like every other page and fetches nothing from elsewhere.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "notebooks"


def as_page(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook's page in Markdown, and the pictures that it shows, by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode("".join(data["image/png"]))
                words = "".join(cell.get("metadata", {}).get("shows", "A figure"))
                parts.append(f"![{words}]({file})")
            elif text := "".join(output.get("text", data.get("text/plain", ""))).rstrip():
                parts.append(f"```text\n{text}\n```")
    parts.insert(1, f"[This page as a notebook]({name}.ipynb){{ download }}")
    return "\n\n".join(parts) + "\n", pictures


def on_files(files: Any, config: Any) -> Any:
    """Put every notebook's page and pictures among the site's files."""
    from mkdocs.structure.files import File

    for path in sorted(FOLDER.glob("*.ipynb")):
        page, pictures = as_page(json.loads(path.read_text(encoding="utf-8")), path.stem)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
        for file, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{file}", content=picture))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to a notebook lead to its page; on the page itself they lead to the notebook."""
    if page.file.src_uri.startswith("notebooks/"):
        return markdown
    return re.sub(r"(\]\([^)\s]*notebooks/[\w-]+)\.ipynb\)", r"\1.md)", markdown)


def run(path: Path) -> dict[str, Any]:
    """Run a notebook from its beginning: the same notebook with what came out."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, record_timing=False).execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            output.get("metadata", {}).clear()
            if "image/png" in output.get("data", {}):
                output["data"].pop("text/plain", None)
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def main() -> None:
    """Run every notebook, and store what came out."""
    import nbformat

    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = run(path)
        nbformat.write(notebook, path)
        print(path)


if __name__ == "__main__":
    main()
