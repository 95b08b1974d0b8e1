#!/usr/bin/env bash
# Shows that scripts/check-types lets a tree in order pass and refuses types that are defined twice.
#   check_types.sh PATH_OF_CHECK_TYPES
set -euo pipefail
check=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

write() { mkdir -p "$(dirname "$root/$1")" && printf '%s\n' "${@:2}" >"$root/$1"; }
in_order() {
  rm -rf "$root/src" "$root/tests"
  write src/core/a.h '#pragma once' 'namespace hearth {' 'struct A {' '  struct Inner { int x; };' \
    '  int f() { struct Local {}; return 1; }' '};' 'enum class Kind { one, two };' 'class Later;' \
    'NAMES(Kind, {"one", "two"})' 'template <class T, int n = 3>' 'class Array final : public A {};' \
    'struct alignas(16) Wide {};' '}  // namespace hearth'
}
# The rest of a file src/sys/b.cpp, in namespace hearth.
with() { in_order; write src/sys/b.cpp 'namespace hearth {' "$@" '}  // namespace hearth'; }
passes() {
  "$check" "$root" || { echo "expected $1 to pass" >&2; exit 1; }
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
passes "a tree without duplicates"
with 'namespace {' 'struct A {};' '}' 'A f();' 'struct B { struct Inner {}; };'
passes "an anonymous namespace"
with 'namespace io {' 'struct A {};' '}' 'namespace cuda { enum class Kind { k }; }'
passes "another namespace"
with 'void f() {' '  struct A { int x; } a;' '}' 'class A;' 'struct A* g();' 'using Kind = int;'
passes "types of functions, declarations and aliases"
with '// struct A {' '/* struct A {' '*/' "const char c = '{', d = '\"';" 'const char* s = "struct A {";' \
  'const char* raw = R"x(struct A { "' ')x";' "int million = 1'000'000;" '#define BEGIN struct A {' 'struct B {};'
passes "comments, literals and macros"
with 'template <>' 'class Array<int> {};'
passes "a specialisation"

with '' 'struct A {};'
refuses 'src/sys/b.cpp:3: expected one definition of hearth::A, which src/core/a.h:3 defines too'
with 'enum class Kind : int { three };'
refuses 'src/sys/b.cpp:2: expected one definition of hearth::Kind'
with 'template <class T> struct Array {};'
refuses 'expected one definition of hearth::Array'
with '} namespace hearth::x {} namespace hearth {' 'class Wide' ': public A {' '};'
refuses 'src/sys/b.cpp:4: expected one definition of hearth::Wide'
with 'void f() { g("}", '"'}'"', R"(})"); }' 'struct A {};'
refuses 'src/sys/b.cpp:3: expected one definition of hearth::A'
with 'struct A::Inner2 {};' 'struct A::Inner2 {};'
refuses 'expected one definition of hearth::A::Inner2'
with 'void f() {'
refuses 'expected as many } as {'

in_order
write src/sys/x.cpp 'namespace hearth { struct X {}; }'
write src/sys/no_x.cpp 'namespace hearth { struct X {}; }'
passes "a file and the one that replaces it"
write src/cpu/no_x.cpp 'namespace hearth { struct X {}; }'
refuses 'expected one definition of hearth::X'

# One test program never holds the files of another; the shared ones and src/ are in all of them.
in_order
write tests/unit/a.cpp 'namespace hearth { struct T {}; }'
write tests/e2e/a.cpp 'namespace hearth { struct T {}; }'
passes "two test programs"
write tests/shared.h 'namespace hearth { struct T {}; }'
refuses 'tests/unit/a.cpp:1: expected one definition of hearth::T, which tests/shared.h:1 defines too'
rm -rf "$root/src" "$root/tests"
mkdir "$root/src"
refuses 'found none'
