"""The picture of the imports in docs/architecture.md is drawn from the code, and points one way."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "clpu"
PAGE = ROOT / "docs" / "architecture.md"

#: From the parts that people call to those that everything uses. A layer imports from those below it only.
LAYERS = (
    ("cli", "testing"),
    ("audit", "bench"),
    ("report", "store"),
    ("results",),
    ("runs", "export"),
    ("agent", "options"),
    ("restoring",),
    ("handler",),
    ("intake",),
    ("methods", "metrics"),
    ("inputs",),
    ("networks",),
    ("bases",),
    ("learning", "data"),
    ("workers",),
    ("state", "settings", "machine", "terminal", "tables"),
    ("labels",),
    ("requests", "threads", "jsonfile", "isolation", "scaling", "auto", "holdout"),
    ("io",),
    ("errors", "outcome"),
)


def unit(path: Path) -> str:
    """The part of clpu that a file belongs to: its folder, or the module itself."""
    parts = path.relative_to(SOURCE).parts
    return parts[0].removesuffix(".py")


def imports() -> dict[str, set[str]]:
    """What each part imports of the others, at the top of its modules or inside functions."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        mine = unit(path)
        if mine == "__init__":
            continue
        names = found.setdefault(mine, set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("clpu.")}
            elif isinstance(node, ast.ImportFrom) and node.module == "clpu":
                names |= {alias.name for alias in node.names if (SOURCE / alias.name).is_dir()}
                names |= {alias.name for alias in node.names if (SOURCE / f"{alias.name}.py").is_file()}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("clpu."):
                names.add(str(node.module).split(".")[1])
        names.discard(mine)
    return found


def picture() -> str:
    """The layers from top to bottom, with what each part imports."""
    found = imports()
    lines = []
    for layer in LAYERS:
        for name in layer:
            used = [other for below in LAYERS for other in below if other in found[name]]
            lines.append(f"{name:10} → {' '.join(used)}".rstrip(" →") if used else name)
    return "\n".join(lines)


def test_every_part_has_a_layer():
    assert sorted(imports()) == sorted(name for layer in LAYERS for name in layer)


def test_imports_point_down():
    height = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    upwards = [(name, used) for name, names in imports().items() for used in names if height[used] <= height[name]]
    assert upwards == []


def test_the_page_shows_the_imports_as_they_are():
    block = re.search(r"<!-- imports -->\n```text\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    assert block.group(1) == picture(), "run `python tests/test_architecture.py` and paste what it prints"


if __name__ == "__main__":
    print(picture())
