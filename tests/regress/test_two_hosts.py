"""Programs written for torch.distributed.rpc on two hosts: network namespaces with a cable between them."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

PROGRAM = """
    import os, sys
    import torch
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc

    def double(x):
        return x + x

    rank = int(sys.argv[1])
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=2)
    if rank == 1:
        assert torch.equal(rpc.rpc_sync("w0", double, (torch.ones(3),)), torch.full((3,), 2.0))
        assert rpc.remote("w0", double, (torch.ones(1 << 20),)).to_here().sum() == 2 << 20
        x = torch.ones(2, requires_grad=True)
        with dist_autograd.context() as context:
            dist_autograd.backward(context, [rpc.rpc_sync("w0", double, (x,)).sum()])
            assert torch.equal(dist_autograd.get_gradients(context)[x], torch.full((2,), 2.0))
        print(rpc.__name__, rpc.rpc_sync("w0", rpc.get_worker_info).name)
    rpc.shutdown()
"""


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)


def may_make_hosts() -> bool:
    if os.geteuid() != 0 or not shutil.which("ip"):
        return False
    name = f"hawser-try-{os.getpid()}"
    made = subprocess.run(("ip", "netns", "add", name), capture_output=True, timeout=30)
    if made.returncode == 0:
        run("ip", "netns", "delete", name)
    return made.returncode == 0


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """The namespaces; their addresses are 10.77.0.1 and 10.77.0.2."""
    if not may_make_hosts():
        pytest.skip("network namespaces cannot be made here")
    names = [f"hawser-{os.getpid()}-{host}" for host in "ab"]
    try:
        for name in names:
            run("ip", "netns", "add", name)
        a, b = names
        run("ip", "-n", a, "link", "add", "wire", "type", "veth", "peer", "wire", "netns", b)
        for number, name in enumerate(names, 1):
            run("ip", "-n", name, "address", "add", f"10.77.0.{number}/24", "dev", "wire")
            run("ip", "-n", name, "link", "set", "wire", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(("ip", "netns", "delete", name), capture_output=True, timeout=30)


def test_an_unchanged_program_on_two_hosts(hosts: list[str], tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_SOCKET_IFNAME")}
    environment |= {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500"}
    ranks = [
        subprocess.Popen(
            ("ip", "netns", "exec", host, sys.executable)
            + ("-m", "hawser.dropin", str(program), str(rank)),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        outcomes = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], outcomes
    assert outcomes[1][0] == "hawser.rpc w0\n"
