"""Python and C++ nodes in one world."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

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
