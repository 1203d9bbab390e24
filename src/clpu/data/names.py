"""The names of the streams of tasks; here, so that a command line can list them without loading NumPy."""

STREAMS = (
    *(f"{kind}-{name}" for name in ("mnist", "fashion", "digits") for kind in ("perm", "rot", "split")),
    "split-cifar10",
    "split-cifar100",
)
