#!/usr/bin/env python3
"""polydraft beside llama.cpp: the same GGUF files, the same threads, in turn, so that a drift of the machine hits both alike.

Needs llama-bench, llama-speculative-simple and llama-completion, built from llama.cpp's sources or those in the package llama-cpp-python:
  cmake -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF && cmake --build build --target llama-bench llama-speculative-simple \
    llama-completion

Examples:
  bench/llama_cpp.py --llama build/bin plain smollm2-F32.gguf smollm2-Q8_0.gguf --threads 1,2
  bench/llama_cpp.py --llama build/bin speculation smollm2-F32.gguf --draft smollm2-Q8_0.gguf --temperatures 0,1
  bench/llama_cpp.py --llama build/bin start smollm2-F32.gguf smollm2-Q8_0.gguf --threads 2
  bench/llama_cpp.py --llama build/bin text smollm2-Q4_1.gguf --common '--backend llama' --prompts bench/twenty.jsonl --tokens 100

'text' compares what is written at temperature 0 with llama-completion's; where texts part, how far apart the two likeliest tokens were.
--common '--backend llama' puts our side on the same engine: what is left is what speculation gives, and what it costs to go through us.

'start' is how long a program takes from its start to the end behind one token, in milliseconds.

Speeds are medians over the rounds; 'ratio' is the median over rounds of ours / theirs within a round.
"""

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# One prompt of each kind that people use models for.
PROMPTS = {
    "code": "def quicksort(items):\n    \"\"\"Sort a list of numbers.\"\"\"\n",
    "prose": "The old lighthouse had not been lit for thirty years when",
    "chat": "<|im_start|>user\nHow do I keep bread fresh for longer?<|im_end|>\n<|im_start|>assistant\n",
}


# What stands for a part of a character.
CUT = "\ufffd"


def run(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done


def theirs_plain(args, model, threads):
    """Tokens per second of a prompt and of decoding."""
    command = [args.llama / "llama-bench", "-m", model, "-t", threads, "-r", 1, "-o", "json"]
    results = json.loads(run(command + ["-p", args.prompt_tokens, "-n", args.tokens, "-d", args.behind]).stdout)
    speed = {("decode" if result["n_gen"] else "prompt"): result["avg_ts"] for result in results}
    return speed.get("prompt", 0.0), speed["decode"]


def ours(args, model, threads, tokens, *options):
    command = [args.polydraft, "generate", "--target", model, "--threads", threads, "-n", tokens, "--json", "-q"]
    return json.loads(run(command + args.common.split() + list(options)).stdout)


def ours_plain(args, model, threads):
    plain = ("--verifier", "none")

    def behind(words, tokens):
        # Words of one token each; a few more are left out than are missing.
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(" ".join(["time"] * words))
            file.flush()
            return ours(args, model, threads, tokens, *plain, "--prompt-file", file.name)

    prompt = 0.0
    if args.prompt_tokens > 0:
        read = behind(args.prompt_tokens, 1)
        prompt = 1000 * (read["prompt_tokens"] - 1) / read["stats"]["time_ms"]["prompt"]
    if args.behind > 0:
        decode = behind(args.behind, args.tokens)
    else:
        decode = ours(args, model, threads, args.tokens, *plain, "--prompt", "Once upon")
    return prompt, decode["stats"]["tokens_per_second"]


def started(command):
    """Milliseconds of a whole process."""
    start = time.monotonic()
    run(command)
    return 1000 * (time.monotonic() - start)


def start(args, model, threads):
    common = ("--prompt", "Once upon a time", "-n", 1)
    ours = [args.polydraft, "generate", "--target", model, "--verifier", "none", "--threads", threads, "-q", *common]
    theirs = [args.llama / "llama-completion", "-m", model, "-t", threads, "-no-cnv", "--no-warmup", *common]
    return started(ours + args.common.split()), started(theirs)


def theirs_speculative(args, model, threads, kind, temperature):
    command = [args.llama / "llama-speculative-simple", "-m", model, "-md", args.draft, "-t", threads, "-td", threads]
    command += ["-p", args.texts[kind], "-n", args.tokens, "--temp", temperature, "--spec-draft-n-max", args.draft_tokens, "--spec-type", "draft-simple"]
    done = run(command + ["-c", 2048, "--seed", 1])
    found = re.search(r"decoded\s+\d+ tokens in\s+[\d.]+ seconds, speed:\s+([\d.]+)", done.stdout + done.stderr)
    if not found:
        sys.exit(f"llama-speculative-simple printed no speed:\n{done.stderr[-2000:]}")
    return float(found[1])


def ours_speculative(args, model, threads, kind, temperature, options):
    sampling = ("--temperature", temperature, "--prompt", args.texts[kind], "--seed", 1)
    return ours(args, model, threads, args.tokens, *sampling, *options)["stats"]["tokens_per_second"]


def compare_texts(args, model, threads):
    """Texts at temperature 0: theirs, ours plain, ours with drafts."""
    command = [args.llama / "llama-completion", "-m", model, "-t", threads, "-n", args.tokens, "--temp", 0, "-no-cnv", "--no-display-prompt"]
    results = []
    for kind, prompt in args.texts.items():
        # The last newline is the program's.
        theirs = run(command + ["-p", prompt]).stdout.removesuffix("\n").removesuffix(" [end of text]")
        case = {"prompt": kind}
        for way, options in (("plain", ["--verifier", "none"]), ("speculative", args.ours.split())):
            asked = ("--prompt", prompt, "--temperature", 0, "--logprobs", 2, *options)
            got = ours(args, model, threads, args.tokens, *asked)
            case[way] = parting(got["text"], got["logprobs"], theirs)
        shown = ", ".join(f"{way} {'the same' if part is None else part}" for way, part in case.items() if way != "prompt")
        print(f"{model.stem} {kind}: {shown}", flush=True)
        results.append(case)
    for way in ("plain", "speculative"):
        same = sum(case[way] is None for case in results)
        print(f"{way}: {same} of {len(results)} texts are llama.cpp's to the last token")
    return results


def parting(text, scored, theirs):
    """Where a text parts from theirs: the token, and how far apart the two likeliest were there."""
    if text == theirs:
        return None
    if not scored:
        return {"token": 0, "gap": None}
    same = len(os.path.commonprefix([text, theirs]))
    at = 0
    # Where one text is the beginning of the other they part at its last token.
    for number, token in enumerate(scored):
        # Parts of a character have no place in the text: the whole token behind them stands for
        # them.
        if CUT not in token["text"] and (start := text.find(token["text"], at)) >= 0:
            at = start + len(token["text"])
        if at > same:
            break
    first, second = (top["logprob"] for top in scored[number]["top"][:2])
    return {"token": number, "gap": round(first - second, 4)}


def table(title, columns, rounds):
    """Medians of every column, and the ratio of the first to every other."""
    medians = [statistics.median(column) for column in zip(*rounds)]
    ratios = [statistics.median(row[0] / row[n] for row in rounds) for n in range(1, len(columns))]
    shown = "  ".join(f"{name} {median:8.1f}" for name, median in zip(columns, medians))
    print(f"{title:<28} {shown}   ratio {' '.join(f'{ratio:.2f}' for ratio in ratios)}", flush=True)
    return {"case": title, "columns": columns, "medians": medians, "ratios": ratios, "rounds": rounds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["plain", "speculation", "start", "text"])
    parser.add_argument("models", nargs="+", type=Path, metavar="GGUF")
    parser.add_argument("--llama", type=Path, required=True, metavar="DIR", help="where llama.cpp's programs are")
    parser.add_argument("--polydraft", type=Path, default=Path("target/release/polydraft"))
    parser.add_argument("--threads", default="1,2", help="numbers of threads [default: 1,2]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96, help="tokens of a text [default: 96]")
    parser.add_argument("--prompt-tokens", type=int, default=512, help="tokens of the prompt that is read; 0 for none [default: 512]")
    parser.add_argument("--behind", type=int, default=0, metavar="N", help="plain: decode behind so many tokens, without --prompt-tokens [default: 0]")
    parser.add_argument("--temperatures", default="0,1", help="for speculation [default: 0,1]")
    parser.add_argument("--draft", type=Path, metavar="GGUF", help="the draft of llama.cpp's speculation")
    parser.add_argument("--draft-tokens", type=int, default=3, help="tokens that llama.cpp drafts [default: 3, as there]")
    parser.add_argument("--ours", default="--draft self", help="options of ours [default: --draft self]")
    parser.add_argument("--common", default="", help="options of ours in all ways, such as '--backend llama'")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all rounds to a file")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="prompts for speculation, a JSON object a line with \"prompt\" [default: one of code, prose and chat]")
    args = parser.parse_args()
    if args.behind > 0:
        args.prompt_tokens = 0
    args.texts = PROMPTS
    if args.prompts:
        lines = [json.loads(line)["prompt"] for line in args.prompts.read_text().splitlines()]
        args.texts = {str(number): prompt for number, prompt in enumerate(lines, 1)}
    if args.what == "speculation" and not args.draft:
        parser.error("speculation needs --draft")
    results = []
    for model in args.models:
        for threads in args.threads.split(","):
            if args.what == "text":
                results.append({"model": model.stem, "threads": threads, "texts": compare_texts(args, model, threads)})
                continue
            name = f"{model.stem} {threads} thread{'' if threads == '1' else 's'}"
            if args.what == "start":
                rounds = [start(args, model, threads) for _ in range(args.rounds)]
                results.append(table(f"{name} start", ["polydraft", "llama.cpp"], rounds))
                continue
            if args.what == "plain":
                rounds = [(*ours_plain(args, model, threads), *theirs_plain(args, model, threads)) for _ in range(args.rounds)]
                for part, at in (("prompt", 0), ("decode", 1))[args.prompt_tokens == 0 :]:
                    columns = [(row[at], row[at + 2]) for row in rounds]
                    results.append(table(f"{name} {part}", ["polydraft", "llama.cpp"], columns))
                continue
            for temperature in args.temperatures.split(","):
                all_rounds, columns = [], ["polydraft", "polydraft plain", "llama.cpp speculation", "llama.cpp plain"]
                for kind in args.texts:
                    case = (model, threads, kind, temperature)
                    options = args.ours.split()
                    ways = [
                        lambda case=case: ours_speculative(args, *case, options),
                        lambda case=case: ours_speculative(args, *case, ["--verifier", "none"]),
                        lambda case=case: theirs_speculative(args, *case),
                        lambda model=model, threads=threads: theirs_plain(args, model, threads)[1],
                    ]
                    rounds = [[way() for way in ways] for _ in range(args.rounds)]
                    all_rounds += rounds
                    results.append(table(f"{name} T={temperature} {kind}", columns, rounds))
                results.append(table(f"{name} T={temperature} all", columns, all_rounds))
    if args.json:
        record = {"what": args.what, "command": shlex.join(sys.argv), "date": time.strftime("%Y-%m-%d"), "cases": results}
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
