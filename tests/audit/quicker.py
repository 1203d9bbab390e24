"""For tests that make many intervals: fewer resamples, for what the tests ask of them needs no more."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def fewer_resamples():
    with pytest.MonkeyPatch.context() as patch:
        for module in ("permutation", "roc"):
            patch.setattr(f"clpu.audit.{module}.RESAMPLES", 200)
        yield
