#!/usr/bin/env python3
"""Builds the wheel, installs it into a fresh environment, and uses it there.

What is installed must work without a compiler, and without anything of the repository. torch is not
installed again: the environment sees that of the Python that runs this. Nor is everything compiled
again: the wheel gets the flags of a build that is there, so that the compiler cache knows its objects.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

TRY_IT = """
import sys, hawser, torch
assert "site-packages" in hawser.__file__ and sys.prefix in hawser.__file__, hawser.__file__
with hawser.Node("a", f"file://{sys.argv[1]}/store") as node:
    assert node.run("a", torch.neg, torch.ones(1)).item() == -1
    assert node.run("a", sorted, [2, 1]) == [1, 2]
"""

TRY_EXTENSION = """
import ctypes, sys, hawser, torch
with hawser.Node("a", f"file://{sys.argv[1]}/store") as node:
    ctypes.CDLL(sys.argv[2]).serve_from_cpp()
    assert node.run("a", "double_it", torch.ones(1)).item() == 2
"""

# As if another torch had been installed since.
TRY_OTHER_TORCH = """
import torch
torch.__version__ = "2.12.0"
try:
    import hawser
except ImportError as error:
    assert "2.13" in str(error) and "pip install" in str(error), error
else:
    raise SystemExit("hawser accepts another torch")
"""

TRY_DROPIN = (
    "import torch.distributed.rpc as rpc; assert rpc.__name__ == 'hawser.rpc', rpc.__name__"
)


def flags_of(build: Path) -> list[str]:
    """Those of a build, as pip hands them on; and a folder that is not that of users' wheels, which
    would remember them."""
    entries = dict(
        line.split("=", 1)
        for line in (build / "CMakeCache.txt").read_text().splitlines()
        if "=" in line and not line.startswith(("#", "//"))
    )
    values = {key.partition(":")[0]: value for key, value in entries.items()}
    build_type = values["CMAKE_BUILD_TYPE"]
    settings = {"build-dir": "build/wheel-test", "cmake.build-type": build_type}
    for name in (
        "CMAKE_CXX_COMPILER",
        f"CMAKE_CXX_FLAGS_{build_type.upper()}",
        "HAWSER_DELIBERATE_FAULTS",
        "HAWSER_WERROR",
    ):
        settings[f"cmake.define.{name}"] = values[name]
    return [f"--config-settings={key}={value}" for key, value in settings.items()]


def run(*command: object, **options) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, timeout=900, **options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--flags-of", type=Path, required=True, metavar="BUILD")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="hawser_wheel_") as folder:
        work = Path(folder)
        pip = ("-m", "pip", "--disable-pip-version-check", "-q")
        run(
            *(sys.executable, *pip, "wheel", "--no-build-isolation", "--no-deps"),
            *(*flags_of(arguments.flags_of), "-w", work, arguments.source),
        )
        (wheel,) = work.glob("hawser-*.whl")

        run(sys.executable, "-m", "venv", work / "venv")
        python = work / "venv" / "bin" / "python"
        packages = next((work / "venv" / "lib").glob("python*/site-packages"))
        (packages / "torch_of_the_tester.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
        clean = {"PATH": str(python.parent), "HOME": folder}
        run(python, *pip, "install", "--no-deps", "--no-index", wheel, env=clean)

        run(python, "-c", TRY_IT, work, env=clean, cwd=work)
        run(python, "-c", TRY_OTHER_TORCH, env=clean, cwd=work)
        run(python, "-m", "hawser.dropin", "-c", TRY_DROPIN, env=clean, cwd=work)
        run(python.parent / "hawser", "doctor", env=clean, cwd=work)

        extension = work / "extension"
        run(
            *("cmake", "-G", "Ninja", "-S", arguments.source / "tests/install/extension"),
            *("-B", extension, f"-DCMAKE_PREFIX_PATH={packages / 'hawser'}"),
            f"-DHAWSER_TORCH_ROOT={Path(torch.__file__).parent}",
            env=os.environ,
        )
        run("cmake", "--build", extension)
        library = extension / "libextension.so"
        run(python, "-c", TRY_EXTENSION, work, library, env=clean, cwd=work)
    print("the wheel works")
    return 0


if __name__ == "__main__":
    sys.exit(main())
