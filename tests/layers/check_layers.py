#!/usr/bin/env python3
"""Checks that #include lines follow the layers of hawser.

    base <- wire <- transport <- agent <- tensor <- {engine, script, trace} <- optim <- node
                                       <- refs                              <- optim
                 <- autograd                     <- engine
                                                        <- hawser.h <- bindings

A file includes its own layer and those below it. On top of that, libtorch is known from tensor
upwards, sockets only in transport, Python only in bindings. A source file includes its own header
first, which shows that the header stands alone. The same arrows stand in CMakeLists.txt
(hawser_layer); this script checks that both say the same.

Usage: check_layers.py [--root <repository>]
       check_layers.py --self-test
"""

import argparse
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

# Layer -> the layers right below it.
BELOW = {
    "base": [],
    "wire": ["base"],
    "transport": ["wire"],
    "agent": ["transport"],
    "refs": ["agent"],
    "tensor": ["agent"],
    "autograd": ["wire"],
    "engine": ["autograd", "tensor"],
    "script": ["tensor"],
    "trace": ["tensor"],
    "optim": ["refs", "engine", "script", "trace"],
    "node": ["optim"],
    "hawser.h": ["node"],  # headers directly in src/hawser
    "bindings": ["hawser.h"],
}


def closure(layer: str) -> frozenset[str]:
    """The layer itself and everything below it."""
    return frozenset({layer}).union(*(closure(below) for below in BELOW[layer]))


MAY_INCLUDE = {layer: closure(layer) for layer in BELOW}
WITH_TORCH = {layer for layer in BELOW if "tensor" in MAY_INCLUDE[layer]}


@dataclass(frozen=True)
class Rule:
    """Headers that only some layers may include."""

    what: str
    headers: re.Pattern
    layers: frozenset[str]
    also_tests: bool = True  # False: _test.cpp and _fuzz.cpp may include them anywhere


RULES = [
    Rule("libtorch", re.compile(r"(torch|ATen|c10|caffe2)/"), frozenset(WITH_TORCH)),
    Rule(
        "Python",
        re.compile(
            r"(Python\.h|pybind11/|nanobind/|torch/(extension|python)\.h|torch/csrc/.*py(thon|bind))"
        ),
        frozenset({"bindings"}),
    ),
    Rule(
        "sockets",
        re.compile(
            r"(sys/(socket|un)\.h|netinet/|arpa/inet\.h|netdb\.h|ifaddrs\.h|net/if\.h"
            r"|(boost/)?asio(\.hpp|/))"
        ),
        frozenset({"transport"}),
        also_tests=False,
    ),
    Rule(
        "a libtorch header that takes 7 to 28 s to compile (include what is used instead)",
        re.compile(r"(torch/(torch|all|extension|script)\.h|ATen/ATen\.h)$"),
        frozenset(),
        also_tests=False,
    ),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SUFFIXES = {".h", ".hpp", ".cpp", ".cc"}


def layer_of_path(relative: Path) -> str | None:
    """Layer of a source file, by its path from the root of the repository."""
    parts = relative.parts
    if parts[0] == "bindings":
        return "bindings"
    inside = parts[2:]  # after src/hawser
    return "hawser.h" if len(inside) == 1 else inside[0]


def layer_of_include(header: str) -> str | None:
    parts = header.split("/")
    if parts[0] == "bindings":
        return "bindings"
    if parts[0] != "hawser":
        return None
    return "hawser.h" if len(parts) == 2 else parts[1]


def check_file(path: Path, relative: Path) -> list[str]:
    layer = layer_of_path(relative)
    if layer not in BELOW:
        return [f"{relative}: '{layer}' is not a layer (tests/layers/check_layers.py lists them)"]
    is_test = relative.stem.endswith(("_test", "_fuzz"))
    errors = []
    own = path.with_suffix(".h")
    includes_own_first = path == own or not own.exists()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, header = match.groups()
        where = f"{relative}:{number}"
        if not includes_own_first:
            includes_own_first = True
            if not own.as_posix().endswith("/" + header):
                errors.append(f"{where}: include {own.name} before anything else")
        target = layer_of_include(header)
        if target is not None:
            if target not in BELOW:
                errors.append(f"{where}: {header}: '{target}' is not a layer")
            elif target not in MAY_INCLUDE[layer]:
                errors.append(f"{where}: {layer} must not include {target} ({header})")
        elif quote == '"' and (path.parent / header).exists():
            errors.append(f'{where}: write "{header}" from the include root ("hawser/...")')
        for rule in RULES:
            if is_test and not rule.also_tests:
                continue
            if rule.headers.match(header) and layer not in rule.layers:
                errors.append(f"{where}: {layer} must not include {rule.what} ({header})")
    return errors


def check_cmake(root: Path) -> list[str]:
    """The arrows in CMakeLists.txt are the arrows of this file."""
    text = (root / "CMakeLists.txt").read_text(encoding="utf-8")
    errors, seen = [], set()
    for call in re.finditer(r"^hawser_layer\((\w+)([^)]*)\)", text, re.MULTILINE):
        name, rest = call.groups()
        seen.add(name)
        if name not in BELOW:
            errors.append(f"CMakeLists.txt: '{name}' is not a layer")
            continue
        depends = re.search(r"DEPENDS((?: [a-z]+)+)", rest)
        if set(depends.group(1).split() if depends else []) != set(BELOW[name]):
            errors.append(f"CMakeLists.txt: {name} must depend on {BELOW[name] or 'nothing'}")
        if ("TORCH" in rest.split()) != (name in WITH_TORCH):
            errors.append(f"CMakeLists.txt: {name} disagrees about TORCH")
    for name in set(BELOW) - seen - {"hawser.h", "bindings"}:
        errors.append(f"CMakeLists.txt: no hawser_layer({name})")
    return errors


def check_tree(root: Path) -> tuple[list[str], int]:
    files = [
        path
        for folder in ("src/hawser", "bindings")
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in SUFFIXES and path.is_file()
    ]
    errors = [error for path in files for error in check_file(path, path.relative_to(root))]
    return errors, len(files)


def self_test() -> list[str]:
    """Every kind of violation is found, and what is allowed is not reported."""
    bad = [
        ("src/hawser/base/a.h", '#include "hawser/wire/frame.h"'),
        ("src/hawser/wire/a.cpp", '#  include "hawser/transport/link.h"'),
        ("src/hawser/transport/shm/a.cpp", '#include "hawser/agent/peer.h"'),
        ("src/hawser/agent/a_test.cpp", '#include "hawser/node/node.h"'),
        ("src/hawser/refs/a.cpp", '#include "hawser/autograd/context.h"'),
        ("src/hawser/refs/a.cpp", '#include "hawser/tensor/payload.h"'),
        ("src/hawser/autograd/a.cpp", '#include "hawser/refs/ledger.h"'),
        ("src/hawser/autograd/a.cpp", "#include <torch/csrc/autograd/function.h>"),
        ("src/hawser/trace/a.cpp", '#include "hawser/script/runner.h"'),
        ("src/hawser/tensor/a.cpp", '#include "hawser/optim/optimizer.h"'),
        ("src/hawser/node/a.cpp", '#include "hawser/hawser.h"'),
        ("src/hawser/node/a.cpp", '#include "bindings/module.h"'),
        ("src/hawser/agent/a.cpp", "#include <ATen/core/Tensor.h>"),
        ("src/hawser/agent/a_test.cpp", "#include <c10/util/Exception.h>"),
        ("src/hawser/base/a.cpp", "#include <torch/types.h>"),
        ("src/hawser/node/a.cpp", "#include <Python.h>"),
        ("src/hawser/node/a.cpp", "#include <pybind11/pybind11.h>"),
        ("src/hawser/script/a.cpp", "#include <torch/csrc/jit/python/pybind_utils.h>"),
        ("src/hawser/autograd/a.cpp", "#include <torch/csrc/autograd/python_variable.h>"),
        ("src/hawser/node/a.cpp", "#include <sys/socket.h>"),
        ("src/hawser/agent/a.cpp", "#include <asio/io_context.hpp>"),
        ("src/hawser/base/a.cpp", "#include <asio.hpp>"),
        ("src/hawser/node/a.cpp", "#include <torch/torch.h>"),
        ("src/hawser/tensor/a.cpp", "#include <ATen/ATen.h>"),
        ("src/hawser/utils/a.cpp", "#include <vector>"),
        ("src/hawser/base/a.cpp", '#include "hawser/utils/strings.h"'),
        ("src/hawser/base/a.cpp", '#include "a.cpp"'),
    ]
    good = [
        ("src/hawser/wire/a.h", '#include "hawser/base/error.h"'),
        ("src/hawser/transport/tcp/a.cpp", "#include <asio/ssl.hpp>"),
        ("src/hawser/transport/tcp/a.cpp", "#include <sys/socket.h>"),
        ("src/hawser/agent/a_test.cpp", "#include <sys/socket.h>"),
        ("src/hawser/agent/a.cpp", '#include "hawser/transport/sim/network.h"'),
        ("src/hawser/agent/a.cpp", "// #include <ATen/core/Tensor.h>"),
        ("src/hawser/tensor/a.cpp", "#include <ATen/core/Tensor.h>"),
        ("src/hawser/refs/a.cpp", '#include "hawser/agent/peer.h"'),
        ("src/hawser/optim/a.cpp", '#include "hawser/refs/ledger.h"'),
        ("src/hawser/engine/a.cpp", '#include "hawser/autograd/conductor.h"'),
        ("src/hawser/engine/a.cpp", "#include <torch/csrc/autograd/function.h>"),
        ("src/hawser/node/a.cpp", '#include "hawser/trace/span.h"'),
        ("src/hawser/node/a.cpp", "#include <torch/csrc/distributed/c10d/Store.hpp>"),
        ("src/hawser/hawser.h", '#include "hawser/node/node.h"'),
        ("bindings/module.cpp", "#include <pybind11/pybind11.h>"),
        ("bindings/module.cpp", '#include "hawser/hawser.h"'),
    ]
    failures = []
    for sample, expected in [(s, True) for s in bad] + [(s, False) for s in good]:
        relative, line = sample
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / relative
            path.parent.mkdir(parents=True)
            path.write_text(f"#include <string>\n{line}\n", encoding="utf-8")
            errors, _ = check_tree(Path(folder))
            if bool(errors) != expected:
                verdict = "not found" if expected else f"reported: {errors}"
                failures.append(f"self-test: {relative}: {line}: {verdict}")
    for own_first in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            layer = Path(folder) / "src/hawser/base"
            layer.mkdir(parents=True)
            (layer / "a.h").write_text("#pragma once\n")
            lines = ['#include "hawser/base/a.h"\n', "#include <string>\n"]
            (layer / "a.cpp").write_text("".join(lines if own_first else reversed(lines)))
            if bool(check_tree(Path(folder))[0]) == own_first:
                failures.append(f"self-test: own header first is {own_first}, and said not to be")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "CMakeLists.txt").write_text("hawser_layer(wire DEPENDS agent)\n")
        if not any("wire must depend" in error for error in check_cmake(Path(folder))):
            failures.append("self-test: a wrong arrow in CMakeLists.txt is not found")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        errors, count = self_test(), 0
    else:
        errors, count = check_tree(arguments.root)
        errors += check_cmake(arguments.root)
    for error in errors:
        print(error)
    if not errors and count:
        print(f"{count} files follow the layers")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
