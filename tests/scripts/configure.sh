#!/bin/sh
# The build's choices, configured with a CUDA compiler that does not work: HEARTH_CUDA is off in any case,
# another word is refused, warnings are errors only where they are asked to be, libraries may be missing, and a
# room of src/ may have subfolders of any depth.
# configure.sh CMAKE SOURCE
cmake=$1
source=$2
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/bin"
printf '#!/bin/sh\nexit 1\n' >"$scratch/bin/nvcc"
chmod +x "$scratch/bin/nvcc"
PATH=$scratch/bin:$PATH
export PATH
unset CI
status=0
complain() { echo "configure: $*"; status=1; }
configure() {  # configure FLAG...: a new build folder; what CMake says is in $scratch/said
  rm -rf "$scratch/build"
  "$cmake" -S "$source" -B "$scratch/build" -G Ninja -DHEARTH_TESTS=OFF "$@" >"$scratch/said" 2>&1
}

configure -DHEARTH_CUDA=OFF || { complain "expected HEARTH_CUDA=OFF to leave CUDA out, got:"; tail -n 5 "$scratch/said"; }
grep -q -e '-Wall' "$scratch/build/build.ninja" || complain "expected -Wall, got none"
grep -q -e '-Werror' "$scratch/build/build.ninja" && complain "expected no -Werror by default, got some"
configure -DHEARTH_CUDA=Off -DHEARTH_WERROR=ON || complain "expected HEARTH_CUDA=Off to leave CUDA out"
grep -q -e '-Werror' "$scratch/build/build.ninja" || complain "expected -Werror with HEARTH_WERROR, got none"
configure -DHEARTH_CUDA=on && complain "expected HEARTH_CUDA=on to use nvcc, got a build without"
configure -DHEARTH_CUDA=perhaps && complain "expected HEARTH_CUDA=perhaps to be refused"
grep -q 'expected HEARTH_CUDA to be auto, on or off, got "perhaps"' "$scratch/said" ||
  complain "expected the words that HEARTH_CUDA takes, got: $(cat "$scratch/said")"

for sanitizers in address,undefined thread; do  # with the tests, which have settings of their own for this
  configure -DHEARTH_CUDA=OFF -DHEARTH_TESTS=ON -DHEARTH_SANITIZE=$sanitizers ||
    { complain "expected a build with $sanitizers, got:"; tail -n 5 "$scratch/said"; }
done

# without LIBRARY FILE FLAG...: src/FILE is compiled where the library is missing
without() {
  library=$1 file=$2
  shift 2
  configure -DHEARTH_CUDA=OFF "$@" || complain "expected a build without $library, got: $(tail -n 5 "$scratch/said")"
  grep -q "src/$file" "$scratch/build/build.ninja" || complain "expected src/$file in a build without $library"
}
without libcurl sys/https/no_https.cpp -DHEARTH_UNITY=OFF -DCMAKE_DISABLE_FIND_PACKAGE_CURL=ON
without zlib sys/compression/no_gzip.cpp -DHEARTH_UNITY=OFF -DCMAKE_DISABLE_FIND_PACKAGE_ZLIB=ON
without PCRE2 rewards/no_regex.cpp -DHEARTH_UNITY=OFF -DHEARTH_WITHOUT='zstd;pcre2'
grep -q 'src/sys/compression/no_zstd.cpp' "$scratch/build/build.ninja" || complain "expected a build without zstd"

# A copy of the tree with a new file in subfolders of rooms: each is compiled in the unit of its folder.
tree=$scratch/tree
mkdir "$tree"
cp -R "$source/CMakeLists.txt" "$source/cmake" "$source/src" "$tree"
source=$tree
for folder in cli/deep core/deep/down cpu/isa/deep; do
  mkdir -p "$tree/src/$folder"
  echo '// A new file.' >"$tree/src/$folder/made_up.cpp"
done
configure -DHEARTH_CUDA=off || { complain "expected subfolders to configure, got:"; tail -n 5 "$scratch/said"; }
expect_unit() {  # expect_unit FILE UNIT: the units that include FILE of src/ are those whose names match UNIT
  units=$(cd "$scratch/build/CMakeFiles" && grep -rl "src/$1\"" --include='unity_*.cxx' .)
  [ -n "$units" ] || complain "expected src/$1 in a unit, got none"
  for unit in $units; do
    case $unit in ./$2) ;; *) complain "expected src/$1 in $2 alone, got $unit" ;; esac
  done
}
expect_unit cli/deep/made_up.cpp 'hearth.dir/Unity/unity_cli_deep_cxx.cxx'
expect_unit core/deep/down/made_up.cpp 'hearth_lib.dir/Unity/unity_core_deep_down_cxx.cxx'
expect_unit cpu/isa/deep/made_up.cpp 'hearth_isa_*.dir/Unity/unity_cpu_isa_deep_cxx.cxx'
exit $status
