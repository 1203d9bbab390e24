from pathlib import Path

import pytest
from storekit import SETTINGS, clone

from clpu.store import create


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store as `init` leaves it; never written to, only copied."""
    path = tmp_path_factory.mktemp("template") / "store"
    create(path, **SETTINGS).close()
    return path


@pytest.fixture
def store(empty_store: Path, tmp_path: Path) -> Path:
    """A fresh store."""
    return clone(empty_store, tmp_path / "store")
