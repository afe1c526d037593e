"""Served coroutines run on one event loop, on a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any, NoReturn

import torch

from hawser import _native
from hawser._native import CallInfo

_logger = logging.getLogger(__name__)


class _Loop:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_until_stopped,
                    args=(self._loop,),
                    name="hawser-asyncio",
                    daemon=True,
                )
                self._thread.start()
            return self._loop

    def stop(self, patience: float) -> None:
        with self._lock:
            if self._loop is None or self._thread is None:
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(patience)


def _run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    """A task that raises SystemExit or KeyboardInterrupt ends the loop it runs on. Those that served
    coroutines have started may; the other calls have nothing to do with that."""
    while True:
        try:
            return loop.run_forever()
        except BaseException:
            _logger.exception("a task that a served coroutine had started wanted to end the loop")


_loop = _Loop()


def stop(patience: float = 5.0) -> None:
    """Ends the loop: at the end of the process, when no node can be called any more."""
    _loop.stop(patience)


def _forget_loop() -> None:
    global _loop  # its thread stayed with the parent
    _loop = _Loop()


os.register_at_fork(after_in_child=_forget_loop)


def _raise(error: BaseException) -> NoReturn:
    raise error


def run(coroutine: Coroutine[Any, Any, Any], call: CallInfo) -> torch.futures.Future[Any]:
    """Starts the coroutine; its result, or what it raises, settles the future.

    It is cancelled when the call is: by its caller, by its deadline, or because the caller is gone.
    Calls that it makes are limited by what is left of the call's time, and belong to its autograd
    context.
    """
    from hawser.node import deadline

    result: torch.futures.Future[Any] = torch.futures.Future()
    loop = _loop.get()
    autograd_context = _native.current_context()

    async def settle() -> None:
        _native.task_context.set(autograd_context)
        try:
            remaining = call.remaining
            if remaining is None:
                value = await coroutine
            else:
                with deadline(max(remaining, 1e-9)):
                    value = await coroutine
        except asyncio.CancelledError:
            result.set_exception(RuntimeError("the call was cancelled"))
        except BaseException as error:  # SystemExit too would end the loop
            # As set_exception does, which wants an Exception.
            result._set_unwrap_func(_raise)
            result.set_result(error)
        else:
            result.set_result(value)

    def start() -> None:
        task = loop.create_task(settle())
        call.on_cancel(lambda: loop.call_soon_threadsafe(task.cancel))

    loop.call_soon_threadsafe(start)
    return result
