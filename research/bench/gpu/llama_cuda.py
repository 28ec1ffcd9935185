"""A GPU job: the program built with `--features llama-cuda`, and llama.cpp's own loop beside it.

    python research/bench/gpu/llama_cuda.py --programs FOLDER --model MODEL.gguf \
        --head HEAD --record RECORD.json [--cpu CPU.json] [--layers 0] [--seconds 20]

FOLDER holds `polydraft`, `llama_passes` (see `llama_passes.cpp`) and llama.cpp's libraries;
docs/building.md says how they are made. CPU.json is what `llama_passes MODEL 0` printed elsewhere.
Texts first, times after.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

PROMPTS = [
    "Write a Python function that reads a file and counts its words.",
    "Tell me a story about a river.",
    "What are the main causes of inflation?",
    "List ten animals that live in the sea.",
]


def libraries(folder):
    """Folders of llama.cpp's libraries, then of CUDA's that PyTorch brought."""
    found = [str(folder.resolve())]
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations if spec else []:
        found += sorted({str(x.parent) for x in Path(root).rglob("lib*.so*")})
    return ":".join(
        [
            *found,
            "/usr/local/nvidia/lib64",
            "/usr/local/cuda/lib64",
            os.environ.get("LD_LIBRARY_PATH", ""),
        ]
    )


class Job:
    def __init__(self, args):
        self.args, self.begun = args, time.monotonic()
        self.env = {
            **os.environ,
            "LD_LIBRARY_PATH": libraries(args.programs),
            "GGML_BACKEND_PATH": "",
        }
        self.env.pop("GGML_BACKEND_PATH")
        self.record = {
            "what": "llama-cuda",
            "gpu": None,
            "command": "research/bench/gpu/llama_cuda.py",
            "layers_on_gpu": args.layers,
            "checks": {},
            "generate": [],
            "speed": [],
        }

    def run(self, name, words, limit=60):
        command = [str(self.args.programs.resolve() / name), *map(str, words)]
        begin = time.monotonic()
        try:
            done = subprocess.run(
                command, env=self.env, capture_output=True, text=True, timeout=limit
            )
        except subprocess.TimeoutExpired:
            print("timed out", name, words[:2], flush=True)
            return None
        spent = time.monotonic() - begin
        at, said = time.monotonic() - self.begun, " ".join(map(str, words))[:150]
        print(f"[{at:6.1f}] {name} {said}: {done.returncode}, {spent:.1f} s")
        if done.returncode != 0:
            print(done.stderr[-1500:], flush=True)
            self.record["checks"].setdefault("failures", []).append(
                [name, *map(str, words), done.stderr[-500:]]
            )
            return None
        return done.stdout

    def passes(self):
        out = self.run("llama_passes", [self.args.model, self.args.layers], 100)
        if out is None:
            return
        found = json.loads(out)
        self.record["llama_passes"] = found
        if self.args.cpu is not None:
            cpu = json.loads(self.args.cpu.read_text())["greedy"]
            same = next(
                (i for i, (a, b) in enumerate(zip(cpu, found["greedy"])) if a != b), len(cpu)
            )
            self.record["checks"]["greedy_as_on_a_cpu"] = same
            print("the first", same, "greedy tokens are those of a CPU")
        print("llama.cpp's own loop:", found["tokens_per_second"], "tokens/s")
        for row in found["passes"]:
            one = found["passes"][0]["repeated_ms"]
            print(row, f"{row['repeated_ms'] / one:.2f} {row['changing_ms'] / one:.2f}")

    def generate(self):
        """Greedy texts with and without drafts must be the same; temperature 1 is only timed."""
        args = self.args
        trees = {
            "auto": [],
            "4 tokens": ["--tree", "paths:1,4", "--verifier", "block"],
            "2 paths": ["--tree", "paths:2,4", "--verifier", "nested-priority"],
            "4 paths": ["--tree", "paths:4,4", "--verifier", "nested-priority"],
        }
        ways = {"plain": ["--verifier", "none"]}
        ways |= {tree: ["--draft", args.head, *trees[tree]] for tree in args.trees}
        for temperature in (0, 1):
            texts = {}
            for repeat in range(args.repeats):
                for prompt in PROMPTS[: args.prompts]:
                    for way, words in ways.items():
                        common = [
                            "--target",
                            args.model,
                            "--backend",
                            "llama",
                            "--gpu-layers",
                            args.layers,
                            "--chat",
                            "--prompt",
                            prompt,
                            "-n",
                            args.tokens,
                            "-t",
                            temperature,
                            "--seed",
                            7 + repeat,
                            "--json",
                        ]
                        out = self.run("polydraft", ["generate", *common, *words], 40)
                        if out is None:
                            continue
                        found = json.loads(out)
                        texts[prompt, way] = found["tokens"]
                        stats = found["stats"]
                        self.record["generate"].append(
                            {
                                "way": way,
                                "temperature": temperature,
                                "prompt": prompt,
                                "tokens": len(found["tokens"]),
                                "tokens_per_second": stats["tokens_per_second"],
                                "per_call": stats["block_efficiency"],
                                "time_ms": stats["time_ms"],
                                "calls": stats["target_calls"],
                            }
                        )
            if temperature == 0:
                agree = {}
                for (prompt, way), tokens in texts.items():
                    plain = texts.get((prompt, "plain"), [])
                    same = next(
                        (i for i, (a, b) in enumerate(zip(plain, tokens)) if a != b),
                        min(len(plain), len(tokens)),
                    )
                    agree.setdefault(way, []).append([same, len(tokens)])
                self.record["checks"]["greedy_as_plain"] = agree
                print("the first tokens that are plain decoding's, of all:", agree)
        for temperature in (0, 1):
            for way in ways:
                rows = [
                    x
                    for x in self.record["generate"]
                    if x["way"] == way and x["temperature"] == temperature
                ]
                if rows:
                    speed = statistics.median(x["tokens_per_second"] for x in rows)
                    call = statistics.mean(x["per_call"] for x in rows)
                    said = f"{speed:8.1f} tokens/s, {call:.2f} tokens a call"
                    print(f"T = {temperature} {way:22} {said}")

    def speed(self):
        for draft in (self.args.head, "ngram"):
            for temperature in (1, 0):
                if time.monotonic() - self.begun > self.args.until:
                    return
                words = [
                    "bench",
                    "speed",
                    "--target",
                    self.args.model,
                    "--backend",
                    "llama",
                    "--draft",
                    draft,
                    "-t",
                    temperature,
                    "--gpu-layers",
                    self.args.layers,
                    "--seconds",
                    self.args.seconds,
                    "-n",
                    128,
                    "--json",
                ]
                out = self.run("polydraft", words, 3 * self.args.seconds + 30)
                if out is not None:
                    self.record["speed"].append(
                        {"draft": str(draft), "temperature": temperature, "found": json.loads(out)}
                    )


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--programs", type=Path, required=True)
    p.add_argument("--model", type=Path, required=True)
    p.add_argument("--head", type=Path, required=True)
    p.add_argument("--record", type=Path, required=True)
    p.add_argument("--cpu", type=Path)
    p.add_argument("--layers", type=int, default=99, help="on the GPU")
    p.add_argument("--tokens", type=int, default=200)
    p.add_argument("--trees", nargs="+", default=["auto", "4 tokens", "2 paths", "4 paths"])
    p.add_argument(
        "--only",
        choices=["passes", "generate", "speed"],
        nargs="+",
        default=["passes", "generate", "speed"],
    )
    p.add_argument("--prompts", type=int, default=4)
    p.add_argument(
        "--until", type=float, default=1e9, help="seconds after which nothing more is begun"
    )
    p.add_argument("--repeats", type=int, default=1)
    p.add_argument("--seconds", type=int, default=12)
    args = p.parse_args()
    job = Job(args)
    smi = subprocess.run(
        "nvidia-smi --query-gpu=name,driver_version --format=csv,noheader",
        shell=True,
        capture_output=True,
        text=True,
    )
    job.record["gpu"] = smi.stdout.strip() or "none"
    try:
        for part in args.only:
            getattr(job, part)()
    finally:
        args.record.write_text(json.dumps(job.record, indent=1) + "\n")


main()
