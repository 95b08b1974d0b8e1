#!/usr/bin/env bash
# Shows that scripts/check-functions lets a tree in order pass and refuses a long function and a long file;
# in tests/ it refuses a long file only.
#   check_functions.sh PATH_OF_CHECK_FUNCTIONS
set -euo pipefail
check=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/src/core"

lines() { for ((i = 0; i < $1; ++i)); do echo "  call($i);"; done; }
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

# 60 lines of a function with its first and last, beside a class and a kernel that may be longer.
{
  echo 'namespace hearth {'
  echo 'struct S {'; lines 80; echo '};'
  echo '__global__ void kernel(int n) {'; lines 80; echo '}'
  echo 'int f(int a,'; echo '      int b) {'; lines 57; echo '}'
} >"$root/src/core/a.cpp"
"$check" "$root"
{ echo 'int declared(int);'; echo 'int g() {'; lines 59; echo '}'; } >"$root/src/core/b.cpp"
refuses 'src/core/b.cpp:2: expected at most 60 lines in a function, got 61'
{ echo 'template <typename T>'; echo 'void g('; echo '    T t) {'; lines 60; echo '}'; } >"$root/src/core/b.cpp"
refuses 'src/core/b.cpp:2: expected at most 60 lines in a function, got 63'
for ((k = 0; k < 10; ++k)); do echo "void f$k() {"; lines 50; echo '}'; done >"$root/src/core/b.cpp"
refuses 'src/core/b.cpp:520: expected at most 500 lines in a file, got 520'
mv "$root/src/core/b.cpp" "$root/src/core/b_tables.cpp"
"$check" "$root"
mkdir -p "$root/tests/unit"
{ echo 'TEST(Suite, Name) {'; lines 498; echo '}'; } >"$root/tests/unit/test_a.cpp"
"$check" "$root"
echo '// one line more' >>"$root/tests/unit/test_a.cpp"
refuses 'tests/unit/test_a.cpp:501: expected at most 500 lines in a file, got 501'
rm -r "$root/tests"
rm -r "$root/src/core"
refuses 'found none'
