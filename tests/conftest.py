"""Set-up for all tests: one thread a process, and Hypothesis without deadlines (the machine is shared)."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hypothesis import HealthCheck, settings


def pytest_ignore_collect(collection_path):
    """Several files of one name cannot be searched for doctests; as plugins, pytest reads them all the same."""
    return True if collection_path.name == "conftest.py" else None


torch.set_num_threads(1)
settings.register_profile(
    "clpu", deadline=None, derandomize=bool(os.environ.get("CI")), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("clpu")
