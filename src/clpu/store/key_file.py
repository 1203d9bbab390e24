"""The key file, in the store or outside it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from clpu.errors import BadKeys
from clpu.store.files import PART, Files
from clpu.store.format import KEYS, LONGEST_JSON
from clpu.store.keys import Keys


class KeyFile:
    """Reads and changes the key file. A change keeps whatever else the file holds by then."""

    def __init__(self, files: Files, here: bool, given: str | os.PathLike[str] | None) -> None:
        """`files` is the store's folder, `here` whether its keys are in it, `given` where the user says they are."""
        self.here = here
        self.files, self.name = files, KEYS
        place = None if given is None else Path(given).resolve()
        if here:
            if place not in (None, files.path.resolve() / KEYS):
                raise BadKeys(f"the keys of {files.path} are stored in it; leave out the path of the key file")
            return
        if place is None:
            raise BadKeys(
                f"the keys of {files.path} are stored outside it: give the path of the key file (--keys PATH)"
            )
        try:
            self.files, self.name = Files(place.parent, own=False), place.name
        except (FileNotFoundError, NotADirectoryError):
            raise BadKeys(f"the key file {place} is missing; nothing was changed") from None

    def read(self, identity: str) -> Keys:
        """The keys of the store of that identity."""
        try:
            keys = Keys.from_bytes(self.files.read(self.name, limit=LONGEST_JSON))
        except FileNotFoundError:
            raise BadKeys(f"the key file {self.files.path / self.name} is missing; nothing was changed") from None
        if keys.identity != identity:
            raise BadKeys(
                f"the key file {self.files.path / self.name} belongs to a different store; nothing was changed"
            )
        return keys

    def change(self, identity: str, new: Mapping[str, bytes], old: Collection[str]) -> None:
        """Add and destroy keys, durably."""
        keys = self.read(identity)
        tasks = {id: key for id, key in {**keys.tasks, **new}.items() if id not in old}
        self.files.replace_and_wipe(self.name, Keys(keys.signing, tasks).to_bytes())

    def tidy(self) -> None:
        """Remove what an interrupted change left; in the store itself that is not our business."""
        if not self.here and self.name + PART in self.files.names():
            self.files.remove(self.name + PART)
            self.files.settle()

    def close(self) -> None:
        if not self.here:
            self.files.close()
