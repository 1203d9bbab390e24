"""Draw SVG: a canvas, scales with round ticks, labels that do not overlap.

Colours are CSS classes of the page (style.css), so that one drawing works in light and dark mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

# Width of a character relative to its size, a generous estimate: the reader's font is unknown.
_CHARACTER = 0.66


@dataclass
class Canvas:
    """An SVG drawing; y grows downwards.

    >>> canvas = Canvas(100, 50, "a line")
    >>> canvas.line(0, 0, 100, 50, "axis")
    >>> print(canvas)
    <svg viewBox="0 0 100 50" role="img" aria-label="a line"><line x1="0" y1="0" x2="100" y2="50" class="axis"/></svg>
    """

    width: float
    height: float
    label: str
    parts: list[str] = field(default_factory=list)

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        self.parts.append(f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" class="{style}"/>')

    def rect(self, x: float, y: float, width: float, height: float, style: str, tip: str = "") -> None:
        size = f'width="{_n(max(0, width))}" height="{_n(max(0, height))}"'
        self.parts.append(f'<rect x="{_n(x)}" y="{_n(y)}" {size} class="{style}"{_tip(tip, "rect")}')

    def circle(self, x: float, y: float, radius: float, style: str, tip: str = "") -> None:
        where = f'cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}"'
        self.parts.append(f'<circle {where} class="{style}"{_tip(tip, "circle")}')

    def path(self, points: Sequence[tuple[float, float]], style: str, *, closed: bool = False, tip: str = "") -> None:
        """Draw a line through points."""
        steps = "L".join(f"{_n(x)} {_n(y)}" for x, y in points)
        self.parts.append(f'<path d="M{steps}{"Z" if closed else ""}" class="{style}"{_tip(tip, "path")}')

    def cross(self, x: float, y: float, size: float, style: str, tip: str = "") -> None:
        """Draw an ✕: something ends here."""
        arms = f"M{_n(x - size)} {_n(y - size)}L{_n(x + size)} {_n(y + size)}"
        arms += f"M{_n(x - size)} {_n(y + size)}L{_n(x + size)} {_n(y - size)}"
        self.parts.append(f'<path d="{arms}" class="{style}"{_tip(tip, "path")}')

    def text(self, x: float, y: float, text: str, style: str = "", anchor: str = "start", turn: bool = False) -> None:
        turned = f' transform="rotate(-90 {_n(x)} {_n(y)})"' if turn else ""
        styled = f' class="{style}"' if style else ""
        self.parts.append(f'<text x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}"{styled}{turned}>{escape(text)}</text>')

    def __html__(self) -> str:
        """Return the drawing as HTML for templates: all text in it is escaped already."""
        return str(self)

    def __str__(self) -> str:
        box = f'viewBox="0 0 {_n(self.width)} {_n(self.height)}"'
        return f'<svg {box} role="img" aria-label="{escape(self.label)}">{"".join(self.parts)}</svg>'


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _tip(tip: str, tag: str) -> str:
    return f"><title>{escape(tip)}</title></{tag}>" if tip else "/>"


@dataclass(frozen=True)
class Scale:
    """Map values to positions on a linear, logarithmic or square-root axis.

    >>> scale = Scale(0, 10, 100, 200)
    >>> scale(5), scale(50)
    (150.0, 200.0)
    """

    low: float
    high: float
    start: float
    end: float
    kind: str = "linear"

    def __call__(self, value: float) -> float:
        """Return the position of a value; values outside the scale are put on its edge."""
        bend = _BENDS[self.kind]
        value = min(max(value, self.low), self.high)
        share = (bend(value) - bend(self.low)) / ((bend(self.high) - bend(self.low)) or 1)
        return self.start + share * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Return round values within the scale."""
        if self.kind == "linear":
            return linear_ticks(self.low, self.high, about)
        if self.kind == "sqrt":
            return self._sqrt_ticks(about)
        for digits in ((1, 2, 5), (1, 3), (1,)):
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            ticks = [d * 10.0**e for e in decades for d in digits if self.low <= d * 10.0**e <= self.high * 1.0001]
            if len(ticks) <= about + 2:
                break
        return ticks

    def _sqrt_ticks(self, about: int) -> list[float]:
        """Return 0 and those of 1, 2, 5 times powers of ten that are far enough apart on the axis."""
        top = math.floor(math.log10(self.high)) if self.high > 0 else 0
        ticks = [self.low]
        for value in (d * 10.0**e for e in range(top - 3, top + 1) for d in (1, 2, 5)):
            if value <= self.high and abs(self(value) - self(ticks[-1])) >= abs(self.end - self.start) / (about + 1):
                ticks.append(value)
        return ticks


_BENDS: dict[str, Callable[[float], float]] = {"linear": float, "log": math.log10, "sqrt": math.sqrt}


def linear_ticks(low: float, high: float, about: int) -> list[float]:
    """Return about `about` multiples of 1, 2 or 5 times a power of ten.

    >>> linear_ticks(0, 100, 5)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    if high <= low:
        return [low]
    raw = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(m for m in (1, 2, 5, 10) if raw <= m * power * 1.0001)
    first = math.ceil(low / step - 1e-9)
    ticks = (round(k * step, 10) for k in range(first, math.floor(high / step + 1e-9) + 1))
    return [min(max(tick, low), high) for tick in ticks]  # rounding must not move one over the edge


def text_width(text: str, size: float = 12) -> float:
    """Estimate the width of a text."""
    return len(text) * size * _CHARACTER


def spread_out(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move positions apart to keep a gap, as little as order and bounds allow.

    >>> spread_out([10, 11, 50], gap=10, low=0, high=100)
    [5.5, 15.5, 50.0]
    """

    def top(block: Sequence[int]) -> float:
        middle = sum(positions[i] for i in block) / len(block)
        return max(low, min(middle - (len(block) - 1) * gap / 2, high - (len(block) - 1) * gap))

    # Blocks of touching labels; a block is centred on the mean of its labels' positions.
    blocks: list[list[int]] = []
    for i in sorted(range(len(positions)), key=lambda i: positions[i]):
        blocks.append([i])
        while len(blocks) > 1 and top(blocks[-2]) + len(blocks[-2]) * gap > top(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    placed = [0.0] * len(positions)
    for block in blocks:
        for rank, i in enumerate(block):
            placed[i] = top(block) + rank * gap
    return placed


@dataclass
class Labels:
    """Places labels next to points so that they cover neither points nor each other."""

    left: float
    top: float
    right: float
    bottom: float
    size: float = 12
    taken: list[tuple[float, float, float, float]] = field(default_factory=list)

    def block(self, x: float, y: float, radius: float) -> None:
        """Keep a point free."""
        self.taken.append((x - radius, y - radius, x + radius, y + radius))

    def place(self, x: float, y: float, radius: float, text: str) -> tuple[float, float, str]:
        """Choose the place of a point's label: x, y of its baseline, and its anchor."""
        width, height, pad = text_width(text, self.size), self.size, radius + 4
        choices: list[tuple[float, float, str]] = []
        for ring in (0.0, 10.0, 20.0, 32.0):
            choices += [
                (x + pad, y + ring, "start"),
                (x - pad, y + ring, "end"),
                (x + pad, y - ring, "start"),
                (x - pad, y - ring, "end"),
                (x, y - pad - ring - height / 3, "middle"),
                (x, y + pad + ring + height / 3, "middle"),
                (x - radius, y - pad - ring - height / 3, "start"),
                (x - radius, y + pad + ring + height / 3, "start"),
                (x + radius, y - pad - ring - height / 3, "end"),
                (x + radius, y + pad + ring + height / 3, "end"),
            ]
        boxes = [self._box(cx, cy, anchor, width, height) for cx, cy, anchor in choices]
        best = min(range(len(choices)), key=lambda i: (self._overlap(boxes[i]), i))
        self.taken.append(boxes[best])
        at, baseline, anchor = choices[best]
        return at, baseline + height * 0.35, anchor

    def _box(self, x: float, y: float, anchor: str, width: float, height: float) -> tuple[float, float, float, float]:
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        return left, y - height / 2, left + width, y + height / 2

    def _overlap(self, box: tuple[float, float, float, float]) -> float:
        left, top, right, bottom = box
        outside = max(0, self.left - left) + max(0, right - self.right)
        outside += max(0, self.top - top) + max(0, bottom - self.bottom)
        shared = sum(
            max(0.0, min(right, r) - max(left, a)) * max(0.0, min(bottom, b) - max(top, t)) for a, t, r, b in self.taken
        )
        return outside * 100 + shared
