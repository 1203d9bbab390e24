"""A key service in a process of its own: it wraps with a key that only it has, and keeps a log."""

import base64
import hashlib
import hmac
import sys
from pathlib import Path


def stream(key: bytes, nonce: bytes, size: int) -> bytes:
    blocks = (hashlib.sha256(key + nonce + bytes([n])).digest() for n in range(size // 32 + 1))
    return b"".join(blocks)[:size]


def serve(place: Path, verb: str) -> None:
    key = (place / "key").read_bytes()
    data = base64.b64decode(sys.stdin.read())
    if verb == "wrap":
        nonce = hashlib.sha256(data).digest()[:16]
        hidden = bytes(a ^ b for a, b in zip(data, stream(key, nonce, len(data))))
        answer = nonce + hmac.digest(key, nonce + hidden, "sha256") + hidden
    else:
        nonce, tag, hidden = data[:16], data[16:48], data[48:]
        if not hmac.compare_digest(tag, hmac.digest(key, nonce + hidden, "sha256")):
            sys.exit("access denied")
        answer = bytes(a ^ b for a, b in zip(hidden, stream(key, nonce, len(hidden))))
    with (place / "log").open("a") as log:
        log.write(f"{verb}\n")
    print(base64.b64encode(answer).decode())


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])
