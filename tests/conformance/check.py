#!/usr/bin/env python3
"""Runs torch's own suites on hawser, and compares with what stock torch does with them.

    check.py                      every suite of the stock table, as CI does: about five minutes on two cores
    check.py --times 2            all of that twice in a row
    check.py --suite RpcTest      only this one; repeatable

A test that passes on stock must pass here, except those in exceptions.toml, each with its reason. One
of them that passes is reported too: it has to leave the list. Some tests run again through the
interpreter's end, and as new interpreters. No rank may end with another exit code than 0.
"""

import argparse
import collections
import csv
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
MOST_EXCEPTIONS = 6
# Parts of names, of tests in RpcTest that are run again in another way.
AGAIN = {
    "finalized": ("test_wait_all", ["--finalize"]),
    "spawned": ("test_worker_id", ["--start", "spawn"]),
}

Row = dict[str, str]
NOT_RUN: Row = {"outcome": "not run", "error": ""}


def excused() -> dict[str, str]:
    """Test -> why it may fail."""
    lists = tomllib.loads((HERE / "exceptions.toml").read_text())
    return {test: reason for reason, tests in lists.items() for test in tests["tests"]}


def run(suites: list[str], *options: str) -> dict[str, Row]:
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


def rows_of(path: Path) -> dict[str, Row]:
    with open(path, newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {f"{row['suite']}.{row['test']}": row for row in rows}


class Verdicts:
    """Of any number of runs."""

    def __init__(self, may_fail: dict[str, str]) -> None:
        self.may_fail = may_fail
        self.counts: collections.Counter[str] = collections.Counter()
        self.trouble: list[str] = []

    def add(self, wanted: dict[str, Row], results: dict[str, Row], note: str = "") -> None:
        """`wanted` has what stock does with the tests that were to be run."""
        if not wanted:
            self.fail(f"no test was selected{note}")
        for test, stock in wanted.items():
            row = results.get(test, NOT_RUN)
            passes = row["outcome"] == "pass"
            if passes and test in self.may_fail:
                self.fail(f"{test} passes{note}: take it off {self.may_fail[test]}")
            elif passes and "exit codes" in row["error"]:
                self.fail(f"{test} passes{note}, but a rank ended badly: {row['error']}")
            elif passes:
                self.counts["passed"] += 1
            elif test in self.may_fail:
                self.counts["excused"] += 1
            elif stock["outcome"] != "pass":
                self.counts["skipped"] += 1
            else:
                self.fail(f"{test}{note}: {row['outcome']}: {row['error'][:300]}")

    def fail(self, why: str) -> None:
        self.counts["failed"] += 1
        self.trouble.append(why)

    def summary(self) -> str:
        shown = ("passed", "failed", "skipped", "excused")
        return ", ".join(f"{self.counts[name]} {name}" for name in shown)


def check(suites: list[str], stock: dict[str, Row], verdicts: Verdicts) -> None:
    wanted = {test: row for test, row in stock.items() if row["suite"] in suites}
    verdicts.add(wanted, run(suites, "--jobs", str(min(2, os.cpu_count() or 1))))
    if "RpcTest" not in suites:
        return
    for name, (part, way) in AGAIN.items():
        again = {
            test: row
            for test, row in stock.items()
            if row["suite"] == "RpcTest" and part in row["test"]
        }
        verdicts.add(again, run(["RpcTest"], "-k", part, *way), f" ({name})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", action="append", default=[])
    parser.add_argument("--times", type=int, default=1, metavar="N", help="in a row (1)")
    options = parser.parse_args()
    if options.times < 1:
        parser.error("--times takes a number from 1")
    stock = rows_of(HERE / "stock_2.13.tsv")
    suites = options.suite or list(dict.fromkeys(row["suite"] for row in stock.values()))

    verdicts = Verdicts(excused())
    if len(verdicts.may_fail) > MOST_EXCEPTIONS:
        verdicts.fail(f"exceptions.toml has more than {MOST_EXCEPTIONS} entries")
    for test in sorted(set(verdicts.may_fail) - set(stock)):
        verdicts.fail(f"{verdicts.may_fail[test]} names {test}, which does not exist")
    for time in range(options.times):
        check(suites, stock, verdicts)
        if options.times > 1:
            print(f"{time + 1} of {options.times}: {verdicts.summary()}", flush=True)

    for line in verdicts.trouble:
        print("  ", line)
    print(verdicts.summary())
    return 1 if verdicts.trouble else 0


if __name__ == "__main__":
    sys.exit(main())
