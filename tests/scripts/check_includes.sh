#!/usr/bin/env bash
# Shows that scripts/check-includes lets a tree in order pass and refuses each way to break it.
#   check_includes.sh PATH_OF_CHECK_INCLUDES
set -euo pipefail
check=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

write() { mkdir -p "$(dirname "$root/$1")" && printf '%s\n' "${@:2}" >"$root/$1"; }
in_order() {
  rm -rf "$root/src"
  write src/core/a.h '// What a is.' '#pragma once'
  write src/cpu/isa/b.cpp '#include "cpu/isa/c.h"' '#include <vector>' '#include "core/a.h"'
  write src/cpu/isa/c.h '// What c is.' '#include "ops/d.h"' '// #include "cli/not_an_include.h"'
  write src/ops/d.h '// What d is.'
  write src/cuda/attention/hopper/f.cu '#include "cuda/attention/g.cuh"' '#include "cpu/isa/c.h"'
  write src/cuda/attention/g.cuh '// What g is.' '#include "cuda/h.h"'
  write src/cuda/h.h '// What h is.' '#include "cuda/attention/g.cuh"'
}
refuses() {
  local message
  if message=$("$check" "$root" 2>&1); then
    echo "expected a complaint with '$1', got success" >&2
    exit 1
  elif [[ $message != *"$1"* ]]; then
    echo "expected a complaint with '$1', got '$message'" >&2
    exit 1
  fi
}

in_order
"$check" "$root"
write src/core/a.h '// What a is.' '#include "ops/d.h"'
refuses 'src/core/a.h:2: expected no include from ops in core'
in_order
write src/cpu/isa/c.h '// What c is.' '' '  # include "serve/x.h"'
refuses 'src/cpu/isa/c.h:3: expected no include from serve in cpu'
in_order
write src/ops/d.h '#pragma once' '// What d is.'
refuses 'src/ops/d.h:1: expected a // comment'
in_order
write src/cpu/isa/b.cpp '#include "c.h"'
refuses 'src/cpu/isa/b.cpp:1: expected an include rooted at src/'
# The room is the first folder, however deep the file and what it includes.
in_order
write src/cpu/isa/b.cpp '#include "cuda/attention/g.cuh"'
refuses 'src/cpu/isa/b.cpp:1: expected no include from cuda in cpu'
in_order
write src/cuda/attention/hopper/f.cu '#include "cli/ops/core.h"'
refuses 'src/cuda/attention/hopper/f.cu:1: expected no include from cli in cuda'
in_order
write src/cuda/attention/hopper/f.cu '#include "attention/g.cuh"'
refuses 'src/cuda/attention/hopper/f.cu:1: expected an include rooted at src/'
in_order
write src/cuda/attention/g.cuh '#pragma once'
refuses 'src/cuda/attention/g.cuh:1: expected a // comment'
in_order
write src/attic/e.cpp ''
refuses 'src/attic/e.cpp:1: expected a room among'
rm -rf "$root/src"
mkdir "$root/src"
refuses 'found none'
