#!/usr/bin/env bash
# GGUF files of hearth in llama.cpp: equal greedy tokens at F32 for every architecture, equal token ids, and the
# perplexity of the other types; and files that ggml quantises in hearth: the same floats. LLAMA_CPP is a checkout with
# its static libraries built (cmake -B build -DBUILD_SHARED_LIBS=OFF && cmake --build build --target llama).
#   tests/parity/gguf.sh LLAMA_CPP DATA [HEARTH] [OUT.json]
# DATA is the folder of unpacked test data (tokenizers/gpt2, and models/stories260K where it is there).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
llama=$1 data=$2
hearth=$(realpath "${3:-$here/../../build/hearth}") out=$(realpath -m "${4:-$here/results/gguf.json}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ggml=$llama/build/ggml/src
"${CXX:-g++}" -std=c++17 -O1 -fopenmp -I"$llama/include" -I"$llama/ggml/include" "$here/gguf_oracle.cpp" \
  -o "$work/oracle" "$llama/build/src/libllama.a" "$ggml/libggml.a" "$ggml/libggml-cpu.a" \
  "$ggml/libggml-base.a" -lpthread -ldl
python3 "$here/gguf.py" "$hearth" "$work/oracle" "$data" "$work" "$out"
