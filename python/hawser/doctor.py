"""`hawser doctor`: what this machine lets hawser do, and why not more."""

from __future__ import annotations

import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import hawser
from hawser._build_info import TORCH_VERSION


@dataclass
class Finding:
    """One line of the report; `advice` if something should be done."""

    what: str
    says: str
    advice: str = ""
    bad: bool = False


def examine() -> int:
    """Prints the report. 0 if calls work by at least one transport."""
    for check in (_installation, _interfaces, _shared_memory, _limits, _settings):
        for finding in check():
            _print(finding)
    probes = [_probe(transport) for transport in ("shm", "tcp")]
    for finding in probes:
        _print(finding)
    works = [finding for finding in probes if not finding.bad]
    print()
    print("Calls work." if works else "No transport works between two processes of this machine.")
    return 0 if works else 1


def _print(finding: Finding) -> None:
    print(f"{'!!' if finding.bad else 'ok'}  {finding.what:<22} {finding.says}")
    if finding.advice:
        print(f"    {'':<22} {finding.advice}")


def _installation() -> Iterator[Finding]:
    yield Finding("hawser", f"{hawser.__version__}, built for torch {TORCH_VERSION}")
    yield Finding("torch", f"{torch.__version__} in Python {sys.version.split()[0]}")
    native = Path(hawser._native.__file__ or "")
    yield Finding("native module", str(native.name))


def _interfaces() -> Iterator[Finding]:
    names = [name for _, name in socket.if_nameindex()]
    chosen = next(
        (
            f"{variable}={os.environ[variable]}"
            for variable in (
                "HAWSER_SOCKET_IFNAME",
                "TP_SOCKET_IFNAME",
                "GLOO_SOCKET_IFNAME",
                "NCCL_SOCKET_IFNAME",
            )
            if os.environ.get(variable)
        ),
        "",
    )
    yield Finding("interfaces", ", ".join(names) + (f"; {chosen}" if chosen else ""))
    try:
        address = socket.gethostbyname(socket.gethostname())
        yield Finding(
            "host name",
            f"{socket.gethostname()} is {address}",
            "Other hosts cannot reach that address: give the rendezvous a routable one."
            if address.startswith("127.")
            else "",
        )
    except OSError as error:
        yield Finding("host name", f"{socket.gethostname()} cannot be resolved: {error}")


def _shared_memory() -> Iterator[Finding]:
    try:
        descriptor = os.memfd_create("hawser-doctor", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, 1 << 20)
        os.close(descriptor)
        yield Finding("memfd", "can be made")
    except OSError as error:
        yield Finding("memfd", f"cannot be made: {error}", "shm cannot be used; tcp will be.", True)
    with open("/proc/meminfo") as file:
        available = next(line for line in file if line.startswith("MemAvailable"))
    yield Finding("memory", f"{int(available.split()[1]) >> 20} GiB available")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        yield Finding("memory limit", f"{int(text) >> 30} GiB for this group of processes")


def _limits() -> Iterator[Finding]:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield Finding(
        "open files",
        f"{files}",
        "Every peer takes several. For a world of hundreds, raise it with ulimit -n."
        if files < 4096
        else "",
    )
    threads = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    yield Finding("threads", "without limit" if threads < 0 else str(threads))
    cores = len(os.sched_getaffinity(0))
    yield Finding(
        "cores",
        str(cores),
        "With one core nothing is gained by spinning; nodes notice that by themselves."
        if cores == 1
        else "",
    )


def _settings() -> Iterator[Finding]:
    set_here = [name for name in sorted(os.environ) if name.startswith("HAWSER_")]
    shown = [
        f"{name}=..." if "TOKEN" in name else f"{name}={os.environ[name]}" for name in set_here
    ]
    yield Finding("environment", ", ".join(shown) or "no HAWSER_ variable is set")


# --- probes ---

_PEER = """
import sys, hawser
with hawser.Node("peer", sys.argv[1], transports=[sys.argv[2]], rank=1, world_size=2): pass
"""


def _probe(transport: str) -> Finding:
    what = f"calls by {transport}"
    with tempfile.TemporaryDirectory(prefix="hawser-doctor-") as folder:
        rendezvous = f"file://{folder}/store"
        peer = subprocess.Popen([sys.executable, "-c", _PEER, rendezvous, transport])
        try:
            node = hawser.Node(
                "doctor", rendezvous, transports=[transport], rank=0, world_size=2, call_timeout=20
            )
            try:
                says = _measure(node)
                node.shutdown(10)
                return Finding(what, says)
            finally:
                node.close()
        except hawser.Error as error:
            return Finding(what, f"{type(error).__name__}: {error}", "", True)
        finally:
            try:
                peer.wait(10)
            except subprocess.TimeoutExpired:
                peer.kill()
                peer.wait()


def _measure(node: hawser.Node) -> str:
    node.run("peer", torch.neg, torch.ones(1))
    small = _median_us(lambda: node.run("peer", torch.neg, torch.ones(1)), 500)
    block = torch.ones(4 << 20)
    large = _median_us(lambda: node.run("peer", torch.neg, block), 5)
    rate = 2 * block.numel() * block.element_size() / (large / 1e6) / 2**30
    return f"{small:.0f} us for a small call, {rate:.1f} GiB/s with 16 MiB each way"


def _median_us(act: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        start = time.perf_counter()
        act()
        took.append(time.perf_counter() - start)
    return statistics.median(took) * 1e6
