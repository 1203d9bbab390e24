"""A power cut keeps what was flushed and, of the rest, whatever it likes; the store survives every mixture."""

import os
import random
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from storekit import Crash, clone, digest_after, follow, handle, injected

from clpu.store import open as open_store
from clpu.store import verify

Listing = dict[str, int]


class Disk:
    """Watches the calls below a store and knows what of it would survive a power cut.

    A folder survives as it was when it was last flushed, a file with the content it then had. Inodes are held
    open so that no number is used twice.
    """

    def __init__(self, root: Path, crash_after: int | None = None) -> None:
        self.root = root
        self.crash_after = crash_after
        self.count = 0
        self.held: list[int] = []
        self.listings: dict[int, Listing] = {}
        self.contents: dict[int, bytes] = {}
        self.folders: set[int] = set()
        for path in [root, *root.rglob("*")]:
            number = self._hold(os.open(path, os.O_RDONLY))
            if path.is_dir():
                self.listings[number] = self._listing(path)
            else:
                self.contents[number] = path.read_bytes()

    def _hold(self, fd: int) -> int:
        self.held.append(fd)
        about = os.fstat(fd)
        if stat.S_ISDIR(about.st_mode):
            self.folders.add(about.st_ino)
        return about.st_ino

    @staticmethod
    def _listing(path: Path | int) -> Listing:
        # Opened anew: on btrfs a descriptor does not show names that are newer than itself.
        fd = os.open(".", os.O_RDONLY, dir_fd=path) if isinstance(path, int) else os.open(path, os.O_RDONLY)
        try:
            with os.scandir(fd) as entries:
                return {entry.name: entry.inode() for entry in entries}
        finally:
            os.close(fd)

    def call(self, operation: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self.crash_after is not None and self.count >= self.crash_after:
            raise Crash
        self.count += 1
        result = function(*args, **options)
        if operation in ("open", "mkdir"):
            fd = os.dup(result) if operation == "open" else os.open(args[0], os.O_RDONLY, dir_fd=options["dir_fd"])
            number = self._hold(fd)
            if number in self.folders:
                self.listings.setdefault(number, {})
            else:
                self.contents.setdefault(number, b"")
        elif operation == "fsync":
            about = os.fstat(args[0])
            if about.st_ino in self.folders:
                self.listings[about.st_ino] = self._listing(args[0])
            else:
                self.contents[about.st_ino] = Path(f"/proc/self/fd/{args[0]}").read_bytes()
        return result

    def after_power_cut(self, place: Path, luck: random.Random | None) -> Path:
        """The folder as it may be found: all that was flushed, and by luck some of what was not."""
        now = {os.fstat(fd).st_ino: fd for fd in self.held}

        def lay(folder: int, path: Path) -> None:
            path.mkdir(mode=0o700)
            flushed = self.listings.get(folder, {})
            current = self._listing(now[folder]) if os.fstat(now[folder]).st_nlink else {}
            for name in sorted(flushed.keys() | current.keys()):
                number = (current if luck and luck.random() < 0.5 else flushed).get(name)
                if number is None:
                    continue
                if number in self.folders:
                    lay(number, path / name)
                    continue
                content = self.contents.get(number, b"")
                if luck and luck.random() < 0.5:
                    content = Path(f"/proc/self/fd/{now[number]}").read_bytes()
                (path / name).write_bytes(content)

        lay(self.root.stat().st_ino, place)
        return place

    def close(self) -> None:
        for fd in self.held:
            os.close(fd)


BEFORE = "1R 2T 3T"


@pytest.mark.parametrize("request_text", ["4R", "4T", "2R", "2F"])
def test_a_power_cut_at_any_call_leaves_the_old_or_the_new_state(
    empty_store: Path, tmp_path: Path, request_text: str
) -> None:
    prepared = clone(empty_store, tmp_path / "prepared")
    follow(prepared, BEFORE)
    old, new = digest_after(BEFORE), digest_after(f"{BEFORE} {request_text}")
    calls = 10_000
    at = 0
    while at <= calls:
        store = clone(prepared, tmp_path / f"{at}")
        agent = open_store(store)
        disk = Disk(store, crash_after=at)
        with injected() as injector:
            injector.call = disk.call  # type: ignore[method-assign]
            try:
                handle(agent, request_text)
                calls = min(calls, at)  # this one needed no more calls: it is the last
            except Crash:
                pass
        for attempt in range(3):
            luck = random.Random(f"{at} {attempt}") if attempt else None
            found = disk.after_power_cut(tmp_path / f"{at} after {attempt}", luck)
            with open_store(found) as restored:
                digest = restored.digest()
            assert digest in (old, new)
            if at == calls:
                assert digest == new, "a request that returned is durable"
            report = verify(found)
            assert report.good
            assert not report.notes
        agent.close()
        disk.close()
        at += 1
    assert calls < 200


@pytest.mark.parametrize("request_text", ["2R", "2F"])
def test_a_power_cut_while_a_crash_is_being_repaired_is_survived_too(
    empty_store: Path, tmp_path: Path, request_text: str
) -> None:
    """A process dies before it flushed, the next one acts on what it sees, and then the power fails."""
    prepared = clone(empty_store, tmp_path / "prepared")
    follow(prepared, BEFORE)
    legal = digest_after(BEFORE), digest_after(f"{BEFORE} {request_text}")
    luck = random.Random(7)
    with open_store(clone(prepared, tmp_path / "counted")) as agent, injected() as injector:
        handle(agent, request_text)
    for first in after_renames(injector.calls):
        store = clone(prepared, tmp_path / f"{first}")
        crashed(store, request_text, first)
        with injected() as injector:
            open_store(clone(store, tmp_path / f"{first} counted")).close()
        for second in after_renames(injector.calls):
            for attempt in range(6):
                store = clone(prepared, tmp_path / f"{first} {second} {attempt}")
                disk = crashed(store, request_text, first)
                disk.count, disk.crash_after = 0, second
                with injected() as injector, suppress(Crash):
                    injector.call = disk.call  # type: ignore[method-assign]
                    open_store(store).close()
                found = disk.after_power_cut(tmp_path / f"{first} {second} {attempt} after", luck)
                disk.close()
                with open_store(found) as restored:
                    assert restored.digest() in legal


def after_renames(calls: list[str]) -> list[int]:
    """The moments at which something is renamed and not yet flushed."""
    return [number + 1 for number, operation in enumerate(calls) if operation == "rename"]


def crashed(store: Path, request: str, after: int) -> Disk:
    """A store whose writer died in a request after so many calls, and the disk that saw it."""
    with open_store(store) as agent:
        disk = Disk(store, crash_after=after)
        with injected() as injector, suppress(Crash):
            injector.call = disk.call  # type: ignore[method-assign]
            handle(agent, request)
    return disk
