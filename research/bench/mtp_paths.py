"""Tokens per target pass with a model's own MTP layer as drafter, for one chain and for several paths:

    python research/bench/mtp_paths.py MODEL [--polydraft target/release/polydraft] [--json FILE]

Eight beginnings of Rust code, 200 tokens each. Made for what train_mtp.py trains.
"""

import argparse
import json
import pathlib
import subprocess

PROMPTS = [
    "pub fn new(",
    "impl fmt::Display for Error {",
    "use std::collections::HashMap;\n\n/// A map",
    "fn main() {\n    let mut x = ",
    "#[derive(Debug, Clone)]\npub struct Config {",
    "    #[test]\n    fn it_works() {",
    "match self {\n            Self::",
    "/// Returns the number of",
]
TOKENS = 200


def measured(program, model, temperature, paths, depth):
    """Tokens per target pass over all prompts."""
    passes = 0
    for seed, prompt in enumerate(PROMPTS):
        command = [program, "generate", "--target", model, "--draft", "mtp", "-p", prompt, "--json", "--ignore-end"]
        command += ["--max-tokens", TOKENS, "--temperature", temperature, "--paths", paths, "--depth", depth, "--seed", seed]
        run = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
        passes += json.loads(run.stdout)["stats"]["target_calls"]
    return round(len(PROMPTS) * TOKENS / passes, 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--polydraft", type=pathlib.Path, default="target/release/polydraft")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    cases = []
    for temperature in (0, 0.7, 1):
        for depth in (2, 3, 4):
            row = {paths: measured(args.polydraft, args.model, temperature, paths, depth) for paths in (1, 2, 4)}
            cases.append(dict(temperature=temperature, depth=depth, tokens_per_pass=row))
            print(f"T = {temperature}, depth {depth}:", *(f"{k} paths {v}" for k, v in row.items()), sep="  ", flush=True)
    if args.json:
        command = "research/bench/train_mtp.py OUT, then research/bench/mtp_paths.py OUT"
        args.json.write_text(json.dumps(dict(command=command, prompts=len(PROMPTS), tokens=TOKENS, cases=cases), indent=1) + "\n")


if __name__ == "__main__":
    main()
