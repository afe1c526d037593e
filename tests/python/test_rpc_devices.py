"""Options of hawser.rpc about devices: what has no effect is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hawser.rpc as rpc


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    def start(world_size: int | None, **options: Any) -> None:
        method = f"file://{tmp_path}/store"
        given = rpc.TensorPipeRpcBackendOptions(init_method=method, **options)
        rpc.init_rpc("me", rank=0, world_size=world_size, rpc_backend_options=given)

    yield start
    if rpc.api._is_current_rpc_agent_set():
        rpc.shutdown(graceful=False)


@pytest.mark.parametrize("world_size", [1, None])
def test_maps_between_cpus_are_allowed(start: Any, world_size: int | None) -> None:
    start(world_size, device_maps={"me": {"cpu": "cpu"}})
    assert torch.equal(rpc.rpc_sync("me", torch.neg, (torch.ones(1),)), -torch.ones(1))


@pytest.mark.parametrize("world_size", [1, None])
@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"device_maps": {"me": {"cuda:0": "cuda:1"}}},
        {"device_maps": {"me": {"cpu": "cuda:1"}}},
        {"devices": ["cuda:0"]},
    ],
)
def test_other_devices_are_refused(
    start: Any,
    monkeypatch: pytest.MonkeyPatch,
    world_size: int | None,
    count: int,
    options: dict[str, Any],
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    # Where there are none, in torch's own words.
    expected = "only those on the CPU can be sent yet" if count else "with invalid indices"
    with pytest.raises(ValueError, match=expected):
        start(world_size, **options)
