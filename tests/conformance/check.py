#!/usr/bin/env python3
"""Runs torch's own suites on hawser, and compares with what stock torch does with them.

    check.py                      the suites of CI (SUITES below)
    check.py --all                every suite
    check.py --suite RpcTest      this one; repeatable

A test that passes on stock must pass here, except those in exceptions.toml, each with its reason. One
of them that passes is reported too: it has to leave the list.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
SUITES = [
    "RpcTest",
    "TensorPipeAgentRpcTest",
    "FaultyAgentRpcTest",
    "DistAutogradTest",
    "FaultyAgentDistAutogradTest",
    "DdpUnderDistAutogradTest",
    "DistOptimizerTest",
    "RemoteModuleTest",
    "JitRpcTest",
    "JitDistAutogradTest",
]
# Run again through the interpreter's end, and as new interpreters: exit codes must be clean.
FINALIZED = "test_wait_all"
SPAWNED = "test_worker_id"


def excused() -> dict[str, str]:
    """Test -> why it may fail."""
    lists = tomllib.loads((HERE / "exceptions.toml").read_text())
    return {test: reason for reason, tests in lists.items() for test in tests["tests"]}


def run(suites: list[str], *options: str) -> dict[str, dict[str, str]]:
    """Test -> row of the results."""
    with tempfile.TemporaryDirectory(prefix="hawser-conformance-") as folder:
        out = Path(folder) / "results.tsv"
        command = [sys.executable, HERE / "run_suite.py", "--impl", "hawser", "--out", out]
        for suite in suites:
            command += ["--suite", suite]
        with open(Path(folder) / "output", "w+") as output:
            ended = subprocess.run(
                [*map(str, command), "--timeout", "90", *options], stdout=output, check=False
            )
            if not out.exists():
                output.seek(0)
                raise SystemExit(f"the driver failed ({ended.returncode}):\n{output.read()}")
        return rows_of(out)


def rows_of(path: Path) -> dict[str, dict[str, str]]:
    with open(path, newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {f"{row['suite']}.{row['test']}": row for row in rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--suite", action="append", default=[])
    options = parser.parse_args()
    stock = rows_of(HERE / "stock_2.13.tsv")
    suites = options.suite or SUITES
    if options.all:
        suites = list(dict.fromkeys(row["suite"] for row in stock.values()))

    wanted = {test for test, row in stock.items() if row["suite"] in suites}
    results = run(suites, "--jobs", str(min(2, os.cpu_count() or 1)))
    may_fail = excused()
    trouble = []
    passed = 0
    for test in sorted(wanted):
        outcome = results.get(test, {"outcome": "not run", "error": ""})
        if outcome["outcome"] == "pass":
            passed += 1
            if test in may_fail:
                trouble.append(f"{test} passes: take it off {may_fail[test]}")
            elif "exit codes" in outcome["error"]:
                trouble.append(f"{test} passes, but a rank ended badly: {outcome['error']}")
        elif stock[test]["outcome"] == "pass" and test not in may_fail:
            trouble.append(f"{test}: {outcome['outcome']}: {outcome['error'][:300]}")
    for test in sorted(set(may_fail) - set(stock)):
        trouble.append(f"{may_fail[test]} names {test}, which does not exist")

    if not options.suite:
        for name, part in (("finalize", FINALIZED), ("spawn", SPAWNED)):
            way = ["--finalize"] if name == "finalize" else ["--start", "spawn"]
            for test, row in run(["RpcTest"], "-k", part, *way).items():
                if test not in may_fail and (row["outcome"] != "pass" or "exit" in row["error"]):
                    trouble.append(f"{test} ({name}): {row['outcome']}: {row['error'][:300]}")

    print(f"{passed} of {len(wanted)} tests pass; {len(wanted & set(may_fail))} may fail")
    for line in trouble:
        print("  ", line)
    return 1 if trouble else 0


if __name__ == "__main__":
    sys.exit(main())
