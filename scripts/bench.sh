#!/usr/bin/env bash
# Runs the benchmarks of the release build; arguments are passed on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec .venv/bin/python benchmarks/run.py --build build/release "$@"
