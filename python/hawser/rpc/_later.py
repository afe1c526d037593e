"""Stand-ins for what is not there yet: references, distributed autograd, profiling, scripts.

Everything that a later change replaces is here and nowhere else. What init_rpc and shutdown call
does nothing; what a program would call raises NotImplementedError.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch

from . import _stock
from ._agent import _get_current_rpc_agent
from ._stock import WorkerInfo

_UNSET = -1.0


def _not_yet(what: str) -> NotImplementedError:
    return NotImplementedError(f"hawser.rpc does not have {what} yet")


# --- references ---


class PyRRef:
    """A reference to a value on some worker."""

    def __init__(self, value: Any, type_hint: Any = None) -> None:
        _get_current_rpc_agent()
        raise _not_yet("remote references")

    def is_owner(self) -> bool:
        """Whether the value lives in this process."""
        raise _not_yet("remote references")

    def confirmed_by_owner(self) -> bool:
        """Whether the owner has heard of this reference."""
        raise _not_yet("remote references")

    def owner(self) -> WorkerInfo:
        """The worker on which the value lives."""
        raise _not_yet("remote references")

    def owner_name(self) -> str:
        """The name of that worker."""
        raise _not_yet("remote references")

    def to_here(self, timeout: float = _UNSET) -> Any:
        """A copy of the value, or the value itself on its owner."""
        raise _not_yet("remote references")

    def local_value(self) -> Any:
        """The value itself; only on its owner."""
        raise _not_yet("remote references")

    def rpc_sync(self, timeout: float = _UNSET) -> Any:
        """A proxy whose methods run on the owner, and wait for the result."""
        raise _not_yet("remote references")

    def rpc_async(self, timeout: float = _UNSET) -> Any:
        """A proxy whose methods run on the owner, and return a future."""
        raise _not_yet("remote references")

    def remote(self, timeout: float = _UNSET) -> Any:
        """A proxy whose methods run on the owner, and return a reference."""
        raise _not_yet("remote references")

    def backward(self, dist_autograd_ctx_id: int = -1, retain_graph: bool = False) -> None:
        """Runs backward from the value, which is a scalar tensor."""
        raise _not_yet("remote references")

    def _serialize(self) -> tuple[Any, ...]:
        raise _not_yet("remote references")

    @staticmethod
    def _deserialize(tp: tuple[Any, ...]) -> PyRRef:
        raise _not_yet("remote references")

    def _get_type(self, timeout: float = _UNSET, blocking: bool = True) -> Any:
        raise _not_yet("remote references")

    def _get_future(self) -> Any:
        raise _not_yet("remote references")

    def _get_profiling_future(self) -> Any:
        raise _not_yet("remote references")

    def _set_profiling_future(self, profilingFuture: Any) -> None:
        raise _not_yet("remote references")


def remote(agent: Any, to: str, func: Any, args: Any, kwargs: Any, timeout: Any) -> PyRRef:
    raise _not_yet("remote references")


def _delete_all_user_and_unforked_owner_rrefs(
    timeout: timedelta = timedelta(seconds=100),
) -> None:
    """Gives up every reference that this process holds to values of others."""


def _destroy_rref_context(ignoreRRefLeak: bool) -> None:
    """Forgets all references; raises if others still hold some to values here."""


def _cleanup_python_rpc_handler() -> None:
    """Nothing is kept between worlds."""


def _rref_context_get_debug_info() -> dict[str, str]:
    return {
        "num_owner_rrefs": "0",
        "num_pending_futures": "0",
        "num_pending_users": "0",
        "num_forks": "0",
    }


def _invoke_remote_builtin(
    dst: WorkerInfo, opName: str, rpcTimeoutSeconds: float, *args: Any, **kwargs: Any
) -> PyRRef:
    raise _not_yet("remote references")


def _invoke_remote_python_udf(
    dst: WorkerInfo,
    pickledPythonUDF: bytes,
    tensors: list[torch.Tensor],
    rpcTimeoutSeconds: float,
    isAsyncExecution: bool,
) -> PyRRef:
    raise _not_yet("remote references")


def _invoke_remote_torchscript(
    dstWorkerName: str,
    qualifiedNameStr: str,
    rpcTimeoutSeconds: float,
    isAsyncExecution: bool,
    *args: Any,
    **kwargs: Any,
) -> PyRRef:
    raise _not_yet("remote references")


def _enable_jit_rref_pickle() -> None:
    raise _not_yet("remote references")


def _disable_jit_rref_pickle() -> None:
    raise _not_yet("remote references")


# --- distributed autograd ---


def init_autograd(dist_autograd: Any, rank: int) -> None:
    """Tells autograd the rank. torch's own accepts one rank for the life of the process."""
    try:
        dist_autograd._init(rank)
    except RuntimeError as error:
        if "already initialized" not in str(error):
            raise


# --- profiling ---


class RemoteProfilerManager:
    @staticmethod
    def set_current_profiling_key(key: str) -> None:
        raise _not_yet("remote profiling")


def _enable_server_process_global_profiler(new_config: Any) -> None:
    raise _not_yet("remote profiling")


def _disable_server_process_global_profiler() -> list[Any]:
    raise _not_yet("remote profiling")


def _set_profiler_node_id(default_node_id: int) -> None:
    """The rank that this process's profiler events carry."""
    _stock._set_profiler_node_id(default_node_id)
