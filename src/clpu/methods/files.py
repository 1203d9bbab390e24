"""Methods of the user's own, from Python files that register them."""

from __future__ import annotations

import hashlib
import sys
import types
from pathlib import Path

from clpu.errors import BadSetting, Error
from clpu.methods.base import METHODS

#: The files that were loaded, name and bytes by SHA-256. Worker processes load them again from here.
LOADED: dict[str, tuple[str, bytes]] = {}
#: The SHA-256 of the file that each such method came from.
CHECKSUMS: dict[str, str] = {}


def load(path: Path | str) -> list[str]:
    """Run a Python file, and return the names of the methods that it registers."""
    path = Path(path)
    try:
        source = path.read_bytes()
    except OSError as error:
        raise BadSetting(f"cannot read the methods in {path}: {error.strerror}") from None
    return load_source(path.name, source)


def load_source(name: str, source: bytes) -> list[str]:
    """The same with a file's bytes. What was loaded before is not run again."""
    checksum = hashlib.sha256(source).hexdigest()
    if checksum in LOADED:
        return [method for method, known in CHECKSUMS.items() if known == checksum]
    before = dict(METHODS)
    module = types.ModuleType(f"clpu_methods_{checksum[:16]}")
    sys.modules[module.__name__] = module  # dataclasses look their own module up
    try:
        exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)
        added = [method for method, cls in METHODS.items() if before.get(method) is not cls]
        taken = [method for method in added if method in before]
        if taken:
            raise BadSetting(f"there is a method {taken[0]!r} already; give yours another name")
        if not added:
            raise BadSetting("it registers no method; docs/adding-a-method.md shows how")
    except (Exception, SystemExit) as error:
        METHODS.clear()
        METHODS.update(before)
        del sys.modules[module.__name__]
        kind = "" if isinstance(error, Error) else f"{type(error).__name__}: "
        raise BadSetting(f"the methods in {name} cannot be loaded: {kind}{error}") from error
    LOADED[checksum] = name, source
    CHECKSUMS.update(dict.fromkeys(added, checksum))
    return added


def load_again(loaded: dict[str, tuple[str, bytes]]) -> str:
    """In a worker: load what its parent has loaded; the reason if that fails here."""
    try:
        for name, source in loaded.values():
            load_source(name, source)
    except BadSetting as error:
        return f"{type(error).__name__}: {error}"
    return ""
