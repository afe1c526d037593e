"""Python and C++ nodes in one world."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import hawser


def examples() -> Path:
    if "HAWSER_EXAMPLES" not in os.environ:
        pytest.skip("HAWSER_EXAMPLES is not set to the folder with the C++ examples")
    return Path(os.environ["HAWSER_EXAMPLES"])


def test_cpp_calls_a_function_that_python_serves() -> None:
    program = examples() / "worker_and_trainer"
    with subprocess.Popen([program, "trainer"], stdout=subprocess.PIPE, text=True) as trainer:
        seen = []

        def scale(x: torch.Tensor, k: float) -> torch.Tensor:
            seen.append((tuple(x.shape), k))
            return x * k

        with hawser.Node(
            "worker", "tcp://127.0.0.1:29500", rank=0, world_size=2, functions=[scale]
        ):
            pass
        printed, _ = trainer.communicate(timeout=30)
    assert trainer.returncode == 0
    assert seen == [((2, 3), 2.0)]
    assert printed.split().count("2") == 6, printed


def test_a_timeline_shows_what_a_cpp_node_did() -> None:
    program = examples() / "worker_and_trainer"
    with subprocess.Popen([program, "worker"]) as worker:
        with hawser.Node("trainer", "tcp://127.0.0.1:29500", rank=1, world_size=2) as node:
            with hawser.profiler.profile() as timeline:
                node.run("worker", "scale", torch.ones(2, 3), 2.0)
        assert worker.wait(30) == 0
    where = {(event.process.name, event.name) for event in timeline.events}
    assert ("worker", "aten::mul") in where
    assert [process.pid for process in timeline.processes][1] == worker.pid


class Counter:
    def __init__(self, start: int) -> None:
        self._value = start

    def add(self, by: int) -> int:
        self._value += by
        return self._value

    def value(self) -> int:
        return self._value


def test_python_uses_a_cpp_value_and_cpp_one_of_python() -> None:
    program = examples() / "counter"
    with subprocess.Popen([program, "owner"]) as owner:
        with hawser.Node("user", "tcp://127.0.0.1:29501", rank=1, world_size=2) as node:
            theirs = node.remote("owner", "make_counter", 5)
            mine = node.ref(Counter(10))
            assert theirs.rpc_sync().add(2) == 7
            assert theirs.remote().value().to_here() == 7
            with pytest.raises(hawser.Error, match="cannot be sent"):
                theirs.to_here()
            with pytest.raises(hawser.Error, match="no_such"):
                theirs.rpc_sync().no_such()
            # The C++ node calls a method of each: of its own value, and of the one of Python.
            assert node.run("owner", "total", [theirs, mine]) == 17
            assert mine.local_value().add(3) == 13
            assert node.run("owner", "total", [mine, mine]) == 26
        assert owner.wait(30) == 0


def test_cpp_uses_a_python_value_and_python_one_of_cpp() -> None:
    program = examples() / "counter"
    with subprocess.Popen([program, "user"], stdout=subprocess.PIPE, text=True) as user:

        def total(counters: list[Any]) -> int:
            return sum(counter.rpc_sync().value() for counter in counters)

        functions = {"make_counter": Counter, "total": total}
        with hawser.Node(
            "owner", "tcp://127.0.0.1:29501", rank=0, world_size=2, functions=functions
        ):
            pass
        printed, _ = user.communicate(timeout=30)
    assert user.returncode == 0
    assert printed.split() == ["17"]
