"""Set-up for all tests: one thread per process, and Hypothesis without deadlines (the machine is shared)."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

from oracle import LEARNERS


def pytest_ignore_collect(collection_path):
    """Several files of one name cannot be searched for doctests; as plugins, pytest reads them all the same."""
    return True if collection_path.name == "conftest.py" else None


torch.set_num_threads(1)
settings.register_profile(
    "clpu", deadline=None, derandomize=bool(os.environ.get("CI")), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("clpu")


@pytest.fixture(params=LEARNERS)
def _path(request, monkeypatch):
    """Both ways in which `fit` trains an MLP by plain SGD."""
    if request.param == "ordinary":
        monkeypatch.setattr("clpu.networks.fit.folded_learner", lambda network, descent: None)
