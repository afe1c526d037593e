"""The bugs of torch.distributed.rpc that concern scripts, and that hawser does not have.

Numbers are those of the list of them; each test says what went wrong there.
"""

import time

import pytest
import torch
from torch import Tensor
from torch.distributed.rpc import RRef

import hawser.rpc as rpc

from .world import World, run


@torch.jit.script
def fetch(ref: RRef[Tensor]) -> Tensor:
    return ref.to_here()


@torch.jit.script
def fetch_within(ref: RRef[Tensor], seconds: float) -> Tensor:
    return ref.to_here(seconds)


def slowly(seconds: float) -> Tensor:
    time.sleep(seconds)
    return torch.ones(1)


# --- 9: to_here in scripts had a limit of a minute, whatever that of the agent was ---


def fetch_with_the_agents_limit(world: World) -> None:
    if world.rank != 0:
        return
    ref = rpc.remote("w1", slowly, (1.5,))
    rpc._set_rpc_timeout(0.3)
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="RPC ran for more than set timeout"):
        fetch(ref)
    assert time.monotonic() - begun < 1.2
    with pytest.raises(RuntimeError, match="RPC ran for more than set timeout"):
        fetch_within(ref, 0.0004)  # was none at all: cut to 0 ms
    rpc._set_rpc_timeout(60)
    assert fetch_within(ref, 0).item() == 1
    with pytest.raises(RuntimeError, match="negative"):
        fetch_within(ref, -2)


def test_row_09_scripts_have_the_time_limit_of_the_agent() -> None:
    run(fetch_with_the_agents_limit)
