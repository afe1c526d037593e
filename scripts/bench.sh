#!/usr/bin/env bash
# Runs the benchmarks of the release build; arguments are passed on to those of the C++ side.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
status=0
.venv/bin/python benchmarks/run.py --build build/release "$@" || status=$?
echo
PYTHONPATH=build/release/python .venv/bin/python benchmarks/peers.py \
  torch hawser torch-tcp hawser-tcp --rounds 3 --goals || status=$?
exit "$status"
