#!/usr/bin/env python3
"""Same small jobs on hawser and on what a user would pick instead, one after another, in one run.

    peers.py                          every implementation that imports here
    peers.py torch hawser --rounds 3  only these, interleaved three times
    peers.py torch hawser torch-tcp hawser-tcp --goals   also says which goals are met; exits with 1 if a
                                      figure is missing and, with --strict, unless every goal is met
    peers.py --json out.json

Jobs: a no-op call (p50, p99), an echo of a tensor (1 KiB .. 64 MiB), 2,000 asynchronous no-ops with at most
64 in flight (calls per second), and for implementations with references a create-and-fetch. For those with the
interface of torch's RPC also: a torch operator, a script function, a 64 MiB echo where the callee keeps the tensor
(else its memory can be handed back), and four workers: how long they take to start and to end, and the calls per second
of all calling all. "memcpy" is a copy of 64 MiB into touched memory, "stream" an echo of 64 MiB over one blocking
stream of tcp between two processes, without any of these; both in the same minutes.
Two processes on one host; each side uses one torch thread. Absolute times differ from machine to machine:
read the last table, which gives every figure as a ratio to torch's own RPC measured in the same run.
"""

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

from goals import Verdict, exit_status

SIZES = [1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 26]


def nop():
    return 0


def echo(x):
    return x


def plus_one(ref):
    return ref.to_here() + 1


def owned_references():
    rpc = sys.modules["torch.distributed.rpc"]
    return rpc._rref_context_get_debug_info()["num_owner_rrefs"]


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


kept = None


def keep_and_echo(x):
    global kept
    kept = x
    return x


def scripted():
    """A script function, compiled when it is first needed: at both ends."""
    global script_nop
    import torch

    if "script_nop" not in globals():

        @torch.jit.script
        def script_nop(x: torch.Tensor) -> torch.Tensor:
            return x

        globals()["script_nop"] = script_nop
    return globals()["script_nop"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# --- one class per implementation: start(), call(fn, *args), many(count, window), optionally make_and_fetch(t) ---


class TorchRpc:
    """torch.distributed.rpc, or anything with the same interface."""

    transports = None

    def module(self):
        import torch.distributed.rpc as rpc

        return rpc

    def _init(self, rank, port, world_size=2):
        import torch

        torch.set_num_threads(1)
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
        rpc = self.module()
        options = None
        if self.transports:
            options = rpc.TensorPipeRpcBackendOptions(
                _transports=self.transports[0], _channels=self.transports[1]
            )
        rpc.init_rpc(f"w{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)
        return rpc

    def serve(self, port):
        scripted()
        self._init(1, port).shutdown()

    def start(self, port):
        self.rpc = self._init(0, port)

    def stop(self):
        self.rpc.shutdown()

    def call(self, fn, *args):
        return self.rpc.rpc_sync("w1", fn, args=args)

    def builtin(self, t):
        import torch

        return self.rpc.rpc_sync("w1", torch.add, args=(t, t))

    def script(self, t):
        return self.rpc.rpc_sync("w1", scripted(), args=(t,))

    def many(self, count, window, names=("w1",)):
        pending = []
        for i in range(count):
            pending.append(self.rpc.rpc_async(names[i % len(names)], nop))
            if len(pending) == window:
                pending.pop(0).wait()
        for f in pending:
            f.wait()

    live_references = 2_000  # more take minutes

    def make_and_fetch(self, t):
        return self.rpc.remote("w1", echo, args=(t,)).to_here()

    def make_and_fetch_nothing(self):
        return self.rpc.remote("w1", nop).to_here()

    def chain(self):
        """Four remote calls, each with the result of the one before, over three owners."""
        ref = self.rpc.remote("w1", nop)
        for name in ("w2", "w3", "w1"):
            ref = self.rpc.remote(name, plus_one, args=(ref,))
        assert ref.to_here() == 3

    def many_references(self, count):
        """How many are created and dropped in a second, and what one takes at each end."""
        mine, theirs = resident_bytes(), self.call(resident_bytes)
        began = time.perf_counter()
        refs = [self.rpc.remote("w1", nop) for _ in range(count)]
        refs[-1].to_here()
        took = time.perf_counter() - began
        mine, theirs = resident_bytes() - mine, self.call(resident_bytes) - theirs
        began = time.perf_counter()
        refs.clear()
        while int(self.call(owned_references)) > 0:
            pass
        return count / (took + time.perf_counter() - began), mine / count, theirs / count


class TorchTcp(TorchRpc):
    transports = (["uv"], ["basic"])


class Hawser(TorchRpc):
    def module(self):
        import hawser.dropin

        hawser.dropin.install()
        import torch.distributed.rpc as rpc

        return rpc

    live_references = 100_000


class HawserTcp(Hawser):
    transports = (["uv"], ["basic"])


class Ray:
    def start(self, port):
        import ray

        self.ray = ray
        ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)

        @ray.remote
        class Actor:
            def run(self, fn, *args):
                return fn(*args)

            def nop(self):
                return 0

            def echo(self, x):
                return x

        self.actor = Actor.remote()
        ray.get(self.actor.nop.remote())

    serve = None

    def stop(self):
        self.ray.shutdown()

    def call(self, fn, *args):
        return self.ray.get(getattr(self.actor, fn.__name__).remote(*args))

    def many(self, count, window):
        pending = []
        for _ in range(count):
            pending.append(self.actor.nop.remote())
            if len(pending) == window:
                self.ray.get(pending.pop(0))
        self.ray.get(pending)

    def make_and_fetch(self, t):
        return self.ray.get(self.actor.echo.remote(t))


class Grpc:
    """grpcio with pickle: what people write by hand."""

    OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]

    def serve(self, port):
        import pickle
        from concurrent import futures

        import grpc
        import torch  # noqa: F401

        def handle(request, context):
            fn, args = pickle.loads(request)
            return pickle.dumps(fn(*args), protocol=5)

        class Handler(grpc.GenericRpcHandler):
            def service(self, details):
                return grpc.unary_unary_rpc_method_handler(handle)

        server = grpc.server(futures.ThreadPoolExecutor(4), options=self.OPTIONS)
        server.add_generic_rpc_handlers((Handler(),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        server.wait_for_termination()

    def start(self, port):
        import pickle

        import grpc

        self.pickle = pickle
        channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=self.OPTIONS)
        grpc.channel_ready_future(channel).result(timeout=60)
        self.method = channel.unary_unary("/bench/run")

    def stop(self):
        pass

    def call(self, fn, *args):
        return self.pickle.loads(self.method(self.pickle.dumps((fn, args), protocol=5)))

    def many(self, count, window):
        pending = []
        for _ in range(count):
            pending.append(self.method.future(self.pickle.dumps((nop, ()))))
            if len(pending) == window:
                pending.pop(0).result()
        for f in pending:
            f.result()


class Zmq:
    """pyzmq over a unix socket with pickle: the floor of a hand-made Python RPC."""

    def serve(self, port):
        import pickle

        import torch  # noqa: F401
        import zmq

        s = zmq.Context().socket(zmq.ROUTER)
        s.bind(f"ipc://{tempfile.gettempdir()}/peers-{port}")
        while True:
            ident, body = s.recv_multipart()
            fn, args = pickle.loads(body)
            s.send_multipart([ident, pickle.dumps(fn(*args), protocol=5)])

    def start(self, port):
        import pickle

        import zmq

        self.pickle = pickle
        self.s = zmq.Context().socket(zmq.DEALER)
        self.s.connect(f"ipc://{tempfile.gettempdir()}/peers-{port}")
        self.call(nop)

    def stop(self):
        pass

    def call(self, fn, *args):
        self.s.send(self.pickle.dumps((fn, args), protocol=5))
        return self.pickle.loads(self.s.recv())

    def many(self, count, window):
        flying = 0
        for _ in range(count):
            self.s.send(self.pickle.dumps((nop, ())))
            flying += 1
            if flying == window:
                self.s.recv()
                flying -= 1
        for _ in range(flying):
            self.s.recv()


class Monarch:
    serve = None

    def start(self, port):
        from monarch.actor import Actor, endpoint, this_host

        class Echo(Actor):
            @endpoint
            async def nop(self):
                return 0

            @endpoint
            async def echo(self, x):
                return x

        self.actor = this_host().spawn_procs({"cpus": 1}).spawn("echo", Echo)
        self.call(nop)

    def stop(self):
        pass

    def call(self, fn, *args):
        return getattr(self.actor, fn.__name__).call_one(*args).get()

    def many(self, count, window):
        pending = []
        for _ in range(count):
            pending.append(self.actor.nop.call_one())
            if len(pending) == window:
                pending.pop(0).get()
        for f in pending:
            f.get()


IMPLEMENTATIONS = {
    "torch": TorchRpc,
    "torch-tcp": TorchTcp,
    "hawser": Hawser,
    "hawser-tcp": HawserTcp,
    "ray": Ray,
    "grpc": Grpc,
    "zmq": Zmq,
    "monarch": Monarch,
}


def timed(f, budget_s, least=5, most=3000):
    for _ in range(3):
        f()
    end, samples = time.perf_counter() + budget_s, []
    while (time.perf_counter() < end and len(samples) < most) or len(samples) < least:
        a = time.perf_counter()
        f()
        samples.append(time.perf_counter() - a)
    samples.sort()
    return samples[len(samples) // 2], samples[int(len(samples) * 0.99)]


def timed_in_turn(f, g, budget_s, at_once=100):
    """Their medians, some of one and then some of the other: what else the machine does meanwhile
    happens to both."""
    samples = {f: [], g: []}
    for one in samples:
        timed(one, 0, least=at_once)
    end = time.perf_counter() + budget_s
    while time.perf_counter() < end:
        for one, of_one in samples.items():
            for _ in range(at_once):
                a = time.perf_counter()
                one()
                of_one.append(time.perf_counter() - a)
    return [statistics.median(of_one) for of_one in samples.values()]


def send_back(port, size):
    with socket.create_connection(("127.0.0.1", port)) as stream:
        buffer = bytearray(size)
        while stream.recv_into(buffer, size, socket.MSG_WAITALL) == size:
            stream.sendall(buffer)


def stream_echo_s(size):
    """Of that many bytes there and back, when each end does nothing else: the median."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        other = multiprocessing.get_context("fork").Process(
            target=send_back, args=(server.getsockname()[1], size), daemon=True
        )
        other.start()
        stream, _ = server.accept()
    sent, received = bytearray(size), bytearray(size)

    def echo_once():
        stream.sendall(sent)
        if stream.recv_into(received, size, socket.MSG_WAITALL) != size:
            raise ConnectionError("the stream has ended")

    with stream:
        median = timed(echo_once, 1.5)[0]
    other.join(60)
    return median


def measure(name, port):
    import torch

    torch.set_num_threads(1)
    impl = IMPLEMENTATIONS[name]()
    out = {}
    if getattr(impl, "transports", None):  # before there are threads: it forks
        out["stream 65536 KiB us"] = stream_echo_s(SIZES[-1]) * 1e6
    impl.start(port)
    p50, p99 = timed(lambda: impl.call(nop), 2.0)
    out["no-op us"], out["no-op p99 us"] = p50 * 1e6, p99 * 1e6
    if hasattr(impl, "builtin"):
        t = torch.ones(1)
        out["torch.add us"] = timed(lambda: impl.builtin(t), 1.0)[0] * 1e6
        out["script us"] = timed(lambda: impl.script(t), 1.0)[0] * 1e6
        large = torch.ones(SIZES[-1] // 4)
        out["kept echo 65536 KiB us"] = timed(lambda: impl.call(keep_and_echo, large), 1.5)[0] * 1e6
        copy = torch.empty_like(large)
        out["memcpy 65536 KiB us"] = timed(lambda: copy.copy_(large), 0.5)[0] * 1e6
    for size in SIZES:
        t = torch.ones(size // 4)
        out[f"echo {size >> 10} KiB us"] = timed(lambda t=t: impl.call(echo, t), 1.5)[0] * 1e6
    impl.many(200, 64)
    out["async calls/s"] = 2000 / timed(lambda: impl.many(2000, 64), 1.0)[0]
    if hasattr(impl, "make_and_fetch"):
        t = torch.ones(1)
        out["create+fetch us"] = timed(lambda: impl.make_and_fetch(t), 1.0)[0] * 1e6
    if hasattr(impl, "many_references"):
        call, reference = timed_in_turn(lambda: impl.call(nop), impl.make_and_fetch_nothing, 1.0)
        out["no-op in turn us"], out["remote no-op us"] = call * 1e6, reference * 1e6
        rate, mine, theirs = impl.many_references(impl.live_references)
        out["references/s"] = rate
        out["reference bytes here"], out["reference bytes there"] = mine, theirs
    print("RESULT " + json.dumps(out), flush=True)
    impl.stop()


WORKERS = 4


def meet(folder, label, rank, pause=0.001):
    """Returns when all workers have come here. A longer pause takes less from those who still work."""
    open(os.path.join(folder, f"{label}.{rank}"), "w").close()
    while len([f for f in os.listdir(folder) if f.startswith(label + ".")]) < WORKERS:
        time.sleep(pause)


def worker(name, rank, port, folder):
    """One of four; rank 0 prints."""
    impl = IMPLEMENTATIONS[name]()
    impl.module()
    meet(folder, "imported", rank)
    start = time.perf_counter()
    impl.rpc = impl._init(rank, port, WORKERS)
    took = time.perf_counter() - start
    others = [f"w{i}" for i in range(WORKERS) if i != rank]
    impl.many(300, 64, others)
    meet(folder, "warm", rank)
    count, start = 0, time.perf_counter()
    while time.perf_counter() < start + 2.0:
        impl.many(500, 64, others)
        count += 500
    with open(os.path.join(folder, f"count.{rank}"), "w") as file:
        file.write(str(count / (time.perf_counter() - start)))
    meet(folder, "done", rank)
    chain = timed(impl.chain, 1.0)[0] if rank == 0 else 0
    meet(folder, "chained", rank, pause=0.02)
    start = time.perf_counter()
    impl.rpc.shutdown()
    took += time.perf_counter() - start
    if rank == 0:
        total = sum(float(open(os.path.join(folder, f"count.{i}")).read()) for i in range(WORKERS))
        result = {
            "all to all calls/s": total,
            "start+end of 4 us": took * 1e6,
            "chain of 4 us": chain * 1e6,
        }
        print("RESULT " + json.dumps(result), flush=True)


def run_workers(name, limit_s=60):
    here = [sys.executable, os.path.abspath(__file__), "--worker", name, "--port", str(free_port())]
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        workers = [
            subprocess.Popen(
                [*here, "--rank", str(rank), "--folder", folder], stdout=subprocess.PIPE, text=True
            )
            for rank in range(WORKERS)
        ]
        try:
            outputs = [worker.communicate(timeout=limit_s)[0] for worker in workers]
        except subprocess.TimeoutExpired:
            outputs = []
        finally:
            for each in workers:
                if each.poll() is None:
                    each.kill()
                    each.wait()
    for line in "\n".join(outputs).splitlines():
        if line.startswith("RESULT "):
            return json.loads(line[7:])
    return {}


def run_one(name, limit_s=120):
    port = free_port()
    here = [sys.executable, os.path.abspath(__file__)]
    server = None
    if IMPLEMENTATIONS[name].serve:
        server = subprocess.Popen(
            here + ["--serve", name, "--port", str(port)], stderr=subprocess.PIPE
        )
    try:
        client = subprocess.run(
            here + ["--measure", name, "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer in {limit_s} s"
    finally:
        if server:
            try:
                server.wait(timeout=5)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
    for line in client.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line[7:]), None
    return None, (client.stderr.strip().splitlines() or ["no output"])[-1]


# How many times faster than torch in the same run, on one host and over tcp.
GOALS = {
    "no-op us": (30, 20),
    "no-op p99 us": (10, None),
    "torch.add us": (30, 20),
    "script us": (30, 20),
    "echo 1 KiB us": (30, 20),
    "async calls/s": (25, 20),
    "all to all calls/s": (25, 20),
    "start+end of 4 us": (1, 1),
    "chain of 4 us": (20, 20),
}
# At most so many times what has to be done in any case: (whose, figure, so many of this figure, at most).
MINIMA = (
    ("hawser", "kept echo 65536 KiB us", 2, "memcpy 65536 KiB us", 1.15),
    ("hawser", "echo 65536 KiB us", 1, "memcpy 65536 KiB us", 1.15),
    ("hawser-tcp", "echo 65536 KiB us", 1, "stream 65536 KiB us", 0.8),
    ("hawser", "remote no-op us", 1, "no-op in turn us", 1.3),
)
# References created and dropped in a second, while there are live_references of them, and what one
# takes at each end.
LEAST_REFERENCES = 50_000
MOST_BYTES = 1023  # under 1 KiB


@dataclass
class Judged:
    title: str
    value: float | None  # None: a figure is missing
    unit: str = ""
    digits: int = 0
    at_least: float | None = None
    at_most: float | None = None

    @property
    def verdict(self):
        if self.value is None:
            return Verdict.FAILED
        met = self.value <= self.at_most if self.at_least is None else self.value >= self.at_least
        return Verdict.MET if met else Verdict.MISSED

    def __str__(self):
        value = "not measured"
        if self.value is not None:
            value = f"{self.value:,.{self.digits}f}{self.unit}"
        bound = (
            f"at most {self.at_most:,}" if self.at_least is None else f"at least {self.at_least:,}"
        )
        return f"  {self.title:36s} {value:>32s}   {bound:16s} {self.verdict.value}"


def judged(names, table):
    """The goals of those that were asked for. One for which a figure is missing has failed."""

    def figure(name, key):
        return table.get(name, {}).get(key)

    def ratio(one, other):
        return None if one is None or other is None else one / other

    rows = []
    for column, (ours, theirs) in enumerate((("hawser", "torch"), ("hawser-tcp", "torch-tcp"))):
        if ours not in names or theirs not in names:
            continue
        for key, goals in GOALS.items():
            if goals[column] is None:
                continue
            mine, others = figure(ours, key), figure(theirs, key)
            faster = ratio(mine, others) if key.endswith("/s") else ratio(others, mine)
            rows.append(Judged(f"{ours}, {key}", faster, "x faster", 1, at_least=goals[column]))
    for name, key, count, minimum, most in MINIMA:
        if name in names:
            times = ratio(figure(name, key), figure(name, minimum))
            unit = f"x of {count} {minimum.removesuffix(' us')}"
            rows.append(Judged(f"{name}, {key}", times and times / count, unit, 2, at_most=most))
    if "hawser" in names:
        rate = figure("hawser", "references/s")
        rows.append(Judged("hawser, references/s", rate, at_least=LEAST_REFERENCES))
        for key in ("reference bytes here", "reference bytes there"):
            rows.append(Judged(f"hawser, {key}", figure("hawser", key), at_most=MOST_BYTES))
    return rows


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("names", nargs="*", choices=[[], *IMPLEMENTATIONS])
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--json")
    p.add_argument("--goals", action="store_true", help="judge hawser against torch")
    p.add_argument("--strict", action="store_true", help="exit 1 unless every goal is met")
    p.add_argument("--worker")
    p.add_argument("--rank", type=int)
    p.add_argument("--folder")
    p.add_argument("--serve")
    p.add_argument("--measure")
    p.add_argument("--port", type=int)
    a = p.parse_args()
    if a.serve:
        return IMPLEMENTATIONS[a.serve]().serve(a.port)
    if a.measure:
        return measure(a.measure, a.port)
    if a.worker:
        return worker(a.worker, a.rank, a.port, a.folder)
    names = a.names or list(IMPLEMENTATIONS)
    rounds = {n: [] for n in names}
    for i in range(a.rounds):
        for n in names:
            print(f"[{i + 1}/{a.rounds}] {n} ...", file=sys.stderr, flush=True)
            result, why = run_one(n)
            if result:
                if hasattr(IMPLEMENTATIONS[n], "builtin"):
                    result |= run_workers(n)
                rounds[n].append(result)
            else:
                print(f"    {n}: left out: {why}", file=sys.stderr)
    table = {
        n: {
            k: statistics.median(r[k] for r in rs if k in r)
            for k in dict.fromkeys(k for r in rs for k in r)
        }
        for n, rs in rounds.items()
        if rs
    }
    keys = list(dict.fromkeys(k for r in table.values() for k in r))

    def show(title, cell):
        print(f"\n{title}")
        print(f"{'':24s}" + "".join(f"{n:>13s}" for n in table))
        for k in keys:
            print(f"{k:24s}" + "".join(f"{cell(n, k):>13s}" for n in table))

    show("measured", lambda n, k: f"{table[n][k]:,.1f}" if k in table[n] else "-")
    if "torch" in table:

        def ratio(n, k):
            if k not in table[n] or k not in table["torch"]:
                return "-"
            r = table[n][k] / table["torch"][k]
            return f"{r if k.endswith('/s') else 1 / r:.2f}x"

        show("times faster than torch's own RPC in this run", ratio)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(table, f, indent=1)
    if not a.goals:
        return 0
    rows = judged(names, table)
    print("\ngoals")
    for row in rows:
        print(row)
    return exit_status((row.verdict for row in rows), a.strict)


if __name__ == "__main__":
    sys.exit(main())
