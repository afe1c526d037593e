#!/usr/bin/env python3
"""Calls of TorchScript functions on torch's own RPC and on hawser, in one run, as ratios.

    scripts.py                     both, three interleaved rounds
    scripts.py --rounds 1 --seconds 0.5
    scripts.py --json out.json --strict       exits with 1 unless every goal is met

Jobs, each the median over a round of one call; of the rounds the best counts:
  sync            Python calls a script function by rpc_sync, and waits
  async           the same by rpc_async, 16 at a time
  script          a script calls a script function by rpc_sync
  relay           Python calls a script on w1 that calls a script on w2
The program is the same for both: torch's interface, and hawser.dropin for hawser. Use an idle machine.
"""

import statistics
import sys
import time

import side_by_side
import torch
import torch.distributed.rpc as stock_rpc  # scripts know these functions, and no others
from torch import Tensor

GOALS = {"sync": 30.0, "async": 30.0, "script": 20.0, "relay": 20.0}  # times faster than torch
AT_ONCE, IN_SCRIPT = 16, 20


@torch.jit.script
def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


@torch.jit.script
def relay(to: str, x: Tensor, y: Tensor) -> Tensor:
    return stock_rpc.rpc_sync(to, add, (x, y))


@torch.jit.script
def repeat(to: str, x: Tensor, count: int) -> Tensor:
    total = x
    for _ in range(count):
        total = stock_rpc.rpc_sync(to, add, (x, x))
    return total


def timed(step, calls=1):
    return lambda seconds: median(step, seconds, calls)


def median(step, seconds, calls):
    for _ in range(20):
        step()
    times = []
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6 / calls


def jobs():
    import torch.distributed.rpc as rpc  # not the one above, if hawser has taken its place

    x = torch.ones(4)

    def at_once():
        for future in [rpc.rpc_async("w1", add, args=(x, x)) for _ in range(AT_ONCE)]:
            future.wait()

    return {
        "sync": timed(lambda: rpc.rpc_sync("w1", add, args=(x, x))),
        "async": timed(at_once, AT_ONCE),
        "script": timed(lambda: repeat("w1", x, IN_SCRIPT), IN_SCRIPT),
        "relay": timed(lambda: rpc.rpc_sync("w1", relay, args=("w2", x, x))),
    }


if __name__ == "__main__":
    sys.exit(side_by_side.run(__file__, __doc__, jobs, GOALS, of_rounds=min))
