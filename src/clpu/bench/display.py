"""Progress of a benchmark: bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.text import Text

from clpu import terminal
from clpu.bench.engine import Event
from clpu.bench.pieces import Piece
from clpu.bench.plan import request_costs
from clpu.report.formatting import duration
from clpu.requests import Stream

#: Where there are no bars, a long piece says how far it is at most this often.
SECONDS_BETWEEN_LINES = 30.0


class Display:
    """Listens to an engine's events. The time left comes from the share of the estimated work that is done."""

    def __init__(self, pieces: Sequence[Piece], console: Console, quiet: bool = False) -> None:
        self.pieces = {piece.name: piece for piece in pieces}
        self.costs = {piece.name: request_costs(piece) for piece in pieces}
        self.total = sum(map(sum, self.costs.values())) or 1.0
        self.done = dict.fromkeys(self.pieces, 0.0)
        self.console, self.quiet = console, quiet
        self.start = self.said = time.monotonic()
        self.lines: dict[str, TaskID] = {}
        note = TextColumn("{task.fields[note]}", style="dim", markup=False)
        columns = ("{task.description}", BarColumn(bar_width=24), "{task.percentage:>3.0f} %", note)
        self.bars = terminal.progress(console, *columns, quiet=quiet)
        self.overall = self.bars.add_task("whole run", total=1.0, note="")

    def __enter__(self) -> Display:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    @property
    def share(self) -> float:
        """The share of the estimated work that is done, from 0 to 1."""
        return sum(self.done.values()) / self.total

    def left(self) -> str:
        """The time left, in words."""
        elapsed = time.monotonic() - self.start
        if self.share < 0.01 or elapsed < 3:
            return "time left not known yet"
        return f"about {duration(elapsed * (1 - self.share) / self.share)} left"

    def __call__(self, event: Event) -> None:
        piece, costs = self.pieces[event.piece], self.costs[event.piece]
        name = f"{piece.method} {piece.group}" + ("" if len(piece.seeds) > 1 else f" seed {piece.seeds[0]}")
        if event.kind == "step":
            inside = event.step / event.steps * costs[event.request - 1]
            self.done[event.piece] = max(self.done[event.piece], sum(costs[: event.request - 1]) + 0.98 * inside)
            request = Stream(piece.requests)[event.request - 1]
            note = f"{request} ({event.request} of {len(costs)}), {event.phase} {event.step:,}/{event.steps:,} steps"
            self._line(event.piece, name, note)
            self._now_and_then(f"{name}: {note}")
        elif event.kind == "request":
            self.done[event.piece] = sum(costs[: event.request])
            self._now_and_then(f"{name}: request {event.request} of {len(costs)}")
        else:
            self.done[event.piece] = sum(costs)
            if event.piece in self.lines:
                self.bars.remove_task(self.lines.pop(event.piece))
            finished = sum(value >= sum(self.costs[n]) for n, value in self.done.items())
            word = "done" if event.kind == "done" else "failed"
            self._say(f"{name}: {word} ({finished} of {len(self.pieces)} jobs; {self._how_far()})")
            if event.kind == "failed":
                self._say(f"  {event.reason.strip()}", "red")
        self.bars.update(self.overall, completed=self.share, note=self.left())

    def _now_and_then(self, text: str) -> None:
        """Where there are no bars, a line from time to time."""
        if not self.console.is_terminal and time.monotonic() - self.said >= SECONDS_BETWEEN_LINES:
            self._say(f"{text} ({self._how_far()})")

    def _how_far(self) -> str:
        return "100 %" if self.share > 1 - 1e-9 else f"{100 * self.share:.0f} %, {self.left()}"

    def _line(self, piece: str, name: str, note: str) -> None:
        if piece not in self.lines:
            self.lines[piece] = self.bars.add_task(terminal.escape(name), total=1.0, note="")
        whole = sum(self.costs[piece])
        self.bars.update(self.lines[piece], completed=self.done[piece] / whole, note=terminal.escape(note))

    def _say(self, text: str, style: str = "") -> None:
        self.said = time.monotonic()
        if not self.quiet:
            line = terminal.fit(terminal.escape(text), self.console.encoding)
            self.console.print(Text(line, style=style), soft_wrap=True)
