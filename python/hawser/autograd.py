"""Gradients through computations that are spread over nodes.

    with hawser.autograd.context() as context:
        loss = node.run("worker", forward, batch).sum()
        context.backward([loss])
        gradients = context.gradients()        # of the leaves of this process: {leaf: gradient}

Every node has the gradients of its own leaves, as long as the context lives, by `gradients(id)`. They
are never added to `.grad`. See docs/autograd.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from hawser import _native
from hawser.references import current_node

__all__ = ["Context", "context", "current", "gradients"]

_UNSET: Any = object()


class Context:
    """One forward computation and its gradients; made by `context()`. `id` names it everywhere."""

    def __init__(self, node: _native.Node, id: int) -> None:
        self._node = node
        self.id = id

    def backward(
        self,
        roots: Sequence[torch.Tensor],
        retain_graph: bool = False,
        timeout: float | None = None,
        mode: str = "smart",
    ) -> None:
        """Computes the gradients of all leaves, on all nodes, and adds them to the context.

        It does so everywhere or nowhere: if a function raises on any node, a node is lost or the
        time is up, this raises and nothing has been added. `timeout` is in seconds, 0 for no limit.
        Without one it takes as long as it takes, unless a node is lost; in the mode "fast", which
        may wait for what never comes, as long as a call may. `mode` is "smart" or "fast": see
        docs/autograd.md.
        """
        self._node.backward(self.id, list(roots), retain_graph, timeout, mode)

    def gradients(self) -> dict[torch.Tensor, torch.Tensor]:
        """Of the leaves of this process."""
        return self._node.gradients(self.id)

    def __repr__(self) -> str:
        return f"<hawser.autograd.Context {self.id}>"


@contextlib.contextmanager
def context(node: Any = None) -> Iterator[Context]:
    """Calls made inside, and what they lead to elsewhere, belong to one computation.

    Of the current thread or asyncio task, and of callbacks and tasks that are made inside.
    """
    native = current_node() if node is None else node._native
    if current() is not None:
        raise RuntimeError("Already have an autograd context id for this thread.")
    entered = Context(native, native.create_context())
    try:
        with _inside(entered.id):
            yield entered
    finally:
        if not native.closed:
            native.release_context(entered.id)


def current() -> int | None:
    """The id of the context that this thread or task computes in."""
    return _native.current_context()


def gradients(context: int | Context, node: Any = None) -> dict[torch.Tensor, torch.Tensor]:
    """Of the leaves of this process in that context, in which it has taken part."""
    native = current_node() if node is None else node._native
    return native.gradients(context.id if isinstance(context, Context) else context)


# --- callbacks ---


def _follow(future: Any) -> None:
    """Callbacks attached to futures of that class run in the context in which they were attached."""
    then, add_done_callback = future.then, future.add_done_callback

    def followed_then(self: Any, callback: Callable[..., Any]) -> Any:
        return then(self, _in_this_context(callback))

    def followed_add_done_callback(self: Any, callback: Callable[..., Any]) -> None:
        add_done_callback(self, _in_this_context(callback))

    future.then = functools.wraps(then)(followed_then)
    future.add_done_callback = functools.wraps(add_done_callback)(followed_add_done_callback)


def _in_this_context(callback: Callable[..., Any]) -> Callable[..., Any]:
    here = current()
    if here is None or not callable(callback):
        return callback

    @functools.wraps(callback)
    def followed(*args: Any) -> Any:
        with _inside(here):
            return callback(*args)

    return followed


_follow(torch._C.Future)
_follow(_native.Future)


@contextlib.contextmanager
def _inside(context_id: int | None) -> Iterator[None]:
    before = current()
    enter(context_id)
    try:
        yield
    finally:
        enter(before)


def enter(context_id: int | None) -> None:
    """Has this thread, or this task, compute in that context, or in none, until further notice."""
    if _goes_with_task():
        _native.task_context.set(context_id)
    else:
        _native.set_current_context(context_id)


def _goes_with_task() -> bool:
    """The tasks of an event loop share a thread, so there the context goes with the task: also to
    threads that it hands work to, with its other variables."""
    if _native.task_context.get(_UNSET) is not _UNSET:
        return True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
