#!/usr/bin/env bash
# All tests of dev, then the torch-free layers under both sanitizers. Tests wait more than they
# compute: the sanitizer builds are made beside them, with what they leave of the cores.
#   scripts/test_all.sh [ctest option]...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/build.sh dev
setsid chrt --idle 0 bash -c 'scripts/build.sh asan && scripts/build.sh tsan' >build/sanitizers.log 2>&1 &
beside=$! # a process group
trap 'kill -- "-$beside" 2>/dev/null || true' EXIT
scripts/run_tests.sh dev "$@"
wait "$beside" || true # what did not build says so when it is built again
trap - EXIT
scripts/run_tests.sh asan "$@"
scripts/run_tests.sh tsan --label-exclude sim "$@"
