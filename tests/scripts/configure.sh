#!/bin/sh
# The build's choices, configured with a CUDA compiler that does not work: HEARTH_CUDA is off in any case,
# another word is refused, and warnings are errors only where they are asked to be.
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
exit $status
