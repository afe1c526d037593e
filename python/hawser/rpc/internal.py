"""How functions, arguments and results that are not plain data are written and read."""

from __future__ import annotations

import collections
import contextlib
import copyreg
import functools
import io
import pickle
import sys
import threading
from collections.abc import Iterator
from enum import Enum
from typing import Any

import torch

from .. import _native, pickling
from ..references import PyRRef, RRef
from . import _errors
from ._agent import _get_current_rpc_agent

__all__ = ["RPCExecMode", "serialize", "deserialize", "PythonUDF", "RemoteException"]

# Tensors stay out of the pickle: it holds their index in `send_tables` or `recv_tables`.
_thread_local_tensor_tables = threading.local()
_pickler = pickle.Pickler
_unpickler = pickle.Unpickler

Reducer = pickling.Reducer


class _HistoryPickler(pickle.Pickler):
    reducer_override = pickling.keep_history


class RPCExecMode(Enum):
    """The ways to call."""

    SYNC = "sync"
    ASYNC = "async"
    ASYNC_JIT = "async_jit"
    REMOTE = "remote"


PythonUDF = collections.namedtuple("PythonUDF", ["func", "args", "kwargs"])
RemoteException = collections.namedtuple("RemoteException", ["msg", "exception_type"])


@contextlib.contextmanager
def _tensor_table(name: str, table: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Makes `table` this thread's, and afterwards restores the one of the pickle around it."""
    outer = getattr(_thread_local_tensor_tables, name, None)
    setattr(_thread_local_tensor_tables, name, table)
    try:
        yield table
    finally:
        if outer is None:
            delattr(_thread_local_tensor_tables, name)
        else:
            setattr(_thread_local_tensor_tables, name, outer)


class _InternalRPCPickler:
    """Writes an object as bytes and a list of tensors. Thread-safe; may be used while in use."""

    def __init__(self) -> None:
        self._dispatch_table: dict[type, Reducer] = {
            torch.Tensor: self._tensor_reducer,
            torch.nn.Parameter: pickling.reduce_parameter,
        }
        self._class_reducer_dict: dict[type, Reducer] = {}

    def _register_reducer(self, obj_class: type, reducer: Reducer) -> None:
        """How to write objects of exactly that class. The first one counts."""
        if self._class_reducer_dict.setdefault(obj_class, reducer) is reducer:
            self._reducer_added(obj_class, reducer)

    def _reducer_added(self, obj_class: type, reducer: Reducer) -> None:
        pass

    @classmethod
    def _tensor_receiver(cls, tensor_index: int) -> torch.Tensor:
        return _thread_local_tensor_tables.recv_tables[tensor_index]

    def _tensor_reducer(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        table = _thread_local_tensor_tables.send_tables
        table.append(tensor)
        return _InternalRPCPickler._tensor_receiver, (len(table) - 1,)

    @classmethod
    def _py_rref_receiver(cls, rref_fork_data: tuple[Any, ...]) -> Any:
        return PyRRef._deserialize(rref_fork_data)

    def _py_rref_reducer(self, py_rref: Any) -> tuple[Any, ...]:
        return _InternalRPCPickler._py_rref_receiver, (py_rref._serialize(),)

    def _rref_reducer(self, rref: Any) -> tuple[Any, ...]:
        return self._py_rref_reducer(rref)

    @classmethod
    def _script_module_receiver(
        cls, script_module_serialized: bytes, recorded: dict[str, torch.Tensor] | None = None
    ) -> torch.jit.ScriptModule:
        module = torch.jit.load(io.BytesIO(script_module_serialized))
        for name, tensor in (recorded or {}).items():
            *path, last = name.split(".")
            functools.reduce(getattr, path, module)._c.setattr(last, tensor)
        return module

    def _script_module_reducer(self, script_module: torch.jit.ScriptModule) -> tuple[Any, ...]:
        saved = io.BytesIO()
        torch.jit.save(script_module, saved)
        if _native.current_context() is None:
            return _InternalRPCPickler._script_module_receiver, (saved.getvalue(),)
        # What is saved has no history: in a context, parameters travel beside it.
        recorded = {
            name: pickling.plain(parameter)
            for name, parameter in script_module.named_parameters(remove_duplicate=False)
            if parameter.requires_grad
        }
        return _InternalRPCPickler._script_module_receiver, (saved.getvalue(), recorded)

    def _reducers(self, obj: Any) -> dict[type, Reducer]:
        table = {
            **copyreg.dispatch_table,
            **self._dispatch_table,
            PyRRef: self._py_rref_reducer,
            RRef: self._rref_reducer,
            torch.jit.RecursiveScriptModule: self._script_module_reducer,
        }
        if isinstance(obj, torch.jit.ScriptModule):
            table[type(obj)] = self._script_module_reducer
        return {**table, **self._class_reducer_dict}

    def serialize(self, obj: Any) -> tuple[bytes, list[torch.Tensor]]:
        written = io.BytesIO()
        recorded = _native.current_context() is not None
        pickler = (_HistoryPickler if recorded else _pickler)(written)
        pickler.dispatch_table = self._reducers(obj)
        with _tensor_table("send_tables", []) as tensors:
            pickler.dump(obj)
        return written.getvalue(), tensors

    def deserialize(self, binary_data: bytes, tensor_table: list[torch.Tensor]) -> Any:
        """Raises what the unpickler raises; for a function that is not here, says so."""
        with _tensor_table("recv_tables", tensor_table):
            try:
                return _unpickler(io.BytesIO(binary_data)).load()
            except AttributeError as error:
                explained = _errors.explain_missing_function(error)
                if explained is error:
                    raise
                raise explained from error


class _DefaultPickler(_InternalRPCPickler):
    """The one of this process. While no other is set, the node writes what is not plain data with
    hawser's own pickler instead, which is quicker; so that one learns the same classes."""

    def __init__(self) -> None:
        super().__init__()
        self._reducer_added(torch.jit.RecursiveScriptModule, self._script_module_reducer)

    def _reducer_added(self, obj_class: type, reducer: Reducer) -> None:
        pickling.default_pickler.register_reducer(obj_class, reducer)


_internal_rpc_pickler = _DefaultPickler()


class _SendingPickler:
    """Has a pickler that a program has set write what is sent.

    What it writes is read by `deserialize`, at the other end, where nothing may be set.
    """

    def __init__(self, pickler: Any) -> None:
        self._pickler = pickler

    def serialize(self, obj: Any) -> tuple[bytes, list[torch.Tensor]]:
        data, tensors = self._pickler.serialize(obj)
        return pickling.default_pickler.serialize(_Written(data, tensors))

    def deserialize(self, data: bytes, tensors: list[torch.Tensor]) -> Any:
        return pickling.default_pickler.deserialize(data, tensors)


class _Written:
    """Becomes, when it is read, what was written."""

    def __init__(self, data: bytes, tensors: list[torch.Tensor]) -> None:
        self._parts = (data, tensors)

    def __reduce__(self) -> tuple[Any, ...]:
        return deserialize, self._parts


def serialize(obj: Any) -> tuple[bytes, list[torch.Tensor]]:
    return _internal_rpc_pickler.serialize(obj)


def deserialize(binary_data: bytes, tensor_table: list[torch.Tensor]) -> Any:
    return _internal_rpc_pickler.deserialize(binary_data, tensor_table)


def _run_function(python_udf: Any) -> Any:
    """The result of a PythonUDF, or a RemoteException of what it raised."""
    try:
        if isinstance(python_udf, BaseException):
            raise python_udf
        return python_udf.func(*python_udf.args, **python_udf.kwargs)
    except BaseException as error:
        text = _errors.report(_get_current_rpc_agent().get_worker_info(), error)
        print(text, file=sys.stderr)
        return RemoteException(text, type(error))


def _handle_exception(result: Any) -> None:
    """Raises what a RemoteException stands for; anything else is fine."""
    if not isinstance(result, RemoteException):
        return
    try:
        error = result.exception_type(result.msg)
    except BaseException as failure:
        raise _errors.not_rebuilt(failure, result.msg) from failure
    raise error


def _build_rpc_profiling_key(
    exec_type: RPCExecMode, func_name: str, current_worker_name: str, dst_worker_name: str
) -> str:
    """The name under which a call appears in a profile."""
    return f"rpc_{exec_type.value}#{func_name}({current_worker_name} -> {dst_worker_name})"


def _start_record_function(
    exec_type: RPCExecMode, func_name: str, current_worker_name: str, dest_worker_name: str
) -> Any:
    """An event of the autograd profiler that has begun; whoever asked for it ends it."""
    if not torch.autograd._profiler_enabled():
        raise AssertionError("Autograd profiler should be enabled.")
    event = torch.autograd._RecordFunction()  # type: ignore[attr-defined]
    key = _build_rpc_profiling_key(exec_type, func_name, current_worker_name, dest_worker_name)
    torch.autograd._run_before_callbacks(event, key)  # type: ignore[attr-defined]
    return event
