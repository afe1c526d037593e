"""How tests/conformance/check.py judges runs of torch's suites."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

_PATH = Path(__file__).parents[1] / "conformance" / "check.py"


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("conformance_check", _PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "excused", lambda: {"A.weak": "on-purpose"})
    return module


def rows(**outcomes: str) -> dict[str, dict[str, str]]:
    """By test of suite A: the outcome, and after a colon the error."""
    made = {}
    for test, text in outcomes.items():
        outcome, _, error = text.partition(":")
        made[f"A.{test}"] = {"suite": "A", "test": test, "outcome": outcome, "error": error}
    return made


def test_what_passes_on_stock_must_pass(check: Any) -> None:
    stock = rows(fine="pass", weak="pass", broken="pass", absent="pass", off="skip")
    verdicts = check.Verdicts(check.excused())
    verdicts.add(stock, rows(fine="pass", weak="fail", broken="error:oops", off="skip"))
    assert verdicts.summary() == "1 passed, 2 failed, 1 skipped, 1 excused"
    assert verdicts.trouble == ["A.broken: error: oops", "A.absent: not run: "]


def test_what_is_fine_only_at_first_sight(check: Any) -> None:
    verdicts = check.Verdicts(check.excused())
    stock = rows(weak="pass", crashed="pass")
    verdicts.add(stock, rows(weak="pass", crashed="pass:[exit codes 0,-11]"))
    assert verdicts.counts["failed"] == 2
    assert "take it off on-purpose" in verdicts.trouble[0]
    assert "a rank ended badly" in verdicts.trouble[1]


def test_a_selection_of_nothing_fails(check: Any) -> None:
    verdicts = check.Verdicts({})
    verdicts.add({}, {}, " (spawned)")
    assert verdicts.trouble == ["no test was selected (spawned)"]


def test_the_ways_to_run_again_select_something(check: Any) -> None:
    stock = check.rows_of(_PATH.parent / "stock_2.13.tsv")
    for part, _ in check.AGAIN.values():
        assert any(row["suite"] == "RpcTest" and part in row["test"] for row in stock.values())


@pytest.mark.parametrize(("argv", "runs"), [([], 1), (["--times", "3"], 3)])
def test_the_whole_table_so_many_times(
    check: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any, argv: list[str], runs: int
) -> None:
    stock = check.rows_of(_PATH.parent / "stock_2.13.tsv")
    ran: list[tuple[Any, ...]] = []

    def run(suites: list[str], *options: str) -> dict[str, dict[str, str]]:
        ran.append((tuple(suites), *options))
        return stock

    monkeypatch.setattr(check, "run", run)
    monkeypatch.setattr(check, "excused", dict)
    monkeypatch.setattr("sys.argv", ["check.py", *argv])
    assert check.main() == 0
    assert len(ran) == runs * (1 + len(check.AGAIN))
    assert set(ran[0][0]) == {row["suite"] for row in stock.values()}
    passes = [test for test, row in stock.items() if row["outcome"] == "pass"]
    again = [t for t in passes if t.startswith(("RpcTest.test_wait_all", "RpcTest.test_worker_id"))]
    passed = runs * (len(passes) + len(again))
    skipped = runs * (len(stock) - len(passes))
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"{passed} passed, 0 failed, {skipped} skipped, 0 excused"


def test_there_are_few_exceptions(check: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    stock = check.rows_of(_PATH.parent / "stock_2.13.tsv")
    many = dict.fromkeys(list(stock)[: check.MOST_EXCEPTIONS + 1], "reason")
    failed = {
        test: {**row, "outcome": "fail" if test in many else "pass"} for test, row in stock.items()
    }
    monkeypatch.setattr(check, "run", lambda *_: failed)
    monkeypatch.setattr(check, "excused", lambda: many)
    monkeypatch.setattr("sys.argv", ["check.py"])
    assert check.main() == 1
    assert "more than 6 entries" in capsys.readouterr().out
