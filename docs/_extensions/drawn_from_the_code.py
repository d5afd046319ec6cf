"""Tables and a drawing that are made from the package at each build, so that they cannot drift.

``{transition-drawing}`` and ``{transition-table}`` show ``sqla_taskqueue.states.TRANSITIONS``,
``{limits-table}`` shows the fields of ``Limits`` with the defaults of both kinds of class,
``{columns-table}`` the columns of a mixin.
"""

# ruff: noqa: INP001 - not a package: conf.py puts its folder on the path

from __future__ import annotations

import re
from dataclasses import fields
from datetime import timedelta
from html import escape
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import MappedColumn

from sqla_taskqueue import Limits, mixins
from sqla_taskqueue.states import TRANSITIONS, TaskState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sphinx.application import Sphinx

NEW = "(new)"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], literal: set[int]) -> nodes.table:
    """Return a table; the columns numbered in *literal* are set as code, word by word."""

    def cell(index: int, text: str, *, header: bool) -> nodes.entry:
        paragraph = nodes.paragraph()
        if header or index not in literal:
            paragraph += nodes.Text(text)
        else:
            for number, word in enumerate(text.split(", ")):
                paragraph += [nodes.Text(", ")] if number else []
                paragraph += nodes.literal(word, word)
        return nodes.entry("", paragraph)

    def row(texts: Sequence[str], *, header: bool) -> nodes.row:
        return nodes.row("", *(cell(i, text, header=header) for i, text in enumerate(texts)))

    group = nodes.tgroup("", cols=len(head))
    group += [nodes.colspec(colwidth=1) for _ in head]
    group += nodes.thead("", row(head, header=True))
    group += nodes.tbody("", *(row(texts, header=False) for texts in rows))
    return nodes.table("", group, classes=["colwidths-auto"])


def _moves() -> dict[tuple[str, str], tuple[list[str], list[str]]]:
    """Return, for each operation and target, the sources and the events, in the table's order."""
    moves: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
    for move in TRANSITIONS:
        sources, events = moves.setdefault((move.operation, move.target.value), ([], []))
        source = NEW if move.source is None else move.source.value
        if source not in sources:
            sources.append(source)
        if move.event.value not in events:
            events.append(move.event.value)
    return moves


class TransitionTable(SphinxDirective):
    """Every move of a task as a table."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        rows = [
            (operation, ", ".join(sources), target, ", ".join(events))
            for (operation, target), (sources, events) in _moves().items()
        ]
        return [_table(("operation", "from", "to", "event"), rows, {0, 1, 2, 3})]


class TransitionDrawing(SphinxDirective):
    """Every move of a task as an arrow between columns, one line for each."""

    def run(self) -> list[nodes.Node]:
        """Return the drawing, in the colours of the theme."""
        return [nodes.raw("", drawing(), format="html")]


_LABEL, _STEP, _TOP, _LINE = 180, 80, 40, 30
_HEAD = """
<svg role="img" aria-label="The moves between the states of a task" viewBox="0 0 {width} {height}"
 xmlns="http://www.w3.org/2000/svg" fill="currentColor" stroke="none"
 style="width: 100%; height: auto; font-family: inherit; font-size: 13px">
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"
 orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" fill="var(--color-brand-content)"/>
</marker></defs>
"""


def drawing() -> str:
    """Return the SVG."""
    columns = [NEW, *(state.value for state in TaskState)]
    x = {name: _LABEL + _STEP // 2 + _STEP * index for index, name in enumerate(columns)}
    moves = _moves()
    width = _LABEL + _STEP * len(columns)
    height = _TOP + _LINE * len(moves) + 10
    parts = [_HEAD.format(width=width, height=height)]
    parts += [
        (
            f'<text x="{x[name]}" y="20" text-anchor="middle" font-weight="600">{name}</text>'
            f'<line x1="{x[name]}" y1="30" x2="{x[name]}" y2="{height - 6}"'
            ' stroke="currentColor" stroke-opacity="0.25"/>'
        )
        for name in columns
    ]
    for number, ((operation, target), (sources, _)) in enumerate(moves.items()):
        y = _TOP + _LINE * number + _LINE // 2
        parts.append(
            f'<text x="0" y="{y + 4}" font-family="var(--font-stack--monospace)"'
            f' font-size="12">{escape(operation)}</text>'
        )
        parts += [_arrow(x[source], x[target], y) for source in sources]
    parts.append("</svg>")
    return "".join(parts)


def _arrow(start: int, end: int, y: int) -> str:
    style = (
        'fill="none" stroke="var(--color-brand-content)" stroke-width="1.6"'
        ' marker-end="url(#head)"'
    )
    if start == end:
        return f'<path d="M{start} {y - 8} c26 -4 26 20 3 16" {style}/>'
    gap = 2 if end > start else -2
    return (
        f'<circle cx="{start}" cy="{y}" r="3.5" fill="var(--color-brand-content)"/>'
        f'<path d="M{start} {y} L{end - gap} {y}" {style}/>'
    )


class LimitsTable(SphinxDirective):
    """The fields of ``Limits``: what they bound, and both sets of defaults."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        meaning = _documented(Limits.__doc__ or "")
        ordinary, board = Limits(), Limits.board()
        rows = [
            (
                field.name,
                meaning[field.name],
                _shown(getattr(ordinary, field.name)),
                _shown(getattr(board, field.name)),
            )
            for field in fields(Limits)
        ]
        return [_table(("field", "meaning", "Limits()", "Limits.board()"), rows, {0})]


class ColumnsTable(SphinxDirective):
    """The columns of a mixin: attribute, type on PostgreSQL, and what the source says of it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        name = self.arguments[0]
        said = ModuleAnalyzer.for_module(mixins.__name__).find_attr_docs()
        rows = [
            (
                attribute,
                str(value.column.type.compile(postgresql.dialect())).lower(),
                "" if value.column.nullable else "not null",
                re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`|``", r"\1", " ".join(said[name, attribute]))
                if (name, attribute) in said
                else "",
            )
            for attribute, value in vars(getattr(mixins, name)).items()
            if isinstance(value, MappedColumn)
        ]
        return [_table(("attribute", "type", "", "meaning"), rows, {0})]


def _documented(docstring: str) -> dict[str, str]:
    """Return the arguments that a docstring explains."""
    _, _, arguments = docstring.partition("Args:\n")
    found = re.findall(r"^ {8}(\w+): ((?:.|\n {12})+)", arguments, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text).replace("``", "") for name, text in found}


def _shown(value: Any) -> str:
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:,.0f} s"
    return "no limit" if value is None else f"{value:,}"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("transition-table", TransitionTable)
    app.add_directive("transition-drawing", TransitionDrawing)
    app.add_directive("limits-table", LimitsTable)
    app.add_directive("columns-table", ColumnsTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
