"""What can be sent, and arrives as it was."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any

import numpy as np
import peers
import pytest
import torch

import hawser
import hawser.pickling


@dataclasses.dataclass
class Record:
    name: str
    weights: torch.Tensor


class Colour(enum.Enum):
    RED = 1


PLAIN = [
    None,
    True,
    0,
    -1,
    2**63 - 1,
    -(2**63),
    1.5,
    math.inf,
    2 + 3j,
    "",
    "grüße \U0001f680 \\ \x00",
    b"",
    b"\x00\xff",
    (),
    [],
    {},
    (1, [2, {"three": (4.0, None)}], b"5"),
    {1: "a", (2, 3): "b", None: "c"},
    "x" * 200_000,
    b"y" * 200_000,
]
PICKLED = [
    2**63,
    -(2**200),
    {1, 2},
    frozenset({3}),
    range(5),
    Colour.RED,
    peers.Counter(7),
    bytearray(b"abc"),
    "\ud800",
    slice(1, 2),
]


def same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("value", PLAIN + PICKLED, ids=lambda value: repr(value)[:30])
def test_arrives_as_it_was(node: hawser.Node, value: Any) -> None:
    assert same(node.run("peer", peers.echo, value), value)
    assert node.run("peer", peers.type_name, value) == peers.type_name(value)


def test_nan_and_keywords(node: hawser.Node) -> None:
    assert math.isnan(node.run("peer", peers.echo, math.nan))
    assert node.run("peer", peers.describe, 1, "b", key=[2], other=None) == (
        (1, "b"),
        {"key": [2], "other": None},
    )


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4),
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12)[::3],
        torch.tensor(5),
        torch.empty(0, 3),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(1).expand(4),
        torch.eye(3).to_sparse(),
        torch.eye(3).to_sparse_csr(),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.quantize_per_tensor(torch.ones(4), 0.5, 0, torch.qint8),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tensor.layout}-{tuple(tensor.shape)}",
)
def test_tensors(node: hawser.Node, tensor: torch.Tensor) -> None:
    back = node.run("peer", peers.echo, tensor)
    assert back.dtype == tensor.dtype and back.layout == tensor.layout
    dense = [t.dequantize() if t.is_quantized else t for t in (back, tensor)]
    dense = [t if t.layout == torch.strided else t.to_dense() for t in dense]
    assert torch.equal(*dense)


def test_requires_grad_is_kept(node: hawser.Node) -> None:
    assert node.run("peer", peers.echo, torch.ones(2, requires_grad=True)).requires_grad


def test_tensors_inside_other_objects(node: hawser.Node) -> None:
    record = node.run("peer", peers.echo, Record("a", torch.arange(100_000)))
    assert record.name == "a" and torch.equal(record.weights, torch.arange(100_000))
    parameter = node.run("peer", peers.echo, torch.nn.Parameter(torch.ones(3)))
    assert type(parameter) is torch.nn.Parameter and parameter.requires_grad


def test_numpy_arrays_arrive_whole_and_writable(node: hawser.Node) -> None:
    array = np.arange(100_000)
    back = node.run("peer", peers.echo, array)
    assert np.array_equal(back, array) and back.flags.writeable
    frozen = np.arange(100_000)
    frozen.flags.writeable = False
    back = node.run("peer", peers.echo, frozen)
    assert np.array_equal(back, frozen) and not back.flags.writeable
    # Nobody but the answer still has it when it is sent.
    for count in (5_000_000, 300_000):
        assert np.array_equal(node.run("peer", peers.make_array, count), np.arange(count))


def test_large_buffers_stay_out_of_the_pickle() -> None:
    for writable in (True, False):
        array = np.arange(100_000)
        array.flags.writeable = writable
        data, tensors = hawser.pickling.default_pickler.serialize({"array": array})
        assert len(data) < 1000
        assert [tensor.data_ptr() for tensor in tensors] == [array.ctypes.data]
        back = hawser.pickling.default_pickler.deserialize(data, tensors)["array"]
        assert np.shares_memory(back, array) and back.flags.writeable == writable


def test_plain_arguments_never_enter_pickle(node: hawser.Node) -> None:
    plain = {
        "numbers": [1, -(2**63), 2.5, 1j, True, None],
        "texts": ("a", "ü▲", b"bytes", "long" * 10_000, b"long" * 10_000),
        "tensors": [torch.ones(2), {"large": torch.ones(100_000)}],
    }
    node.run("peer", peers.forbid_pickle, True)
    peers.forbid_pickle(True)
    try:
        (back,), keywords = node.run("peer", peers.describe, plain, keyword=plain)
        with pytest.raises(RuntimeError, match="pickled"):
            node.run("peer", peers.echo, {1, 2})
    finally:
        peers.forbid_pickle(False)
        node.run("peer", peers.forbid_pickle, False)
    for each in (back, keywords["keyword"]):
        assert each["numbers"] == plain["numbers"] and each["texts"] == plain["texts"]
        assert torch.equal(each["tensors"][1]["large"], torch.ones(100_000))


def test_identity_and_cycles_inside_a_value_are_kept(node: hawser.Node) -> None:
    shared = [1]
    first, second = node.run("peer", peers.echo, [shared, shared])
    assert first is second
    loop: list[Any] = []
    loop.append(loop)
    back = node.run("peer", peers.echo, loop)
    assert back[0] is back


def test_ten_thousand_tensors(node: hawser.Node) -> None:
    tensors = [torch.tensor([i]) for i in range(10_000)]
    assert torch.equal(torch.cat(node.run("peer", peers.echo, tensors)), torch.arange(10_000))


# What the callee still uses is copied, not handed back: its copy must stay as it was.
@pytest.mark.parametrize(
    "function",
    [
        peers.keep_and_return,
        peers.keep_view_and_return,
        peers.keep_array_and_return,
        peers.keep_dlpack_and_return,
    ],
)
def test_what_the_callee_keeps_is_not_handed_back(node: hawser.Node, function: Any) -> None:
    sent = torch.ones(1 << 20)
    returned = node.run("peer", function, sent)
    expected = sent.numel() - (1 if function is peers.keep_view_and_return else 0)
    returned.fill_(5)
    for _ in range(3):  # new traffic through the same memory
        node.run("peer", peers.echo, torch.full((1 << 20,), 7.0))
    assert node.run("peer", peers.sum_of_kept) == expected


def test_tensors_that_are_echoed_are_right_while_memory_is_reused(node: hawser.Node) -> None:
    for i in range(20):
        back = node.run("peer", peers.echo, torch.full((1 << 18,), float(i)))
        assert back.min() == back.max() == i


class Shouting:
    """A pickler of the user's: everything becomes text."""

    def serialize(self, value: Any) -> tuple[bytes, list[torch.Tensor]]:
        return repr(value).upper().encode(), []

    def deserialize(self, data: bytes, tensors: list[torch.Tensor]) -> Any:
        raise AssertionError("the peer has hawser's own pickler")


def test_a_custom_pickler_is_used_for_plain_values_too(node: hawser.Node) -> None:
    node.pickler = Shouting()
    try:
        with pytest.raises(Exception, match="unpickl|pickle|load"):
            node.run("peer", peers.echo, "plain")
    finally:
        node.pickler = None
    assert node.run("peer", peers.echo, "plain") == "plain"


class Counting:
    """Counts what passes through it."""

    def __init__(self) -> None:
        self.sent = self.received = 0

    def serialize(self, value: Any) -> tuple[bytes, list[torch.Tensor]]:
        self.sent += 1
        return hawser.pickling.default_pickler.serialize(value)

    def deserialize(self, data: bytes, tensors: list[torch.Tensor]) -> Any:
        self.received += 1
        return hawser.pickling.default_pickler.deserialize(data, tensors)


def test_a_custom_pickler_reads_what_another_of_its_kind_sent(node: hawser.Node) -> None:
    node.pickler = counting = Counting()
    try:
        assert node.run(node.name, peers.echo, [1, torch.ones(2)])[0] == 1
    finally:
        node.pickler = None
    assert (counting.sent, counting.received) == (2, 2)  # the call, and its result
