from __future__ import annotations

import pytest
from fabricate import run_folder

from clpu.results import read_run


@pytest.fixture(scope="session")
def paper_run(tmp_path_factory):
    """A finished run of all nine methods on a benchmark that the paper has."""
    return read_run(run_folder(tmp_path_factory.mktemp("runs") / "perm"))


@pytest.fixture
def make(tmp_path):
    """Fabricate a run and read it: `make("name", seeds=1)`."""
    return lambda name="run", **changes: read_run(run_folder(tmp_path / name, **changes))
