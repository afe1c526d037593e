"""What torch._C._distributed_rpc offers, by the same names."""

from .._native import RpcBackendOptions, _TensorPipeRpcBackendOptionsBase
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
from .constants import (
    _DEFAULT_INIT_METHOD,
    _DEFAULT_NUM_WORKER_THREADS,
    _DEFAULT_RPC_TIMEOUT_SEC,
    _UNSET_RPC_TIMEOUT,
)

__all__ = [
    "PyRRef",
    "RemoteProfilerManager",
    "RpcAgent",
    "RpcBackendOptions",
    "TensorPipeAgent",
    "WorkerInfo",
    "_DEFAULT_INIT_METHOD",
    "_DEFAULT_NUM_WORKER_THREADS",
    "_DEFAULT_RPC_TIMEOUT_SEC",
    "_TensorPipeRpcBackendOptionsBase",
    "_UNSET_RPC_TIMEOUT",
    "_cleanup_python_rpc_handler",
    "_delete_all_user_and_unforked_owner_rrefs",
    "_destroy_rref_context",
    "_disable_jit_rref_pickle",
    "_disable_server_process_global_profiler",
    "_enable_jit_rref_pickle",
    "_enable_server_process_global_profiler",
    "_get_current_rpc_agent",
    "_invoke_remote_builtin",
    "_invoke_remote_python_udf",
    "_invoke_remote_torchscript",
    "_invoke_rpc_builtin",
    "_invoke_rpc_python_udf",
    "_invoke_rpc_torchscript",
    "_is_current_rpc_agent_set",
    "_reset_current_rpc_agent",
    "_rref_context_get_debug_info",
    "_set_and_start_rpc_agent",
    "_set_profiler_node_id",
    "_set_rpc_timeout",
    "enable_gil_profiling",
    "get_rpc_timeout",
]
