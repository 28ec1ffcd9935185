#!/usr/bin/env python3
"""Tokens per target pass with a model's own MTP layer as drafter, for one chain and several paths.

  research/bench/mtp_paths.py MODEL [--polydraft target/release/polydraft] [-o RECORD]

Eight beginnings of Rust code, 200 tokens each. Made for what train_mtp.py trains.
"""

import _path  # noqa: F401
import harness

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
        asked = ["--draft", "mtp", "-p", prompt, "--ignore-end", "--max-tokens", TOKENS]
        asked += ["--temperature", temperature, "--paths", paths, "--depth", depth, "--seed", seed]
        passes += harness.generate(program, model, *asked)["stats"]["target_calls"]
    return round(len(PROMPTS) * TOKENS / passes, 3)


def main():
    parser = harness.options(__doc__, "polydraft", "record")
    parser.add_argument("model", help="with an MTP layer")
    args = parser.parse_args()
    cases = []
    for temperature in (0, 0.7, 1):
        for depth in (2, 3, 4):
            row = {
                paths: measured(args.polydraft, args.model, temperature, paths, depth)
                for paths in (1, 2, 4)
            }
            cases.append(dict(temperature=temperature, depth=depth, tokens_per_pass=row))
            shown = (f"{paths} paths {passes}" for paths, passes in row.items())
            print(f"T = {temperature}, depth {depth}:", *shown, sep="  ", flush=True)
    if args.record:
        made = {"prompts": len(PROMPTS), "tokens": TOKENS, "cases": cases}
        harness.write(args.record, {**harness.provenance(args.polydraft), **made})


if __name__ == "__main__":
    main()
