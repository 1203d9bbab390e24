"""A process that handles requests in children of its own, so that a test can kill them.

It reads one line of JSON for each request: the store, the request (or the name of one about people), and after which
call below the store the child is to kill itself, if any; `changing` counts only calls that change the disk. The child
says its number, then `done` when the request has returned. Another line lets the parent bury it: until then its number
is not used again.
"""

import json
import os
import signal
import sys

from storekit import ABOUT_PEOPLE, CHANGING, handle

from clpu.store.durable import open as open_store  # all of it now, not in each child
from clpu.store.files import Files


def child(order: dict) -> None:
    os.write(1, f"{os.getpid()}\n".encode())
    calls = 0
    original = Files.call

    def call(self, operation, *args, **options):  # type: ignore[no-untyped-def]
        nonlocal calls
        if operation in CHANGING or not order.get("changing"):
            if calls == order["after"]:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1
        return original(self, operation, *args, **options)

    agent = open_store(order["store"])
    if order["after"] is not None:
        Files.call = call  # type: ignore[method-assign]
    if order["request"] in ABOUT_PEOPLE:
        ABOUT_PEOPLE[order["request"]](agent)
    else:
        handle(agent, order["request"])
    os.write(1, b"done\n")
    agent.close()


def main() -> None:
    os.write(1, b"ready\n")
    while line := sys.stdin.readline():
        number = os.fork()
        if number == 0:
            try:
                child(json.loads(line))
            finally:
                os._exit(0)
        sys.stdin.readline()
        os.waitpid(number, 0)
        os.write(1, b"buried\n")


if __name__ == "__main__":
    main()
