#!/usr/bin/env python3
"""polydraft beside llama.cpp: the same GGUF files, the same threads, in turn.

Needs llama-bench, llama-speculative-simple and llama-completion, built from llama.cpp's sources or
those in the package llama-cpp-python:
  cmake -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF
  cmake --build build --target llama-bench llama-speculative-simple llama-completion

Examples:
  bench/llama_cpp.py --llama build/bin plain smollm2-F32.gguf smollm2-Q8_0.gguf --threads 1,2
  bench/llama_cpp.py --llama build/bin speculation smollm2-F32.gguf --draft smollm2-Q8_0.gguf
  bench/llama_cpp.py --llama build/bin start smollm2-F32.gguf smollm2-Q8_0.gguf --threads 2
  bench/llama_cpp.py --llama build/bin text smollm2-Q4_1.gguf --prompts bench/twenty.jsonl \\
      --tokens 100 -- --backend llama

'text' compares what is written at temperature 0 with llama-completion's; where texts part, how far
apart the two likeliest tokens were. What follows `--` goes to polydraft in all ways; `--backend
llama` puts our side on the same engine: what is left is what speculation gives, and what it costs
to go through us. 'start' is how long a program takes from its start to the end after one token, in
milliseconds. Speeds are medians over the rounds; 'ratio' is the median over rounds of ours / theirs
within a round.
"""

import json
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import harness
from harness import run

# One prompt of each kind that people use models for.
PROMPTS = {
    "code": 'def quicksort(items):\n    """Sort a list of numbers."""\n',
    "prose": "The old lighthouse had not been lit for thirty years when",
    "chat": "<|im_start|>user\nHow do I keep bread fresh for longer?<|im_end|>\n"
    "<|im_start|>assistant\n",
}


# What stands for a part of a character.
CUT = "\ufffd"


def theirs_plain(args, model, threads):
    """Tokens per second of a prompt and of decoding."""
    command = [args.llama / "llama-bench", "-m", model, "-t", threads, "-r", 1, "-o", "json"]
    command += ["-p", args.prompt_tokens, "-n", args.tokens, "-d", args.behind]
    results = json.loads(run(command).stdout)
    speed = {("decode" if result["n_gen"] else "prompt"): result["avg_ts"] for result in results}
    return speed.get("prompt", 0.0), speed["decode"]


def ours(args, model, threads, tokens, *options):
    """The answer of our program."""
    asked = ["--threads", threads, "-n", tokens, *args.options, *options]
    return harness.generate(args.polydraft, model, *asked)


def ours_plain(args, model, threads):
    """Tokens per second of a prompt and of decoding."""
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
    """Milliseconds of both programs."""
    common = ("--prompt", "Once upon a time", "-n", 1)
    ours = [args.polydraft, "generate", "--target", model, "--verifier", "none", "-q", *common]
    theirs = [args.llama / "llama-completion", "-m", model, "-t", threads, "-no-cnv", *common]
    ours += ["--threads", threads, *args.options]
    return started(ours), started([*theirs, "--no-warmup"])


def theirs_speculative(args, model, threads, kind, temperature):
    """Tokens per second of llama.cpp's speculation."""
    command = [args.llama / "llama-speculative-simple", "-m", model, "-md", args.draft]
    command += ["-t", threads, "-td", threads, "-p", args.texts[kind], "-n", args.tokens]
    command += ["--temp", temperature, "--spec-draft-n-max", args.draft_tokens]
    done = run([*command, "--spec-type", "draft-simple", "-c", 2048, "--seed", 1])
    said = r"decoded\s+\d+ tokens in\s+[\d.]+ seconds, speed:\s+([\d.]+)"
    found = re.search(said, done.stdout + done.stderr)
    if not found:
        sys.exit(f"llama-speculative-simple printed no speed:\n{done.stderr[-2000:]}")
    return float(found[1])


def ours_speculative(args, model, threads, kind, temperature, options):
    sampling = ("--temperature", temperature, "--prompt", args.texts[kind], "--seed", 1)
    return ours(args, model, threads, args.tokens, *sampling, *options)["stats"][
        "tokens_per_second"
    ]


def compare_texts(args, model, threads):
    """Texts at temperature 0: theirs, ours plain, ours with drafts."""
    command = [args.llama / "llama-completion", "-m", model, "-t", threads, "-n", args.tokens]
    command += ["--temp", 0, "-no-cnv", "--no-display-prompt"]
    results = []
    for kind, prompt in args.texts.items():
        # The last newline is the program's.
        theirs = run([*command, "-p", prompt]).stdout.removesuffix("\n")
        theirs = theirs.removesuffix(" [end of text]")
        case = {"prompt": kind}
        for way, options in (("plain", ["--verifier", "none"]), ("speculative", args.ours.split())):
            asked = ("--prompt", prompt, "--temperature", 0, "--logprobs", 2, *options)
            got = ours(args, model, threads, args.tokens, *asked)
            case[way] = parting(got["text"], got["logprobs"], theirs)
        parts = ((way, part) for way, part in case.items() if way != "prompt")
        shown = (f"{way} {'the same' if part is None else part}" for way, part in parts)
        print(f"{model.stem} {kind}: {', '.join(shown)}", flush=True)
        results.append(case)
    for way in ("plain", "speculative"):
        same = sum(case[way] is None for case in results)
        print(f"{way}: {same} of {len(results)} texts are llama.cpp's to the last token")
    return results


def parting(text, scored, theirs):
    """The token where a text parts from theirs, and how far apart the two likeliest were there."""
    if text == theirs:
        return None
    if not scored:
        return {"token": 0, "gap": None}
    same = len(os.path.commonprefix([text, theirs]))
    at = 0
    # Where one text is the beginning of the other they part at its last token.
    for number, token in enumerate(scored):
        # Parts of a character have no place in the text: the whole token after them stands for
        # them.
        if CUT not in token["text"] and (start := text.find(token["text"], at)) >= 0:
            at = start + len(token["text"])
        if at > same:
            break
    first, second = (top["logprob"] for top in scored[number]["top"][:2])
    return {"token": number, "gap": round(first - second, 4)}


def table(title, columns, rounds):
    """Medians of every column, and the ratio of the first to every other."""
    first, *others = values = list(zip(*rounds))
    medians = [statistics.median(column) for column in values]
    ratios = [harness.ratio(first, other) for other in others]
    shown = "  ".join(f"{name} {median:8.1f}" for name, median in zip(columns, medians))
    print(f"{title:<28} {shown}   ratio {' '.join(f'{ratio:.2f}' for ratio in ratios)}", flush=True)
    made = {"case": title, "columns": columns, "medians": medians}
    return made | {"ratios": ratios, "rounds": rounds}


def speculation(args, model, threads, name):
    """Cases of each temperature and text: both sides with speculation and without."""
    columns = ["polydraft", "polydraft plain", "llama.cpp speculation", "llama.cpp plain"]
    for temperature in args.temperatures.split(","):
        all_rounds = []
        for kind in args.texts:
            case = (args, model, threads, kind, temperature)
            ways = [
                lambda _, case=case: ours_speculative(*case, args.ours.split()),
                lambda _, case=case: ours_speculative(*case, ["--verifier", "none"]),
                lambda _, case=case: theirs_speculative(*case),
                lambda _: theirs_plain(args, model, threads)[1],
            ]
            found = harness.in_turn(dict(zip(columns, ways)), args.rounds)
            rounds = list(zip(*found.values()))
            all_rounds += rounds
            yield table(f"{name} T={temperature} {kind}", columns, rounds)
        yield table(f"{name} T={temperature} all", columns, all_rounds)


def cases(args, model, threads):
    """Cases of a model with so many threads."""
    name = f"{model.stem} {threads} thread{'' if threads == '1' else 's'}"
    columns = ["polydraft", "llama.cpp"]
    if args.what == "text":
        texts = compare_texts(args, model, threads)
        yield {"model": model.stem, "threads": threads, "texts": texts}
    elif args.what == "start":
        rounds = [start(args, model, threads) for _ in range(args.rounds)]
        yield table(f"{name} start", columns, rounds)
    elif args.what == "plain":
        ways = {
            "ours": lambda _: ours_plain(args, model, threads),
            "theirs": lambda _: theirs_plain(args, model, threads),
        }
        found = harness.in_turn(ways, args.rounds)
        for part, at in (("prompt", 0), ("decode", 1))[args.prompt_tokens == 0 :]:
            rounds = [(ours[at], theirs[at]) for ours, theirs in zip(*found.values())]
            yield table(f"{name} {part}", columns, rounds)
    else:
        yield from speculation(args, model, threads, name)


def main():
    shared = ("llama", "polydraft", "rounds", "tokens", "prompts", "record")
    parser = harness.options(__doc__, *shared, rounds=3, tokens=96)
    add = parser.add_argument
    add("what", choices=["plain", "speculation", "start", "text"])
    add("models", nargs="+", type=Path, metavar="GGUF")
    add("--threads", default="1,2", help="numbers of threads")
    add("--prompt-tokens", type=int, default=512, help="of the prompt that is read; 0 for none")
    add("--behind", type=int, default=0, metavar="N", help="plain: decode after so many tokens")
    add("--temperatures", default="0,1", help="for speculation")
    add("--draft", type=Path, metavar="GGUF", help="of llama.cpp's speculation")
    add("--draft-tokens", type=int, default=3, help="that llama.cpp drafts")
    add("--ours", default="--draft self", help="options of our speculation")
    args = harness.parsed(parser)
    if args.llama is None:
        parser.error("expected --llama DIR")
    if args.behind > 0:
        args.prompt_tokens = 0
    args.texts = PROMPTS
    if args.prompts:
        numbered = enumerate(harness.prompts(args.prompts), 1)
        args.texts = {str(number): prompt for number, prompt in numbered}
    if args.what == "speculation" and not args.draft:
        parser.error("speculation needs --draft")
    results = []
    for model in args.models:
        for threads in args.threads.split(","):
            results += cases(args, model, threads)
    if args.record:
        head = harness.provenance(args.polydraft, args.options)
        harness.write(args.record, {"what": args.what, **head, "cases": results})


if __name__ == "__main__":
    main()
