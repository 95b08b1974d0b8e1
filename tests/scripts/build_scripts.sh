#!/bin/sh
# scripts/build and scripts/quickstart over stand-ins for the tools they call: what they build, where, and
# with which settings.
# build_scripts.sh SCRIPTS
scripts=$1
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/bin" "$scratch/tree/scripts"
cp "$scripts/build" "$scripts/quickstart" "$scratch/tree/scripts/"
cd "$scratch/tree" || exit 1
echo '{}' >CMakePresets.json
log=$scratch/log
status=0

stand_in() {  # stand_in FILE: a program whose text comes from standard input
  { echo '#!/bin/sh'; cat; } >"$1"
  chmod +x "$1"
}
stand_in "$scratch/bin/nvcc" <<'END'
exit 1
END
stand_in "$scratch/bin/nvidia-smi" <<END
cat "$scratch/cards" 2>/dev/null
END
# Configuring leaves the files that scripts/build looks at, and a program where a build would.
stand_in "$scratch/bin/cmake" <<END
echo "cmake \$*" >>"$log"
if [ "\$1" = --preset ]; then
  dir=build
  [ "\$2" = release ] || dir=build-\$2
  mkdir -p \$dir/CMakeFiles
  touch \$dir/build.ninja \$dir/CMakeFiles/rules.ninja
  for flag in "\$@"; do echo "\${flag#-D}"; done >\$dir/CMakeCache.txt
else
  printf '#!/bin/sh\necho "\$0 \$*" >>"$log"\n' >"\$2/hearth"
  chmod +x "\$2/hearth"
fi
END
stand_in scripts/packages <<END
echo "packages \$*" >>"$log"
END
PATH=$scratch/bin:$PATH
export PATH
unset CI HEARTH_CUDA HEARTH_CUDA_QUICK

# expect WHAT PATTERN [no]: the calls logged since the last `reset` contain PATTERN, or do not
reset() { : >"$log"; }
expect() {
  if grep -q -e "$2" "$log"; then [ "${3-}" != no ] && return; else [ "${3-}" = no ] && return; fi
  echo "build_scripts: expected $1; the calls were:"
  cat "$log"
  status=1
}

reset; scripts/build hearth 2>/dev/null
expect "a plain build to configure the release preset" '^cmake --preset release$'
expect "a plain build to leave warnings alone" WERROR no
reset; scripts/build hearth 2>/dev/null
expect "a second build to configure nothing" '--preset' no
reset; CI=true scripts/build hearth 2>/dev/null
expect "CI to make warnings errors" '^cmake --preset release -DHEARTH_WERROR:BOOL=ON$'
reset; CI=true scripts/build hearth 2>/dev/null
expect "a second build of CI to configure nothing" '--preset' no

# expect_said WHAT PATTERN [no]: the same of what the script has printed
expect_said() {
  if grep -q -e "$2" "$scratch/said"; then
    [ "${3-}" != no ] && return
  else
    [ "${3-}" = no ] && return
  fi
  echo "build_scripts: expected $1; the script said:"
  cat "$scratch/said"
  status=1
}

rm -rf build
reset; HEARTH_CUDA_QUICK=ON scripts/build hearth 2>/dev/null
expect "kernels that are only checked" '^cmake --preset release -DHEARTH_CUDA_QUICK:BOOL=ON$'
reset; HEARTH_CUDA_QUICK=ON scripts/build hearth 2>/dev/null
expect "a second such build to configure nothing" '--preset' no
reset; scripts/build hearth 2>/dev/null
expect "a plain build to have fast kernels again" '^cmake --preset release$'

rm -rf build
reset; scripts/quickstart --steps 1 2>"$scratch/said"
expect "no CUDA code without a card" '^cmake --preset cpu$'
expect "the program of that build" '^build-cpu/hearth quickstart --run runs/quickstart --steps 1$'
expect "no build folder that scripts/build would find" '--preset release' no
expect "only the packages of the build" '^packages --build$'
expect_said "a line on how to build for CUDA" 'no GPU was found.*build-cpu/.*HEARTH_CUDA=on scripts/quickstart'
expect_said "nothing about time where no CUDA code is compiled" 'an hour' no
reset; HEARTH_CUDA=on scripts/quickstart 2>"$scratch/said"
expect "CUDA where it is asked for" '^build/hearth quickstart'
expect_said "how long that takes" 'quarter of an hour.*HEARTH_CUDA=off scripts/quickstart'
expect_said "nothing about the GPU where CUDA is asked for" 'no GPU' no
reset; HEARTH_CUDA=ON scripts/quickstart 2>"$scratch/said"
expect_said "nothing about time once it is built" 'an hour' no
reset; HEARTH_CUDA=1 scripts/quickstart 2>"$scratch/said" && status=1
expect "nothing to be built for a setting that is not known" . no
expect_said "the known settings" 'expected HEARTH_CUDA to be auto, on or off, got 1'
echo 'GPU 0: a card' >"$scratch/cards"
rm -rf build
reset; scripts/quickstart 2>"$scratch/said"
expect "CUDA where there is a card" '^cmake --preset release$'
expect_said "nothing about the GPU where it is used" 'GPU' no

# Without a CUDA compiler: on a PATH with only the tools of the scripts, and no toolkit in its usual place.
sed -i "s|/usr/local/cuda|$scratch/none|g" scripts/quickstart
mkdir "$scratch/tools"
for tool in bash sh env cat chmod dirname grep mkdir nproc touch; do
  ln -s "$(command -v "$tool")" "$scratch/tools/$tool"
done
rm -rf build "$scratch/bin/nvcc"
few() { PATH=$scratch/bin:$scratch/tools "$@"; }
reset; few scripts/quickstart 2>"$scratch/said"
expect "a plain build" '^cmake --preset release$'
expect_said "why the GPU is not used" 'a GPU but no CUDA compiler (nvcc).*CUDA toolkit, delete build/'
expect_said "nothing about time where no CUDA code is compiled" 'an hour' no
reset; few env HEARTH_CUDA=on scripts/quickstart 2>"$scratch/said" && status=1
expect "nothing to be built without the compiler that was asked for" . no
expect_said "what is missing" 'HEARTH_CUDA=on needs the CUDA toolkit: nvcc'
rm "$scratch/cards"
reset; few scripts/quickstart 2>"$scratch/said"
expect "the same build without a GPU" '^build/hearth quickstart'
expect_said "no warning where there is neither" '^quickstart:' no
exit $status
