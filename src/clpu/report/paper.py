"""The paper's Tables 1 and 2."""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources


@cache
def tables() -> dict[tuple[str, str], dict[str, float]]:
    """Return the printed rows by (benchmark, method); accuracy and forgetting in percent.

    >>> tables()["perm-mnist", "der++"]["acc"]
    93.88
    """
    text = resources.files("clpu.report").joinpath("paper-tables.csv").read_text(encoding="utf-8")
    return {
        (row.pop("benchmark"), row.pop("method")): {key: float(value) for key, value in row.items()}
        for row in csv.DictReader(text.splitlines())
    }
