"""What can go wrong with data, as types; each message names the file and says what to do next."""

from __future__ import annotations

from clpu.errors import BadData, Error


class UnknownDataset(Error, KeyError):
    """There is no data set of that name."""

    def __str__(self) -> str:  # KeyError would print the message's repr
        return str(self.args[0]) if self.args else ""


class UnknownStream(Error, KeyError):
    """There is no stream of tasks of that name."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class DamagedFile(BadData):
    """A file is truncated, of the wrong size, or not of the format that its name promises."""


class WrongChecksum(DamagedFile):
    """A file reads well, but its content is not the official one."""


class UnsafeFile(DamagedFile):
    """A file asks for what no data file needs: running code, leaving its folder, filling the memory."""


class SourceFailed(Error):
    """One source cannot deliver a data set; the next one is tried."""


class NotAvailable(Error):
    """No source could deliver the data set; `tried` holds one line for each, `lines` the whole message."""

    def __init__(self, name: str, tried: tuple[str, ...], advice: str) -> None:
        self.name, self.tried = name, tried
        told = (f"  - {line}" for line in tried)
        self.lines = (f"{name} could not be had from any source; tried:", *told, advice)
        super().__init__("\n".join(self.lines))


class NotHere(Error, FileNotFoundError):
    """The data set is known but is not in the cache."""


class CacheFailed(Error, OSError):
    """The cache folder cannot be read or written: no permission, no space."""
