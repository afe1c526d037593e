"""Remote calls between PyTorch programs.

    import hawser

    with hawser.Node("trainer", rendezvous="tcp://127.0.0.1:29500", rank=0, world_size=2) as node:
        loss = node.run("worker", evaluate, batch)            # wait for the result
        future = node.call("worker", evaluate, batch)         # or fetch it later: future.wait()
        loss = await node.call("worker", evaluate, batch)     # or in a coroutine

`hawser.rpc` is the same with the interface of `torch.distributed.rpc`; `hawser.dropin` lets existing
programs use it unchanged.
"""

from __future__ import annotations

import torch

from hawser._build_info import TORCH_VERSION

if torch.__version__.split("+")[0] != TORCH_VERSION:
    raise ImportError(
        f"this build of hawser is for torch {TORCH_VERSION}, and torch {torch.__version__} is installed. "
        "Rebuild it against that: pip install --no-build-isolation --force-reinstall <hawser's source>"
    )

from hawser import autograd, profiler
from hawser._native import Future, __version__
from hawser.errors import (
    Cancelled,
    Error,
    Invalid,
    Overloaded,
    PeerLost,
    Refused,
    RemoteError,
    Timeout,
)
from hawser.node import Node, by_value, current_call, deadline, default_node
from hawser.references import RRef

from hawser import nn, optim  # isort: skip  # on all of the above

__all__ = [
    "Cancelled",
    "Error",
    "Future",
    "Invalid",
    "Node",
    "Overloaded",
    "PeerLost",
    "RRef",
    "Refused",
    "RemoteError",
    "Timeout",
    "__version__",
    "autograd",
    "by_value",
    "current_call",
    "deadline",
    "default_node",
    "nn",
    "optim",
    "profiler",
]
