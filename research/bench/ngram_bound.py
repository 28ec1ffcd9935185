#!/usr/bin/env python3
"""An upper bound of what drafts by n-grams can gain, by drafters that know what comes.

  research/bench/ngram_bound.py target/release/polydraft SmolLM2-135M-Instruct.Q4_1.gguf \\
      --prompts bench/repeat.jsonl -t 1 --costs costs.json

An n-gram drafter proposes tokens that followed the last one before, in the prompt or in the text.
Texts are written by plain decoding, and two drafters look at them afterwards: one that proposes
whatever comes, wherever that followed the last token before; and one that proposes, of the tokens
that did, the one that the target finds likeliest there, and knows how often in a row it will be
right. Both draft as much as is best in hindsight, which no drafter knows, and drafting costs
nothing. What passes over so many rows cost is read from a file as 'polydraft generate --costs FILE'
writes it; without it, rows cost nothing either. Speeds are relative to plain decoding.
"""

import math
import statistics
from pathlib import Path

import _path  # noqa: F401
import harness

# Of the target's distribution at each token, so many of the likeliest are looked at.
LIKELIEST = 20


def arguments():
    shared = ("program", "target", "dtype", "prompts!", "tokens", "threads")
    parser = harness.options(__doc__, *shared, tokens=64)
    add = parser.add_argument
    add("-t", "--temperature", type=float, default=1.0, help="of each text")
    add("--seeds", type=int, default=2, help="texts of each prompt")
    add("--costs", type=Path, metavar="FILE", help="what passes cost")
    return parser.parse_args()


def write(args, prompt, seed):
    """Tokens of a prompt, of a text after it, and what the target estimates at each of these."""
    asked = ["--dtype", args.dtype, "--threads", args.threads, "--verifier", "none"]
    asked += ["-t", args.temperature, "-n", args.tokens, "--seed", seed]
    asked += ["--logprobs", LIKELIEST, "--prompt", prompt]
    text = harness.generate(args.program, args.target, *asked)
    return text["prompt_token_ids"], text["tokens"], text["logprobs"]


def row_costs(file, most):
    """Seconds of passes over 0, 1, 2, .. rows: on the line between two that were measured."""
    pairs = [(1, 1.0), (2, 1.0)]
    if file:
        known = harness.read(file)["costs"]["target"]
        pairs = [(cost["tokens"], cost["seconds"]) for cost in known]
    costs, below = [0.0], (1, pairs[0][1])
    for rows in range(1, most + 1):
        above = next(((known, seconds) for known, seconds in pairs if known >= rows), None)
        if above is None:
            # After the last in proportion, where there are costs at all.
            costs.append(pairs[-1][1] * (rows / pairs[-1][0] if file else 1.0))
            continue
        below = max((pair for pair in pairs if pair[0] <= rows), default=below)
        part = (rows - below[0]) / max(above[0] - below[0], 1)
        costs.append(below[1] + part * (above[1] - below[1]))
    return costs


def gain(right, costs):
    """Plain decoding's time for a text over the least time in which its tokens can come.

    Token n can be drafted if right[n].
    """
    # For the rest of the text, from its end on; and how many tokens in a row can be drafted there.
    least, run = [0.0], 0
    for is_right in reversed(right):
        run = run + 1 if is_right else 0
        # So many drafted and accepted, and one token more, which there is not after the end.
        times = (
            costs[1 + drafted] + least[-min(drafted + 1, len(least))] for drafted in range(run + 1)
        )
        least.append(min(times))
    return len(right) * costs[1] / least[-1]


def followers(tokens):
    """Tokens that followed each token."""
    seen = {}
    for before, token in zip(tokens, tokens[1:]):
        seen.setdefault(before, set()).add(token)
    return seen


def look(prompt, tokens, laws):
    """Facts of each token and those that followed the last one before.

    Whether it is one of them; whether it is the likeliest of them; how likely that one is.
    """
    seen, last, rows = followers(prompt), prompt[-1], []
    for token, law in zip(tokens, laws):
        known = seen.setdefault(last, set())
        others = (other for other in law["top"] if other["token"] in known)
        likeliest = max(others, key=lambda other: other["logprob"], default=None)
        is_right = likeliest is not None and likeliest["token"] == token
        probability = math.exp(likeliest["logprob"]) if likeliest else 0.0
        rows.append((token in known, is_right, probability))
        known.add(token)
        last = token
    return rows


def main():
    args = arguments()
    costs = row_costs(args.costs, args.tokens + 1)
    prompts = harness.prompts(args.prompts)
    seen, any_right, likeliest_right = [], [], []
    for prompt in prompts:
        for seed in range(1, args.seeds + 1):
            rows = look(*write(args, prompt, seed))
            seen += rows
            any_right.append(gain([row[0] for row in rows], costs))
            likeliest_right.append(gain([row[1] for row in rows], costs))
    followed, _, likely = (statistics.fmean(column) for column in zip(*seen))
    shown = f"{followed:.3f}; probability of the likeliest that did: {likely:.3f}"
    print(f"{len(any_right)} texts, {len(seen)} tokens")
    print(f"followed the last token before: {shown}")
    # Of texts of one length: all time over all time.
    by_any, by_likeliest = map(statistics.harmonic_mean, (any_right, likeliest_right))
    shown = f"{by_any:.2f} by whatever comes, {by_likeliest:.2f} by the likeliest"
    print(f"at most, of plain decoding: {shown}")


if __name__ == "__main__":
    main()
