#!/bin/sh
# scripts/check-skips and scripts/test over files that ctest itself writes: which skips are allowed, what is
# printed about them, and that CI fails for the others.
# check_skips.sh SCRIPTS CTEST
scripts=$1
ctest=$2
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
status=0
mkdir -p "$scratch/bin" "$scratch/tree/scripts" "$scratch/tree/build"
cp "$scripts/check-skips" "$scripts/test" "$scratch/tree/scripts/"
cd "$scratch/tree" || exit 1
stand_in() {  # stand_in FILE: a program whose text comes from standard input
  { echo '#!/bin/sh'; cat; } >"$1"
  chmod +x "$1"
}
stand_in scripts/build </dev/null
stand_in scripts/packages <<'END'
[ "$1" != --list ] || printf '%s\n' cmake 'stockfish (tests)' 'tmux (tests)' 'clang (optional)'
END
stand_in "$scratch/bin/nvidia-smi" <<END
cat "$scratch/cards" 2>/dev/null
END
ln -s "$ctest" "$scratch/bin/ctest"
: >build/build.ninja
PATH=$scratch/bin:$PATH
export PATH
unset CI

reset() { : >build/CTestTestfile.cmake; add Plain.Passes 'exit 0'; }
add() {  # add NAME COMMAND: a test, skipped where the command exits with 77
  printf 'add_test("%s" sh -c "%s")\nset_tests_properties("%s" PROPERTIES SKIP_RETURN_CODE 77)\n' "$1" "$2" "$1" \
    >>build/CTestTestfile.cmake
}
gtest() { echo "echo '/a/test.cpp:7: Skipped'; echo '$1'; echo; echo '[  SKIPPED ] x (0 ms)'; exit 77"; }
script() { echo "echo 'skipped: $1'; exit 77"; }
# expect STATUS PATTERN WHAT [FLAG]: the skips of the tests added, by scripts/check-skips
expect() {
  rm -f build/tests.xml
  ctest --test-dir build --output-junit "$scratch/tree/build/tests.xml" >/dev/null 2>&1
  scripts/check-skips ${4-} build/tests.xml >"$scratch/said" 2>&1
  got=$?
  if [ $got -ne "$1" ] || ! grep -q -e "$2" "$scratch/said"; then
    echo "check_skips: $3: expected exit status $1 and '$2', got $got and:"
    cat "$scratch/said"
    status=1
  fi
}

reset
expect 0 '^skipped: 0 of 1 tests$' "no skip"
add Cuda.One "$(gtest 'needs a card: no driver')"
add Cuda.Two "$(gtest 'needs a card: no driver')"
add parity.a.mjs "$(script 'needs npm packages a b')"
expect 0 '^skipped: 3 of 4 tests$' "no card and no oracle" --plain
expect 0 '^  2 needs a card: no driver (Cuda.One, Cuda.Two)$' "the names by reason"
expect 0 '^  1 needs npm packages a b (parity.a.mjs)$' "the names by reason"
add Unit.X "$(gtest 'needs SHA-256 instructions')"
expect 0 '^  1 needs SHA-256 instructions (Unit.X)$' "an instruction that the processor lacks" --plain
echo 'GPU 0: a card' >"$scratch/cards"
expect 1 'NOT ALLOWED: needs a card' "a card that is there"
reset
add Cuda.One "$(gtest 'built without CUDA')"
expect 0 '^  1 built without CUDA (Cuda.One)$' "a card and a build that does not use it" --plain
rm "$scratch/cards"
for why in 'needs stockfish (scripts/packages installs it)' 'built without zlib' 'needs the right to mount' \
  'needs /dev/full'; do
  reset
  add Unit.X "$(gtest "$why")"
  expect 0 "^  1 $why (Unit.X)\$" "$why"
  expect 1 "^  1 NOT ALLOWED: $why (Unit.X)\$" "a plain machine" --plain
done
for why in 'it is flaky' 'needs a rest' 'needs clang' 'needs stockfishes' 'it needs a card'; do
  reset
  add Unit.X "$(gtest "$why")"
  expect 1 "^  1 NOT ALLOWED: $why (Unit.X)\$" "$why"
done
reset
add parity.a.mjs "$(script 'it was slow')"
expect 1 'NOT ALLOWED: it was slow' "a parity test without a reason that counts"
reset
add Unit.X 'exit 77'
expect 1 'NOT ALLOWED: no reason given (Unit.X)' "no reason"
scripts/check-skips build/none.xml >/dev/null 2>&1 && { echo "check_skips: expected a missing file to be refused"; status=1; }

# scripts/test prints them, and fails for them in CI alone.
ran() {  # ran STATUS WHAT COMMAND...
  wanted=$1 what=$2
  shift 2
  "$@" >"$scratch/said" 2>&1
  got=$?
  [ $got -eq "$wanted" ] && grep -q '^skipped: 1 of 2 tests$' "$scratch/said" && return
  echo "check_skips: $what: expected exit status $wanted and the skipped tests, got $got and:"
  cat "$scratch/said"
  status=1
}
ran 0 "scripts/test elsewhere" scripts/test
ran 1 "scripts/test in CI" env CI=true scripts/test --all
ran 1 "scripts/test with arguments in CI" env CI=true scripts/test -R .
reset
add Cuda.One "$(gtest 'needs a card: no driver')"
ran 0 "an allowed skip in CI" env CI=true scripts/test --all
exit $status
