#!/usr/bin/env bash
# Runs all benchmarks on the release build, whatever becomes of each; exits with 1 if one failed.
#   scripts/bench.sh [--strict] [option of run.py]...
# With --strict also if a goal was missed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
strict=()
for argument in "$@"; do
  if [[ "$argument" == --strict ]]; then strict=(--strict); fi
done
status=0
run() { # <program> <option>...
  local program=benchmarks/$1
  shift
  printf '\n%s\n' "$program"
  PYTHONPATH=build/release/python .venv/bin/python "$program" "$@" || status=1
}
run run.py --build build/release "$@"
run peers.py torch hawser torch-tcp hawser-tcp --rounds 3 --goals "${strict[@]}"
run autograd.py "${strict[@]}"
run scripts.py "${strict[@]}"
run profiling.py
exit "$status"
