#!/usr/bin/env python3
"""The wait for a first token while `polydraft serve` reads somebody else's long prompt.

    python3 bench/first_token.py target/release/polydraft -- --threads 2

Makes a Llama of 484 million random weights in a temporary folder (1 GB). What follows `--` goes to
`polydraft serve`. Prints one JSON object: seconds to the first token of short requests alone and
beside a prompt of 4,000 tokens, and how long that prompt took. Exit code 1 if the median beside it
is 3 times that alone or more.
"""

import asyncio
import json
import math
import os
import pathlib
import random
import statistics
import struct
import sys
import tempfile
import time

import harness

# Tokens of a long prompt.
LONG = 4000
VOCABULARY, HIDDEN, INTERMEDIATE, HEADS, KEY_VALUE_HEADS = 8192, 2048, 5632, 16, 4


def write(folder, parameters):
    """Makes the model; the count of its parameters."""
    keys = KEY_VALUE_HEADS * HIDDEN // HEADS
    per_layer = 2 * HIDDEN * (HIDDEN + keys) + 3 * HIDDEN * INTERMEDIATE
    layers = (parameters - 2 * VOCABULARY * HIDDEN) // per_layer
    table, one = [VOCABULARY, HIDDEN], [HIDDEN]
    shapes = {"model.embed_tokens": table, "lm_head": table, "model.norm": one}
    for layer in range(layers):
        for part, shape in {
            "input_layernorm": one,
            "post_attention_layernorm": one,
            "self_attn.q_proj": [HIDDEN, HIDDEN],
            "self_attn.k_proj": [keys, HIDDEN],
            "self_attn.v_proj": [keys, HIDDEN],
            "self_attn.o_proj": [HIDDEN, HIDDEN],
            "mlp.gate_proj": [INTERMEDIATE, HIDDEN],
            "mlp.up_proj": [INTERMEDIATE, HIDDEN],
            "mlp.down_proj": [HIDDEN, INTERMEDIATE],
        }.items():
            shapes[f"model.layers.{layer}.{part}"] = shape
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "max_position_embeddings": 8192,
    }
    (folder / "config.json").write_text(json.dumps(config))
    words = {chr(0x4E00 + token): token for token in range(VOCABULARY)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": words, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    header, at = {}, 0
    for name, shape in shapes.items():
        end = at + 2 * math.prod(shape)
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    header = json.dumps(header).encode()
    # Numbers of one size with random signs and fractions: their sums stay in range. Norms are ones.
    fraction = bytes(byte & 0x7F for byte in range(256))
    sign = bytes(0x3C | byte & 0x80 for byte in range(256))
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for shape in shapes.values():
            count = math.prod(shape)
            numbers = bytearray(2 * count)
            if len(shape) == 1:
                numbers[0::2], numbers[1::2] = b"\x80" * count, b"\x3f" * count
            else:
                numbers[0::2] = os.urandom(count).translate(fraction)
                numbers[1::2] = os.urandom(count).translate(sign)
            file.write(numbers)
    return at // 2


async def first_token(port, prompt):
    """Seconds to the first chunk of a stream."""
    start = time.monotonic()
    body = json.dumps({"prompt": prompt, "max_tokens": 2, "stream": True, "logprobs": 0}).encode()
    reader, writer = await harness.connect(port, body)
    try:
        seconds = None
        async for _ in harness.chunks(reader):
            seconds = seconds or time.monotonic() - start
        return seconds
    finally:
        writer.transport.abort()


async def measure(port, turns, whole):
    """Seconds of short requests alone and beside a long one."""
    rng = random.Random(1)

    def prompt(length):
        return [rng.randrange(VOCABULARY) for _ in range(length)]

    def short():
        return first_token(port, prompt(16))

    # Warm; it also learns how fast prompts are read.
    read = await first_token(port, prompt(LONG if whole else LONG // 10))
    alone, beside = [], []
    # By turns, so that a drift of the machine hits both alike; whoever asked for the long prompt
    # goes away in the middle of it.
    for _ in range(turns):
        alone += [await short() for _ in range(3)]
        long = asyncio.create_task(first_token(port, prompt(LONG)))
        await asyncio.sleep(1)
        for _ in range(3):
            seconds = await short()
            if long.done():
                break
            beside.append(seconds)
            # Whenever they come.
            await asyncio.sleep(rng.random() / 4)
        long.cancel()
        await asyncio.gather(long, return_exceptions=True)
        # The part of it that is at work is read to its end.
        await short()
    if not beside:
        sys.exit(
            f"the prompt of {LONG} tokens was read before a short one had an answer: too short"
        )
    one, other = statistics.median(alone), statistics.median(beside)
    return {
        "alone_seconds": round(one, 3),
        "beside_seconds": round(other, 3),
        "beside_worst_seconds": round(max(beside), 3),
        "ratio": round(other / one, 2),
        "long_seconds": round(read * (1 if whole else 10), 2),
        "long_was_read_whole": whole,
        "alone": [round(seconds, 3) for seconds in alone],
        "beside": [round(seconds, 3) for seconds in beside],
    }


def main():
    parser = harness.options(__doc__, "program", "record")
    parser.add_argument("--turns", type=int, default=8, help="of alone and beside")
    parser.add_argument(
        "--part", action="store_true", help="time a tenth of a long prompt, not all"
    )
    arguments = harness.parsed(parser)
    with tempfile.TemporaryDirectory() as folder:
        parameters = write(pathlib.Path(folder), 500_000_000)
        model = ["--target", folder, "--draft", "ngram"]
        with harness.serve(arguments.program, [*model, *arguments.options]) as server:
            result = asyncio.run(measure(server.port, arguments.turns, not arguments.part))
    result |= harness.provenance(arguments.program, arguments.options)
    harness.put({"parameters": parameters} | result, arguments.record)
    sys.exit(0 if result["ratio"] < 3 else 1)


main()
