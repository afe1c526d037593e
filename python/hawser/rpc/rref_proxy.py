"""Methods of a referenced value, called where it is."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.futures import Future

from .._native import Method
from . import api, functions, rpc_async
from .constants import UNSET_RPC_TIMEOUT


def _local_invoke(rref: Any, func_name: str, args: Any, kwargs: Any) -> Any:
    return getattr(rref.local_value(), func_name)(*args, **kwargs)


@functions.async_execution
def _local_invoke_async_execution(rref: Any, func_name: str, args: Any, kwargs: Any) -> Future[Any]:
    """For programs that call it themselves: a method that returns a future."""
    method = getattr(rref.local_value(), func_name)
    result = method(*args, **kwargs)
    if hasattr(method, "_wrapped_async_rpc_function"):
        return result
    settled: Future[Any] = Future()
    settled.set_result(result)
    return settled


def _invoke_rpc(
    rref: Any, rpc_api: Any, func_name: str, timeout: float, *args: Any, **kwargs: Any
) -> Any:
    if rpc_api not in (rpc_async, api.rpc_sync):
        # Only the reference that is returned would tell that there is no such method.
        getattr(rref._get_type(timeout=timeout), func_name)
    return rpc_api(rref.owner_name(), Method(rref, func_name), args, kwargs, timeout)


class RRefProxy:
    """What `rref.rpc_sync()`, `rref.rpc_async()` and `rref.remote()` return."""

    def __init__(self, rref: Any, rpc_api: Any, timeout: float = UNSET_RPC_TIMEOUT) -> None:
        self.rref = rref
        self.rpc_api = rpc_api
        self.rpc_timeout = timeout

    def __getattr__(self, func_name: str) -> Any:
        return partial(_invoke_rpc, self.rref, self.rpc_api, func_name, self.rpc_timeout)
