"""Errors about data; each message names the file and says what to do next."""

from __future__ import annotations

from clpu.errors import BadData, Error


class UnknownDataset(Error, KeyError):
    """There is no data set of that name."""

    def __str__(self) -> str:  # KeyError would print the message's repr
        return str(self.args[0]) if self.args else ""


class UnknownBenchmark(Error, KeyError):
    """There is no benchmark of that name."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class DamagedFile(BadData):
    """A file is truncated, of the wrong size, or not in the format that its name implies."""


class WrongChecksum(DamagedFile):
    """A file is readable, but its content is not the official one."""


class UnsafeFile(DamagedFile):
    """A file tries to do what no data file needs: run code, leave its folder, fill the memory."""


class SourceFailed(Error):
    """One source cannot deliver a data set; the next one is tried."""


class NotAvailable(Error):
    """No source could deliver the data set; `tried` has one line per source, `lines` the complete message."""

    def __init__(self, name: str, tried: tuple[str, ...], advice: str) -> None:
        self.name, self.tried = name, tried
        self.lines = (f"{name} is not available from any source. Tried:", *(f"  - {line}" for line in tried), advice)
        super().__init__("\n".join(self.lines))


class NotCached(Error, FileNotFoundError):
    """The data set exists but is not in the cache."""


class CacheFailed(Error, OSError):
    """The cache folder cannot be read or written: no permission, no space."""
