"""Set the number of threads that torch computes with, for one block of code in one thread and nowhere else.

torch keeps a count for each thread of the process and one more, which a thread takes over when it first computes.
`torch.set_num_threads` changes both, so setting and resetting it would change what threads started later get.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from clpu.errors import BadSetting

_lock = threading.Lock()


def check_threads(count: object) -> int:
    """A thread count that a user gave; `BadSetting` unless it is a positive integer."""
    if type(count) is not int or not 1 <= count <= 1024:
        raise BadSetting(f"threads must be an integer from 1 to 1024, got {count!r:.80}")
    return count


@contextmanager
def computing_with(count: int) -> Iterator[None]:
    """Let torch compute with `count` threads in the calling thread; every other thread keeps its own count."""
    before = torch.get_num_threads()
    if before == count and _library() is None:
        yield
        return
    undo = _set_here(count)
    try:
        yield
    finally:
        undo()


def _set_here(count: int) -> Callable[[], None]:
    """Set the calling thread's count; returns what sets it back."""
    library = _library()
    before = torch.get_num_threads()  # the first call in a thread sets its count, so it comes first
    if library is None:
        _set_by_torch(count)
        return lambda: _set_by_torch(before)
    set_openmp, set_mkl = library
    set_openmp(count)
    mkl_before = set_mkl(count)

    def undo() -> None:
        set_openmp(before)
        set_mkl(mkl_before)

    return undo


@lru_cache(maxsize=1)
def _library() -> tuple[Callable[[int], Any], Callable[[int], int]] | None:
    """The two functions of OpenMP and MKL with which torch sets a single thread's count, where its build has them."""
    if "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        try:
            library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
            set_openmp = library.omp_set_num_threads
            if not torch.backends.mkl.is_available():
                return set_openmp, lambda count: 0
            return set_openmp, library.MKL_Set_Num_Threads_Local
        except (OSError, AttributeError):
            continue
    return None


def _set_by_torch(count: int) -> None:
    """The same with torch's own means: set it here, then put back from a new thread what new threads get.

    For builds of torch that do not export the functions. A thread that first computes in the instant between the two
    would keep this count.
    """
    with _lock:
        default = _in_new_thread(torch.get_num_threads)
        torch.set_num_threads(count)
        _in_new_thread(lambda: torch.set_num_threads(default))


def _in_new_thread(function: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]
