"""Calls of what has been prepared by others: an operator's name, a pickle, a script's name."""

from __future__ import annotations

from typing import Any

import torch

from ._agent import _get_current_rpc_agent
from ._stock import WorkerInfo
from .constants import UNSET_RPC_TIMEOUT


def _limit(rpcTimeoutSeconds: float) -> float | None:
    return None if rpcTimeoutSeconds == UNSET_RPC_TIMEOUT else rpcTimeoutSeconds


def _invoke_rpc_builtin(
    dst: WorkerInfo, opName: str, rpcTimeoutSeconds: float, *args: Any, **kwargs: Any
) -> torch._C.Future[Any]:
    node = _get_current_rpc_agent()._node
    return node.start(dst.name, opName, args, kwargs, _limit(rpcTimeoutSeconds))


def _invoke_rpc_python_udf(
    dst: WorkerInfo,
    pickledPythonUDF: bytes,
    tensors: list[torch.Tensor],
    rpcTimeoutSeconds: float,
    isAsyncExecution: bool,
) -> torch._C.Future[Any]:
    from .internal import deserialize

    udf = deserialize(pickledPythonUDF, tensors)
    node = _get_current_rpc_agent()._node
    return node.start(dst.name, udf.func, udf.args, udf.kwargs, _limit(rpcTimeoutSeconds))


def find_script_function(qualifiedNameStr: str) -> Any:
    function = torch.jit._state._python_cu.find_function(qualifiedNameStr)
    if function is None:
        raise RuntimeError(f"there is no script function {qualifiedNameStr}")
    return function


def _invoke_rpc_torchscript(
    dstWorkerName: str,
    qualifiedNameStr: str,
    argsTuple: tuple[Any, ...],
    kwargsDict: dict[str, Any],
    rpcTimeoutSeconds: float,
    isAsyncExecution: bool,
) -> torch._C.Future[Any]:
    function = find_script_function(qualifiedNameStr)
    node = _get_current_rpc_agent()._node
    return node.start(dstWorkerName, function, argsTuple, kwargsDict, _limit(rpcTimeoutSeconds))
