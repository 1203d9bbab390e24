"""Bootstrap intervals from fewer resamples: what the tests ask of them needs no more."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _fewer_resamples():
    with pytest.MonkeyPatch.context() as patch:
        for module in ("permutation", "roc"):
            patch.setattr(f"clpu.audit.{module}.RESAMPLES", 200)
        yield
