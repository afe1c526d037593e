"""torch.distributed.autograd on hawser: the same names, the same behaviour.

    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", torch.add, args=(t1, t2)).sum()
        dist_autograd.backward(context_id, [loss])
        gradients = dist_autograd.get_gradients(context_id)

What differs: a result that the roots do not depend on does not make backward wait for ever, an error
or a lost worker ends the pass on all workers, and a pass that failed has added nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _native, autograd, errors
from ._agent import _get_current_rpc_agent, _is_current_rpc_agent_set

__all__ = ["context", "is_available"]

_MAX_SERIAL = (1 << 48) - 1
_NO_CONTEXT = (
    "Current thread doesn't have a valid autograd context. Please wrap your code using: "
    "`with torch.distributed.autograd.context() as context_id` to generate a valid context"
)


def is_available() -> bool:
    """Whether distributed autograd can be used in this build. It can."""
    return True


def _init(worker_id: int) -> None:
    """Called by init_rpc before the agent starts. The node that the agent starts knows its rank."""
    if not 0 <= worker_id < (1 << 15):
        raise RuntimeError(f"worker_id needs to be in the range [0, 65535], got {worker_id}")


def _node() -> _native.Node:
    if not _is_current_rpc_agent_set():
        raise RuntimeError(
            "Need to initialize distributed autograd using torch.distributed.autograd._init()"
        )
    return _get_current_rpc_agent()._node


class context:
    """Calls made inside belong to one computation: `with context() as context_id`."""

    def __enter__(self) -> int:
        self.autograd_context = _new_context()
        return self.autograd_context._context_id()

    def __exit__(self, *exception: object) -> None:
        _release_context(self.autograd_context._context_id())


class DistAutogradContext:
    """What this worker knows of a context; for tests and the curious."""

    def __init__(self, node: _native.Node, context_id: int) -> None:
        self._node = node
        self._id = context_id

    def _context_id(self) -> int:
        return self._id

    def _send_functions(self) -> dict[int, Any]:
        return self._node.context_report(self._id)["sends"]

    def _recv_functions(self) -> dict[int, Any]:
        return self._node.context_report(self._id)["recvs"]

    def _known_worker_ids(self) -> set[int]:
        known = self._node.context_report(self._id)["known"]
        return {self._node.rank_of(name) for name in known}


def _new_context() -> DistAutogradContext:
    """Enters a new context; `_release_context` leaves it."""
    node = _node()
    if _native.current_context() is not None:
        raise RuntimeError("Already have an autograd context id for this thread.")
    context_id = node.create_context()
    autograd.enter(context_id)
    return DistAutogradContext(node, context_id)


def _release_context(context_id: int) -> None:
    if _native.current_context() == context_id:
        autograd.enter(None)
    node = _node()
    if not node.closed:
        node.release_context(context_id)


def _is_valid_context(worker_id: int) -> None:
    """Raises if there is no context of that id: upstream's name for the parameter is a slip."""
    _retrieve_context(worker_id)


def _retrieve_context(context_id: int) -> DistAutogradContext:
    node = _node()
    if not node.is_in_context(context_id):
        raise RuntimeError(f"Could not find autograd context with id: {context_id}")
    return DistAutogradContext(node, context_id)


def _current_context() -> DistAutogradContext:
    context_id = _native.current_context()
    if context_id is None:
        raise RuntimeError(_NO_CONTEXT)
    return _retrieve_context(context_id)


def _get_max_id() -> int:
    node = _node()
    return (node.rank_of(node.name) << 48) + _MAX_SERIAL


def _get_debug_info() -> dict[str, int]:
    counts = _node().count_autograd()
    return {
        "num_autograd_contexts": counts["contexts"],
        "num_current_backward_passes": counts["passes"],
    }


def backward(
    context_id: int,
    roots: list[torch.Tensor],
    retain_graph: bool = False,
    timeout: float | None = None,
    mode: str = "smart",
) -> None:
    """Computes the gradients of the roots, which are scalars of this worker, on all workers.

    `timeout` (in seconds) and `mode` are hawser's own: see docs/autograd.md.
    """
    node = _node()
    try:
        node.backward(context_id, roots, retain_graph, timeout, mode)
    except errors.RemoteError as error:
        raise _on_worker(node, error) from None


def _on_worker(node: _native.Node, error: errors.RemoteError) -> RuntimeError:
    name = error.node or node.name
    try:
        where: int | str = node.rank_of(name)
    except errors.Error:  # it has left since; what it said counts more than its number
        where = name
    text = f"Error on Node {where}: {error}"
    return RuntimeError(f"{text}\n{error.remote_traceback}" if error.remote_traceback else text)


def get_gradients(context_id: int) -> dict[torch.Tensor, torch.Tensor]:
    """Of the leaves of this worker, as far as it took part in the context."""
    return _node().gradients(context_id)
