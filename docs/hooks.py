"""What MkDocs cannot do from `docs/` alone: the API reference, and the figures in `results/`.

There is a page for each public module, and an index with their first lines; a module appears as
soon as it is in its folder. Pages link to committed figures by their path in the repository, which
is replaced by their place in the site. MkDocs calls `on_…`, Griffe calls `Docstrings`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "mlmcgrad"
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
    "mixed": ("_fit", "result", "search", "design", "grouped.likelihood", "grouped.proposal"),
    "mixed.families": ALL,
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


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make the pages, and add the figures."""
    for name in sorted(figures()):
        path = str(ROOT / "results" / name)
        files.append(File.generated(config, f"results/{IN_SITE}{name}", abs_src_path=path))
    files.append(File.generated(config, "api/index.md", content=index()))
    for name in (name for section in SECTIONS for name in modules(section)):
        content = f"# {name}\n\n::: mlmcgrad.{name}\n"
        files.append(File.generated(config, place(name), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links to committed figures point into the site."""
    inside = page.file.src_uri.startswith("results/")
    return markdown.replace(IN_REPOSITORY, IN_SITE) if inside else markdown


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
