"""Programs written for torch.distributed.rpc run on hawser, with every process that they start."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import textwrap

PROGRAM = """
    import multiprocessing, os, sys
    import torch
    import torch.distributed.rpc as rpc
    from torch.distributed.rpc.api import rpc_sync

    def where():
        return rpc.__name__, rpc.get_worker_info().name

    def work(rank, path):
        options = rpc.TensorPipeRpcBackendOptions(init_method="file://" + path)
        rpc.init_rpc(f"w{rank}", rank=rank, world_size=2, rpc_backend_options=options)
        print(*rpc_sync(f"w{1 - rank}", where), *sys.argv[1:], flush=True)
        rpc.shutdown()

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        ranks = [context.Process(target=work, args=(r, sys.argv[2])) for r in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        sys.exit(max(process.exitcode for process in ranks))
"""

# Uses torch's profiler around its calls, as any program may.
PROFILED = """
    import sys
    import torch
    import torch.distributed.rpc as rpc
    import torch.multiprocessing as mp

    def double(x):
        return torch.add(x, x)

    @torch.jit.script
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    def work(rank, path):
        options = rpc.TensorPipeRpcBackendOptions(init_method="file://" + path)
        rpc.init_rpc(f"w{rank}", rank=rank, world_size=2, rpc_backend_options=options)
        if rank == 0:
            with torch.profiler.profile() as prof:
                rpc.rpc_sync("w1", double, (torch.ones(2),))
                rpc.rpc_async("w1", double, (torch.ones(2),)).wait()
                rpc.remote("w1", double, (torch.ones(2),)).to_here()
                rpc.rpc_sync("w1", torch.relu, (torch.ones(2),))
                rpc.rpc_sync("w1", scale, (torch.ones(2),))
            for event in prof.key_averages():
                if "rpc#" in event.key:
                    print(event.count, event.key, flush=True)
        rpc.shutdown()

    if __name__ == "__main__":
        mp.spawn(work, args=(sys.argv[1],), nprocs=2)
"""


def python(*args: str, **environment: str) -> str:
    ended = subprocess.run(
        [sys.executable, *args],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_program_and_those_it_starts(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    for start in ("spawn", "fork"):
        store = str(tmp_path / start)
        printed = python("-m", "hawser.dropin", str(program), start, store)
        assert sorted(printed.splitlines()) == [
            f"hawser.rpc w0 {start} {store}",
            f"hawser.rpc w1 {start} {store}",
        ]


def test_workers_of_torchrun(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import os, sys
        import torch
        import torch.distributed.rpc as rpc

        def where():
            return rpc.__name__, rpc.get_worker_info().name

        rank = int(os.environ["RANK"])
        rpc.init_rpc(f"w{rank}", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
        answer = rpc.rpc_sync(f"w{1 - rank}", where)
        with open(f"{sys.argv[1]}.{rank}", "w") as file:
            print(*answer, file=file)
        rpc.shutdown()
        """)
    )
    answers = str(tmp_path / "answer")
    workers = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    python("-m", "hawser.dropin", *workers, str(program), answers)
    for rank in range(2):
        assert pathlib.Path(f"{answers}.{rank}").read_text() == f"hawser.rpc w{1 - rank}\n"


def test_torchs_profiler_shows_what_callees_did(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROFILED))
    printed = python("-m", "hawser.dropin", str(program), str(tmp_path / "store")).splitlines()
    double, relu = "rpc#double(w0 -> w1)", "rpc#aten::relu(w0 -> w1)"
    assert f"3 {double}" in printed
    assert f"3 {double}#remote_op: aten::add" in printed
    assert f"1 {relu}#remote_op: aten::relu" in printed
    assert any(
        re.fullmatch(r"1 rpc#\S*scale\(w0 -> w1\)#remote_op: aten::mul", line) for line in printed
    )


def test_code_modules_and_the_interpreters_options(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a_module.py").write_text(
        "import sys, torch.distributed.rpc as r; print(r.__name__, sys.argv[1:], sys.flags.optimize)"
    )
    (tmp_path / "sitecustomize.py").write_text("print('that of the user')")
    path = f"{tmp_path}:{':'.join(sys.path)}"
    printed = python("-O", "-m", "hawser.dropin", "-m", "a_module", "-x", PYTHONPATH=path)
    assert printed.splitlines()[-2:] == ["that of the user", "hawser.rpc ['-x'] 1"]
    code = "import sys; print(sys.argv, [n for n in sys.modules if n in ('torch', 'hawser')])"
    assert python("-m", "hawser.dropin", "-c", code, "1").strip() == "['-c', '1'] []"


def test_install_replaces_all_copies_once() -> None:
    python(
        "-c",
        textwrap.dedent("""
        import sys, torch, torch.distributed.nn, torch.distributed.optim
        import torch.distributed._shard.sharded_tensor.api as sharded
        import torch.distributed._shard.sharded_tensor.utils as sharded_utils
        import torch.distributed.autograd as autograd_before
        from torch._C._distributed_rpc import WorkerInfo
        import hawser.dropin, hawser.rpc as ours
        hawser.dropin.install()
        hawser.dropin.install()
        import torch.distributed.rpc as rpc, torch.distributed.autograd as autograd
        from torch._C import _distributed_rpc as compiled
        from torch.distributed.rpc import internal
        from torch.distributed.nn.api import remote_module
        from torch.distributed.optim import optimizer
        assert rpc is ours is sys.modules["torch.distributed.rpc"] is torch.distributed.rpc
        assert internal is ours.internal and rpc.WorkerInfo is WorkerInfo is compiled.WorkerInfo
        assert compiled.TensorPipeAgent is ours.TensorPipeAgent
        assert sys.modules["torch._C._distributed_rpc"] is compiled
        from torch._C import _distributed_autograd as compiled_autograd
        assert sys.modules["torch._C._distributed_autograd"] is compiled_autograd
        for name in ("backward", "get_gradients", "_new_context", "DistAutogradContext"):
            assert getattr(compiled_autograd, name) is getattr(ours.dist_autograd, name)
        assert remote_module.rpc is ours is optimizer.rpc
        assert sharded.rpc is ours is sharded_utils.rpc
        assert torch.nn.parallel.distributed.RRef is ours.RRef
        assert remote_module._internal_rpc_pickler is ours.internal._internal_rpc_pickler
        assert remote_module.RemoteModule in ours.internal._internal_rpc_pickler._class_reducer_dict
        assert torch._jit_internal.RRef is torch.jit.annotations.RRef is optimizer.RRef is ours.RRef
        assert torch._jit_internal.PyRRef is ours.PyRRef
        assert autograd is ours.dist_autograd is optimizer.dist_autograd is not autograd_before
        from hawser.optim import DistributedOptimizer
        for module in (optimizer, torch.distributed.optim):
            assert issubclass(module.DistributedOptimizer, DistributedOptimizer)
        """),
    )
