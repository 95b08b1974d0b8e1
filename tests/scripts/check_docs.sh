#!/usr/bin/env bash
# Breaks a copy of the documentation in one way at a time and expects scripts/figures --check or scripts/check-docs to
# refuse it.
#   check_docs.sh SOURCE HEARTH
set -euo pipefail
source=$1
export HEARTH=$2
command -v python3 >/dev/null || { echo "check: skipped, python3 is not installed"; exit 0; }
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

fresh() {
  rm -rf "${copy:?}"/*
  mkdir -p "$copy/bench" "$copy/scripts" "$copy/tests" "$copy/web"
  cp -r "$source"/{README.md,CONTRIBUTING.md,CHANGELOG.md,docs,recipes} "$copy"
  cp "$source/web/README.md" "$copy/web"
  cp -r "$source/bench/results" "$copy/bench"
  cp -r "$source"/tests/{data,parity} "$copy/tests"
  cp "$source"/scripts/{figures,check-docs} "$copy/scripts"
}
passes() { "$@" >"$copy/said" 2>&1 || { echo "expected $* to pass, got:"; cat "$copy/said"; exit 1; }; }
refuses() { # what the complaint says, command..
  local says=$1; shift
  if "$@" >"$copy/said" 2>&1; then echo "expected $* to fail ($says), got success"; exit 1; fi
  grep -qF -- "$says" "$copy/said" || { echo "expected \"$says\", got:"; cat "$copy/said"; exit 1; }
}

fresh
passes "$copy/scripts/figures" --check
passes "$copy/scripts/check-docs"
echo "| another | row |" >>"$copy/docs/figures.md"
refuses "docs/figures.md differ" "$copy/scripts/figures" --check
passes "$copy/scripts/figures"
passes "$copy/scripts/figures" --check

line='{"date": "2099-01-01", "device": "d", "subject": "cpu", "what": "a figure", "value": 1, "unit": "s"}'
fresh; echo "$line" >"$copy/bench/results/new.jsonl"
refuses "docs/figures.md differ" "$copy/scripts/figures" --check
fresh; echo '{"date": "2099-01-01", "bench": "unheard of", "value": 1}' >"$copy/bench/results/new.jsonl"
refuses "got unheard of" "$copy/scripts/figures" --check
fresh; echo "${line/cpu/weather}" >"$copy/bench/results/new.jsonl"
refuses "got weather" "$copy/scripts/figures" --check
fresh; echo '{"date"' >"$copy/bench/results/new.jsonl"
refuses "new.jsonl:1" "$copy/scripts/figures" --check

fresh; echo '[gone](gone.md)' >>"$copy/docs/train.md"
refuses "expected a file at gone.md" "$copy/scripts/check-docs"
fresh; echo '[gone](data.md#gone)' >>"$copy/docs/train.md"
refuses "expected a heading for data.md#gone" "$copy/scripts/check-docs"
fresh; echo '# Another' >"$copy/docs/another.md"
refuses "expected a line for another.md" "$copy/scripts/check-docs"
fresh; printf '\n    hearth pretrain --run r \\\n      --no-such-flag 3\n' >>"$copy/docs/train.md"
refuses "got --no-such-flag" "$copy/scripts/check-docs"
# shellcheck disable=SC2016
fresh; echo '`hearth evaluate`' >>"$copy/docs/train.md"
refuses "expected a command of hearth" "$copy/scripts/check-docs"
