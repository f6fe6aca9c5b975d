"""Results as text, and as HTML for notebooks: titles, tables and sentences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Table:
    """A table whose first row is the head; the first columns are aligned to the left.

    Example:
        >>> print(Table([("name", "p"), ("<b>", "0.05")]))
        name     p
        <b>   0.05
        >>> Table([("name", "p"), ("<b>", "0.05")]).html()
        '<table><tr><th>name</th><th>p</th></tr><tr><td>&lt;b&gt;</td><td>0.05</td></tr></table>'
    """

    rows: Sequence[Sequence[str]]
    left: int = 1

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        sides = ["<" if i < self.left else ">" for i in range(len(widths))]
        return "\n".join(
            "  ".join(map("{:{}{}}".format, row, sides, widths)).rstrip() for row in self.rows
        )

    def html(self) -> str:
        """Return an HTML table of escaped cells."""
        tags = ["th", *["td"] * (len(self.rows) - 1)]
        lines = [
            "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
            for tag, row in zip(tags, self.rows, strict=True)
        ]
        return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


class Report(ABC):
    """A result that describes itself."""

    @abstractmethod
    def _parts(self) -> list[str | Table]:
        """Return a title, then tables and sentences."""

    def __str__(self) -> str:
        return "\n".join(map(str, self._parts()))

    def _repr_html_(self) -> str:
        """Return the result as HTML, for notebooks."""
        title, *others = self._parts()
        lines = [x.html() if isinstance(x, Table) else f"<p>{escape(x)}</p>" for x in others]
        return f"<div><p><b>{escape(str(title))}</b></p>{''.join(lines)}</div>"
