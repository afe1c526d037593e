"""How peers.py and side_by_side.py judge what was measured, and when they fail."""

import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import peers
import side_by_side
from goals import Verdict, exit_status

MIB_64 = "65536 KiB us"


class ExitStatusTest(unittest.TestCase):
    def test_what_is_missing_fails_and_what_is_missed_only_if_strict(self):
        for verdict, relaxed, strict in (
            (Verdict.MET, 0, 0),
            (Verdict.MISSED, 0, 1),
            (Verdict.SKIPPED, 0, 1),
            (Verdict.FAILED, 1, 1),
        ):
            self.assertEqual(exit_status([Verdict.MET, verdict], strict=False), relaxed)
            self.assertEqual(exit_status([Verdict.MET, verdict], strict=True), strict)


class PeersTest(unittest.TestCase):
    names = ("torch", "hawser", "torch-tcp", "hawser-tcp")

    def table(self):
        """Where every goal is just met."""
        table = {name: {} for name in self.names}
        for key, goals in peers.GOALS.items():
            for goal, ours, theirs in zip(goals, self.names[1::2], self.names[::2], strict=True):
                rate = key.endswith("/s")
                table[ours][key] = 1000.0 * (goal or 1) if rate else 1.0
                table[theirs][key] = 1000.0 if rate else 1.0 * (goal or 1)
        table["hawser"] |= {
            f"memcpy {MIB_64}": 10_000.0,
            f"kept echo {MIB_64}": 22_000.0,
            f"echo {MIB_64}": 11_000.0,
            "no-op in turn us": 1.0,
            "remote no-op us": 1.2,
            "references/s": 60_000.0,
            "reference bytes here": 500.0,
            "reference bytes there": 500.0,
        }
        table["hawser-tcp"] |= {f"stream {MIB_64}": 40_000.0, f"echo {MIB_64}": 30_000.0}
        return table

    def verdicts(self, table, names=names):
        return {row.title: row.verdict for row in peers.judged(names, table)}

    def test_every_goal_can_be_met_and_shown(self):
        rows = peers.judged(self.names, self.table())
        self.assertEqual({row.verdict for row in rows}, {Verdict.MET})
        self.assertTrue(all(str(row).endswith(" met") for row in rows))
        goals = sum(goal is not None for pair in peers.GOALS.values() for goal in pair)
        self.assertEqual(len(rows), goals + len(peers.MINIMA) + 3)

    def test_a_large_tensor_over_tcp_is_held_against_a_stream(self):
        table = self.table()
        table["hawser-tcp"][f"echo {MIB_64}"] = 33_000.0
        self.assertEqual(self.verdicts(table)[f"hawser-tcp, echo {MIB_64}"], Verdict.MISSED)

    def test_what_was_not_measured_has_failed(self):
        table = self.table()
        del table["torch"]["chain of 4 us"], table["hawser"]["references/s"]
        del table["hawser"][f"memcpy {MIB_64}"]
        verdicts = self.verdicts(table)
        for title in ("chain of 4 us", "references/s", f"echo {MIB_64}"):
            self.assertEqual(verdicts[f"hawser, {title}"], Verdict.FAILED)
        del table["hawser-tcp"]
        failed = [v for t, v in self.verdicts(table).items() if t.startswith("hawser-tcp")]
        self.assertEqual(set(failed), {Verdict.FAILED})

    def test_only_what_was_asked_for_is_judged(self):
        titles = self.verdicts({}, ("torch", "hawser"))
        self.assertTrue(titles)
        self.assertFalse([title for title in titles if title.startswith("hawser-tcp")])

    def test_the_stream_is_measured(self):
        with mock.patch.object(peers, "timed", lambda f, *_: (f(), f(), (1.5, 2.0))[2]):
            self.assertEqual(peers.stream_echo_s(1 << 20), 1.5)


class SideBySideTest(unittest.TestCase):
    def run_with(self, torch, hawser, *options):
        """What is printed, and the exit status."""
        rounds = {"torch": torch, "hawser": hawser}
        output = io.StringIO()
        with (
            mock.patch("sys.argv", ["program", "--rounds", "1", *options]),
            mock.patch.object(side_by_side, "run_round", lambda _, who, __: rounds[who]),
            contextlib.redirect_stdout(output),
        ):
            status = side_by_side.run("program", "about", None, {"a": 2.0}, {"b": 10.0})
        return output.getvalue(), status

    def test_verdicts_and_status(self):
        for hawser, verdicts, relaxed, strict in (
            ({"a": 50.0, "b": 9.0}, ["met", "met"], 0, 0),
            ({"a": 60.0, "b": 11.0}, ["MISSED", "MISSED"], 0, 1),
            ({"b": 9.0}, ["FAILED", "met"], 1, 1),
        ):
            for options, expected in (((), relaxed), (("--strict",), strict)):
                printed, status = self.run_with({"a": 100.0, "b": 100.0}, hawser, *options)
                self.assertEqual([line.split()[-1] for line in printed.splitlines()[1:]], verdicts)
                self.assertEqual(status, expected)

    def test_figures_are_written(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "out.json"
            self.run_with({"a": 100.0, "b": 1.0}, {"a": 50.0, "b": 2.0}, "--json", str(file))
            rows = json.loads(file.read_text())
        self.assertEqual(rows["a"], {"torch": 100.0, "hawser": 50.0})


if __name__ == "__main__":
    unittest.main()
