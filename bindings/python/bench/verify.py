"""Cost of a verification step from Python, compared with the step of the Rust benchmark on the same arrays.

    MATURIN_PEP517_ARGS="--features bench" pip install .     # or: maturin develop --release --features bench
    RAYON_NUM_THREADS=2 python bench/verify.py [--vocabulary 128256] [--paths 4] [--depth 8] [--record FILE]

A step computes the emitted tokens from tokens, parents and logits, as an engine does: in Python one call of
`polydraft.verify_arrays`. Both alternate and must emit the same tokens for a seed. Reports the median ratio of adjacent steps.
"""

import statistics
import time

import _path
import harness
import numpy as np
import polydraft


def case(paths, depth, vocabulary, seed):
    """Draws paths from distributions like a language model's: normal logits of deviation 4, the draft's with an error of 1."""
    random = np.random.default_rng(seed)
    draft, target_rows, draft_rows = polydraft.Draft(f"paths:{paths},{depth}"), {}, {}

    def rows(nodes):
        for node in nodes:
            level = random.normal(scale=4, size=vocabulary)
            target_rows[node] = level.astype(np.float32)
            draft_rows[node] = (level + random.normal(size=vocabulary)).astype(np.float32)
        return np.stack([draft_rows[node] for node in nodes])

    rng = polydraft.Rng(seed)
    while nodes := draft.frontier():
        draft.grow(rows(nodes), rng)
    rows([node for node in range(len(draft)) if node not in target_rows])
    return (
        draft,
        np.stack([draft_rows[n] for n in range(len(draft))]),
        np.stack([target_rows[n] for n in range(len(draft))]),
    )


def measure(name, cases, rounds):
    verifier, ratios, ours, theirs = polydraft.Verifier(name), [], [], []
    for draft, draft_logits, target_logits in cases:
        tokens, parents, counts = draft.tokens, draft.parents, draft.counts
        for seed in range(rounds):
            ((rust, expected),) = polydraft._native._rust_step(verifier, draft, draft_logits, target_logits, [seed])
            start = time.perf_counter()
            outcome = polydraft.verify_arrays(
                tokens, parents, draft_logits, target_logits, seed, counts=counts, verifier=verifier
            )
            python = time.perf_counter() - start
            assert outcome.tokens == expected, (name, seed)
            if seed >= 2:
                ratios.append(python / rust)
                ours.append(python)
                theirs.append(rust)
    return {
        "verifier": name,
        "ratio": statistics.median(ratios),
        "python_ms": 1e3 * statistics.median(ours),
        "rust_ms": 1e3 * statistics.median(theirs),
    }


def main():
    parser = harness.options(__doc__, "rounds", "record", rounds=21)
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--paths", type=int, default=4)
    parser.add_argument("--depth", type=int, default=8)
    args = parser.parse_args()
    cases = [case(args.paths, args.depth, args.vocabulary, seed) for seed in range(3)]
    rows = []
    for name in ["nested-priority", "specinfer", "spectr", "traversal", "greedy-block", "priority-block"]:
        row = measure(name, cases, args.rounds)
        rows.append(row)
        print(
            f"{name:>16}  python {row['python_ms']:7.2f} ms  rust {row['rust_ms']:7.2f} ms  ratio {row['ratio']:.3f}",
            flush=True,
        )
    if args.record:
        file = vars(args).pop("record")
        harness.write(file, {"provenance": harness.provenance(packages=_path.PACKAGES), **vars(args), "rows": rows})


if __name__ == "__main__":
    main()
