#!/bin/sh
# Fails if BINARY lacks the hardening of cmake/hardening.cmake.
# check_hardening.sh READELF BINARY
readelf=$1
binary=$2
status=0
expect() {  # expect WHAT PATTERN OPTION: readelf OPTION BINARY must print PATTERN
  "$readelf" -W "$3" "$binary" | grep -q "$2" && return
  echo "check_hardening: expected $1 in $binary, got none"
  status=1
}
expect "a position-independent executable" 'Type: *DYN' -h
expect "read-only relocations" 'GNU_RELRO' -l
expect "symbols bound at start" 'BIND_NOW\|FLAGS.*NOW' -d
expect "stack protectors" '__stack_chk_fail' --dyn-syms
expect "checked libc calls" '__[a-z]*_chk@' --dyn-syms
exit $status
