"""Everything that clpu refuses, as types; catch `clpu.Error` for all of them.

A message says what was given, what was expected and what to do. A refused request changes nothing.
"""


class Error(Exception):
    """The base of every error that clpu raises on purpose."""


class BadRequest(Error, ValueError):
    """A request or a stream of requests cannot be read: unknown letter, missing name, unsuitable task name."""


class UnknownTask(Error, KeyError):
    """The agent has no such task: it was never learned, or it was forgotten (the two look the same)."""

    def __str__(self) -> str:  # KeyError would print the message's repr
        return str(self.args[0]) if self.args else ""


class NothingHeld(Error, KeyError):
    """No such records are held: of that person, with those labels or ids. Never seen and forgotten look alike."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class AlreadyLearned(Error, ValueError):
    """The task already exists, so it cannot be learned a second time."""


class CannotForget(Error, ValueError):
    """The agent's method cannot forget that exactly: a permanent task (R), or single records of a task."""


class BadData(Error, ValueError):
    """Inputs or labels are unusable: shape, type, NaN, too few classes."""


class BadNetwork(Error, ValueError):
    """The network is unknown, or the user's module does not map inputs to features."""


class BadSetting(Error, ValueError):
    """A setting of the method or of training is unknown or out of range."""


class BadRun(Error, ValueError):
    """A benchmark's run folder is missing, damaged, not ours, or does not fit together."""


class Diverged(Error, ArithmeticError):
    """Training ended in NaN or infinity; the agent is as it was before. A lower learning rate may help."""


class BadState(Error, ValueError):
    """A saved state is damaged, not ours, or of a different version."""


class BadStore(Error, ValueError):
    """A durable agent's folder is damaged, is not a store, or was written by a different version of clpu."""


class StoreLocked(Error, BlockingIOError):
    """Another agent has the store open for writing."""


class StoreFailed(Error, OSError):
    """The disk refused (full, read-only, broken); the store holds the request wholly or not at all."""


class BadKeys(Error, ValueError):
    """The key file of a durable agent is missing, damaged, or belongs to a different store."""


class BadReceipt(Error, ValueError):
    """A receipt is not one of ours, was changed after it was signed, or was signed by a different store."""


class WorkerFailed(Error, RuntimeError):
    """Worker processes failed or died, again and again, or compute differently; the agent is as it was before."""


class MissingPackage(Error, ImportError):
    """An optional package is needed for this and is not installed."""
