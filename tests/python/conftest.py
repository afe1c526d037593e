from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hawser

sys.path.insert(0, str(Path(__file__).parent))

import peers


@pytest.fixture(scope="module")
def node() -> Iterator[hawser.Node]:
    """A node beside which a process runs the node "peer"."""
    with peers.world("peer") as node:
        yield node
