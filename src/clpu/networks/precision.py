"""Devices: whether one can be used, and whether convolutions in bfloat16 are faster there than in float32."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from clpu.errors import BadSetting

#: Instructions that multiply in bfloat16, as Linux calls them. Without them it is emulated: 2 to 10 times slower.
_FLAGS = {"avx512_bf16", "amx_bf16"}


def check_device(device: str | torch.device) -> torch.device:
    """The device of that name; `BadSetting` if it cannot be used."""
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).cpu()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        raise BadSetting(f"device {device!r:.40} cannot be used: {str(error).splitlines()[0]:.200}") from None
    return chosen


def bfloat16_is_fast(device: torch.device) -> bool:
    """Whether the device multiplies in bfloat16 itself; for a CPU, whether oneDNN may use its instructions for that."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    if device.type != "cpu":
        return False  # nothing was measured there
    # oneDNN can be limited to fewer instructions than the CPU has; then its own answer is still yes for any AVX-512.
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    allowed = limit in ("", "ALL", "DEFAULT") or any(word in limit for word in ("BF16", "FP16", "AMX", "AVX10"))
    return allowed and onednn_has_bfloat16() and not _FLAGS.isdisjoint(cpu_flags())


def onednn_has_bfloat16() -> bool:
    """Whether oneDNN computes in bfloat16 at all on this machine, emulated or not."""
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Return the CPU's flags as Linux names them; without Linux, those of bfloat16 that torch reports."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
        return {flag for flag in _FLAGS if capabilities.get(flag)}
    return {flag for line in lines if line.startswith("flags") for flag in line.partition(":")[2].split()}
