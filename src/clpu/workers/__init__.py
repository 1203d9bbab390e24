"""Worker processes, on this machine or with Ray on many, that share the work of one request.

`workers` says how many and where; `processes` runs them here, `cluster` with Ray. What they are given and what they
answer goes through pipes or Ray's memory, never through a file.
"""

from clpu.workers.workers import ONE, Workers, as_workers

__all__ = ["ONE", "Workers", "as_workers"]
