"""A parameter server: trainers push gradients to it and pull the newest weights.

    python parameter_server.py [--trainers 3] [--steps 50]

The server averages what arrives within a round and answers all trainers of that round at once, with
one thread for all of them: its handler is a coroutine.
"""

import argparse
import asyncio
import multiprocessing

import torch

import hawser

RENDEZVOUS = "tcp://127.0.0.1:29512"
TRUE_WEIGHTS = torch.tensor([2.0, -3.0, 0.5])


class Server:
    """Weights, and the gradients of the current round."""

    def __init__(self, trainers: int, rate: float) -> None:
        self.trainers = trainers
        self.rate = rate
        self.weights = torch.zeros(3)
        self.gradients: list[torch.Tensor] = []
        self.round: asyncio.Future[None] | None = None

    async def push(self, gradient: torch.Tensor) -> torch.Tensor:
        """Adds a gradient; returns the weights after the round that it belongs to."""
        if self.round is None:
            self.round = asyncio.get_running_loop().create_future()
        ended = self.round
        self.gradients.append(gradient)
        if len(self.gradients) == self.trainers:
            self.weights = self.weights - self.rate * torch.stack(self.gradients).mean(0)
            self.gradients, self.round = [], None
            ended.set_result(None)
        await ended
        return self.weights


def serve(trainers: int, world_size: int) -> None:
    server = Server(trainers, rate=0.3)
    with hawser.Node(
        "server", RENDEZVOUS, rank=0, world_size=world_size, functions={"push": server.push}
    ):
        pass


def train(rank: int, world_size: int, steps: int) -> None:
    torch.manual_seed(rank)
    with hawser.Node(f"trainer{rank}", RENDEZVOUS, rank=rank, world_size=world_size) as node:
        weights = torch.zeros(3)
        for _ in range(steps):
            weights.requires_grad_(True)
            x = torch.randn(64, 3)
            loss = (x @ weights - x @ TRUE_WEIGHTS).square().mean()
            (gradient,) = torch.autograd.grad(loss, weights)
            weights = node.run("server", "push", gradient)
        print(f"trainer{rank}: loss {loss.item():.2e}, weights {weights.tolist()}")
        assert torch.allclose(weights, TRUE_WEIGHTS, atol=0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainers", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    world = options.trainers + 1
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=serve, args=(options.trainers, world))]
    processes += [
        context.Process(target=train, args=(rank, world, options.steps)) for rank in range(1, world)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    raise SystemExit(any(process.exitcode != 0 for process in processes))


if __name__ == "__main__":
    main()
