"""Methods of the user's own, from Python files that register them."""

from __future__ import annotations

import hashlib
import sys
import types
from pathlib import Path

from clpu.errors import BadSetting, Error
from clpu.methods.base import METHODS

#: The files that were loaded: source by name. Worker processes load them again from here.
LOADED: dict[str, str] = {}
#: The SHA-256 of the file that each such method came from.
CHECKSUMS: dict[str, str] = {}


def load(path: Path | str) -> list[str]:
    """Run a Python file, and return the names of the methods that it registers."""
    path = Path(path)
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text in UTF-8"
        raise BadSetting(f"cannot read the methods in {path}: {reason}") from None
    return load_source(path.name, source)


def load_source(name: str, source: str) -> list[str]:
    """The same with a file's text. What was loaded before is not run again."""
    checksum = hashlib.sha256(source.encode()).hexdigest()
    if LOADED.get(name) == source:
        return [method for method, known in CHECKSUMS.items() if known == checksum]
    before = dict(METHODS)
    module = types.ModuleType(f"clpu_methods_from_{Path(name).stem}")
    sys.modules[module.__name__] = module  # dataclasses look their own module up
    try:
        exec(compile(source, name, "exec"), module.__dict__)
    except Exception as error:
        METHODS.clear()
        METHODS.update(before)
        del sys.modules[module.__name__]
        kind = "" if isinstance(error, Error) else f"{type(error).__name__}: "
        raise BadSetting(f"the methods in {name} cannot be loaded: {kind}{error}") from error
    added = [method for method, cls in METHODS.items() if before.get(method) is not cls]
    if not added:
        raise BadSetting(f"{name} registers no method; docs/adding-a-method.md shows how")
    LOADED[name] = source
    CHECKSUMS.update(dict.fromkeys(added, checksum))
    return added
