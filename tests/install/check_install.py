#!/usr/bin/env python3
"""Installs hawser into a temporary folder, builds an example against that and runs it.

The example is examples/cpp/hello.cpp. Everything happens outside the repository and
with nothing of it but the example: what find_package(hawser) offers has to be enough.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def run(*command, **options) -> subprocess.CompletedProcess:
    print("+", *command, flush=True)
    return subprocess.run([str(part) for part in command], check=True, **options)


def configure(source: Path, build: Path, prefix: Path, arguments) -> list:
    return [
        *("cmake", "-G", "Ninja", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Debug"),
        *(f"-DCMAKE_PREFIX_PATH={prefix}", f"-DHAWSER_TORCH_ROOT={arguments.torch_root}"),
        f"-DCMAKE_CXX_COMPILER={arguments.cxx}",
        *(["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []),
    ]


def check_other_version_is_refused(work: Path, prefix: Path, arguments) -> None:
    source = work / "newer"
    source.mkdir()
    major, minor, _ = arguments.version.split(".")
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(newer LANGUAGES CXX)\n"
        f"find_package(hawser {major}.{int(minor) + 1} REQUIRED)\n"
    )
    command = configure(source, work / "newer_build", prefix, arguments)
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if result.returncode == 0 or 'requested version "' not in result.stderr:
        raise SystemExit(f"find_package accepted another minor version:\n{result.stderr}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-dir", type=Path, required=True)
    parser.add_argument("--examples", type=Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--torch-root", type=Path, required=True)
    parser.add_argument("--cxx", required=True)
    arguments = parser.parse_args()

    example = arguments.examples / "hello.cpp"

    with tempfile.TemporaryDirectory(prefix="hawser_install_") as folder:
        work = Path(folder)
        prefix = work / "prefix"
        run(
            "cmake", "--install", arguments.build_dir, "--prefix", prefix, stdout=subprocess.DEVNULL
        )
        for pattern in ("include/hawser/base/version.h", "lib*/**/libhawser.so.*"):
            if not list(prefix.glob(pattern)):
                raise SystemExit(f"{pattern} is not installed")

        source = work / "example"
        source.mkdir()
        for file in (
            example,
            arguments.examples / "CMakeLists.txt",
            *arguments.examples.glob("*.h"),
        ):
            shutil.copy(file, source)
        build = work / "build"
        command = configure(source, build, prefix, arguments)
        run(*command, f"-DEXAMPLES={example.stem}")
        run("cmake", "--build", build)
        environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
        run(build / example.stem, env=environment, timeout=120)

        check_other_version_is_refused(work, prefix, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
