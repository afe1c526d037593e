"""A worker in C++ (examples/cpp/worker_and_trainer.cpp), called from Python.

python call_cpp.py build/dev/examples/worker_and_trainer
"""

import subprocess
import sys

import torch

import hawser


def main() -> None:
    worker = subprocess.Popen([sys.argv[1], "worker"])
    with hawser.Node("trainer", "tcp://127.0.0.1:29500", rank=1, world_size=2) as node:
        print(node.run("worker", "scale", torch.ones(2, 3), 2.0))
        try:
            node.run("worker", "scale", "no tensor", 2.0)
        except hawser.Invalid as error:
            print("Invalid:", error)
    raise SystemExit(worker.wait(30))


if __name__ == "__main__":
    main()
