#!/usr/bin/env bash
# Runs the benchmarks of the release build; arguments are passed on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -f benchmarks/run.py ]]; then
  exec .venv/bin/python benchmarks/run.py --build build/release "$@"
fi
mapfile -t programs < <(find build/release/benchmarks -maxdepth 1 -type f -executable 2>/dev/null | sort)
if ((${#programs[@]} == 0)); then
  echo "There are no benchmarks yet (benchmarks/*.cpp)." >&2
  exit 1
fi
for program in "${programs[@]}"; do
  echo "== ${program##*/}"
  "$program" "$@"
done
