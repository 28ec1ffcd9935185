"""Device and dtype of the computation."""

from __future__ import annotations

import ctypes
import sys

import torch


def device(name: str) -> torch.device:
    """Returns a device by name; `auto` is a GPU if there is one."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def dtype(name: str, device: torch.device) -> torch.dtype:
    """Returns a dtype by name; `auto` is bf16 on GPUs and CPUs with fast bf16 products, else f32."""
    if name == "auto":
        cpu = torch.cpu
        fast = device.type == "cuda" or any(getattr(cpu, f"_is_{x}_supported", bool)() for x in ("amx_tile", "avx512_bf16"))
        name = "bf16" if fast else "f32"
    return {"bf16": torch.bfloat16, "f32": torch.float32}[name]


def keep_memory() -> None:
    """Makes glibc retain freed memory. Each step allocates the same buffers; returning them to the system would cost a page
    fault for every 4 kB of the next step (on a Xeon: from 840 to 940 tokens/s with a busy neighbour)."""
    if sys.platform != "linux":
        return
    most_mapped, trim, arenas = -3, -1, -8
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for setting, value in ((most_mapped, 1 << 30), (trim, (1 << 31) - 1), (arenas, 1)):
            mallopt(setting, value)
