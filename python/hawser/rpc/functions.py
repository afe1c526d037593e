"""Decorators for functions that are called remotely."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def async_execution(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function that returns a `torch.futures.Future` for its result.

    The callee answers when that future is settled, and no thread waits for it meanwhile. Below
    `@staticmethod` or `@classmethod`, above `@torch.jit.script`.
    """

    @functools.wraps(fn)
    def asynchronous(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    asynchronous._wrapped_async_rpc_function = fn  # type: ignore[attr-defined]
    return asynchronous
