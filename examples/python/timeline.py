"""A pipeline of two stages in two processes, and a timeline of one batch through it.

    python timeline.py [--output timeline.json] [--picture call.svg]

Prints where the calls spent their time. Open the timeline in https://ui.perfetto.dev.
"""

import argparse
import multiprocessing
import pathlib

import torch

import hawser
from hawser import profiler, traces

RENDEZVOUS = "tcp://127.0.0.1:29514"


def second_stage(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.profiler.record_function("second stage"):
        return torch.softmax(x @ x.T, dim=1)


def first_stage(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.profiler.record_function("first stage"):
        hidden = torch.relu(x @ x.T)
        result: torch.Tensor = hawser.default_node().run("second", second_stage, hidden)
        return result


def serve(name: str, rank: int) -> None:
    torch.set_num_threads(1)
    with hawser.Node(name, RENDEZVOUS, rank=rank, world_size=3):
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="timeline.json")
    parser.add_argument("--picture", help="of the last call through both stages")
    options = parser.parse_args()
    stages = [
        multiprocessing.Process(target=serve, args=(name, rank))
        for rank, name in enumerate(("first", "second"), start=1)
    ]
    for stage in stages:
        stage.start()
    with hawser.Node("driver", RENDEZVOUS, rank=0, world_size=3) as node:
        batch = torch.randn(256, 256)
        node.run("first", first_stage, batch)  # connects, and warms everything up
        with profiler.profile() as timeline:
            for _ in range(5):
                node.run("first", first_stage, batch)
    for stage in stages:
        stage.join()
    timeline.export_chrome_trace(options.output)
    print(timeline.summary())
    if options.picture:
        calls = traces.lives(timeline.as_chrome_trace())
        last = max(i for i, call in enumerate(calls) if call.source == "driver")
        pathlib.Path(options.picture).write_text(traces.picture(timeline.as_chrome_trace(), last))


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
