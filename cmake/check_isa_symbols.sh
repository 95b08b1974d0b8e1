#!/bin/sh
# Fails if an object built for one instruction set defines a weak symbol outside its namespace: the linker keeps
# one copy of a weak symbol, and it might keep one that this CPU cannot run.
# check_isa_symbols.sh NM OBJECT...; objects are named .../hearth_isa_<isa>.dir/...
nm=$1
shift
test $# -gt 0 || { echo "check_isa_symbols: expected objects, got none"; exit 1; }
status=0
for object in "$@"; do
  isa=$(printf '%s\n' "$object" | sed -n 's|.*hearth_isa_\([a-z0-9]*\)\.dir/.*|\1|p')
  test -n "$isa" || { echo "check_isa_symbols: expected a path with hearth_isa_<isa>.dir, got $object"; exit 1; }
  symbols=$("$nm" --defined-only "$object") || exit 1
  # In a mangled name the namespace is <length><name>, as in 6hearth4avx2.
  bad=$(printf '%s\n' "$symbols" | awk -v ns="6hearth${#isa}$isa" \
    '$2 ~ /^[WVu]$/ && index($3, ns) == 0 && $3 !~ /^DW\.ref\./ {print "  " $3}')
  if test -n "$bad"; then
    printf '%s: weak symbols outside hearth::%s\n%s\n' "$object" "$isa" "$bad"
    status=1
  fi
done
exit $status
