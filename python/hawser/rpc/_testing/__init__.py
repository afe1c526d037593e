"""An agent that fails on purpose, as backend FAULTY_TENSORPIPE."""

import torch

from ._faulty_agent import FaultyTensorPipeAgent, FaultyTensorPipeRpcBackendOptions


def is_available() -> bool:
    return True


from . import faulty_agent_backend_registry  # noqa: E402  registers, with what is above

__all__ = [
    "FaultyTensorPipeAgent",
    "FaultyTensorPipeRpcBackendOptions",
    "faulty_agent_backend_registry",
    "is_available",
    "torch",
]
