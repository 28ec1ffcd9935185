"""Where and in which numbers is computed."""

from __future__ import annotations

import ctypes
import sys

import torch


def device(name: str) -> torch.device:
    """`auto` is a GPU if there is one."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bf16 where the CPU multiplies matrices in it; where it does not f32 is faster."""
    if name == "auto":
        cpu = torch.cpu
        fast = device.type == "cuda" or any(getattr(cpu, f"_is_{x}_supported", bool)() for x in ("amx_tile", "avx512_bf16"))
        name = "bf16" if fast else "f32"
    return {"bf16": torch.bfloat16, "f32": torch.float32}[name]


def keep_memory() -> None:
    """Tells glibc to keep what is freed: each step allocates the same buffers, and giving them back to the system takes a page
    fault for every 4 kB of the next (on a Xeon 840 to 940 tokens/s with a busy neighbour)."""
    if sys.platform != "linux":
        return
    most_mapped, trim, arenas = -3, -1, -8
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for setting, value in ((most_mapped, 1 << 30), (trim, (1 << 31) - 1), (arenas, 1)):
            mallopt(setting, value)
