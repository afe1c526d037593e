"""The same program on torch's own RPC and on hawser: three processes, interleaved rounds, a table of ratios."""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys

from goals import Verdict, exit_status


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def work(jobs, implementation, rank, port, seconds):
    import torch

    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    if implementation == "hawser":
        import hawser.dropin

        hawser.dropin.install()
    import torch.distributed.rpc as rpc

    rpc.init_rpc(f"w{rank}", rank=rank, world_size=3)
    if rank == 0:
        print(json.dumps({name: job(seconds) for name, job in jobs().items()}), flush=True)
    rpc.shutdown()


def run_round(program, implementation, seconds):
    port = free_port()
    command = [sys.executable, program, "--worker", implementation, "--port", str(port)]
    command += ["--seconds", str(seconds)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    others = [subprocess.Popen([*command, "--rank", str(rank)], **quiet) for rank in (1, 2)]
    try:
        ended = subprocess.run(
            [*command, "--rank", "0"], capture_output=True, text=True, timeout=600, check=False
        )
        if ended.returncode != 0:
            raise SystemExit(f"{implementation} failed:\n{ended.stderr}")
        for other in others:
            other.wait(60)
    finally:
        for other in others:
            other.kill()
    return json.loads(ended.stdout.strip().splitlines()[-1])


def judge(row, times_faster, at_most_us):
    """Ratio, goal in words, verdict. `row` has the us of both; None if one of them is missing."""
    if at_most_us is not None:
        ratio, goal = None, f"under {at_most_us:g} us"
        met = row is not None and row["hawser"] < at_most_us
    else:
        ratio, goal = row and row["torch"] / row["hawser"], f"at least {times_faster:g}x"
        met = row is not None and ratio >= times_faster
    verdict = Verdict.FAILED if row is None else Verdict.MET if met else Verdict.MISSED
    return ratio, goal, verdict


def run(program, about, jobs, times_faster, at_most_us=None, of_rounds=statistics.median):
    """`jobs()`, called on worker 0, has for each name a function of seconds that returns us. Goals, by name:
    hawser is so many times faster than torch, or takes less than so many us. Returns the exit status."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each job in each round")
    parser.add_argument("--json")
    parser.add_argument("--strict", action="store_true", help="exit 1 unless every goal is met")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(jobs, arguments.worker, arguments.rank, arguments.port, arguments.seconds)
        return 0
    rounds = {"torch": [], "hawser": []}
    for number in range(arguments.rounds):
        order = list(rounds) if number % 2 == 0 else list(rounds)[::-1]
        for implementation in order:
            results = run_round(program, implementation, arguments.seconds)
            rounds[implementation].append(results)
    rows, verdicts = {}, []
    at_most_us = at_most_us or {}
    print(f"{'job':16} {'torch':>12} {'hawser':>12} {'ratio':>8}  goal")
    for name in (*times_faster, *at_most_us):
        measured = {
            who: [each[name] for each in results if name in each] for who, results in rounds.items()
        }
        if all(measured.values()):
            rows[name] = {who: of_rounds(values) for who, values in measured.items()}
        row = rows.get(name)
        ratio, goal, verdict = judge(row, times_faster.get(name), at_most_us.get(name))
        verdicts.append(verdict)
        times = "".join(f" {row[who]:9.1f} us" if row else f" {'-':>12}" for who in rounds)
        shown = f"{ratio:.1f}x" if ratio else ""
        print(f"{name:16}{times} {shown:>8}  {goal}   {verdict.value}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=2)
    return exit_status(verdicts, arguments.strict)
