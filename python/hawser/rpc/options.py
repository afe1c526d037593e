"""The options of the agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from .._native import _TensorPipeRpcBackendOptionsBase
from . import constants as rpc_contants
from ._transports import check_names

DeviceType = int | str | torch.device

_is_tensorpipe_available = True

__all__ = ["TensorPipeRpcBackendOptions"]


def _to_device(device: DeviceType) -> torch.device:
    device = torch.device(device)
    if device.type != "cuda":
        raise ValueError(
            f"`set_devices` expect a list of CUDA devices, but got device type {device.type}."
        )
    return device


def _to_device_map(
    device_map: Mapping[DeviceType, DeviceType],
) -> dict[torch.device, torch.device]:
    checked: dict[torch.device, torch.device] = {}
    sources: dict[torch.device, torch.device] = {}
    for source, target in device_map.items():
        here, there = torch.device(source), torch.device(target)
        if there in sources:
            raise ValueError(
                "`device_map` only supports 1-to-1 mapping, "
                f"trying to map {here} and {sources[there]} to {there}"
            )
        checked[here] = there
        sources[there] = here
    return checked


def _to_device_list(devices: Sequence[DeviceType]) -> list[torch.device]:
    return [_to_device(device) for device in devices]


class TensorPipeRpcBackendOptions(_TensorPipeRpcBackendOptionsBase):
    """How the agent of this process behaves.

    num_worker_threads: what the debug info reports; nested calls get as many threads as they need.
    rpc_timeout: seconds that a call has when it is given no time of its own; 0 for no limit.
    init_method: where the members meet, as in torch.distributed.init_process_group.
    device_maps: for each callee, which of its devices stands for which of this worker's.
    devices: the CUDA devices of this worker that tensors are sent from and received on.
    _transports: "shm" and "uv" (tcp) in the order in which they are tried; None for both.
    """

    def __init__(
        self,
        *,
        num_worker_threads: int = rpc_contants.DEFAULT_NUM_WORKER_THREADS,
        rpc_timeout: float = rpc_contants.DEFAULT_RPC_TIMEOUT_SEC,
        init_method: str = rpc_contants.DEFAULT_INIT_METHOD,
        device_maps: dict[str, dict[DeviceType, DeviceType]] | None = None,
        devices: list[DeviceType] | None = None,
        _transports: list[str] | None = None,
        _channels: list[str] | None = None,
    ) -> None:
        check_names(_transports, _channels)
        super().__init__(
            num_worker_threads,
            _transports,
            _channels,
            rpc_timeout,
            init_method,
            {to: _to_device_map(map_) for to, map_ in (device_maps or {}).items()},
            _to_device_list(devices or []),
        )

    def set_device_map(self, to: str, device_map: dict[DeviceType, DeviceType]) -> None:
        """Adds to the device map for calls to `to`."""
        added = _to_device_map(device_map)
        present = self.device_maps.get(to, {})
        for here, there in added.items():
            if present.get(here, there) != there:
                raise ValueError(
                    "`set_device_map` only supports 1-to-1 mapping, trying to map "
                    f"{here} to {there} and {present[here]}"
                )
        self._set_device_map(to, added)

    def set_devices(self, devices: list[DeviceType]) -> None:
        """Sets the CUDA devices of this worker that the agent uses."""
        self.devices = _to_device_list(devices)
