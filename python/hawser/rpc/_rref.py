"""What references have in torch.distributed.rpc beyond hawser's own, and the state of all of them."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

import torch

from .. import _native, references
from ..references import PyRRef, RRef
from ._agent import _get_current_rpc_agent, _is_current_rpc_agent_set
from ._invoke import _limit
from ._stock import WorkerInfo
from .constants import UNSET_RPC_TIMEOUT

__all__ = ["PyRRef", "RRef"]

logger = logging.getLogger(__name__)


# --- more of PyRRef ---


def _get_type(self: PyRRef, timeout: float = UNSET_RPC_TIMEOUT, blocking: bool = True) -> Any:
    """The type of the value, or a future of it. Asked for once, unless that failed."""
    from .api import _rref_typeof_on_owner, _rref_typeof_on_user

    known = self._kind
    if known is not None and known.done():
        try:
            kind = known.value()
        except Exception:
            known = None
        else:
            return kind if blocking else known
    if known is None:
        if self.is_owner():
            known = _rref_typeof_on_owner(self, blocking=False)
        else:
            known = _rref_typeof_on_user(self, timeout=timeout, blocking=False)
        self._kind = known
    return known.wait() if blocking else known


def _serialize(self: PyRRef) -> tuple[Any, ...]:
    """What a pickler of RPC puts into a message for this reference; `_deserialize` reads it there."""
    if self.deleted:
        raise RuntimeError(f"{self} has been deleted. Cannot call fork an UserRRef after deletion.")
    self._raise_if_failed()
    on, local, fork_on, _ = self._ids()
    me = _get_current_rpc_agent().get_worker_info()
    return (self.owner().id, on, local, fork_on, self._pickled_index(), me.id, "")


def _deserialize(tp: tuple[Any, ...]) -> PyRRef:
    return _native._received_reference(tp[4])


def _get_profiling_future(self: PyRRef) -> Any:
    return self._profiling_future


def _set_profiling_future(self: PyRRef, profilingFuture: Any) -> None:
    self._profiling_future = profilingFuture


for _name, _method in {
    "_get_type": _get_type,
    "_serialize": _serialize,
    "_get_profiling_future": _get_profiling_future,
    "_set_profiling_future": _set_profiling_future,
}.items():
    _method.__name__ = _name
    setattr(PyRRef, _name, _method)
PyRRef._deserialize = staticmethod(_deserialize)  # type: ignore[method-assign]


# --- all references of this process ---


def _delete_all_user_and_unforked_owner_rrefs(
    timeout: timedelta = timedelta(seconds=100),
) -> None:
    """Gives up every reference that this process holds to values of others, and waits until they
    have done the same."""
    node = _get_current_rpc_agent()._node
    if not node.release_references(timeout.total_seconds()):
        for line in node.ref_leaks():
            logger.warning("still referenced: %s", line)


def await_creations(agent: Any, timeout: float) -> None:
    """Returns when every value that this process has asked for is there, or has failed. With 0 that
    is limited by the time that the calls have which make them."""
    ends = time.monotonic() + timeout
    while agent._node.count_refs()["creating"]:
        if timeout and time.monotonic() > ends:
            return  # the barrier that follows says who is late
        time.sleep(0.001)


def note_leaks(agent: Any) -> None:
    """Remembers which values others hold references to, for `_destroy_rref_context`."""
    refs = agent._node.refs()
    agent._leaks = [ref for ref in refs if ref["mine"] and ref["holders"]]


def _destroy_rref_context(ignoreRRefLeak: bool) -> None:
    """Raises if others still held references to values here when all were about to leave, unless
    that is to be ignored."""
    if not _is_current_rpc_agent_set():
        return
    leaks = getattr(_get_current_rpc_agent(), "_leaks", [])
    if not leaks:
        return
    text = "Leaking RRef " + "; ".join(
        f"{ref['id']} ({ref['type']}), held by {', '.join(ref['holders'])}" for ref in leaks
    )
    if not ignoreRRefLeak:
        raise RuntimeError(text)
    logger.warning(text)


def _cleanup_python_rpc_handler() -> None:
    """Nothing is kept between worlds."""


def _rref_context_get_debug_info() -> dict[str, str]:
    counts = _get_current_rpc_agent()._node.count_refs()
    return {
        "num_owner_rrefs": str(counts["shared"]),
        "num_pending_futures": str(counts["creating"] + counts["unsettled"]),
        "num_pending_users": str(counts["creating"]),
        "num_forks": str(counts["forks"]),
    }


# --- creating references with what has been prepared by others ---


def _invoke_remote_builtin(
    dst: WorkerInfo, opName: str, rpcTimeoutSeconds: float, *args: Any, **kwargs: Any
) -> PyRRef:
    node = _get_current_rpc_agent()._node
    return node.remote(dst.name, opName, args, kwargs, _limit(rpcTimeoutSeconds))


def _invoke_remote_python_udf(
    dst: WorkerInfo,
    pickledPythonUDF: bytes,
    tensors: list[torch.Tensor],
    rpcTimeoutSeconds: float,
    isAsyncExecution: bool,
) -> PyRRef:
    from .internal import deserialize

    udf = deserialize(pickledPythonUDF, tensors)
    node = _get_current_rpc_agent()._node
    return node.remote(dst.name, udf.func, udf.args, udf.kwargs, _limit(rpcTimeoutSeconds))


def _invoke_remote_torchscript(
    dstWorkerName: str,
    qualifiedNameStr: str,
    rpcTimeoutSeconds: float,
    isAsyncExecution: bool,
    *args: Any,
    **kwargs: Any,
) -> PyRRef:
    from ._invoke import find_script_function

    function = find_script_function(qualifiedNameStr)
    node = _get_current_rpc_agent()._node
    return node.remote(dstWorkerName, function, args, kwargs, _limit(rpcTimeoutSeconds))


# --- proxies ---


def _proxy(ref: PyRRef, kind: str, timeout: float) -> Any:
    from . import api
    from .rref_proxy import RRefProxy

    return RRefProxy(ref, getattr(api, kind), timeout)


references.make_proxy_of_chosen = _proxy
