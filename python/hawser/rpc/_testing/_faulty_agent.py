"""Messages that fail or are late, chosen by the kind that the original would have sent."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import Store

from ..._native import MESSAGE_KINDS, _TensorPipeRpcBackendOptionsBase
from .._agent import DeviceMap, TensorPipeAgent


class FaultyTensorPipeRpcBackendOptions(_TensorPipeRpcBackendOptionsBase):
    """messages_to_fail: kinds of which each message fails `num_fail_sends` times.
    messages_to_delay: kinds and how many seconds each message comes later."""

    messages_to_fail: list[str]
    messages_to_delay: dict[str, float]
    num_fail_sends: int

    def __init__(
        self,
        num_worker_threads: int,
        rpc_timeout: float,
        init_method: str,
        messages_to_fail: list[str],
        messages_to_delay: dict[str, float],
        num_fail_sends: int,
    ) -> None:
        super().__init__(
            num_worker_threads=num_worker_threads,
            rpc_timeout=rpc_timeout,
            init_method=init_method,
        )
        for kind in (*messages_to_fail, *messages_to_delay):
            if kind not in MESSAGE_KINDS:
                raise RuntimeError(f"No mapping to rpc::MessageType exists for {kind}")
        if any(delay < 0 for delay in messages_to_delay.values()):
            raise RuntimeError(f"Delays must be non-negative: {messages_to_delay}")
        if num_fail_sends < 0:
            raise RuntimeError("num_fail_sends should be non-negative")
        self.messages_to_fail = list(messages_to_fail)
        self.messages_to_delay = dict(messages_to_delay)
        self.num_fail_sends = num_fail_sends


class FaultyTensorPipeAgent(TensorPipeAgent):
    """TensorPipeAgent, except for the messages that the options name: its links decide by what each
    frame is about."""

    _options: FaultyTensorPipeRpcBackendOptions

    def __init__(
        self,
        store: Store,
        name: str,
        rank: int,
        world_size: int | None,
        options: FaultyTensorPipeRpcBackendOptions,
        reverse_device_maps: dict[str, DeviceMap],
        devices: list[torch.device],
    ) -> None:
        super().__init__(store, name, rank, world_size, options, reverse_device_maps, devices)
        # A call that is late from the start would never be sent if it also had to wait for this.
        for name in self._members:
            self._node.connect(name)

    def _faults(self) -> dict[str, Any]:
        options = self._options
        return {
            "fail": options.messages_to_fail,
            "delay": options.messages_to_delay,
            "times": options.num_fail_sends,
        }
