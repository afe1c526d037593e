"""Registers the backend FAULTY_TENSORPIPE."""

from __future__ import annotations

from typing import Any

from torch._C._distributed_c10d import Store

from ..backend_registry import (
    _check_arguments,
    _start_dynamic,
    _start_static,
    backend_registered,
    register_backend,
)
from ._faulty_agent import FaultyTensorPipeAgent, FaultyTensorPipeRpcBackendOptions


def _faulty_tensorpipe_construct_rpc_backend_options_handler(
    rpc_timeout: float,
    init_method: str,
    num_worker_threads: int,
    messages_to_fail: list[str],
    messages_to_delay: dict[str, float],
    num_fail_sends: int,
    **kwargs: Any,
) -> FaultyTensorPipeRpcBackendOptions:
    return FaultyTensorPipeRpcBackendOptions(
        num_worker_threads=num_worker_threads,
        rpc_timeout=rpc_timeout,
        init_method=init_method,
        messages_to_fail=messages_to_fail,
        messages_to_delay=messages_to_delay,
        num_fail_sends=num_fail_sends,
    )


def _faulty_tensorpipe_init_backend_handler(
    store: Store, name: str, rank: int, world_size: int | None, rpc_backend_options: Any
) -> FaultyTensorPipeAgent:
    _check_arguments(store, rpc_backend_options, FaultyTensorPipeRpcBackendOptions)
    if world_size:
        return _start_static(
            FaultyTensorPipeAgent, store, name, rank, world_size, rpc_backend_options
        )
    return _start_dynamic(FaultyTensorPipeAgent, store, name, rank, rpc_backend_options)


if not backend_registered("FAULTY_TENSORPIPE"):
    register_backend(
        "FAULTY_TENSORPIPE",
        _faulty_tensorpipe_construct_rpc_backend_options_handler,
        _faulty_tensorpipe_init_backend_handler,
    )
