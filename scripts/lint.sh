#!/usr/bin/env bash
# Formatting and static checks over every file that git tracks or would track.
#   scripts/lint.sh         checks
#   scripts/lint.sh --fix   formats instead
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH="$PWD/.venv/bin:$PATH"

files() { # <pathspec>...: the files that exist, NUL-separated
  git ls-files -z --cached --others --exclude-standard -- "$@" | xargs -0r stat --printf '%n\0' 2>/dev/null
}
failed=0
check() { # <title> <command>...
  local title=$1
  shift
  if "$@"; then
    printf 'ok    %s\n' "$title"
  else
    printf 'FAIL  %s\n' "$title"
    failed=1
  fi
}

mapfile -d '' -t cpp < <(files '*.h' '*.cpp')
mapfile -d '' -t python < <(files '*.py' '*.pyi')
mapfile -d '' -t shell < <(files '*.sh' '.ci/run')
mapfile -d '' -t all < <(files .)

if [[ "${1:-}" == "--fix" ]]; then
  if ((${#cpp[@]})); then clang-format -i "${cpp[@]}"; fi
  if ((${#python[@]})); then
    ruff check --quiet --fix "${python[@]}" || true
    ruff format --quiet "${python[@]}"
  fi
  exit 0
fi

# shellcheck disable=SC2317  # called through check
cpp_is_formatted() { # names each file that is not, once
  local found
  found=$(printf '%s\0' "${cpp[@]}" |
    xargs -0r clang-format --dry-run --ferror-limit=1 2>&1 |
    sed -n 's/^\([^ :]*:[0-9]*\):.*clang-formatted.*/  \1/p')
  [[ -z "$found" ]] || { echo "$found" && false; }
}

if ((${#cpp[@]})); then
  check "clang-format (make format mends it)" cpp_is_formatted
fi
if ((${#python[@]})); then
  check "ruff check" ruff check --quiet "${python[@]}"
  check "ruff format (make format mends it)" ruff format --quiet --check "${python[@]}"
  check "mypy" mypy --no-error-summary # over the package, as pyproject.toml says; needs no build
fi
if ((${#shell[@]})) && command -v shellcheck >/dev/null; then
  check "shellcheck" shellcheck "${shell[@]}"
fi
check "paths and hosts" python3 scripts/check_repository.py "${all[@]}"
check "include rules" python3 tests/layers/check_layers.py
exit $failed
