"""A function in several processes, each with rpc, and a limit on how long all of that takes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

# A server that has imported torch forks the ranks: they start in milliseconds, and without threads.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "hawser.rpc"])


@dataclass
class World:
    """What a rank knows when it starts."""

    rank: int
    size: int
    path: str  # of the store; add a suffix for another world

    def name(self, rank: int | None = None) -> str:
        return f"w{self.rank if rank is None else rank}"

    @property
    def next(self) -> str:
        return self.name((self.rank + 1) % self.size)

    def init(
        self,
        name: str | None = None,
        rank: int | None = None,
        dynamic: bool = False,
        suffix: str = "",
        **options: Any,
    ) -> None:
        import hawser.rpc as rpc

        rpc.init_rpc(
            name or self.name(),
            rank=self.rank if rank is None else rank,
            world_size=None if dynamic else self.size,
            rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
                init_method=f"file://{self.path}{suffix}", **{"rpc_timeout": 20, **options}
            ),
        )

    def meet(self, label: str, ranks: Sequence[int] = ()) -> None:
        """Returns when all ranks, or these, have come here. Without rpc."""
        pathlike = f"{self.path}.{label}"
        open(f"{pathlike}.{self.rank}", "w").close()
        awaited = ranks or range(self.size)
        while not all(os.path.exists(f"{pathlike}.{rank}") for rank in awaited):
            time.sleep(0.01)


def run(
    body: Callable[..., Any],
    *args: Any,
    size: int = 2,
    deadline: float = 60,
    init: bool = True,
    may_die: tuple[int, ...] = (),
    **options: Any,
) -> list[Any]:
    """`body(world, *args)` in `size` processes; what each returned.

    `init`: inside init_rpc with `options` and a graceful shutdown. Raises AssertionError with the
    tracebacks of all ranks that failed, and for ranks that have not ended by the deadline, which
    are killed. Ranks in `may_die` may end without returning.
    """
    limit = time.monotonic() + deadline
    with tempfile.TemporaryDirectory(prefix="hawser-regress-") as folder:
        ranks: list[tuple[Any, Connection]] = []
        try:
            for rank in range(size):
                mine, theirs = _context.Pipe(duplex=False)
                process = _context.Process(
                    target=_rank_main,
                    args=(theirs, body, World(rank, size, f"{folder}/store"), args, init, options),
                )
                process.start()
                theirs.close()
                ranks.append((process, mine))
            return _collect(ranks, limit, may_die)
        finally:
            for process, pipe in ranks:
                process.join(max(0.0, limit - time.monotonic()))
                if process.is_alive():
                    process.kill()
                    process.join()
                pipe.close()


def _collect(
    ranks: list[tuple[Any, Connection]], limit: float, may_die: tuple[int, ...]
) -> list[Any]:
    results: list[Any] = [None] * len(ranks)
    trouble: list[str] = []
    waiting = {pipe: rank for rank, (_, pipe) in enumerate(ranks)}
    while waiting:
        ready = wait(list(waiting), max(0.0, limit - time.monotonic()))
        if not ready:
            trouble += [f"rank {rank} has not ended in time" for rank in waiting.values()]
            break
        for pipe in ready:
            rank = waiting.pop(pipe)  # type: ignore[arg-type]
            try:
                fine, results[rank] = pipe.recv()  # type: ignore[union-attr]
                if not fine:
                    trouble.append(f"rank {rank} failed:\n{results[rank]}")
            except EOFError:
                if rank not in may_die:
                    trouble.append(f"rank {rank} died")
    assert not trouble, "\n".join(trouble)
    return results


def _rank_main(
    answer: Connection,
    body: Callable[..., Any],
    world: World,
    args: tuple[Any, ...],
    init: bool,
    options: dict[str, Any],
) -> None:
    with contextlib.suppress(AttributeError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's business
    try:
        if init:
            import hawser.rpc as rpc

            world.init(**options)
            result = body(world, *args)
            rpc.shutdown()
        else:
            result = body(world, *args)
        answer.send((True, result))
    except BaseException:
        answer.send((False, traceback.format_exc()))
