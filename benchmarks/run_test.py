"""run.py against programs that only pretend: python3 -m unittest discover -s benchmarks -p '*_test.py'"""

import contextlib
import io
import json
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import run
from goals import Figure, Goal, Measurement, Verdict, job, judge, limit, text_of


class MeasureTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def measure(self, script: str, what=None, seconds=0.1) -> Measurement:
        program = self.folder / "program"
        program.write_text("#!/bin/sh\n" + script)
        program.chmod(0o755)
        found = Measurement([])
        what = what or job("noop_hot")
        run.measure(what, {"median_us"}, {what.program: program}, seconds, found)
        return found

    def test_takes_what_the_program_prints(self):
        self.assertEqual(self.measure("echo '{\"median_us\": 2}'").rounds, [{"median_us": 2}])
        printed = json.dumps({"pin": "free", "results": [{"probe": "spin_hot", "median_us": 0.3}]})
        self.assertEqual(
            self.measure(f"echo '{printed}'", limit("spin_hot")).values("median_us"), [0.3]
        )

    def test_missing_field_fails(self):
        for output in ("{}", '{"median_us": null}', "[]", "not json"):
            self.assertIn("unexpected output", self.measure(f"echo '{output}'").failed)

    def test_exit_status_tells_failed_from_unavailable(self):
        self.assertIn("exit 1: oops", self.measure("echo oops >&2; exit 1").failed)
        self.assertEqual(self.measure("echo one core only >&2; exit 3").skipped, "one core only")

    def test_missing_program_is_skipped(self):
        found = Measurement([])
        run.measure(job("noop_hot"), set(), {"hawser_bench": None}, 1, found)
        self.assertEqual(found.skipped, "hawser_bench is not built")

    def test_time_out_ends_the_children_too(self):
        start = time.monotonic()
        with mock.patch.object(run, "START_SECONDS", 1):
            found = self.measure("sleep 60 & wait")
        self.assertIn("no end after", found.failed)
        # The sleeper holds the other end of our pipe: had it lived on, we would still be reading.
        self.assertLess(time.monotonic() - start, 30)

    def test_a_failure_is_final(self):
        found = Measurement([], failed="crashed")
        run.measure(job("noop_hot"), set(), {"hawser_bench": Path("/bin/false")}, 1, found)
        self.assertEqual(found, Measurement([], failed="crashed"))


class BriefTest(unittest.TestCase):
    def try_with(self, measured, programs=None):
        with (
            mock.patch.object(
                run,
                "measure",
                lambda what, _, __, ___, into: vars(into).update(measured(what)),
            ),
            contextlib.redirect_stdout(io.StringIO()) as output,
        ):
            status = run.try_briefly(
                programs or {"hawser_bench": Path("/"), "limits_probe": Path("/")}
            )
        return status, output.getvalue()

    def test_every_job_is_tried_but_those_of_64_processes(self):
        status, printed = self.try_with(lambda what: {"rounds": [{}]})
        self.assertEqual(status, 0)
        tried = {line.split()[0] for line in printed.splitlines()}
        every = {what.name for what in run.goal_runs(run.GOALS)}
        self.assertEqual(every - tried, {"idle_64", "connect_64"})

    def test_one_that_fails_or_is_not_built_is_a_failure(self):
        status, printed = self.try_with(
            lambda what: {"failed": "oops"} if what.name == "echo" else {"skipped": "one core"}
        )
        self.assertEqual(status, 1)
        self.assertIn("oops", printed)
        self.assertEqual(self.try_with(lambda what: {"skipped": "one core"})[0], 0)
        not_built = {"hawser_bench": None, "limits_probe": Path("/")}
        self.assertEqual(self.try_with(lambda what: {"skipped": "not built"}, not_built)[0], 1)


class JudgeTest(unittest.TestCase):
    goal = Goal(
        "hot",
        Figure(job("a")),
        (Figure(limit("x")), Figure(limit("y"))),
        factor=2,
        at_most=3,
        at_most_ratio=8,
    )

    def judge(self, a: list[float], x: float = 0.5, y: float = 0.25):
        values = {job("a"): a, limit("x"): [x], limit("y"): [y]}
        return judge(
            self.goal,
            {key: Measurement([{"median_us": v} for v in vs]) for key, vs in values.items()},
        )

    def test_ratio_is_to_the_best_limit_times_factor(self):
        row = self.judge([4, 2, 3])
        self.assertEqual(
            (row.measured, row.limit, row.ratio, row.verdict), (3, 0.5, 6, Verdict.MET)
        )
        self.assertAlmostEqual(row.spread, 2 / 3)

    def test_the_looser_bound_counts(self):
        self.assertEqual(self.judge([3], x=0.01, y=0.01).verdict, Verdict.MET)
        self.assertEqual(self.judge([8], x=0.5, y=0.5).verdict, Verdict.MET)
        self.assertEqual(self.judge([8.1], x=0.5, y=0.5).verdict, Verdict.MISSED)

    def test_every_goal_can_be_shown(self):
        self.assertEqual(self.goal.bounds_text(), "≤ 3 µs or ≤ 8x")
        skipped = {what: Measurement([], skipped="not built") for what in run.goal_runs(run.GOALS)}
        rows = [judge(goal, skipped) for goal in run.GOALS]
        self.assertEqual(run.table(rows).count("skipped: not built"), len(run.GOALS))
        self.assertEqual(text_of("calls_per_s", 1_234_567), "1,234,567/s")


class PlotTest(unittest.TestCase):
    def test_shows_what_was_measured(self):
        measurements = {
            what: Measurement([{"median_us": what.size or 1}]) for what in run.plot_runs()
        }
        self.assertEqual(run.latency_plot(measurements).count("<polyline"), 4)
        for what in measurements:
            if what.program == "hawser_bench":
                measurements[what] = Measurement([], skipped="not built")
        self.assertEqual(run.latency_plot(measurements).count("<polyline"), 2)


if __name__ == "__main__":
    unittest.main()
