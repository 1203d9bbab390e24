"""When a temporary task's time is up. The date is a fact of the task, in its leaf: it goes when the task goes."""

from __future__ import annotations

from datetime import datetime, timezone

from clpu.errors import BadRequest
from clpu.state import State

UNTIL = "until"


def parse_date(text: str) -> str:
    """A date or a time in ISO format as a fact of a task; a date means its beginning, in UTC unless it says otherwise.

    >>> parse_date("2030-01-31")
    '2030-01-31T00:00:00+00:00'
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadRequest(
            f"--until takes a date such as 2030-01-31 or 2030-01-31T12:00+01:00, got {text!r:.80}"
        ) from None
    aware = found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)
    return aware.isoformat(timespec="seconds")


def until(state: State, task: str) -> datetime | None:
    """When a task's time is up, if it says so."""
    said = state.tasks[task].facts.get(UNTIL)
    try:
        return None if said is None else datetime.fromisoformat(str(said))
    except ValueError:
        return None


def due(state: State, now: datetime | None = None) -> list[str]:
    """The temporary tasks whose time is up, by name."""
    moment = now or datetime.now(timezone.utc)
    times = {name: until(state, name) for name in state.temporary}
    return [name for name, time in times.items() if time is not None and time <= moment]
