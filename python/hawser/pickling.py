"""How values that are not plain data travel: pickle, with tensors and large buffers beside it.

A pickler is any object with `serialize(obj) -> (bytes, tensors)` and `deserialize(bytes, tensors)`;
`Node.pickler` replaces hawser's own, in both directions.
"""

from __future__ import annotations

import contextlib
import copyreg
import io
import pickle
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import torch

from hawser import _native
from hawser.errors import Invalid

_COUNT_BYTES = 4  # before the pickle: how many of the tensors, the last ones, are buffers of it
_SMALLEST_BUFFER = 16 * 1024  # smaller ones are copied into the pickle

_OF_PICKLE = (pickle.PicklingError, AttributeError)  # which one, depends on Python's version

Reducer = Callable[[Any], str | tuple[Any, ...]]


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, reducers: dict[type, Reducer]) -> None:
        self.tensors: list[torch.Tensor] = []
        self.buffers: list[torch.Tensor] = []
        # Not a method: the pickler remembers everything it has written, and in a cycle would keep it
        # until the garbage collector comes by.
        super().__init__(file, protocol=5, buffer_callback=partial(_take_buffer, self.buffers))
        self.dispatch_table = reducers

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) is torch.Tensor:
            self.tensors.append(obj)
            return len(self.tensors) - 1
        return None


def _take_buffer(buffers: list[torch.Tensor], buffer: pickle.PickleBuffer) -> bool:
    with buffer.raw() as bytes_of_it:
        if bytes_of_it.nbytes < _SMALLEST_BUFFER:
            return True  # into the pickle
        buffers.append(_native.tensor_over(bytes_of_it))
    return False


class _Tracer(_Writer):
    """Remembers what it was about to write when it failed."""

    last: Any = None

    def reducer_override(self, obj: Any) -> Any:
        self.last = obj
        return NotImplemented  # as it would be written anyway


def _explained(error: Exception, obj: Any, reducers: dict[type, Reducer]) -> Exception | None:
    """If a function is what cannot be written: the same error, which says what to do."""
    tracer = _Tracer(io.BytesIO(), reducers)
    with contextlib.suppress(Exception):  # the same again
        tracer.dump(obj)
    if not isinstance(tracer.last, FunctionType) or type(error) not in _OF_PICKLE:
        return None
    return type(error)(
        f"{error}. Functions travel by name, and this one has none that leads to it: "
        "hawser.by_value(function) sends its code"
    )


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor], buffers: list[Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._tensors = tensors

    def persistent_load(self, pid: Any) -> torch.Tensor:
        return self._tensors[pid]


def reduce_parameter(parameter: torch.nn.Parameter) -> str | tuple[Any, ...]:
    """Pickled as torch does it, a parameter would leave the graph of autograd without a word."""
    if parameter.requires_grad and _native.current_context() is not None:
        return _received_parameter, (plain(parameter),)
    return parameter.__reduce_ex__(5)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, with its history, as an object of torch's own class."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def _received_parameter(tensor: torch.Tensor) -> torch.Tensor:
    """A parameter is a leaf. What has a history is the tensor that the sender's parameter was."""
    if tensor.grad_fn is not None:
        return tensor
    return torch.nn.Parameter(tensor.detach(), tensor.requires_grad)


def _received_subclass(
    tensor: torch.Tensor, cls: type[torch.Tensor], attributes: dict[str, Any]
) -> torch.Tensor:
    received = tensor.as_subclass(cls)
    received.__dict__.update(attributes)
    return received


def keep_history(pickler: pickle.Pickler, obj: Any) -> Any:
    """`reducer_override` of what pickles inside of a context: for classes that are derived from
    tensors and parameters, what `reduce_parameter` is for parameters."""
    if not isinstance(obj, torch.Tensor) or not obj.requires_grad:
        return NotImplemented
    cls = type(obj)
    if cls in pickler.dispatch_table:
        return NotImplemented
    if isinstance(obj, torch.nn.Parameter):
        return _received_parameter, (plain(obj),)
    # One that handles its operators itself may be made of other tensors, or of none.
    if cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise Invalid(
            f"a {cls.__module__}.{cls.__qualname__} of shape {tuple(obj.shape)} requires grad, and "
            "cannot be sent in an autograd context with its history: send a torch.Tensor, or "
            "detach() it"
        )
    return _received_subclass, (plain(obj), cls, obj.__dict__)


class _HistoryWriter(_Writer):
    reducer_override = keep_history


class Pickler:
    """Hawser's own. Classes can be given reducers of their own; everything else is as in pickle."""

    def __init__(self) -> None:
        self._reducers: dict[type, Reducer] = {torch.nn.Parameter: reduce_parameter}

    def register_reducer(self, cls: type, reduce: Reducer) -> None:
        """`reduce(obj)` returns what `__reduce__` would."""
        self._reducers[cls] = reduce

    def serialize(self, obj: Any) -> tuple[bytes, list[torch.Tensor]]:
        file = io.BytesIO(b"\0" * _COUNT_BYTES)
        file.seek(_COUNT_BYTES)
        reducers = {**copyreg.dispatch_table, **self._reducers}
        recorded = _native.current_context() is not None
        writer = (_HistoryWriter if recorded else _Writer)(file, reducers)
        try:
            writer.dump(obj)
        except _OF_PICKLE as error:
            explained = _explained(error, obj, reducers)
            if explained is None:
                raise
            raise explained from error
        if writer.buffers:
            file.seek(0)
            file.write(len(writer.buffers).to_bytes(_COUNT_BYTES, "little"))
        return file.getvalue(), writer.tensors + writer.buffers

    def deserialize(self, data: bytes, tensors: list[torch.Tensor]) -> Any:
        file = io.BytesIO(data)
        count = int.from_bytes(file.read(_COUNT_BYTES), "little")
        if not count:
            return _Reader(file, tensors, []).load()
        buffers = [tensor.numpy() for tensor in tensors[-count:]]
        return _Reader(file, tensors[:-count], buffers).load()


default_pickler = Pickler()
