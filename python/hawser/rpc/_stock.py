"""The two things of torch's own rpc module that are used as they are.

Imported before hawser.dropin puts this package in torch's place, so that these are torch's.
"""

from torch._C._distributed_rpc import WorkerInfo, _set_profiler_node_id

__all__ = ["WorkerInfo", "_set_profiler_node_id"]
