#!/usr/bin/env python3
"""How much drafts by n-grams can gain at all: an upper bound for drafters that know what comes.

  research/bench/ngram_bound.py polydraft SmolLM2-135M-Instruct.Q4_1.gguf --dtype q8_0 --prompts bench/repeat.jsonl -t 1 --costs costs.json

An n-gram drafter proposes tokens that followed the last one before, in the prompt or in the text. Texts are written by plain decoding, and
two drafters look at them afterwards: one that proposes whatever comes, wherever that followed the last token before; and one that
proposes, of the tokens that did, the one that the target finds likeliest there, and knows how often in a row it will be right. Both draft as
much as is best in hindsight, which no drafter knows, and drafting costs nothing. What passes over so many rows cost is read from a file
as 'polydraft generate --costs FILE' writes it; without it, rows cost nothing either. Speeds are relative to plain decoding.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

# Of the target's law at each token, so many of the likeliest are looked at.
LIKELIEST = 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("polydraft", help="the program")
    parser.add_argument("target", help="the target model")
    parser.add_argument("--dtype", default="q8_0", help="how its weights are held [default: q8_0]")
    parser.add_argument("--prompts", type=Path, required=True, metavar="FILE", help='a JSON object a line with "prompt"')
    parser.add_argument("-t", "--temperature", type=float, default=1.0)
    parser.add_argument("-n", "--tokens", type=int, default=64, help="of each text")
    parser.add_argument("--seeds", type=int, default=2, help="texts of each prompt")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--costs", type=Path, metavar="FILE")
    return parser.parse_args()


def write(args, prompt, seed):
    """Tokens of a prompt, of a text behind it, and what the target thought at each of these."""
    command = [args.polydraft, "generate", "--target", args.target, "--dtype", args.dtype, "--threads", args.threads, "--verifier", "none"]
    command += ["-t", args.temperature, "-n", args.tokens, "--seed", seed, "--json", "-q", "--logprobs", LIKELIEST, "--prompt", prompt]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{args.polydraft} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    text = json.loads(done.stdout)
    return text["prompt_token_ids"], text["tokens"], text["logprobs"]


def row_costs(file, most):
    """Seconds of passes over 0, 1, 2, .. rows: on the line between two that were measured."""
    pairs = json.loads(file.read_text())["costs"]["target"] if file else [[1, 1.0], [2, 1.0]]
    costs, below = [0.0], (1, pairs[0][1])
    for rows in range(1, most + 1):
        above = next(((known, seconds) for known, seconds in pairs if known >= rows), None)
        if above is None:
            # Behind the last in proportion, where there are costs at all.
            costs.append(pairs[-1][1] * (rows / pairs[-1][0] if file else 1.0))
            continue
        below = max((tuple(pair) for pair in pairs if pair[0] <= rows), default=below)
        part = (rows - below[0]) / max(above[0] - below[0], 1)
        costs.append(below[1] + part * (above[1] - below[1]))
    return costs


def gain(right, costs):
    """Plain decoding's time for a text over the least time in which its tokens can come, where token n can be drafted if right[n]."""
    # For the rest of the text, from its end on; and how many tokens in a row can be drafted there.
    least, run = [0.0], 0
    for is_right in reversed(right):
        run = run + 1 if is_right else 0
        # So many drafted and accepted, and one token more, which there is not behind the end.
        least.append(min(costs[1 + drafted] + least[-min(drafted + 1, len(least))] for drafted in range(run + 1)))
    return len(right) * costs[1] / least[-1]


def followers(tokens):
    seen = {}
    for before, token in zip(tokens, tokens[1:]):
        seen.setdefault(before, set()).add(token)
    return seen


def look(prompt, tokens, laws):
    """For each token whether it followed the last one before; whether it is the likeliest of those that did; and how likely that is."""
    seen, last, rows = followers(prompt), prompt[-1], []
    for token, law in zip(tokens, laws):
        known = seen.setdefault(last, set())
        likeliest = max((other for other in law["top"] if other["token"] in known), key=lambda other: other["logprob"], default=None)
        rows.append((token in known, likeliest is not None and likeliest["token"] == token, math.exp(likeliest["logprob"]) if likeliest else 0.0))
        known.add(token)
        last = token
    return rows


def main():
    args = arguments()
    costs = row_costs(args.costs, args.tokens + 1)
    prompts = [json.loads(line)["prompt"] for line in args.prompts.read_text().splitlines() if line.strip()]
    seen, any_right, likeliest_right = [], [], []
    for prompt in prompts:
        for seed in range(1, args.seeds + 1):
            rows = look(*write(args, prompt, seed))
            seen += rows
            any_right.append(gain([row[0] for row in rows], costs))
            likeliest_right.append(gain([row[1] for row in rows], costs))
    mean = lambda numbers: sum(numbers) / len(numbers)
    # Of texts of one length: all time over all time.
    together = lambda gains: len(gains) / sum(1 / one for one in gains)
    print(f"{len(any_right)} texts, {len(seen)} tokens")
    print(f"followed the last token before: {mean([row[0] for row in seen]):.3f}; probability of the likeliest that did: {mean([row[2] for row in seen]):.3f}")
    print(f"at most, of plain decoding: {together(any_right):.2f} by whatever comes, {together(likeliest_right):.2f} by the likeliest")


if __name__ == "__main__":
    main()
