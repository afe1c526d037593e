"""torch.distributed.rpc on hawser: the same names, the same behaviour, without its bugs.

    import hawser.rpc as rpc
    rpc.init_rpc("worker0", rank=0, world_size=2)
    rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 1))
    rpc.shutdown()

For programs that import torch.distributed.rpc itself there is hawser.dropin.
"""

from __future__ import annotations

import logging
import numbers
import os
import threading
import time
import urllib.parse
from collections.abc import Generator
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from .. import _native
from .._native import RpcBackendOptions, _TensorPipeRpcBackendOptionsBase
from ..errors import Timeout
from . import (
    _agent,
    api,
    backend_registry,
    constants,
    dist_autograd,
    functions,
    internal,
    options,
)
from ._agent import (
    RpcAgent,
    TensorPipeAgent,
    _get_current_rpc_agent,
    _is_current_rpc_agent_set,
    _reset_current_rpc_agent,
    _set_and_start_rpc_agent,
    _set_rpc_timeout,
    enable_gil_profiling,
    get_rpc_timeout,
)
from ._invoke import _invoke_rpc_builtin, _invoke_rpc_python_udf, _invoke_rpc_torchscript
from ._profiling import (
    RemoteProfilerManager,
    _disable_server_process_global_profiler,
    _enable_server_process_global_profiler,
    _set_profiler_node_id,
)
from ._rref import (
    PyRRef,
    _cleanup_python_rpc_handler,
    _delete_all_user_and_unforked_owner_rrefs,
    _destroy_rref_context,
    _invoke_remote_builtin,
    _invoke_remote_python_udf,
    _invoke_remote_torchscript,
    _rref_context_get_debug_info,
)
from ._stock import WorkerInfo, _disable_jit_rref_pickle, _enable_jit_rref_pickle
from .api import *  # noqa: F403
from .backend_registry import BackendType
from .constants import (
    _DEFAULT_INIT_METHOD,
    _DEFAULT_NUM_WORKER_THREADS,
    _DEFAULT_RPC_TIMEOUT_SEC,
    _UNSET_RPC_TIMEOUT,
)
from .options import TensorPipeRpcBackendOptions, _is_tensorpipe_available
from .server_process_global_profiler import _server_process_global_profile

__all__ = ["is_available", "init_rpc", "BackendType", "TensorPipeRpcBackendOptions"]
__all__ += api.__all__ + backend_registry.__all__

# Part of this module's surface, though not used here.
_SURFACE = (
    RpcAgent,
    TensorPipeAgent,
    _TensorPipeRpcBackendOptionsBase,
    PyRRef,
    RemoteProfilerManager,
    WorkerInfo,
    _DEFAULT_INIT_METHOD,
    _DEFAULT_NUM_WORKER_THREADS,
    _DEFAULT_RPC_TIMEOUT_SEC,
    _UNSET_RPC_TIMEOUT,
    _cleanup_python_rpc_handler,
    _delete_all_user_and_unforked_owner_rrefs,
    _destroy_rref_context,
    _disable_jit_rref_pickle,
    _disable_server_process_global_profiler,
    _enable_jit_rref_pickle,
    _enable_server_process_global_profiler,
    _get_current_rpc_agent,
    _invoke_remote_builtin,
    _invoke_remote_python_udf,
    _invoke_remote_torchscript,
    _invoke_rpc_builtin,
    _invoke_rpc_python_udf,
    _invoke_rpc_torchscript,
    _is_tensorpipe_available,
    _reset_current_rpc_agent,
    _server_process_global_profile,
    _set_and_start_rpc_agent,
    _set_rpc_timeout,
    constants,
    enable_gil_profiling,
    functions,
    get_rpc_timeout,
    internal,
    options,
)

logger = logging.getLogger(__name__)

# Worlds that this process has entered one after another each have keys of their own in the store; all
# their members have entered as many. A start that failed does not count: others may not have tried.
_init_counter = 0
_init_counter_lock = threading.Lock()

_RENDEZVOUS_TIMEOUT = 300.0  # seconds

rendezvous_iterator: Generator[tuple[Store, int, int], None, None]  # keeps the store's host alive


def is_available() -> bool:
    """Whether rpc can be used in this build. It can."""
    return True


def init_rpc(
    name: str,
    backend: BackendType | None = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: RpcBackendOptions | None = None,
) -> None:
    """Makes this process a worker that can call others and be called.

    name: unique; letters, digits, '-', '_' and ':', fewer than 128.
    backend: the kind of agent; by default the one that the options belong to.
    rank: unique; from 0 to world_size - 1 if there is a world size.
    world_size: with it, the members are fixed, and this returns when all have come. Without it,
        workers join and leave at any time.
    rpc_backend_options: by default a minute for each call, and a rendezvous at `env://`.
    """
    _check_types(backend, rpc_backend_options)
    if backend is None:
        backend = _infer_backend(rpc_backend_options)
    if rpc_backend_options is None:
        rpc_backend_options = backend_registry.construct_rpc_backend_options(backend)

    store = _rendezvous(rpc_backend_options, rank, world_size)
    # Before anything is written to the store, so that a mistake of one worker can be corrected.
    _validate_rpc_args(backend, store, name, rank, world_size, rpc_backend_options)
    if _is_current_rpc_agent_set():
        raise RuntimeError("RPC is already initialized")
    WorkerInfo(name, rank)
    store = _worlds_store(store, static=bool(world_size))

    # Autograd first: as soon as the agent is there, others may call functions that use it.
    dist_autograd._init(rank)
    _set_profiler_node_id(rank)
    _init_rpc_backend(backend, store, name, rank, world_size, rpc_backend_options)
    global _init_counter
    with _init_counter_lock:
        _init_counter += 1


def _check_types(backend: Any, rpc_backend_options: Any) -> None:
    if backend is not None and not isinstance(backend, backend_registry.BackendType):
        raise TypeError("Argument backend must be a member of BackendType")
    if rpc_backend_options is not None and not isinstance(rpc_backend_options, RpcBackendOptions):
        raise TypeError("Argument rpc_backend_options must be an instance of RpcBackendOptions")


def _infer_backend(rpc_backend_options: RpcBackendOptions | None) -> BackendType:
    usual = BackendType["TENSORPIPE"]
    if rpc_backend_options is None:
        return usual
    for candidate in backend_registry.BackendType:
        try:
            defaults = backend_registry.construct_rpc_backend_options(candidate)
        except TypeError:  # has no defaults
            continue
        if not isinstance(rpc_backend_options, type(defaults)):
            continue
        if candidate is not usual:
            logger.warning(
                "no backend was given; the options are those of %r, so it is used. ", candidate
            )
        return candidate
    raise TypeError(f"Could not infer backend for options {rpc_backend_options}")


def _rendezvous(rpc_backend_options: Any, rank: int, world_size: int | None) -> Store:
    if not world_size:
        return dist._create_store_from_options(rpc_backend_options, rank)
    global rendezvous_iterator
    _wait_for_store(rpc_backend_options.init_method, rank)
    iterator = dist.rendezvous(rpc_backend_options.init_method, rank=rank, world_size=world_size)
    store, _, _ = next(iterator)
    # Only now may the one before go: if it hosts a store at this address, the new one shares its
    # server, to which other workers may have connected already.
    rendezvous_iterator = iterator
    return store


def _wait_for_store(init_method: str, rank: int) -> None:
    """Returns when the host of a store over tcp is there. Torch's client, if it comes too early, tries
    again only after half a second or more; and where nobody ever listens, for half an hour."""
    url = urllib.parse.urlparse(init_method)
    if url.scheme == "tcp":
        host, port = url.hostname, url.port
        query = urllib.parse.parse_qs(url.query)
        rank = int(query.get("rank", [rank])[0])
        hosts_it = rank == 0
    elif url.scheme == "env":
        host, port = os.environ.get("MASTER_ADDR"), int(os.environ.get("MASTER_PORT", 0))
        hosts_it = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
    else:
        return
    if not host or not port or rank < 0 or hosts_it:  # torch knows, or says, better
        return
    ends = time.monotonic() + _RENDEZVOUS_TIMEOUT
    while not _native.wait_for_listener(host, port, 0.1):  # and look after interrupts
        if time.monotonic() > ends:
            raise Timeout(f"init_rpc: nobody listens at {host}:{port}, where rank 0 is expected to")


def _worlds_store(store: Store, static: bool) -> Store:
    """The part of the store that belongs to the world that is being entered."""
    fixed = dist.PrefixStore(f"rpc_prefix_{_init_counter}", store)
    if static:
        return fixed
    # Who joins for the second time finds the others, who may have joined once.
    _agent.claim_kind(fixed, static=False)
    return dist.PrefixStore("rpc_dynamic", store)


def _validate_rpc_args(
    backend: Any, store: Any, name: Any, rank: Any, world_size: Any, rpc_backend_options: Any
) -> None:
    for value, expected in (
        (backend, backend_registry.BackendType),
        (store, dist.Store),
        (name, str),
        (rank, numbers.Integral),
        (world_size, (numbers.Integral, type(None))),
        (rpc_backend_options, RpcBackendOptions),
    ):
        if not isinstance(value, expected):
            raise RuntimeError(
                f"Argument {value} must be of type {expected} but got type {type(value)}"
            )


def _init_rpc_backend(
    backend: Any = BackendType["TENSORPIPE"],
    store: Any = None,
    name: Any = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: Any = None,
) -> None:
    """Starts an agent on a store and makes it the current one."""
    _validate_rpc_args(backend, store, name, rank, world_size, rpc_backend_options)
    if _is_current_rpc_agent_set():
        raise RuntimeError("RPC is already initialized")
    agent = backend_registry.init_backend(
        backend,
        store=store,
        name=name,
        rank=rank,
        world_size=world_size,
        rpc_backend_options=rpc_backend_options,
    )
    if not _is_current_rpc_agent_set():
        api._init_rpc_states(agent)


@api._require_initialized
def _get_debug_info() -> dict[str, Any]:
    """What references, agent and autograd tell about themselves, in one."""
    return {
        **_rref_context_get_debug_info(),
        **api._get_current_rpc_agent().get_debug_info(),
        **dist_autograd._get_debug_info(),
    }
