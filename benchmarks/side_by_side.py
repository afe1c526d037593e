"""The same program on torch's own RPC and on hawser: three processes, interleaved rounds, a table of ratios."""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys


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


def run(program, about, jobs, times_faster, at_most_us=None, of_rounds=statistics.median):
    """`jobs()`, called on worker 0, has for each name a function of seconds that returns us. Goals, by name:
    hawser is so many times faster than torch, or takes no longer than so many us."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each job in each round")
    parser.add_argument("--json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(jobs, arguments.worker, arguments.rank, arguments.port, arguments.seconds)
        return
    rounds = {"torch": [], "hawser": []}
    for number in range(arguments.rounds):
        order = list(rounds) if number % 2 == 0 else list(rounds)[::-1]
        for implementation in order:
            results = run_round(program, implementation, arguments.seconds)
            rounds[implementation].append(results)
    rows = {}
    print(f"{'job':16} {'torch':>12} {'hawser':>12} {'ratio':>8}  goal")
    for name in rounds["torch"][0]:
        row = {who: of_rounds([each[name] for each in results]) for who, results in rounds.items()}
        rows[name] = row
        if at_most_us and name in at_most_us:
            shown, met, goal = (
                "",
                row["hawser"] < at_most_us[name],
                f"under {at_most_us[name]:g} us",
            )
        else:
            ratio = row["torch"] / row["hawser"]
            shown, met = f"{ratio:.1f}x", ratio >= times_faster[name]
            goal = f"{times_faster[name]:g}x"
        verdict = "met" if met else f"MISSED ({goal})"
        print(f"{name:16} {row['torch']:9.1f} us {row['hawser']:9.1f} us {shown:>8}  {verdict}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=2)
