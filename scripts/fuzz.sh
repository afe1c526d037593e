#!/usr/bin/env bash
# Runs every libFuzzer target for some seconds, from its corpus in tests/fuzz/<target>.
#   scripts/fuzz.sh [seconds] [target]...
# New inputs are kept in build/fuzz/corpus, inputs that fail in build/fuzz/failures. To keep one,
# copy it to tests/fuzz/<target>: ctest replays that folder in every build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}
shift $(($# > 0 ? 1 : 0))

targets=("$@")
if ((${#targets[@]} == 0)); then
  mapfile -t targets < <(find build/fuzz -maxdepth 1 -type f -executable -name '*_fuzz' -printf '%f\n' | sort)
fi
if ((${#targets[@]} == 0)); then
  echo "There are no fuzz targets (src/hawser/**/*_fuzz.cpp)."
  exit 0
fi

failed=0
for target in "${targets[@]}"; do
  seeds=tests/fuzz/$target
  found=build/fuzz/corpus/$target
  failures=build/fuzz/failures/$target
  mkdir -p "$found" "$failures"
  folders=("$found")
  if [[ -d "$seeds" ]]; then folders+=("$seeds"); fi
  echo "== $target, ${seconds} s"
  if ! "build/fuzz/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -print_final_stats=1 -verbosity=0 -artifact_prefix="$failures/" "${folders[@]}"; then
    echo "FAIL $target: the input is in $failures"
    failed=1
  fi
done
exit $failed
