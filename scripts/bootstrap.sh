#!/usr/bin/env bash
# Installs what the build needs and the machine lacks: Debian or Ubuntu packages, and .venv with
# torch and the pinned tools of scripts/requirements.txt. Does nothing, quickly, when nothing is
# missing. Installing packages needs root or sudo; without them it prints the command and stops.
#
#   scripts/bootstrap.sh          what `make test`, `make demo` and `make lint` need
#   scripts/bootstrap.sh --fuzz   also clang, for `make fuzz`
#
# HAWSER_SKIP_PACKAGES=1 leaves the system packages alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(
  g++ cmake ninja-build ccache mold
  libasio-dev libssl-dev libflatbuffers-dev flatbuffers-compiler
  libgtest-dev iproute2
)
if [[ "${1:-}" == "--fuzz" ]]; then
  packages+=(clang libclang-rt-dev)
fi

# python3.11 where it exists: that is the version everything is tested with.
python=python3
for candidate in python3.11 python3; do
  if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  packages+=(python3 python3-venv)
fi
# Python's headers, unless they came with it.
if ! "$python" -c 'import os, sysconfig as s
os.stat(os.path.join(s.get_paths()["include"], "Python.h"))' 2>/dev/null; then
  packages+=(python3-dev)
fi

missing_packages() {
  local package
  for package in "${packages[@]}"; do
    [[ "$installed" == *$'\n'"$package install ok installed"$'\n'* ]] || echo "$package"
  done
}

install_packages() {
  local run=()
  if [[ "$(id -u)" != 0 ]]; then
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
      run=(sudo)
    else
      echo "Some packages are missing. Run this as root, then try again:" >&2
      echo "  apt-get update && apt-get install -y --no-install-recommends $*" >&2
      exit 1
    fi
  fi
  echo "Installing packages: $*"
  local quiet=(-o Dpkg::Use-Pty=0 -qq)
  "${run[@]}" apt-get "${quiet[@]}" update
  "${run[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get "${quiet[@]}" install -y --no-install-recommends "$@" >/dev/null
}

if [[ -z "${HAWSER_SKIP_PACKAGES:-}" ]]; then
  if ! command -v apt-get >/dev/null; then
    echo "This script knows Debian and Ubuntu only. Install the counterparts of these packages," >&2
    echo "then set HAWSER_SKIP_PACKAGES=1: ${packages[*]}" >&2
    exit 1
  fi
  # One query for all; packages are named without their architecture.
  installed=$'\n'$(dpkg-query -W -f '${Package} ${Status}\n' "${packages[@]}" 2>/dev/null || true)$'\n'
  mapfile -t missing < <(missing_packages)
  if ((${#missing[@]})); then
    install_packages "${missing[@]}"
  fi
fi

# The stamp is a copy of the requirements that were installed last.
stamp=.venv/.hawser_requirements
if ! cmp -s scripts/requirements.txt "$stamp" || ! .venv/bin/python -c '' 2>/dev/null; then
  echo "Installing torch and the tools into .venv"
  if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    "$python" -m venv --clear .venv
  fi
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r scripts/requirements.txt
  cp scripts/requirements.txt "$stamp"
fi
