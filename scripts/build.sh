#!/usr/bin/env bash
# Configures and builds one preset.
#   scripts/build.sh <preset> [option of cmake --build]...
# WERROR=ON makes warnings errors, JOBS=<n> sets how many jobs run at a time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=$1
shift
cmake --preset "$preset" --log-level=WARNING -DHAWSER_WERROR="${WERROR:-OFF}" >/dev/null
cmake --build --preset "$preset" -j "${JOBS:-$(nproc)}" "$@"
