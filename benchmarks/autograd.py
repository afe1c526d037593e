#!/usr/bin/env python3
"""Training steps on torch's own RPC and on hawser, in one run, as ratios.

    autograd.py                    both, three interleaved rounds
    autograd.py --rounds 1 --seconds 0.5
    autograd.py --json out.json --strict       exits with 1 unless every goal is met

Jobs, each a whole step: forward, distributed backward, DistributedOptimizer.step, median over a round.
  pipeline        two stages in two processes, small layers; `pipeline large` with large ones
  server          an embedding server and two trainers that step at the same time, small and large
  calls           100 small calls in one context and their backward pass
  recorded        how much longer a call takes inside a context than outside
The program is the same for both: torch's interface, and hawser.dropin for hawser. Use an idle machine.
"""

import statistics
import sys
import time

import side_by_side

GOALS = {  # job -> at least so many times faster than torch
    "calls": 8.0,
    "pipeline": 2.0,
    "server": 2.0,
    "pipeline large": 1.0,
    "server large": 1.0,
}
RECORDED_GOAL_US = 10.0
SMALL, LARGE = 32, 1024
BATCH = 64


# --- what runs on other workers ---


def stage(width):
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)
    )


def embedding(width):
    import torch

    torch.manual_seed(0)
    return torch.nn.Embedding(1000, width)


def forward(module, x):
    return module.local_value()(x)


def parameters(module):
    import torch.distributed.rpc as rpc

    return [rpc.RRef(parameter) for parameter in module.local_value().parameters()]


def add(a, b):
    return a + b


def train(server, width, seconds):
    """The other trainer's part of the job `server`: as many steps as fit."""
    return steps_with(server, width, seconds)


# --- jobs, at worker 0 ---


def medians(step, seconds, warm_up=5):
    for _ in range(warm_up):
        step()
    times = []
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends or len(times) < 5:
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def optimizer_of(references):
    import torch
    from torch.distributed.optim import DistributedOptimizer

    return DistributedOptimizer(torch.optim.SGD, references, lr=0.01)


def pipeline(seconds, width=SMALL):
    import torch
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc

    first, second = stage(width), rpc.remote("w1", stage, args=(width,))
    references = [rpc.RRef(p) for p in first.parameters()]
    references += rpc.rpc_sync("w1", parameters, args=(second,))
    optimizer = optimizer_of(references)
    x = torch.randn(BATCH, width)

    def step():
        with dist_autograd.context() as context:
            out = rpc.rpc_sync("w1", forward, args=(second, first(x)))
            dist_autograd.backward(context, [out.square().mean()])
            optimizer.step(context)

    return medians(step, seconds)


def steps_with(server, width, seconds):
    import torch
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc

    head = stage(width)
    references = rpc.rpc_sync("w1", parameters, args=(server,))
    references += [rpc.RRef(p) for p in head.parameters()]
    optimizer = optimizer_of(references)
    x = torch.randint(0, 1000, (BATCH,))

    def step():
        with dist_autograd.context() as context:
            rows = rpc.rpc_sync("w1", forward, args=(server, x))
            dist_autograd.backward(context, [head(rows).square().mean()])
            optimizer.step(context)

    return medians(step, seconds)


def server(seconds, width=SMALL):
    import torch.distributed.rpc as rpc

    table = rpc.remote("w1", embedding, args=(width,))
    other = rpc.rpc_async("w2", train, args=(table, width, seconds))
    mine = steps_with(table, width, seconds)
    return (mine + other.wait()) / 2


def calls(seconds):
    import torch
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc

    x = torch.ones(4, requires_grad=True)

    def step():
        with dist_autograd.context() as context:
            total = x
            for _ in range(100):
                total = rpc.rpc_sync("w1", add, args=(total, x))
            dist_autograd.backward(context, [total.sum()])

    return medians(step, seconds, warm_up=2)


def recorded(seconds):
    import torch
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc

    x = torch.ones(4, requires_grad=True)
    plain = x.detach()
    outside = medians(lambda: rpc.rpc_sync("w1", add, args=(plain, plain)), seconds / 2, 200)
    with dist_autograd.context():
        inside = medians(lambda: rpc.rpc_sync("w1", add, args=(x, x)), seconds / 2, 200)
    return inside - outside


JOBS = {
    "pipeline": pipeline,
    "pipeline large": lambda seconds: pipeline(seconds, LARGE),
    "server": server,
    "server large": lambda seconds: server(seconds, LARGE),
    "calls": calls,
    "recorded": recorded,
}


if __name__ == "__main__":
    sys.exit(
        side_by_side.run(__file__, __doc__, lambda: JOBS, GOALS, {"recorded": RECORDED_GOAL_US})
    )
