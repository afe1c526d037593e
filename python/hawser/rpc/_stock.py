"""What is used of torch's own rpc module as it is.

Imported before hawser.dropin puts this package in torch's place, so that these are torch's.
"""

from torch._C._distributed_rpc import (
    WorkerInfo,
    _disable_jit_rref_pickle,
    _enable_jit_rref_pickle,
    _set_profiler_node_id,
)

__all__ = [
    "WorkerInfo",
    "_disable_jit_rref_pickle",
    "_enable_jit_rref_pickle",
    "_set_profiler_node_id",
]
