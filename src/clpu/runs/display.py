"""Progress of a run: bars in a terminal, plain lines otherwise."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.text import Text

from clpu import terminal
from clpu.requests import Stream
from clpu.runs.engine import Event
from clpu.runs.jobs import Job
from clpu.terminal import duration

#: Where there are no bars, a long job prints its progress at most this often.
SECONDS_BETWEEN_LINES = 30.0


class Display:
    """Listens to an engine's events. The time left comes from the share of the estimated work that is done.

    `behind` is the number of requests that each job had done at the start, and `spent` the seconds that they took.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        console: Console,
        quiet: bool = False,
        behind: Mapping[str, int] | None = None,
        spent: float | None = None,
    ) -> None:
        self.jobs = {job.name: job for job in jobs}
        self.costs = {job.name: job.costs() for job in jobs}
        self.total = sum(map(sum, self.costs.values())) or 1.0
        self.done = {name: sum(costs[: (behind or {}).get(name, 0)]) for name, costs in self.costs.items()}
        self.before, self.spent = self.share, spent
        self.console, self.quiet = console, quiet
        self.start = self.said = time.monotonic()
        self.lines: dict[str, TaskID] = {}
        note = TextColumn("{task.fields[note]}", style="dim", markup=False)
        columns = ("{task.description}", BarColumn(bar_width=24), "{task.percentage:>3.0f}%", note)
        self.bars = terminal.progress(console, *columns, quiet=quiet)
        self.overall = self.bars.add_task("total", total=1.0, note="")

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
        elapsed, gained = time.monotonic() - self.start, self.share - self.before
        if gained < 0.01 or elapsed < 3:  # then by what the run took until it was interrupted
            elapsed, gained = self.spent or 0.0, self.before
        if gained < 0.01 or not elapsed:
            return "time left not known yet"
        return f"about {duration(elapsed * (1 - self.share) / gained)} left"

    def __call__(self, event: Event) -> None:
        job, costs = self.jobs[event.job], self.costs[event.job]
        name = f"{job.method} {job.group}" + ("" if len(job.seeds) > 1 else f" seed {job.seeds[0]}")
        if event.kind == "step":
            inside = event.step / event.steps * costs[event.request - 1]
            self.done[event.job] = max(self.done[event.job], sum(costs[: event.request - 1]) + 0.98 * inside)
            request = Stream(job.requests)[event.request - 1]
            note = f"{request} ({event.request} of {len(costs)}), {event.phase} {event.step:,}/{event.steps:,} steps"
            self._line(event.job, name, note)
            self._now_and_then(f"{name}: {note}")
        elif event.kind == "request":
            self.done[event.job] = sum(costs[: event.request])
            self._now_and_then(f"{name}: request {event.request} of {len(costs)}")
        else:
            self.done[event.job] = sum(costs)
            if event.job in self.lines:
                self.bars.remove_task(self.lines.pop(event.job))
            finished = sum(value >= sum(self.costs[n]) for n, value in self.done.items())
            word = "done" if event.kind == "done" else "failed"
            self._say(f"{name}: {word} ({finished} of {len(self.jobs)} jobs; {self._how_far()})")
            if event.kind == "failed":
                self._say(f"  {event.reason.strip()}", "red")
        self.bars.update(self.overall, completed=self.share, note=self.left())

    def _now_and_then(self, text: str) -> None:
        """Print a line from time to time where there are no bars."""
        if not self.console.is_terminal and time.monotonic() - self.said >= SECONDS_BETWEEN_LINES:
            self._say(f"{text} ({self._how_far()})")

    def _how_far(self) -> str:
        return "100%" if self.share > 1 - 1e-9 else f"{100 * self.share:.0f}%, {self.left()}"

    def _line(self, job: str, name: str, note: str) -> None:
        if job not in self.lines:
            self.lines[job] = self.bars.add_task(terminal.escape(name), total=1.0, note="")
        whole = sum(self.costs[job])
        self.bars.update(self.lines[job], completed=self.done[job] / whole, note=terminal.escape(note))

    def _say(self, text: str, style: str = "") -> None:
        self.said = time.monotonic()
        if not self.quiet:
            line = terminal.fit(terminal.escape(text), self.console.encoding)
            self.console.print(Text(line, style=style), soft_wrap=True)
