#!/usr/bin/env bash
# All tests of dev, then the torch-free layers under both sanitizers.
#   scripts/test_all.sh [ctest option]...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/run_tests.sh dev "$@"
scripts/run_tests.sh asan "$@"
scripts/run_tests.sh tsan --label-exclude sim "$@"
