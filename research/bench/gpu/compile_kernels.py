#!/usr/bin/env python3
"""Compiles every launch of `polydraft.gpu` for a GPU that need not be there.

  compile_kernels.py [--arch 90] [--vocabulary 151936] [--step]      --step: those of step.py

Runs all public functions with a launcher that compiles what it is given instead of running it, so
that a kernel that the interpreter forgives and the compiler does not is found without a GPU. It
prints registers, spills and shared memory of each.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# The interpreter has to be off: it replaces what is compiled here.
os.environ["TRITON_INTERPRET"] = "0"

import torch
import triton
from common import load_gpu
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

TYPES = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16",
    torch.float64: "*fp64", torch.int32: "*i32", torch.int64: "*i64",
    torch.uint8: "*u8",
}


def resources(cubin: bytes) -> str:
    """Registers and spills, where cuobjdump or the like is at hand."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        return ""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        out = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True)
    found = re.findall(r"(REG|STACK):(\d+)", out.stdout + out.stderr)
    return " ".join(f"{name.lower()} {value}" for name, value in found)


class Compiler:
    """Stands in for the launcher."""

    def __init__(self, arch: int) -> None:
        self.target, self.seen, self.failed = GPUTarget("cuda", arch, 32), {}, []

    def run(self, fn: JITFunction, *args, grid, warmup, **kwargs) -> None:
        """Compiles one launch, unless the same one was compiled before."""
        options = {k: kwargs.pop(k) for k in ("num_warps", "num_stages") if k in kwargs}
        values = dict(zip(fn.arg_names, args)) | kwargs
        missing = [name for name in fn.arg_names if name not in values]
        assert not missing, f"{fn.__name__}: no {missing}"
        signature, constants, attributes = {}, {}, {}
        for index, name in enumerate(fn.arg_names):
            value = values[name]
            if fn.params[index].is_constexpr:
                signature[name], constants[(index,)] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[name] = TYPES[value.dtype]
                attributes[(index,)] = [["tt.divisibility", 16]]
            elif isinstance(value, float):
                signature[name] = "fp32"
            elif fn.params[index].do_not_specialize:
                signature[name] = "i32"
            elif value == 1:  # the launcher makes a constant of it
                signature[name], constants[(index,)] = "constexpr", 1
            else:
                signature[name] = "i32"
                if value % 16 == 0:
                    attributes[(index,)] = [["tt.divisibility", 16]]
        key = (fn.__name__, *signature.values(), *constants.values(), *options.values())
        if key in self.seen:
            return
        start = time.time()
        try:
            source = ASTSource(fn, signature, constants, attributes)
            made = triton.compile(source, target=self.target, options=options)
            note = f"shared {made.metadata.shared:6} {resources(made.asm['cubin'])}"
        except Exception as error:  # noqa: BLE001: every kind of failure is a finding
            note = f"FAILED {type(error).__name__}: {error}"
            self.failed.append(fn.__name__)
        self.seen[key] = note
        print(f"{fn.__name__:20} {time.time() - start:6.1f} s  {options}  {note}", flush=True)

    def end(self) -> None:
        """The count, and the end of the program."""
        many, failed = len(self.seen), len(self.failed)
        print(f"{many} launches compiled for sm_{self.target.arch}, {failed} failed")
        sys.exit(bool(failed))


def compile_step(compiler) -> None:
    """The workers of `step.py`."""
    import step
    from kernel_checks import backend, launch

    backend.of = lambda tensor: launch
    JITFunction.run = lambda self, *a, **k: compiler.run(self, *a, **k)
    for shape in ["decoder"] + [f"{k},{l}" for k, l in step.CONFIGS]:
        print(shape, flush=True)
        with torch.no_grad():
            step.compile_only(shape)
    compiler.end()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--step", action="store_true")
    parser.add_argument("--methods", default="", help="separated by commas; default all")
    args = parser.parse_args()
    if args.step:
        compile_step(Compiler(args.arch))
    gpu = load_gpu()
    import polydraft_gpu.backend as backend
    import polydraft_gpu.kernels.launch as launch

    compiler = Compiler(args.arch)
    backend.of = lambda tensor: launch
    JITFunction.run = lambda self, *a, **k: compiler.run(self, *a, **k)
    vocabulary, batch = args.vocabulary, 1
    methods = args.methods.split(",") if args.methods else gpu.METHODS
    for dtype in (torch.bfloat16, torch.float32):
        rows = torch.zeros(2, vocabulary, dtype=dtype)
        gpu.draw(gpu.distributions(rows, gpu.Sampling(top_k=9, top_p=0.9, min_p=0.1)),
                 torch.zeros(2, 3, dtype=torch.float64))
        for method in methods:
            # Shapes with ones in them become other kernels: as many as a user may have.
            for paths, length in ((4, 4), (2, 1), (1, 1), (1, 4)):
                if paths > 1 and method in ("token", "block"):
                    continue
                tokens = torch.zeros(batch, paths, length, dtype=torch.int64)
                draft = torch.zeros(1, 1, 1, vocabulary, dtype=dtype)
                draft = draft.expand(batch, paths, length, vocabulary).contiguous()
                target = draft.new_zeros(batch, 1 + paths * length, vocabulary)
                needed = gpu.uniforms_needed(method, paths, length)
                uniforms = torch.zeros(batch, needed, dtype=torch.float64)
                forced = torch.zeros(batch, 2, dtype=torch.int32)
                simple = dtype == torch.bfloat16 or (paths, length) != (4, 4)
                gpu.verify(method, tokens, draft, target, uniforms)
                if not simple:
                    gpu.verify(method, tokens, draft, target, uniforms, trace=True, forced=forced)
    compiler.end()


if __name__ == "__main__":
    main()
