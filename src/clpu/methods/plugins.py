"""Users' methods and networks, from Python files that register them."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

from clpu.errors import BadSetting, Error
from clpu.io import sha256
from clpu.methods.base import METHODS
from clpu.networks.blueprint import FACTORIES, NETWORKS

#: The files that were loaded, name and bytes by SHA-256. Worker processes load them again from here.
LOADED: dict[str, tuple[str, bytes]] = {}
#: The SHA-256 of the file that each such method ("mine") or network ("network mine") came from.
CHECKSUMS: dict[str, str] = {}


def load(path: Path | str) -> list[str]:
    """Run a Python file, and return the names of the methods and networks that it registers."""
    path = Path(path)
    try:
        source = path.read_bytes()
    except OSError as error:
        raise BadSetting(f"cannot read {path}: {error.strerror}") from None
    return load_source(path.name, source)


def load_source(name: str, source: bytes) -> list[str]:
    """The same with a file's bytes. A file that was loaded before is not run again."""
    checksum = sha256(source)
    if checksum in LOADED:
        return [registered for registered, known in CHECKSUMS.items() if known == checksum]
    registries: list[dict[str, Any]] = [METHODS, NETWORKS, FACTORIES]
    before = [dict(registry) for registry in registries]
    known = _registered()
    module = types.ModuleType(f"clpu_plugin_{checksum[:16]}")
    sys.modules[module.__name__] = module  # dataclasses look their own module up
    try:
        exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)
        now = _registered()
        replaced = [registered for registered, value in known.items() if now.get(registered) is not value]
        if replaced:
            raise BadSetting(f"it replaces {replaced[0]!r}; give yours a different name")
        added = [registered for registered in now if registered not in known]
        if not added:
            raise BadSetting("it registers no method and no network; docs/adding-a-method.md shows how")
    except (Exception, SystemExit) as error:
        for registry, content in zip(registries, before):
            registry.clear()
            registry.update(content)
        del sys.modules[module.__name__]
        kind = "" if isinstance(error, Error) else f"{type(error).__name__}: "
        raise BadSetting(f"{name} cannot be loaded: {kind}{error}") from error
    LOADED[checksum] = name, source
    CHECKSUMS.update(dict.fromkeys(added, checksum))
    return added


def load_again(loaded: dict[str, tuple[str, bytes]]) -> str:
    """In a worker: load what its parent has loaded; the reason if that fails."""
    try:
        for name, source in loaded.values():
            load_source(name, source)
    except BadSetting as error:
        return f"{type(error).__name__}: {error}"
    return ""


def is_ours(module: str) -> bool:
    """Whether a module is part of clpu, and not a user's."""
    return module.partition(".")[0] == __name__.partition(".")[0]


def _registered() -> dict[str, object]:
    """All methods and networks; networks by names that no method has."""
    return {**METHODS, **{f"network {name}": FACTORIES.get(name, kind) for name, kind in NETWORKS.items()}}
