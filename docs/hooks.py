"""What MkDocs cannot do from `docs/` alone: API pages, notebooks, the gallery, committed figures.

There is a page for each public module, and an index with their first lines; a module appears as
soon as it is in its folder. A page whose Python blocks are a program can be downloaded as a
notebook, whose outputs are the `text` blocks that tests hold to what the program prints. The
gallery is made from the docstrings of `examples/`. Pages link to committed figures by their path in
the repository, which is replaced by their place in the site. MkDocs calls `on_…`, Griffe calls
`Docstrings`.
"""

from __future__ import annotations

import ast
import base64
import json
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "mlmcgrad"
PROGRAM = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", flags=re.DOTALL)
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)(?:\{[^}]*\})?")
GALLERY = "<!-- examples -->"
COMBINED = re.compile(r"(?<=[\u0300-\u036f])_")
IN_REPOSITORY, IN_SITE = "../../results/", "committed/"  # seen from the pages in docs/results
ALL = ("*",)
ITSELF = ("",)  # the package: its modules are private
SECTIONS: dict[str, tuple[str, ...]] = {
    "": ("gradient", "lengths", "measure", "levels", "schedules", "backward"),
    "estimators": ALL,
    "kernels": ALL,
    "optim": ALL,
    "diagnostics": ITSELF,
    "theory": ALL,
    "problems": ALL,
    "mixed": ("_fit", "result", "families", "search", "design", "grouped"),
    "iwae": ALL,
    "paper.training": ("config", "loop"),
    "paper.datasets": ("dataset", "download"),
    "paper.runs": ("folder", "pool"),
}
INTRODUCTION = """# API

One page a module; the formula of a thing is on the page of the module named after it. Everything
public is also a name of its package: `mlmcgrad.kernels.MALA`, `mlmcgrad.optim.AMSGrad`, …; the
names used most are those of `mlmcgrad` itself: `MarkovGradient`, `Estimate`, `MLMC`, `Average`.
"""


def modules(section: str) -> list[str]:
    """Names of the modules of a section, from the package on: `kernels.mala`."""
    if SECTIONS[section] is not ALL:
        names = list(SECTIONS[section])
    else:
        paths = sorted((PACKAGE / section.replace(".", "/")).glob("*.py"))
        names = [path.stem for path in paths if not path.stem.startswith("_")]
    return [".".join(filter(None, (section, name))) for name in names]


def first_line(module: str) -> str:
    """What the docstring of a module begins with."""
    path = PACKAGE / f"{module.replace('.', '/')}.py"
    if not path.exists():
        path = path.with_suffix("") / "__init__.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).rstrip(":")


def place(module: str) -> str:
    """Path of a module's page."""
    return f"api/{module.replace('.', '/')}.md"


def index() -> str:
    """The page `api/index.md`."""
    parts = [INTRODUCTION]
    for section in SECTIONS:
        rows = [
            f"| [`{name}`]({place(name).removeprefix('api/')}) | {first_line(name)} |\n"
            for name in modules(section)
        ]
        parts.append(f"## {section or 'The core'}\n\n| module | |\n|---|---|\n{''.join(rows)}")
    return "\n".join(parts)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages into the navigation, after `api/index.md`."""
    for entry in config.nav or []:
        if "API" in entry:
            for section in SECTIONS:
                pages = [
                    {name.split(".")[-1].lstrip("_"): place(name)} for name in modules(section)
                ]
                entry["API"].append({section or "core": pages})
    return config


def figures() -> set[str]:
    """The committed figures that pages link to, seen from `results/`."""
    link = re.compile(rf"\]\({re.escape(IN_REPOSITORY)}([^)]+)\)")
    pages = (ROOT / "docs" / "results").glob("*.md")
    return {name for page in pages for name in link.findall(page.read_text(encoding="utf-8"))}


def with_notebook(page: str) -> bool:
    """Return whether a page can be downloaded as a notebook."""
    return page.startswith("tutorials/") or page == "five-minutes.md"


def notebook(text: str, folder: Path) -> dict[str, Any]:
    """Make a notebook from the text of a page; `folder` is where its pictures are found."""
    cells: list[dict[str, Any]] = []

    def add(kind: str, source: str, **more: Any) -> None:
        name = f"cell-{len(cells)}"
        cells.append({"cell_type": kind, "id": name, "metadata": {}, "source": source, **more})

    def prose(part: str) -> None:
        attachments: dict[str, Any] = {}

        def attach(found: re.Match[str]) -> str:
            path = folder / found[2]
            kind = "image/svg+xml" if path.suffix == ".svg" else "image/png"
            attachments[path.name] = {kind: base64.b64encode(path.read_bytes()).decode()}
            return f"![{found[1]}](attachment:{path.name})"

        part = IMAGE.sub(attach, part)
        part = re.sub(r"\[([^\]]+)\](?:\((?!attachment:|https?:)[^)]+\)|\[[\w.]+\])", r"\1", part)
        if part.strip():
            add("markdown", part.strip(), **({"attachments": attachments} if attachments else {}))

    place = count = 0
    for found in PROGRAM.finditer(text):
        prose(text[place : found.start()])
        place, count = found.end(), count + 1
        shown = {"output_type": "stream", "name": "stdout", "text": found[2]}
        outputs = [shown] if found[2] else []
        add("code", found[1].rstrip("\n"), execution_count=count, outputs=outputs)
    prose(text[place:])
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def gallery() -> str:
    """Describe the examples: their docstrings, with the picture that they draw."""
    parts = []
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        title, _, rest = text.partition("\n\n")
        picture = re.search(r"draws (\w+\.png)", " ".join(text.split()))
        image = f'![{title}](figures/{picture[1]}){{ width="480" }}\n\n' if picture else ""
        parts.append(f"## {title.rstrip('.')}\n\n`python examples/{path.name}`\n\n{image}{rest}\n")
    return "\n".join(parts)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make the pages and the notebooks, and add the figures."""
    for page in list(files.documentation_pages()):
        if with_notebook(page.src_uri):
            source = ROOT / "docs" / page.src_uri
            made = notebook(source.read_text(encoding="utf-8"), source.parent)
            name = f"notebooks/{source.stem}.ipynb"
            files.append(File.generated(config, name, content=json.dumps(made, indent=1)))
    for name in sorted(figures()):
        path = str(ROOT / "results" / name)
        files.append(File.generated(config, f"results/{IN_SITE}{name}", abs_src_path=path))
    files.append(File.generated(config, "api/index.md", content=index()))
    for name in (name for section in SECTIONS for name in modules(section)):
        content = f"# {name}\n\n::: mlmcgrad.{name}\n"
        files.append(File.generated(config, place(name), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Link to committed figures and notebooks in the site, and fill in the gallery."""
    uri = page.file.src_uri
    if uri.startswith("results/"):
        markdown = markdown.replace(IN_REPOSITORY, IN_SITE)
    if with_notebook(uri):
        place = f"{'../' * uri.count('/')}notebooks/{Path(uri).stem}.ipynb"
        link = f"[Download this page as a notebook]({place}){{ download }}"
        title, _, rest = markdown.partition("\n\n")
        markdown = f"{title}\n\n{link}\n\n{rest}"
    return markdown.replace(GALLERY, gallery())


class Docstrings(griffe.Extension):
    """Makes Markdown of docstrings: sections named `Example`, formulas, and indices as in λ̲_n."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every object."""
        if obj.docstring is None:
            return
        text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
        if obj.is_module:  # an indented line is a formula, also right after a line of text
            text = re.sub(r"^(\S.*)\n(?=    )", r"\1\n\n", text, flags=re.MULTILINE)
            text = re.sub(r"^(    .*)\n(?=\S)", r"\1\n\n", text, flags=re.MULTILINE)
        # After a combining mark Markdown takes an underscore for the begin of an emphasis.
        obj.docstring.value = "\n".join(
            line if obj.is_module and line.startswith("    ") else COMBINED.sub(r"\\_", line)
            for line in text.split("\n")
        )
