#!/usr/bin/env python3
"""Run the RPC suites that ship inside the torch wheel against stock torch or a replacement.

    python run_suite.py --impl stock  --jobs 2 --out stock.tsv
    python run_suite.py --impl hawser --jobs 2 --out hawser.tsv --compare stock_2.13.tsv
    python run_suite.py --impl hawser --suite RpcTest -k rref --logs logs
    python run_suite.py --list [--suite NAME] [-k TEXT]

Run it with the Python whose torch is to be tested. That environment also needs numpy,
expecttest and hypothesis (torch.testing imports them), and for `--impl hawser` the package
must be importable.

--impl stock    the suites see torch.distributed.rpc as shipped
--impl NAME     `import NAME.dropin; NAME.dropin.install()` is executed after `import torch` and
                before any suite is imported, in the process that owns the test and in every
                rank. If install() leaves torch.distributed.rpc.init_rpc as it was, every test is
                an error, so stock cannot pass for the replacement.

What a "test" is: each upstream test case runs in a session of its own, which starts `world_size`
rank processes, as upstream's drivers do. When it ends, or exceeds --timeout, the whole process
group is killed, so that a hang or an abort cannot reach the next test.

--start fork    (default, fast) one clean process per suite imports torch, the replacement and the
                suite, starts no threads and runs no test; tests and their ranks are forked from
                it. If an import leaves a second thread alive, the driver says so and spawns.
                Such ranks end with _exit(); with --finalize they leave through the interpreter's
                finalisation and the static destructors, as spawned ranks do (about 0.8 s of CPU
                more per rank), which shows crashes at exit.
--start spawn   upstream's own way: every rank is a new interpreter that imports everything. Costs
                about 4 s of CPU per rank. Use it to confirm a result that looks odd.

--out FILE      tab-separated: suite, test, outcome, seconds, last error line. Outcomes:
                pass
                fail     an assertion failed in a rank, or rank 0 left with a wrong exit code
                error    any other exception, a dead test process, or the suite did not import
                skip     upstream skipped it (reason in the last column)
                timeout  still running after --timeout
                Upstream looks only at rank 0's exit code once no rank raised. The driver keeps
                upstream's verdict, but notes "exit codes ..." in the last column whenever a rank
                ended with another code than 0, so that a crash in another rank is not lost.
--resume        keep the results already in --out and run only what is missing
--retries N     run a test that did not pass up to N more times. If it passes then, the outcome is
                pass and the last column starts with "flaky:".
--repeat N      run each test N times and stop at the first that does not pass (to find races)
--compare FILE  after the run, print counts per suite and every selected test that passes in FILE
                but not here; exit status 1 if there is any. With --resume and a complete --out
                nothing is run, so this also compares two files.
--logs DIR      keep the output of every test that did not pass
--tcp           ranks meet through tcp:// instead of a file (upstream's RPC_INIT_WITH_TCP=1)
--cuda          add the classes that need GPUs (left out otherwise)

Exit status: 0 if nothing failed (or, with --compare, nothing regressed), else 1.
"""

import argparse
import collections
import contextlib
import csv
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROLE_VAR = "HAWSER_CONFORMANCE_ROLE"  # set in worker processes and, by inheritance, in ranks
IMPL_VAR = "HAWSER_CONFORMANCE_IMPL"
START_VAR = "HAWSER_CONFORMANCE_START"
FINALIZE_VAR = "HAWSER_CONFORMANCE_FINALIZE"
TEST_VAR = "HAWSER_CONFORMANCE_TEST"  # "suite.test", for logs of the implementation
COLUMNS = ["suite", "test", "outcome", "seconds", "error"]
OUTCOMES = ["pass", "fail", "error", "timeout", "skip"]
KILL_GRACE = 30  # upstream's timeout fires first and prints stacks

# suite (upstream class) -> (module below torch.testing._internal.distributed, fixture, needs GPU)
SUITES = {
    "RpcTest": ("rpc.rpc_test", "tensorpipe", False),
    "TensorPipeAgentRpcTest": ("rpc.rpc_test", "tensorpipe", False),
    "DistAutogradTest": ("rpc.dist_autograd_test", "tensorpipe", False),
    "TensorPipeAgentDistAutogradTest": ("rpc.dist_autograd_test", "tensorpipe", False),
    "DistOptimizerTest": ("rpc.dist_optimizer_test", "tensorpipe", False),
    "JitRpcTest": ("rpc.jit.rpc_test", "tensorpipe", False),
    "JitDistAutogradTest": ("rpc.jit.dist_autograd_test", "tensorpipe", False),
    "RemoteModuleTest": ("nn.api.remote_module_test", "tensorpipe", False),
    "ThreeWorkersRemoteModuleTest": ("nn.api.remote_module_test", "tensorpipe", False),
    "DdpUnderDistAutogradTest": ("ddp_under_dist_autograd_test", "tensorpipe", False),
    "DdpComparisonTest": ("ddp_under_dist_autograd_test", "tensorpipe", False),
    "ParameterServerTest": ("rpc.examples.parameter_server_test", "tensorpipe", False),
    "ReinforcementLearningRpcTest": (
        "rpc.examples.reinforcement_learning_rpc_test",
        "tensorpipe",
        False,
    ),
    "FaultyAgentRpcTest": ("rpc.faulty_agent_rpc_test", "faulty", False),
    "FaultyAgentDistAutogradTest": ("rpc.dist_autograd_test", "faulty", False),
    "JitFaultyAgentRpcTest": ("rpc.jit.rpc_test_faulty", "faulty", False),
    "CudaRpcTest": ("rpc.rpc_test", "tensorpipe", True),
    "TensorPipeAgentCudaRpcTest": ("rpc.rpc_test", "tensorpipe", True),
    "CudaDistAutogradTest": ("rpc.dist_autograd_test", "tensorpipe", True),
    "TensorPipeCudaDistAutogradTest": ("rpc.dist_autograd_test", "tensorpipe", True),
    "CudaRemoteModuleTest": ("nn.api.remote_module_test", "tensorpipe", True),
    "CudaDdpComparisonTest": ("ddp_under_dist_autograd_test", "tensorpipe", True),
}


# ---------------------------------------------------------------------------------------------
# Worker side. Everything here runs with torch imported; the scheduler below never imports it.
# ---------------------------------------------------------------------------------------------


def _substitute():
    """Import torch, then put the replacement in place. Once per process."""
    import torch
    import torch.distributed.rpc

    impl = os.environ.get(IMPL_VAR, "stock")
    if impl == "stock" or getattr(torch, "_conformance_impl", None) == impl:
        return
    import importlib

    stock_init = torch.distributed.rpc.init_rpc
    importlib.import_module(impl + ".dropin").install()
    if (
        sys.modules["torch.distributed.rpc"].init_rpc is stock_init
        or torch.distributed.rpc.init_rpc is stock_init
    ):
        raise RuntimeError(f"{impl}.dropin.install() left torch.distributed.rpc.init_rpc in place")
    torch._conformance_impl = impl


def _mend_process_groups(together):
    """Keeps the rank of a DDP test out of two traps that torch's own RPC is mostly too slow for.

    The destructor of a gloo group joins the group's threads while it has the interpreter lock, for
    which such a thread may wait to drop the tensors of its last operation: on a busy machine ranks wait
    for themselves, on stock torch too. So groups are kept until the rank ends.

    `together`: no rank returns from init_process_group before all are at its end. The master of
    DdpUnderDistAutogradTest calls the trainers as soon as it has returned from there; a trainer that
    has not yet is without a default group.
    """
    import torch.distributed as dist

    init, kept = dist.init_process_group, []

    def init_and_keep(*args, **kwargs):
        init(*args, **kwargs)
        kept.append(dist.group.WORLD)
        if together:
            dist.barrier()

    dist.init_process_group = init_and_keep


def _case_class(suite):
    """The runnable class of a suite: upstream's tests + upstream's fixture + process start."""
    import ctypes
    import importlib
    import multiprocessing

    base = "torch.testing._internal.distributed."
    module, fixture, _ = SUITES[suite]
    tests = getattr(importlib.import_module(base + module), suite)
    if fixture == "faulty":
        from torch.testing._internal.distributed.rpc.faulty_rpc_agent_test_fixture import (
            FaultyRpcAgentTestFixture as Fixture,
        )
    else:
        from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import (
            TensorPipeRpcAgentTestFixture as Fixture,
        )
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    if module == "ddp_under_dist_autograd_test":
        _mend_process_groups(together=suite == "DdpUnderDistAutogradTest")

    class ForkedRank(multiprocessing.get_context("fork").Process):
        def _bootstrap(self, *args, **kwargs):
            code = super()._bootstrap(*args, **kwargs)
            if FINALIZE_VAR in os.environ:  # else multiprocessing calls _exit(code)
                ctypes.pythonapi.Py_Exit(ctypes.c_int(code))
            return code

    class Ranks(MultiProcessTestCase):
        rank_exit_codes = ()

        def setUp(self):
            super().setUp()
            if os.environ.get("RPC_INIT_WITH_TCP") == "1":
                import socket

                with socket.socket() as s:
                    s.bind(("127.0.0.1", 0))
                    os.environ["MASTER_ADDR"] = "127.0.0.1"
                    os.environ["MASTER_PORT"] = str(s.getsockname()[1])
            if os.environ.get(START_VAR) == "fork":
                self._start_processes(ForkedRank)
            else:
                self._spawn_processes()

        def _check_return_codes(self, *args, **kwargs):
            self.rank_exit_codes = tuple(p.exitcode for p in self.processes)
            super()._check_return_codes(*args, **kwargs)

    return type(suite, (tests, Fixture, Ranks), {"__module__": "__main__"})


def __getattr__(name):
    # Spawned ranks unpickle the test class as an attribute of this module: build it on demand, so
    # that a rank imports its own suite only.
    if name in SUITES and ROLE_VAR in os.environ:
        globals()[name] = cls = _case_class(name)
        return cls
    raise AttributeError(name)


def _error_line(text):
    """The line of a (possibly nested) report that says most: the end of the last traceback of the
    first rank that failed, without C++ frames."""
    parts = re.split(r"^Process \d+ exited with error code \d+ and exception:$", text, flags=re.M)
    part = parts[1] if len(parts) > 1 else text
    found = None
    for block in part.split("Traceback (most recent call last):")[1:]:
        for line in block.splitlines():
            if line and not line[0].isspace():
                found = line
                break
    if found is None:
        lines = [line for line in part.splitlines() if line.strip()]
        found = lines[-1] if lines else ""
    return found.strip()


def _first_raise(log):
    """The error of the rank that was first to log an exception. Upstream reports rank by rank, so
    its first rank may only have noticed that another one was gone."""
    rank = None
    lines = []
    for m in re.finditer(r"^E\d+ \S+ (\d+) \S*common_distributed\.py:\d+\] (.*)$", log, re.M):
        rank = rank or m[1]
        if m[1] == rank:
            lines.append(m[2])
    text = "\n".join(lines)
    if "Traceback" not in text:
        return ""
    line = _error_line(text)
    if line.endswith(":"):  # "Error on Node 3:" and the like: take the next line too
        rest = text[text.rindex(line) + len(line) :].split("\n")
        line += " " + next((more for more in rest if more.strip()), "")
    return line.strip()


def _stuck_line(error, codes):
    stuck = [str(rank) for rank, code in enumerate(codes) if code is None]
    return f"timed out: ranks {','.join(stuck)} still running" if stuck else error


def _run_case(suite, test, result_path):
    """Run one test in this process and write the verdict to result_path."""
    import unittest

    os.environ[TEST_VAR] = f"{suite}.{test}"
    started = time.time()
    outcome, error, codes = "error", "", ()
    try:
        case = getattr(sys.modules["__main__"], suite)(test)
        result = unittest.TestResult()
        case.run(result)
        codes = case.rank_exit_codes
        bad = result.errors + result.failures
        if bad:
            text = bad[0][1]
            error = _error_line(text)
            if "terminated or timed out after" in text:
                outcome, error = "timeout", _stuck_line(error, codes)
            elif "Expected exit code" in text:
                outcome, error = "fail", f"AssertionError: rank 0 ended with exit code {codes[0]}"
            elif error.startswith("AssertionError"):
                outcome = "fail"
            print(text, file=sys.stderr)
        elif result.skipped:
            outcome, error = "skip", result.skipped[0][1]
        elif result.unexpectedSuccesses:
            outcome, error = "fail", "unexpected success"
        elif result.testsRun != 1:
            error = "no test was run"
        else:
            outcome = "pass"
    except BaseException as e:
        import traceback

        traceback.print_exc()
        error = f"{type(e).__name__}: {e}"
    # None: a rank that was still running when upstream gave up and terminated it
    if outcome != "skip" and any(code not in (0, None) for code in codes):
        error = (error + " " if error else "") + (
            "[exit codes " + ",".join("-" if c is None else str(c) for c in codes) + "]"
        )
    with open(result_path + ".tmp", "w") as f:
        json.dump({"outcome": outcome, "error": error, "seconds": time.time() - started}, f)
    os.replace(result_path + ".tmp", result_path)
    sys.stdout.flush()
    sys.stderr.flush()


def _serve(suite, fd):
    """Import the suite, then fork a process for each test named on stdin; answer on fd."""
    replies = os.fdopen(int(fd), "w")

    def reply(**message):
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    try:
        getattr(sys.modules["__main__"], suite)
    except BaseException as e:
        import traceback

        traceback.print_exc()
        reply(ready=False, error=f"{type(e).__name__}: {e}")
        return
    reply(
        ready=True,
        threads=len(os.listdir("/proc/self/task")),
        rpc=getattr(sys.modules["torch.distributed.rpc"], "__file__", None),
    )
    for line in iter(sys.stdin.readline, ""):
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            replies.close()
            with open(os.devnull) as null, open(job["log"], "ab") as log:
                os.dup2(null.fileno(), 0)
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            try:
                _run_case(suite, job["test"], job["result"])
            finally:
                os._exit(0)
        reply(pid=pid)
        _, status = os.waitpid(pid, 0)
        reply(status=status)


def _names(with_cuda):
    """Print the tests of every suite as JSON."""
    import importlib
    import unittest

    names = {}
    for suite, (module, _, cuda) in SUITES.items():
        if with_cuda or not cuda:
            cls = getattr(
                importlib.import_module("torch.testing._internal.distributed." + module), suite
            )
            names[suite] = unittest.TestLoader().getTestCaseNames(cls)
    import torch

    print("\nNAMES " + json.dumps({"torch": torch.__version__, "names": names}))


if ROLE_VAR in os.environ:  # in workers, and in every spawned rank, before any suite
    _substitute()


# ---------------------------------------------------------------------------------------------
# Scheduler side.
# ---------------------------------------------------------------------------------------------


def worker_env(args, tmp=None, **more):
    env = dict(
        os.environ,
        **{ROLE_VAR: "worker", IMPL_VAR: args.impl, START_VAR: args.start},
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(args.timeout),
        PYTHONUNBUFFERED="1",
    )
    # One thread per process: ranks would otherwise compete, and fork wants a single thread.
    env.setdefault("OMP_NUM_THREADS", "1")
    env.setdefault("OPENBLAS_NUM_THREADS", "1")
    if args.tcp:
        env["RPC_INIT_WITH_TCP"] = "1"
    if args.finalize:
        env[FINALIZE_VAR] = "1"
    if tmp:
        env["TMPDIR"] = tmp
    env.update(more)
    return env


def kill_group(pid):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


class Slot:
    """Runs tests one after another. In fork mode it keeps a server process per suite."""

    stopping = False  # the driver was told to stop

    def __init__(self, args, tmp):
        self.args, self.tmp = args, tmp
        self.server = self.suite = self.broken = None
        self.group = None  # process group of the running test
        self.start = args.start

    def close(self):
        if self.group:
            kill_group(self.group)
        if self.server:
            with contextlib.suppress(OSError):
                self.server.stdin.close()
            try:
                self.server.wait(5)
            except subprocess.TimeoutExpired:
                kill_group(self.server.pid)
                self.server.wait()
            self.replies.close()
            self.server = None

    def _read(self, timeout):
        ready, _, _ = select.select([self.replies], [], [], timeout)
        if not ready:
            return None
        line = self.replies.readline()
        return json.loads(line) if line else {}

    def _open(self, suite):
        if self.suite == suite and (self.broken or self.server):
            return
        self.close()
        self.suite, self.broken = suite, None
        fd, theirs = os.pipe()
        self.replies = os.fdopen(fd, "rb", buffering=0)
        with open(os.path.join(self.tmp, f"server-{suite}-{id(self)}.log"), "ab") as log:
            self.server = subprocess.Popen(
                [
                    sys.executable,
                    os.path.abspath(__file__),
                    "--worker",
                    "serve",
                    suite,
                    str(theirs),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                bufsize=0,
                pass_fds=(theirs,),
                start_new_session=True,
                env=worker_env(self.args, self.tmp),
            )
        os.close(theirs)
        hello = self._read(300)
        if not hello or not hello.get("ready"):
            self.broken = "suite did not import: " + str((hello or {}).get("error", "process died"))
            self.trouble = ""  # what the server printed
            with contextlib.suppress(OSError), open(log.name, errors="replace") as f:
                self.trouble = f.read()
            if "error" not in (hello or {}) and "Traceback" in self.trouble:
                self.broken += ": " + _error_line(self.trouble)
            kill_group(self.server.pid)
            self.close()
        elif hello["threads"] > 1:
            print(
                f"note: {hello['threads']} threads alive after importing {suite}; "
                "spawning instead of forking",
                flush=True,
            )
            self.close()
            self.start = "spawn"

    def run(self, suite, test):
        """-> (outcome, seconds, error, log text)"""
        if Slot.stopping:
            return "error", 0.0, "stopped", ""
        work = tempfile.mkdtemp(dir=self.tmp)
        log, result = os.path.join(work, "log"), os.path.join(work, "result")
        limit = self.args.timeout + KILL_GRACE
        started, status, late = time.time(), None, False
        if self.start == "fork":
            self._open(suite)
            if self.broken:
                return "error", 0.0, self.broken, self.trouble
        if self.start == "fork":
            self.server.stdin.write(
                (json.dumps({"test": test, "log": log, "result": result}) + "\n").encode()
            )
            self.group = (self._read(30) or {}).get("pid")
            done = self._read(limit)
            if done is None:
                late = True
                if self.group:
                    kill_group(self.group)
                done = self._read(30)
            status = (done or {}).get("status")
            if status is None:  # the server itself died or is stuck: start a new one
                kill_group(self.server.pid)
                self.close()
                self.suite = None
        else:
            with open(log, "ab") as out:
                proc = subprocess.Popen(
                    [
                        sys.executable,
                        os.path.abspath(__file__),
                        "--worker",
                        "one",
                        suite,
                        test,
                        result,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    env=worker_env(self.args, self.tmp, **{START_VAR: "spawn"}),
                )
            self.group = proc.pid
            try:
                proc.wait(limit)
            except subprocess.TimeoutExpired:
                late = True
                kill_group(proc.pid)
                proc.wait()
            status = proc.returncode
        if self.group:
            kill_group(self.group)  # ranks left behind
        self.group = None
        text = ""
        with contextlib.suppress(OSError), open(log, errors="replace") as f:
            text = f.read()
        try:
            with open(result) as f:
                r = json.load(f)
            if r["outcome"] in ("fail", "error"):
                cause = _first_raise(text)
                if cause and cause not in r["error"]:
                    r["error"] = f"{cause} (first rank to fail; reported: {r['error']})"
            answer = r["outcome"], r["seconds"], r["error"], text
        except (OSError, ValueError):
            why = "killed: over the time limit" if late else f"test process died, status {status}"
            last = _error_line(text) if "Traceback" in text else ""
            answer = (
                "timeout" if late else "error",
                time.time() - started,
                why + (": " + last if last else ""),
                text,
            )
        shutil.rmtree(work, ignore_errors=True)
        return answer


def clean(text, width=300):
    text = re.sub(r"\s+", " ", text.replace("\t", " ")).strip()
    return text if len(text) <= width else text[: width - 3] + "..."


def read_results(path):
    rows = collections.OrderedDict()
    with open(path, newline="") as f:
        for row in csv.DictReader(f, delimiter="\t", quoting=csv.QUOTE_NONE):
            rows[row["suite"], row["test"]] = row
    return rows


def write_results(path, rows):
    order = {suite: n for n, suite in enumerate(SUITES)}
    with open(path + ".tmp", "w", newline="") as f:
        f.write("\t".join(COLUMNS) + "\n")
        for row in sorted(rows.values(), key=lambda r: (order.get(r["suite"], 99), r["test"])):
            f.write("\t".join(row[c] for c in COLUMNS) + "\n")
    os.replace(path + ".tmp", path)


def list_tests(args):
    """Names always come from stock torch: a replacement that breaks an import still shows up."""
    stock = argparse.Namespace(**{**vars(args), "impl": "stock"})
    p = subprocess.run(
        [sys.executable, os.path.abspath(__file__), "--worker", "names"]
        + (["cuda"] if args.cuda else []),
        env=worker_env(stock),
        stdout=subprocess.PIPE,
        text=True,
    )
    found = [line for line in p.stdout.splitlines() if line.startswith("NAMES ")]
    if p.returncode or not found:
        sys.exit("cannot list the suites: is this the Python of the torch to test?")
    answer = json.loads(found[-1][len("NAMES ") :])
    unknown = set(args.suite) - set(answer["names"])
    if unknown:
        sys.exit(
            f"no such suite: {', '.join(sorted(unknown))}; known: {', '.join(answer['names'])}"
        )
    chosen = [
        (suite, test)
        for suite, tests in answer["names"].items()
        if not args.suite or suite in args.suite
        for test in tests
        if args.k in test
    ]
    return answer["torch"], chosen


def counts(rows):
    return collections.Counter(row["outcome"] for row in rows)


def table(rows):
    per = collections.OrderedDict()
    for (suite, _), row in rows.items():
        per.setdefault(suite, []).append(row)
    print(f"{'suite':34}" + "".join(f"{o:>9}" for o in OUTCOMES) + f"{'seconds':>10}")
    for suite, group in per.items():
        c = counts(group)
        print(
            f"{suite:34}"
            + "".join(f"{c[o]:9}" for o in OUTCOMES)
            + f"{sum(float(r['seconds']) for r in group):10.0f}"
        )


def compare(baseline_path, chosen, rows):
    """Print what regressed; return how many tests did."""
    baseline = read_results(baseline_path)
    lost, gained, codes = [], [], []
    per = collections.OrderedDict()
    for key in chosen:
        if key not in baseline:
            continue
        before = baseline[key]["outcome"]
        row = rows.get(key)
        after = row["outcome"] if row else "not run"
        total = per.setdefault(key[0], [0, 0, 0])
        total[0] += 1
        total[1] += before == "pass"
        total[2] += after == "pass"
        if before == "pass" and after != "pass":
            lost.append((key, after, row["error"] if row else ""))
        elif before != "pass" and after == "pass":
            gained.append(key)
        if (
            row
            and after == "pass"
            and "[exit codes" in row["error"]
            and "[exit codes" not in baseline[key]["error"]
        ):
            codes.append((key, row["error"]))
    print(f"\nAgainst {os.path.basename(baseline_path)}:")
    print(f"{'suite':34}{'tests':>8}{'baseline':>10}{'here':>8}   (passing)")
    for suite, (n, before, after) in per.items():
        print(f"{suite:34}{n:8}{before:10}{after:8}")
    for key in gained:
        print(f"better  {key[0]}.{key[1]}")
    for key, note in codes:
        print(f"note    {key[0]}.{key[1]}: passes, but {note}")
    for key, after, error in lost:
        print(f"WORSE   {key[0]}.{key[1]}: {after}: {error}")
    print(f"{len(lost)} pass in the baseline but not here")
    return len(lost)


def main():
    p = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], epilog="See the head of this file for details."
    )
    p.add_argument("--impl", default="stock", help="stock, or a package with dropin.install()")
    p.add_argument("--list", action="store_true", help="print the selected tests and stop")
    p.add_argument("--suite", action="append", default=[], help="upstream class name; repeatable")
    p.add_argument("-k", default="", metavar="TEXT", help="only tests whose name contains TEXT")
    p.add_argument("--timeout", type=int, default=180, help="seconds per test (180)")
    p.add_argument("--jobs", type=int, default=1, help="tests at the same time (1)")
    p.add_argument("--start", choices=["fork", "spawn"], default="fork")
    p.add_argument("--finalize", action="store_true", help="forked ranks finalise the interpreter")
    p.add_argument(
        "--repeat",
        type=int,
        default=1,
        metavar="N",
        help="run each test N times, until it fails (1)",
    )
    p.add_argument("--retries", type=int, default=0, help="extra runs of a test that fails (0)")
    p.add_argument("--out", help="results file")
    p.add_argument("--resume", action="store_true")
    p.add_argument("--compare", metavar="BASELINE")
    p.add_argument("--logs", metavar="DIR")
    p.add_argument("--tcp", action="store_true")
    p.add_argument("--cuda", action="store_true")
    args = p.parse_args()
    if args.resume and not args.out:
        p.error("--resume needs --out")
    if any(SUITES.get(s, (0, 0, False))[2] for s in args.suite):
        args.cuda = True

    version, chosen = list_tests(args)
    if args.list:
        for suite, test in chosen:
            print(f"{suite}.{test}")
        print(f"{len(chosen)} tests, torch {version}")
        return 0

    rows = {}
    if args.resume and os.path.exists(args.out):
        rows = read_results(args.out)
    todo = collections.deque(key for key in chosen if key not in rows)
    if args.out:
        write_results(args.out, rows)
    if args.logs:
        os.makedirs(args.logs, exist_ok=True)
    print(
        f"torch {version}, {args.impl}: {len(todo)} tests to run, {args.jobs} at a time, "
        f"ranks by {args.start}",
        flush=True,
    )

    tmp = tempfile.mkdtemp(prefix="conformance-")
    slots = [Slot(args, tmp) for _ in range(args.jobs)]
    lock = threading.Lock()
    began, total, finished = time.time(), len(todo), 0

    def attempt(slot, suite, test):
        for _ in range(args.repeat):
            outcome, seconds, error, log = slot.run(suite, test)
            if outcome not in ("pass", "skip"):
                break
        first = error
        for again in range(args.retries):
            if outcome in ("pass", "skip"):
                break
            before = outcome
            outcome, seconds, error, more = slot.run(suite, test)
            log += more
            if outcome == "pass":
                error = f"flaky: {before} first, then pass: {first}"
            else:
                error = f"{error} (run {again + 2} times)" if again + 1 == args.retries else error
        return outcome, seconds, error, log

    def work(slot):
        nonlocal finished
        while True:
            with lock:
                if not todo:
                    return
                suite, test = todo.popleft()
            try:
                outcome, seconds, error, log = attempt(slot, suite, test)
            except Exception as e:
                outcome, seconds, error, log = "error", 0.0, f"driver: {e!r}", ""
            if Slot.stopping:  # killed half-way: not a result
                return
            with lock:
                finished += 1
                row = {
                    "suite": suite,
                    "test": test,
                    "outcome": outcome,
                    "seconds": f"{seconds:.1f}",
                    "error": clean(error),
                }
                rows[suite, test] = row
                if args.out:
                    with open(args.out, "a") as f:
                        f.write("\t".join(row[c] for c in COLUMNS) + "\n")
                if args.logs and (outcome not in ("pass", "skip") or "flaky" in row["error"]):
                    with open(os.path.join(args.logs, f"{suite}.{test}.log"), "w") as f:
                        f.write(log)
                print(
                    f"[{finished}/{total}] {outcome:7} {suite}.{test} {seconds:.1f}s"
                    + (f"  {row['error']}" if row["error"] else ""),
                    flush=True,
                )

    def stop(signum, frame):
        Slot.stopping = True
        todo.clear()
        for slot in slots:
            if slot.group:
                kill_group(slot.group)
            if slot.server:
                kill_group(slot.server.pid)
        shutil.rmtree(tmp, ignore_errors=True)
        os._exit(128 + signum)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    threads = [threading.Thread(target=work, args=(slot,)) for slot in slots]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for slot in slots:
        slot.close()
    shutil.rmtree(tmp, ignore_errors=True)
    if args.out:
        write_results(args.out, rows)

    mine = collections.OrderedDict((key, rows[key]) for key in chosen if key in rows)
    print()
    table(mine)
    lost = compare(args.compare, chosen, mine) if args.compare else 0
    c = counts(mine.values())
    bad = c["fail"] + c["error"] + c["timeout"]
    print(f"\nran for {time.time() - began:.0f} s")
    print(f"{c['pass']} passed, {bad} failed, {c['skip']} skipped")
    return 1 if (lost if args.compare else bad) else 0


def worker_main(argv):
    if argv[0] == "serve":
        _serve(*argv[1:])
    elif argv[0] == "one":
        _run_case(*argv[1:])
    elif argv[0] == "names":
        _names("cuda" in argv)


if __name__ == "__main__":
    if ROLE_VAR in os.environ and sys.argv[1:2] == ["--worker"]:
        worker_main(sys.argv[2:])
    else:
        os.environ.pop(ROLE_VAR, None)
        sys.exit(main())
