"""Served coroutines run on one event loop, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import torch


class _Loop:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="hawser-asyncio", daemon=True
                ).start()
            return self._loop


_loop = _Loop()


def run(coroutine: Coroutine[Any, Any, Any]) -> torch.futures.Future[Any]:
    """Starts the coroutine; its result, or what it raises, settles the future."""
    result: torch.futures.Future[Any] = torch.futures.Future()

    async def settle() -> None:
        try:
            value = await coroutine
        except BaseException as error:
            if isinstance(error, Exception):
                result.set_exception(error)
            else:
                result.set_exception(RuntimeError(repr(error)))
                raise
        else:
            result.set_result(value)

    asyncio.run_coroutine_threadsafe(settle(), _loop.get())
    return result
