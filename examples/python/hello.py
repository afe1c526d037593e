"""Two processes: one serves, the other calls. Run it: python hello.py"""

import multiprocessing

import torch

import hawser

RENDEZVOUS = "tcp://127.0.0.1:29511"


def scale(x: torch.Tensor, k: float) -> torch.Tensor:
    return x * k


def worker() -> None:
    with hawser.Node("worker", RENDEZVOUS, rank=1, world_size=2):
        pass  # leaving serves on until the others are done


def main() -> None:
    process = multiprocessing.get_context("spawn").Process(target=worker)
    process.start()
    with hawser.Node("trainer", RENDEZVOUS, rank=0, world_size=2) as node:
        print(node.run("worker", scale, torch.arange(4.0), 2.5))
        futures = [node.call("worker", scale, torch.ones(2), k) for k in (1.0, 2.0, 3.0)]
        print([future.wait().sum().item() for future in futures])
        try:
            node.run("worker", scale, "no tensor", 2.5)
        except TypeError as error:
            print("TypeError:", error)
    process.join()


if __name__ == "__main__":
    main()
