"""Render the HTML pages from the templates in `templates/`.

Jinja2 escapes every value. Only the style sheet, drawings (`Canvas`) and HTML that templates produced are inserted as
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from clpu import __version__
from clpu.report.svg import Canvas

#: Widths in which a figure is drawn, by CSS class: for wide and for narrow screens.
_WIDTHS = {"wide": 1060.0, "narrow": 358.0}


@cache
def environment() -> Environment:
    """Return the environment of all pages: everything is escaped, and a missing value is an error."""
    made = Environment(
        loader=PackageLoader("clpu.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    made.globals["version"] = __version__
    return made


def render(template: str, **context: Any) -> str:
    """Render a page with the common style sheet."""
    common = resources.files("clpu.report").joinpath("style.css").read_text(encoding="utf-8")
    return environment().get_template(template).render(css=Markup(common), **context)


@dataclass(frozen=True)
class Figure:
    """A figure drawn for wide and for narrow screens, so that its text keeps its size."""

    screens: tuple[tuple[str, tuple[Canvas, ...]], ...]
    caption: str
    style: str = ""


def draw_figure(draw: Callable[[float], Sequence[Canvas]], caption: str, style: str = "") -> Figure:
    """Draw a figure for both widths of a screen."""
    return Figure(tuple((screen, tuple(draw(width))) for screen, width in _WIDTHS.items()), caption, style)
