#!/usr/bin/env python3
"""Calls of TorchScript functions on torch's own RPC and on hawser, in one run, as ratios.

    scripts.py                     both, three interleaved rounds
    scripts.py --rounds 1 --seconds 0.5
    scripts.py --json out.json

Jobs, each the median over a round of one call; of the rounds the best counts:
  sync            Python calls a script function by rpc_sync, and waits
  async           the same by rpc_async, 16 at a time
  script          a script calls a script function by rpc_sync
  relay           Python calls a script on w1 that calls a script on w2
The program is the same for both: torch's interface, and hawser.dropin for hawser. Use an idle machine.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

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


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# --- jobs, at worker 0 ---


def median(step, seconds, calls=1):
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
        "sync": (lambda: rpc.rpc_sync("w1", add, args=(x, x)), 1),
        "async": (at_once, AT_ONCE),
        "script": (lambda: repeat("w1", x, IN_SCRIPT), IN_SCRIPT),
        "relay": (lambda: rpc.rpc_sync("w1", relay, args=("w2", x, x)), 1),
    }


def worker(implementation, rank, port, seconds):
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    if implementation == "hawser":
        import hawser.dropin

        hawser.dropin.install()
    import torch.distributed.rpc as rpc

    rpc.init_rpc(f"w{rank}", rank=rank, world_size=3)
    if rank == 0:
        results = {name: median(step, seconds, calls) for name, (step, calls) in jobs().items()}
        print(json.dumps(results), flush=True)
    rpc.shutdown()


# --- the driver ---


def run_round(implementation, seconds):
    port = free_port()
    command = [sys.executable, __file__, "--worker", implementation, "--port", str(port)]
    command += ["--seconds", str(seconds)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    others = [subprocess.Popen([*command, "--rank", str(rank)], **quiet) for rank in (1, 2)]
    try:
        ended = subprocess.run(
            [*command, "--rank", "0"], capture_output=True, text=True, timeout=600, check=False
        )
        if ended.returncode != 0:
            raise SystemExit(f"{implementation} failed:\n{ended.stderr}")
        for other in others:
            other.wait(60)
    finally:
        for other in others:
            other.kill()
    return json.loads(ended.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each job in each round")
    parser.add_argument("--json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments.worker, arguments.rank, arguments.port, arguments.seconds)
    rounds = {"torch": [], "hawser": []}
    for number in range(arguments.rounds):
        order = list(rounds) if number % 2 == 0 else list(rounds)[::-1]
        for implementation in order:
            rounds[implementation].append(run_round(implementation, arguments.seconds))
    rows = {}
    print(f"{'job':8} {'torch':>12} {'hawser':>12} {'ratio':>8}  goal")
    for name, goal in GOALS.items():
        both = {who: min(each[name] for each in results) for who, results in rounds.items()}
        rows[name] = both
        ratio = both["torch"] / both["hawser"]
        verdict = "met" if ratio >= goal else f"MISSED ({goal:g}x)"
        print(f"{name:8} {both['torch']:9.1f} us {both['hawser']:9.1f} us {ratio:7.1f}x  {verdict}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=2)
    return None


if __name__ == "__main__":
    main()
