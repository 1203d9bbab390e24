"""What every page has: the document with nothing outside it, the list of requests, keys and figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from importlib import resources

from clpu import __version__
from clpu.report.svg import Canvas
from clpu.requests import Instruction, Stream

_WIDE, _NARROW = 1060.0, 358.0


def document(title: str, body: Sequence[str], style: str = "") -> str:
    """A whole page of these parts; `style` is added to the common one."""
    common = resources.files("clpu.report").joinpath("style.css").read_text(encoding="utf-8")
    # The policy makes sure of it: nothing is loaded from anywhere, and no script runs.
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{common}{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + f"\n<footer>Made by clpu {escape(__version__)}. The paper: Liu, Liu, Stone, <i>Continual Learning and "
        "Private Unlearning</i>, CoLLAs 2022.</footer>\n</main>\n</body>\n</html>\n"
    )


def request_list(stream: Stream) -> str:
    """The requests in their order, forgets marked."""
    words = {"R": "remember", "T": "learn temporarily", "F": "forget"}
    items = "".join(
        f"<li{' class=forget' if request.instruction is Instruction.FORGET else ''} "
        f'title="{escape(words[request.instruction.value])} task {escape(request.task)}">{escape(str(request))}</li>'
        for request in stream
    )
    return f'<ol class="requests" aria-label="Requests">{items}</ol>'


def key(entries: Sequence[tuple[str, str]]) -> str:
    """What the lines of a figure mean: pairs of a style and a text."""
    items = "".join(
        f'<li><svg viewBox="0 0 26 12" aria-hidden="true"><line x1="1" y1="6" x2="25" y2="6" class="{style}"/></svg>'
        f"{escape(text)}</li>"
        for style, text in entries
    )
    return f'<ul class="key">{items}</ul>'


def figure(draw: Callable[[float], Sequence[Canvas]], caption: str, style: str = "") -> str:
    """A figure drawn twice, for wide and narrow screens, so that its text keeps its size."""
    both = ""
    for screen, width in (("wide", _WIDE), ("narrow", _NARROW)):
        drawings = "".join(f"<div>{canvas}</div>" for canvas in draw(width))
        both += f'<div class="{screen}"><div class="{style}">{drawings}</div></div>'
    return f"<figure>{both}<figcaption>{escape(caption)}</figcaption></figure>"
