"""Beginnings of the texts of `head_training.py`, as tokens, and samples kept for validation.

    python research/bench/gpu/first_words.py WORK TOKENIZER.json WORDS.json

WORK is a folder of `python -m polydraft.train` with text of the same model: its first samples are
kept for validation there and here.
"""

import argparse
import json
import re
from pathlib import Path

from safetensors import safe_open
from tokenizers import Tokenizer

HELD_OUT = 48
OPENINGS = Path(__file__).resolve().parents[3] / "crates/polydraft-lessons/src/kinds.rs"


def openings():
    """The words that samples begin with, by kind, as the trainer has them."""
    text = OPENINGS.read_text()
    found = {}
    for name, body in re.findall(r"const (\w+): &\[&str\] = &\[(.*?)\n\];", text, re.S):
        found[name] = [json.loads(x) for x in re.findall(r'"(?:[^"\\]|\\.)*"', body)]
    assert set(found) == {"CHAT_CODE", "CHAT_PROSE", "CHAT_LIST", "CODE", "PROSE"}, found.keys()
    return found


def forced(tokenizer, system):
    """Rows of tokens that begin a text, with their turn, as often as they should be drawn."""

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    end, user, answer = "<|im_end|>", "<|im_start|>user\n", "<|im_start|>assistant\n"
    rows = [encode(f"\n{answer}"), encode(f"\n{user}"), encode(f"{end}\n{answer}")]
    before = f"<|im_start|>system\n{system}{end}\n{user}"
    shares = {"CHAT_CODE": 18, "CHAT_PROSE": 13, "CHAT_LIST": 13, "CODE": 12, "PROSE": 14}
    begin = [(len(rows), 0)] * 3000
    rows.append(encode(before))
    for name, words in openings().items():
        for word in words:
            talk = name.startswith("CHAT")
            begin += [(len(rows), 0 if talk else 2)] * round(100 * shares[name] / len(words))
            rows.append(encode(before + word if talk else word))
    ends = [tokenizer.token_to_id(x) for x in ("<|endoftext|>", "<reponame>", end)]
    return {"rows": rows, "answer": 0, "ask": 1, "cut": 2, "ends": ends}, begin


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="the trainer's folder")
    parser.add_argument("tokenizer", help="tokenizer.json of the model")
    parser.add_argument("out", type=Path, help="the file to write")
    args = parser.parse_args()
    work = args.work
    about = json.loads((work / "model.json").read_text())
    tokenizer = Tokenizer.from_file(args.tokenizer)
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    rows, begin = forced(tokenizer, system)
    assert sorted(rows["ends"]) == about["end_tokens"], (rows["ends"], about)
    with safe_open(work / "shard-0000.safetensors", "pt") as file:
        lengths = file.get_tensor("lengths")[:HELD_OUT].tolist()
        count = sum(lengths)
        held = {
            "lengths": lengths,
            "tokens": file.get_slice("tokens")[:count].tolist(),
            "taught": file.get_slice("taught")[:count].tolist(),
        }
    args.out.write_text(
        json.dumps({"model": about, "forced": rows, "openings": begin, "held_out": held})
    )


main()
