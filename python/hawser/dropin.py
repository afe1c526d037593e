"""Runs programs written for torch.distributed.rpc on hawser, unchanged.

    python -m hawser.dropin program.py arguments      instead of   python program.py arguments
    python -m hawser.dropin -m module arguments                    python -m module arguments
    python -m hawser.dropin -c code arguments                      python -c code arguments

The program, and every Python process below it, finds hawser.rpc where torch.distributed.rpc was, and
hawser.rpc.dist_autograd where torch.distributed.autograd was. torch.distributed.optim has hawser's
DistributedOptimizer, and torch.distributed.nn a RemoteModule without its errors. Or,
in the program itself, before it imports torch.distributed.rpc:

    import hawser.dropin
    hawser.dropin.install()

"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any, NoReturn

_SUBMODULES = (
    "api",
    "internal",
    "constants",
    "functions",
    "backend_registry",
    "options",
    "_utils",
    "rref_proxy",
    "server_process_global_profiler",
    "_testing",
    "_testing.faulty_agent_backend_registry",
)

# Modules that hold names of torch.distributed.rpc: (module, name here, name in hawser.rpc or ""
# for the package itself). Those that are not loaded yet will find hawser by themselves.
_EARLIER_COPIES = (
    ("torch._jit_internal", "RRef", "RRef"),
    ("torch._jit_internal", "PyRRef", "PyRRef"),
    ("torch.jit.annotations", "RRef", "RRef"),
    ("torch.nn.parallel.distributed", "RRef", "RRef"),
    ("torch.distributed.nn.api.remote_module", "rpc", ""),
    ("_remote_module_non_scriptable", "rpc", ""),  # which that module generates
    ("_remote_module_non_scriptable", "RRef", "RRef"),
    ("torch.distributed.optim.optimizer", "rpc", ""),
    ("torch.distributed.optim.optimizer", "RRef", "RRef"),
    ("torch.distributed.optim.optimizer", "dist_autograd", "dist_autograd"),
    ("torch.distributed._shard.sharded_tensor.api", "rpc", ""),
    ("torch.distributed._shard.sharded_tensor.utils", "rpc", ""),
)


def install() -> None:
    """Puts hawser.rpc in the place of torch.distributed.rpc in this process. Idempotent."""
    import torch
    import torch.distributed.rpc

    import hawser.rpc  # before anything is replaced: it takes WorkerInfo from torch

    stock = torch.distributed.rpc
    if stock is hawser.rpc:
        return
    if stock._is_current_rpc_agent_set():
        raise RuntimeError(
            "torch.distributed.rpc is in use already: install() comes before init_rpc"
        )
    reducers = dict(stock.internal._internal_rpc_pickler._class_reducer_dict)

    _replace("torch.distributed.rpc", hawser.rpc)
    for name in _SUBMODULES:
        _replace(f"torch.distributed.rpc.{name}", importlib.import_module(f"hawser.rpc.{name}"))
    _replace("torch._C._distributed_rpc", importlib.import_module("hawser.rpc._c_api"))
    _replace("torch._C._distributed_rpc_testing", importlib.import_module("hawser.rpc._testing"))
    for name in ("torch.distributed.autograd", "torch._C._distributed_autograd"):
        _replace(name, hawser.rpc.dist_autograd)
    _rebind_earlier_copies(hawser.rpc)
    for function, operator in (("get_gradients", "get_gradients"), ("backward", "dist_backward")):
        torch.jit._builtins._register_builtin(
            getattr(hawser.rpc.dist_autograd, function), f"aten::{operator}"
        )
    importlib.import_module("hawser.rpc._mended").install()
    for kind, reducer in reducers.items():
        hawser.rpc.internal._internal_rpc_pickler._register_reducer(kind, reducer)


def _replace(name: str, module: ModuleType) -> None:
    """For `from X import` and for `import X.Y as Z`, which look in different places."""
    parent, _, child = name.rpartition(".")
    sys.modules[name] = module
    setattr(sys.modules[parent], child, module)


def _rebind_earlier_copies(rpc: Any) -> None:
    for module, name, ours in _EARLIER_COPIES:
        if module in sys.modules:
            setattr(sys.modules[module], name, getattr(rpc, ours) if ours else rpc)
    remote_module: Any = sys.modules.get("torch.distributed.nn.api.remote_module")
    if remote_module is not None:
        remote_module._internal_rpc_pickler = rpc.internal._internal_rpc_pickler


def _environment() -> dict[str, str]:
    """That of a Python which installs hawser when it imports torch, as do those it starts."""
    here = os.path.dirname(os.path.abspath(__file__))
    startup = os.path.join(here, "rpc", "_startup")
    present = os.environ.get("PYTHONPATH", "")
    entries = [entry for entry in present.split(os.pathsep) if entry and entry != startup]
    return {
        **os.environ,
        "HAWSER_DROPIN": os.path.dirname(here),
        "PYTHONPATH": os.pathsep.join([startup, *entries]),
    }


def main() -> NoReturn:
    """Becomes the Python that the arguments ask for."""
    if not sys.argv[1:] or sys.argv[1] in ("-h", "--help"):
        print(__doc__, file=sys.stderr)
        sys.exit(0 if sys.argv[1:] else 2)
    # The interpreter's own options stand before "-m hawser.dropin".
    own = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv[1:])]
    options = own[: own.index("-m")] if "-m" in own else []
    os.execve(sys.executable, [sys.executable, *options, *sys.argv[1:]], _environment())


if __name__ == "__main__":
    main()
