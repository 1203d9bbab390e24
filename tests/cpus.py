"""Run the quick tests once per instruction set that this CPU can pretend to have.

`python tests/cpus.py [arguments for pytest]`, or `make test-cpus`. ATen, oneDNN and MKL choose their code by the CPU,
and each choice rounds differently; the tests must hold with all of them. MKL obeys `MKL_ENABLE_INSTRUCTIONS` on Intel
CPUs only, and `MKL_CBWR=COMPATIBLE` on all.
"""

from __future__ import annotations

import os
import subprocess
import sys

#: From the oldest to the newest, under the names that torch gives to the capabilities of a CPU.
PRETENCES = {
    "DEFAULT": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "MKL_CBWR": "COMPATIBLE",
    },
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "AVX512": {
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
    },
}


def within(capability: str) -> list[str]:
    """The CPUs that this one can pretend to be without running instructions that it lacks.

    >>> within("AVX2")
    ['DEFAULT', 'AVX2']
    >>> within("SVE256")
    ['DEFAULT']
    """
    names = list(PRETENCES)
    return names[: names.index(capability) + 1] if capability in names else names[:1]


def environment(pretence: dict[str, str]) -> dict[str, str]:
    """This process's environment with one pretence instead of any other."""
    others = {variable for settings in PRETENCES.values() for variable in settings}
    return {**{name: value for name, value in os.environ.items() if name not in others}, **pretence}


def capability(pretence: dict[str, str]) -> str:
    """What torch takes the CPU for."""
    code = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment(pretence), capture_output=True, text=True, check=True).stdout.strip()


def main(arguments: list[str]) -> int:
    own = capability({})
    results, failed = {}, False
    for name, pretence in {f"as it is ({own})": {}, **PRETENCES}.items():
        label = " ".join([name, *(f"{variable}={value}" for variable, value in pretence.items())])
        if pretence and name not in within(own):
            results[label] = "skipped: this CPU does not have it"
            continue
        if pretence and capability(pretence) != name:
            results[label] = f"failed: torch computes with {capability(pretence)}"
            failed = True
            continue
        print(f"== {label}", flush=True)
        code = subprocess.run([sys.executable, "-m", "pytest", *arguments], env=environment(pretence)).returncode
        results[label] = "passed" if code == 0 else f"failed: pytest ended with {code}"
        failed = failed or code != 0
    print(*(f"{result}: {label}" for label, result in results.items()), sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["-q", "-n", "auto"]))
