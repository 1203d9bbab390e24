"""The audit: does a forgotten task leave a trace?

Two groups of agents are trained, one that forgets the task and one that never sees it, and everything an auditor may
see of them is compared: bits, outputs, confidence on single examples, how fast the task is learned again, features.
`probes` trains; `bitwise`, `outputs`, `membership`, `relearning` and `features` compare; `verdict` explains; `page`
draws.

The module itself can be called: `clpu.audit(method, tasks, requests)` is `clpu.audit.api.audit`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from clpu.audit.api import audit  # needs torch: only when it is asked for

        return audit(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
