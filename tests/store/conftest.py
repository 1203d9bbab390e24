from collections.abc import Iterator
from pathlib import Path

import pytest
from storekit import SETTINGS, clone

from clpu.store import create


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Flushes are counted and made to fail, but no test cuts the power of this machine: they need not take time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clpu.store.files._flush", lambda fd: None)
        yield


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
