"""What profiling costs a call: with none, with each of torch's profilers, and with hawser's timeline.

    PYTHONPATH=build/release/python .venv/bin/python benchmarks/profiling.py [--seconds 1] [--rounds 5]

Two processes call each other over shared memory. The function does nothing, so what is seen is what a
call costs; "operators" has ten additions in it, recorded too. Medians of rounds that take turns.

The goal: a profiled call costs under 10 us more than one that is not, beyond what recording the operators
costs in a process of its own, without a call ("recording"). What profiling costs while it is off is the job
profiling_off of hawser_bench, which run.py judges. Use an idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.autograd.profiler_legacy import profile as legacy_profile

import hawser


def nothing() -> None:
    pass


def operators(x: torch.Tensor) -> None:
    for _ in range(10):
        torch.add(x, x)


def serve(path: str) -> None:
    torch.set_num_threads(1)
    with hawser.Node("worker", f"file://{path}", rank=1, world_size=2):
        pass


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no profiler": contextlib.nullcontext,
    "hawser.profiler": hawser.profiler.profile,
    "torch.profiler": lambda: torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU]
    ),
    "torch legacy": legacy_profile,
}
GOAL_US = 10.0
BATCH = 500  # calls in one profile: fewer than events fit


def mean_us(step: Callable[[], Any], mode: str, seconds: float) -> float:
    """Of steps, without starting and ending the profile, which is torch's business."""
    spent, calls = 0.0, 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        with MODES[mode]():
            step()
            begun = time.perf_counter()
            for _ in range(BATCH):
                step()
            spent += time.perf_counter() - begun
        calls += BATCH
    return 1e6 * spent / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    gc.disable()  # the events of a profile are many objects, and they are not what is measured
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="hawser-profiling-") as folder:
        worker = context.Process(target=serve, args=(f"{folder}/store",))
        worker.start()
        with hawser.Node("caller", f"file://{folder}/store", rank=0, world_size=2) as node:
            node.connect("worker")
            x = torch.ones(1)
            steps: dict[str, Callable[[], Any]] = {
                "nothing": lambda: node.run("worker", nothing),
                "operators": lambda: node.run("worker", operators, x),
                "recording": lambda: operators(x),
            }
            results: dict[tuple[str, str], list[float]] = {}
            for _ in range(options.rounds):
                for job, step in steps.items():
                    for mode in MODES:
                        took = mean_us(step, mode, options.seconds)
                        results.setdefault((job, mode), []).append(took)
        worker.join()
    report({key: statistics.median(rounds) for key, rounds in results.items()})


def report(us: dict[tuple[str, str], float]) -> None:
    """Of each job in each mode."""
    print(f"{'us':<18}{'nothing':>12}{'operators':>12}{'recording':>12}{'a call costs':>16}  goal")
    for mode in MODES:
        line = "".join(f"{us[job, mode]:>12.2f}" for job in ("nothing", "operators", "recording"))
        if mode == "no profiler":
            print(f"{mode:<18}{line}")
            continue
        more = {job: us[job, mode] - us[job, "no profiler"] for job, _ in us}
        cost = max(more["nothing"], more["operators"] - more["recording"])
        verdict = "met" if cost < GOAL_US else f"MISSED (under {GOAL_US:g} us)"
        print(f"{mode:<18}{line}{cost:>16.2f}  {verdict}")


if __name__ == "__main__":
    main()
