"""The machine behind a result: the fingerprint of its arithmetic, its threads, and the versions that decide bits.

Float32 results depend on the CPU's instructions, on the libraries that choose among them, on environment variables and
on the number of threads. No list of flags says whether two machines compute alike: oneDNN does not report which
instructions it uses, MKL looks at the vendor too, and many flags that differ change nothing. So a machine shows how it
computes: the results of a few fixed operations are hashed. The fingerprint decides, the flags explain.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

if TYPE_CHECKING:
    from torch import Tensor

#: Environment variables that change which instructions or what precision torch computes with.
VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
#: Parts of clpu that show or store results; what they do changes no result.
NOT_COMPUTING = ("cli", "report", "store")

_SHA256 = re.compile(r"[0-9a-f]{64}")
# Characters of names and versions: none has a meaning in a terminal, in HTML or in Markdown.
_LINE = re.compile(r"[A-Za-z0-9 .,:;+()@/#=_-]{0,200}")

Line = Annotated[str, Meta(pattern=rf"^{_LINE.pattern}\Z")]
Lines = Annotated[
    Mapping[Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,49}\Z")], Line], Meta(max_length=50)
]


@dataclass(frozen=True)
class Machine:
    """The machine that computed a result.

    `fingerprint`, `threads`, `device` and `versions` decide whether two machines compute alike; `facts` (CPU,
    capability, environment variables, Python, commit) explain why they do not.
    """

    fingerprint: Annotated[str, Meta(pattern=rf"^{_SHA256.pattern}\Z")]
    threads: Annotated[int, Meta(ge=1, le=1 << 16)]
    device: Line
    versions: Lines
    facts: Lines

    @property
    def key(self) -> str:
        """Equal for machines that compute alike."""
        decisive = [self.fingerprint, self.threads, self.device, sorted(self.versions.items())]
        return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:16]

    def describe(self, only: Collection[str] | None = None) -> str:
        """The machine in one line, with all its versions or only those of these names."""
        cpu, capability = (self.facts.get(name, "not known") for name in ("CPU", "CPU capability"))
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        named = sorted(
            self.versions.items() if only is None else [(k, v) for k, v in self.versions.items() if k in only]
        )
        versions = "".join(f", {name} {_short(version)}" for name, version in named)
        where = "" if self.device == "cpu" else f", {self.device}"
        return f"{cpu}, {capability}, {threads}{where}{versions}, fingerprint {self.fingerprint[:8]}"


def differences(existing: Machine, mine: Machine) -> list[str]:
    """List the differences between two machines that do not compute alike; empty if they do."""
    if existing.key == mine.key:
        return []
    then, now = ({**m.versions, **m.facts, "threads": str(m.threads), "device": m.device} for m in (existing, mine))
    versions, facts = {*existing.versions, *mine.versions}, {*existing.facts, *mine.facts}
    names = ["threads", "device", *sorted(versions), *sorted(facts)]
    found = [
        f"{n}: {_short(then.get(n))} (existing), {_short(now.get(n))} (this machine)"
        for n in names
        if then.get(n) != now.get(n)
    ]
    if existing.fingerprint != mine.fingerprint:
        prints = f"{existing.fingerprint[:8]} (existing), {mine.fingerprint[:8]} (this machine)"
        found.append(f"fingerprint of float32 results: {prints}")
    return found


def _short(text: str | None) -> str:
    return "not set" if text is None else text[:8] if _SHA256.fullmatch(text) else text


def here(device: str = "cpu", threads: int | None = None) -> Machine:
    """Describe this machine, computing with that many threads; by default, as many as torch has in this thread."""
    import numpy
    import torch

    import clpu
    from clpu.threads import computing_with

    if threads is not None:
        with computing_with(threads):
            return here(device)

    capability = torch.backends.cpu.get_cpu_capability()
    libraries = {"mkl": r"Math Kernel Library Version (\d[\d.]*)", "onednn": r"(?:MKL-DNN|oneDNN) v(\d[\d.]*)"}
    built = torch.__config__.show()
    versions = {"clpu": clpu.__version__, "clpu source": source(), "torch": torch.__version__}
    versions |= {"numpy": numpy.__version__}
    versions |= {name: found[1] for name, pattern in libraries.items() if (found := re.search(pattern, built))}
    kind, name = torch.device(device).type, ""
    if kind == "cuda":
        name = f" ({torch.cuda.get_device_name(device)})"
        versions |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
    facts = {"CPU": cpu(full=True), "CPU capability": capability, "python": platform.python_version()}
    facts |= {"system": platform.platform(terse=True), "commit": commit()}
    facts |= {name: os.environ.get(name, "") for name in VARIABLES}
    return Machine(
        fingerprint(),
        torch.get_num_threads(),
        _plain(kind + name),
        {name: _plain(text) for name, text in versions.items()},
        {name: _plain(text) for name, text in facts.items() if text},
    )


def _plain(text: str) -> str:
    return "".join(c if _LINE.fullmatch(c) else "_" for c in text)[:200]


def fingerprint() -> str:
    """SHA-256 of the results of fixed operations on the CPU, such as those of training; takes some milliseconds."""
    import torch

    total = hashlib.sha256()
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for result in _results():
            total.update(result.float().contiguous().numpy().tobytes())
    return total.hexdigest()


def _results() -> Iterator[Tensor]:
    """Products in the shapes of training, convolutions with their gradients, functions, sums, denormal numbers."""
    import torch
    import torch.nn.functional as F

    x, weight, stack = _numbers(32, 784), _numbers(784, 100), _numbers(5, 32, 100)
    yield x @ weight
    yield x.t() @ (x @ weight)
    yield torch.baddbmm(_numbers(5, 1, 10), stack, _numbers(5, 100, 10))
    yield stack.transpose(1, 2) @ stack
    images, kernel = _numbers(8, 16, 16, 16), _numbers(16, 16, 3, 3)
    for layout in (torch.contiguous_format, torch.channels_last):
        i, k = (t.contiguous(memory_format=layout) for t in (images, kernel))
        out = F.conv2d(i, k, padding=1)
        yield out
        # Without autograd, whose first use in a process takes half a second.
        sides = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
        yield from torch.ops.aten.convolution_backward(out, i, k, None, *sides)[:2]
    yield F.conv2d(images.bfloat16(), kernel.bfloat16(), padding=1)
    yield F.batch_norm(images, None, None, training=True)
    yield F.log_softmax(8 * stack, -1)
    yield F.gelu(stack)
    yield (4 * stack).exp()
    yield (stack.abs() + 0.01).log()
    yield stack.tanh() / (stack.abs() + 0.1).sqrt()
    yield x.sum(0)
    yield x.sum(1)
    yield x.sum()
    yield images.var((0, 2, 3))
    yield (stack * 1e-20) * 1e-20


def _numbers(*shape: int) -> Tensor:
    """Numbers between -1 and 1 that are the same everywhere: no generator, and nothing that rounds differently."""
    import torch

    count = torch.Size(shape).numel()
    indices = torch.arange(1, count + 1, dtype=torch.int64, device="cpu")
    return ((indices * 2654435761 % 65521).to(torch.float32) / 32760.5 - 1).reshape(shape)


def cpu(full: bool = False) -> str:
    """The CPU's name; in full with vendor, family and model, by which libraries choose what they do."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except (OSError, ValueError):
        text = ""
    entries = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in text.splitlines())}
    name = entries.get("model name") or platform.processor() or platform.machine()
    vendor = [entries[k] for k in ("vendor_id", "cpu family", "model") if k in entries]
    return f"{name} ({' '.join(vendor)})" if full and vendor else name


def installed(package: str) -> str:
    """The version of an installed package, without importing it."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


@functools.cache
def source() -> str:
    """SHA-256 of the parts of clpu that compute: a version number does not name the code of a checkout."""
    package, total = Path(__file__).parent, hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package)
        if name.parts[0] not in NOT_COMPUTING:
            total.update(name.as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


@functools.cache
def commit() -> str:
    """The commit of the checkout that clpu runs from, without uncommitted changes; empty if it is installed."""
    package = Path(__file__).parent
    try:
        git = package.parent.parent / ".git"
        if package.parent.name != "src" or not git.exists():
            return ""
        if git.is_file():  # a worktree
            git = git.parent / git.read_text(encoding="utf-8").partition("gitdir:")[2].strip()
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if head.startswith("ref: "):
            common = git / "commondir"
            shared = git / common.read_text(encoding="utf-8").strip() if common.is_file() else git
            head = _resolved(shared, head.removeprefix("ref: "))
    except (OSError, ValueError):
        return ""
    return head if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", head) else ""


def _resolved(git: Path, ref: str) -> str:
    if (git / ref).is_file():
        return (git / ref).read_text(encoding="utf-8").strip()
    packed = (git / "packed-refs").read_text(encoding="utf-8").splitlines()
    return next((line.split()[0] for line in packed if line.endswith(f" {ref}")), "")
