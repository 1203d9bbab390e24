"""Print the minimum versions that pyproject.toml states, as pins for pip: `make test-minimum` installs them.

    python tools/minima.py [extra …]

A requirement without a minimum is printed as it is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib  # type: ignore[no-redef]


def minima(project: dict[str, Any], extras: Sequence[str] = ()) -> Iterator[str]:
    """The dependencies of a project and of some of its extras, each pinned to the minimum that it states."""
    optional = project.get("optional-dependencies", {})
    for requirement in [*project["dependencies"], *(line for extra in extras for line in optional[extra])]:
        own = re.fullmatch(rf"{project['name']}\[(.+)\]", requirement)
        if own:
            yield from minima({**project, "dependencies": []}, own[1].split(","))
        else:
            yield requirement.replace(">=", "==")


if __name__ == "__main__":
    content = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    print("\n".join(minima(tomllib.loads(content)["project"], sys.argv[1:])))
