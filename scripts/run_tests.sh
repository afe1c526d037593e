#!/usr/bin/env bash
# Builds and tests one preset, as scripts/build.sh does.
#   scripts/run_tests.sh <preset> [ctest option]...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=$1
shift
scripts/build.sh "$preset"

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:strict_string_checks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1}

run=()
if [[ "$preset" == tsan ]] && setarch -R true 2>/dev/null; then
  run=(setarch -R) # ThreadSanitizer of g++ 12 does not start where the kernel randomises more than 28 bits
fi
"${run[@]}" ctest --preset "$preset" -j "${JOBS:-$(nproc)}" --no-tests=error "$@"
