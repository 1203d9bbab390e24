"""A separate cache for every test, and small data sets in the catalogue."""

from pathlib import Path

import pytest
import tiny

from clpu.data import catalog


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, with no folder of original files in the environment."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CLPU_CACHE", str(folder))
    monkeypatch.delenv("CLPU_DATA", raising=False)
    for name in tiny.OF:
        monkeypatch.setitem(catalog.DATASETS, name, tiny.describe(name))
    return folder


@pytest.fixture
def originals(tmp_path: Path) -> Path:
    """An empty folder for original files."""
    folder = tmp_path / "originals"
    folder.mkdir()
    return folder
