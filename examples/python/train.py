"""Trains one model that is split over three processes. `make demo` runs it.

    python train.py [--steps 400] [--batch 256] [--trace steps.json]

The server has a table of word vectors. Two trainers learn to classify texts, each by a question of
its own ("topic", "mood"), with a head of its own on top of the table that they share:

    topic:  text -> [ server: words -> vector ] -> [ topic: head ] -> loss
    mood:   text -> [ server: words -> vector ] -> [ mood:  head ] -> loss

Every step is a forward call, a backward pass that comes by the server, and one step of an optimizer
whose parameters are on the server and on the trainer. Texts and right answers are made up.

--trace writes a timeline of two steps of both trainers, with what the server did for them: open it in
https://ui.perfetto.dev, or let `hawser trace timeline` draw it.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import hawser
from hawser import profiler, timelines
from hawser.nn import RemoteModule
from hawser.optim import DistributedOptimizer

WORDS, WIDTH, WORDS_IN_TEXT, ANSWERS = 2000, 32, 12, 4
TRAINERS = ("topic", "mood")
WORLD = ("server", *TRAINERS)
TRACED_STEPS = 2


# --- what processes tell the one that shows it ---


@dataclass
class Progress:
    name: str
    step: int
    loss: float
    right: float  # the part of the texts of the last steps that were classified rightly
    rate: float


@dataclass
class Report:
    """What ran in a process, counted there."""

    name: str
    holds: str
    transport: str = ""
    megabytes: float = 0.0
    pid: int = field(default_factory=os.getpid)
    ran: Counter[str] = field(default_factory=Counter)
    timeline: dict[str, Any] | None = None


def count_what_runs(report: Report, module: nn.Module, forward: str) -> None:
    module.register_forward_hook(lambda *_: report.ran.update([forward]))
    weight = next(module.parameters())
    weight.register_hook(lambda _: report.ran.update(["backward"]))

    def stepped(optimizer: Any, *_: Any) -> None:
        if not isinstance(optimizer, DistributedOptimizer):  # the one of this process
            report.ran.update(["updates"])

    register_optimizer_step_post_hook(stepped)


def size(module: nn.Module) -> str:
    return f"{sum(parameter.numel() for parameter in module.parameters()):,} weights"


# --- the server ---

table: nn.EmbeddingBag
both_are_here = threading.Barrier(len(TRAINERS))


def shared_table() -> hawser.RRef[nn.Module]:
    return hawser.RRef(table)


def meet() -> None:
    """Returns to both trainers at once, so that their timelines are of the same time."""
    both_are_here.wait()


def serve(meeting: str, to_parent: Connection) -> None:
    global table
    torch.sparse.check_sparse_tensor_invariants.disable()  # or torch warns that it does not check
    table = nn.EmbeddingBag(WORDS, WIDTH, sparse=True)
    report = Report("server", f"table of words, {size(table)}")
    count_what_runs(report, table, "lookups")
    with hawser.Node("server", meeting, rank=0, world_size=len(WORLD)):
        pass  # leaving serves on until the trainers are done
    to_parent.send(report)


# --- the trainers ---


class Texts:
    """Texts of random words. What they are about follows from a hidden meaning of the words."""

    def __init__(self, question: int) -> None:
        meaning = torch.Generator().manual_seed(0)
        self._meaning = torch.randn(WORDS, 6, generator=meaning)
        self._asked = torch.randn(2, 6, ANSWERS, generator=meaning)[question]
        self._random = torch.Generator().manual_seed(question)

    def some(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Texts, and the right answers."""
        words = torch.randint(WORDS, (count, WORDS_IN_TEXT), generator=self._random)
        return words, (self._meaning[words].sum(1) @ self._asked).argmax(1)


def train(
    name: str, meeting: str, steps: int, batch: int, is_traced: bool, to_parent: Connection
) -> None:
    rank = WORLD.index(name)
    texts = Texts(question=rank - 1)
    head = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, ANSWERS))
    report = Report(name, f"head of {name!r}, {size(head)}")
    count_what_runs(report, head, "forward")
    with hawser.Node(name, meeting, rank=rank, world_size=len(WORLD)) as node:
        words_to_vector = RemoteModule.init_from_module_rref(
            "server", node.run("server", shared_table)
        )
        parameters = [
            *words_to_vector.remote_parameters(),  # on the server
            *(node.ref(parameter) for parameter in head.parameters()),  # here
        ]
        optimizer = DistributedOptimizer(torch.optim.Adagrad, parameters, lr=0.2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=0.02)
        right = 1 / ANSWERS
        recorded, recording = profiler.profile(), contextlib.ExitStack()
        first_traced = max(1, steps // 2) if is_traced else 0
        for step in range(1, steps + 1):
            if step == first_traced:
                node.run("server", meet)
                recording.enter_context(recorded)
            words, answers = texts.some(batch)
            with hawser.autograd.context() as context:
                scores = head(words_to_vector(words))
                loss = nn.functional.cross_entropy(scores, answers)
                context.backward([loss])
                optimizer.step(context)
            schedule.step()
            if step == first_traced + TRACED_STEPS - 1 or step == steps:
                recording.close()
            right += 0.1 * ((scores.argmax(1) == answers).float().mean().item() - right)
            if step % 5 == 0 or step in (1, steps):
                rate = schedule.get_last_lr()[0]
                to_parent.send(Progress(name, step, loss.item(), right, float(rate)))
        for peer in node.inspect()["peers"]:
            if peer["name"] == "server":
                report.transport = peer["transport"]
                report.megabytes = (peer["bytes_sent"] + peer["bytes_received"]) / 1e6
    if is_traced:
        report.timeline = recorded.as_chrome_trace()
    to_parent.send(report)


def run(
    name: str, meeting: str, steps: int, batch: int, is_traced: bool, to_parent: Connection
) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(WORLD.index(name))
    if name == "server":
        serve(meeting, to_parent)
    else:
        train(name, meeting, steps, batch, is_traced, to_parent)


# --- what is shown ---


class Screen:
    """A bar for each trainer on a terminal; else a line now and then."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._live = sys.stdout.isatty()
        self._latest: dict[str, Progress] = {}
        self._printed: dict[str, int] = dict.fromkeys(TRAINERS, 0)
        self.losses: dict[str, list[float]] = {name: [] for name in TRAINERS}
        if self._live:
            print("\n" * (len(TRAINERS) - 1))

    def show(self, progress: Progress) -> None:
        self._latest[progress.name] = progress
        self.losses[progress.name].append(progress.loss)
        if self._live:
            lines = "".join(f"\r{self._line(name)}\x1b[K\n" for name in TRAINERS)
            print(f"\x1b[{len(TRAINERS)}A{lines}", end="", flush=True)
        elif progress.step >= self._printed[progress.name] or progress.step == self._steps:
            self._printed[progress.name] += self._steps // 5
            print(self._line(progress.name), flush=True)

    def _line(self, name: str) -> str:
        now = self._latest.get(name)
        if now is None:
            return f"  {name:6} is starting"
        done = 30 * now.step // self._steps
        return (
            f"  {name:6} {'█' * done}{'░' * (30 - done)} {now.step:4}/{self._steps}"
            f"  loss {now.loss:5.3f}  right {now.right:4.0%}  rate {now.rate:.3f}"
        )


def curve(losses: list[float], width: int = 24) -> str:
    """How the loss went, as a line of blocks."""
    count = len(losses)
    parts = [losses[count * i // width : count * (i + 1) // width] for i in range(width)]
    means = [sum(part) / len(part) for part in parts if part]
    low, high = min(means), max(means)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * (mean - low) / (high - low or 1))] for mean in means)


def table_of(reports: list[Report]) -> str:
    rows = [("process", "pid", "holds", "ran", "to the server")]
    for report in sorted(reports, key=lambda report: WORLD.index(report.name)):
        ran = ", ".join(f"{count} {what}" for what, count in report.ran.items())
        by = f"{report.megabytes:.1f} MB by {report.transport}" if report.transport else ""
        rows.append((report.name, str(report.pid), report.holds, ran, by))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines.insert(1, "  " + "  ".join("─" * width for width in widths))
    return "\n".join(lines)


def follow(from_children: list[Connection], screen: Screen) -> list[Report]:
    """Shows what arrives until all processes have ended; what they report at the end."""
    reports = []
    while from_children:
        for ready in wait(from_children):
            assert isinstance(ready, Connection)
            try:
                told = ready.recv()
            except EOFError:
                from_children.remove(ready)
                continue
            if isinstance(told, Progress):
                screen.show(told)
            else:
                reports.append(told)
    return reports


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--trace", help="where to write a timeline of some steps", metavar="FILE")
    options = parser.parse_args()
    print("One model in three processes: a table of words on the server, a head on each trainer.")
    began = time.monotonic()
    # A server that has imported everything forks the processes: it is imported once, not thrice.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hawser", "torch._dynamo"])
    with tempfile.TemporaryDirectory(prefix="hawser-train-") as folder:
        processes, from_children = [], []
        for name in WORLD:
            mine, theirs = context.Pipe(duplex=False)
            meeting = f"file://{folder}/store"
            is_traced = options.trace is not None
            arguments = (name, meeting, options.steps, options.batch, is_traced, theirs)
            processes.append(context.Process(target=run, args=arguments))
            processes[-1].start()
            theirs.close()
            from_children.append(mine)
        screen = Screen(options.steps)
        reports = follow(from_children, screen)
        for process in processes:
            process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a process has failed: its traceback is above")
    print(f"\nIn {time.monotonic() - began:.1f} s, starting included:\n")
    print(table_of(reports))
    for name, losses in screen.losses.items():
        print(f"\n  loss of {name:6} {losses[0]:.3f} {curve(losses)} {losses[-1]:.3f}", end="")
    print()
    if options.trace:
        reports.sort(key=lambda report: WORLD.index(report.name))
        recorded = [report.timeline for report in reports if report.timeline]
        pathlib.Path(options.trace).write_text(json.dumps(timelines.merge(recorded)))
        print(f"\n  A timeline of {TRACED_STEPS} steps is in {options.trace}")
    if any(losses[-1] >= losses[0] for losses in screen.losses.values()):
        raise SystemExit("the loss has not fallen")


if __name__ == "__main__":
    main()
