"""Functions that tests call on other nodes, and processes that serve them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import numpy
import torch

import hawser
import hawser.pickling

# A server that has imported torch forks the processes: they start in milliseconds, without threads.
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["torch", "hawser"])


@torch.jit.script
def scaled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x * factor


def nothing() -> None:
    pass


def value_of(ref: Any) -> Any:
    return ref.local_value() if ref.is_owner() else ref.to_here()


def echo(value: Any) -> Any:
    return value


class Replaceable:
    @staticmethod
    def greeting() -> str:
        return "hello"


def greeting() -> str:
    return "hello"


def replace_greetings(text: str) -> None:
    """What this process finds under the names of both from now on."""
    module = sys.modules[__name__]
    module.greeting = lambda: text  # type: ignore[attr-defined]
    Replaceable.greeting = staticmethod(lambda: text)  # type: ignore[assignment]


def replace_module(text: str) -> None:
    """Puts another module in the place of this one, until the first call of its `put_back`."""
    usual = sys.modules[__name__]
    other = types.ModuleType(__name__)
    other.greeting = lambda: text  # type: ignore[attr-defined]
    other.put_back = lambda: sys.modules.update({__name__: usual})  # type: ignore[attr-defined]
    sys.modules[__name__] = other


def put_back() -> None:
    raise AssertionError("the module has not been replaced")


def describe(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    return args, kwargs


def type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def raise_it(error: BaseException) -> None:
    raise error


def make_array(count: int) -> Any:
    return numpy.arange(count)


def forbid_pickle(forbidden: bool) -> None:
    """Has hawser's own pickler refuse to work in this process, or not any more."""

    def refuse(*args: Any) -> Any:
        raise RuntimeError("something is pickled")

    pickler: Any = hawser.pickling.default_pickler
    for method in ("serialize", "deserialize"):
        if forbidden:
            setattr(pickler, method, refuse)
        else:
            delattr(pickler, method)


def leave_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hold_gil(seconds: float, begun: str) -> None:
    """Computes without letting other Python threads in; `begun` is a file that is made first."""
    with _holding_gil(begun):
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            pass


@contextlib.contextmanager
def _holding_gil(begun: str) -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    open(begun, "w").close()
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def hold_gil_beside_a_call(seconds: float, begun: str, to: str) -> float:
    """The same. When a call to `to`, made before, had ended: it has 0.2 s."""
    with hawser.deadline(0.2):
        call = hawser.default_node().call(to, "never")
    started = time.monotonic()
    over = seconds
    with _holding_gil(begun):
        while time.monotonic() < started + seconds:
            if over == seconds and call.done():
                over = time.monotonic() - started
    return over


_nothing_pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: 0)


def fill_pending_calls() -> None:
    """Fills Python's list of what its main thread is to do, while that waits for this thread."""
    added = True
    while added:
        time.sleep(0.01)  # a main thread that does not wait yet would empty it again
        added = False
        while ctypes.pythonapi.Py_AddPendingCall(_nothing_pending, None) == 0:
            added = True


def hold_gil_until(told: str, begun: str) -> None:
    """Keeps the interpreter lock until something is written to the pipe `told`; makes `begun` first."""
    pipe = os.open(told, os.O_RDWR)
    read = ctypes.PyDLL(None).read  # of the C library, without letting go of the lock
    one_byte = ctypes.create_string_buffer(1)
    try:
        with _holding_gil(begun):
            read(pipe, one_byte, ctypes.c_size_t(1))
    finally:
        os.close(pipe)


class Counter:
    total = 0

    def __init__(self, start: int) -> None:
        self.value = start

    def add(self, by: int) -> int:
        return self.value + by

    @classmethod
    def add_to_all(cls, by: int) -> int:
        return cls.total + by

    @staticmethod
    def double(value: int) -> int:
        return 2 * value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counter) and other.value == self.value

    __hash__ = None  # type: ignore[assignment]


class Odd(Exception):
    """Cannot be rebuilt from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


kept: list[Any] = []


def keep_and_return(value: torch.Tensor) -> torch.Tensor:
    kept.append(value)
    return value


def keep_view_and_return(value: torch.Tensor) -> torch.Tensor:
    kept.append(value[1:])
    return value


def keep_array_and_return(value: torch.Tensor) -> torch.Tensor:
    kept.append(value.numpy())
    return value


def keep_dlpack_and_return(value: torch.Tensor) -> torch.Tensor:
    kept.append(torch.utils.dlpack.to_dlpack(value))
    return value


def sum_of_kept() -> float:
    value = kept.pop()
    if type(value).__name__ == "PyCapsule":
        value = torch.utils.dlpack.from_dlpack(value)
    return float(torch.as_tensor(value).sum())


def call_back(to: str, depth: int) -> int:
    """Each level is a call to the other node."""
    node = hawser.default_node()
    return 0 if depth == 0 else 1 + node.run(to, call_back, node.name, depth - 1)


# --- what handlers learnt, for the test to ask ---

state: dict[str, Any] = {}
cancelled = threading.Event()


async def wait_for_ever() -> None:
    state["started"] = True
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        cancelled.set()
        raise


def unsendable() -> torch.Tensor:
    return torch.empty(2, device="meta")


async def unsendable_later() -> torch.Tensor:
    return torch.empty(2, device="meta")


async def add_later(a: int, b: int) -> int:
    await asyncio.sleep(0.01)
    return a + b


async def exit_later(code: int) -> None:
    await asyncio.sleep(0)
    raise SystemExit(code)


async def exit_in_a_task(code: int) -> None:
    await asyncio.create_task(exit_later(code))


def was_cancelled(patience: float) -> bool:
    return cancelled.wait(patience)


def remaining_time() -> float | None:
    call = hawser.current_call()
    assert call is not None
    return call.remaining


def _serve(path: str, name: str, options: dict[str, Any]) -> None:
    functions = {"add": lambda a, b: a + b, "echo": echo}
    node = hawser.Node(name, f"file://{path}", functions=functions, **options)
    signal.sigwait({signal.SIGTERM})
    node.close()


@contextlib.contextmanager
def world(*peers: str, mine: dict[str, Any] | None = None, **options: Any) -> Iterator[hawser.Node]:
    """A node "me" with the options `mine`, and processes that run nodes of these names with
    `options`. A dynamic world."""
    with tempfile.TemporaryDirectory(prefix="hawser-test-") as folder:
        path = f"{folder}/store"
        processes = []
        signal_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        for name in peers:
            process = context.Process(target=_start, args=(path, name, options))
            process.start()
            processes.append(process)
        signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)
        node = hawser.Node("me", f"file://{path}", **(mine or {}))
        try:
            yield node
        finally:
            node.close()
            for process in processes:
                process.terminate()
            for process in processes:
                process.join(10)
                if process.is_alive():
                    process.kill()
                    process.join()


def _start(path: str, name: str, options: dict[str, Any]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    _serve(path, name, options)
