"""The views are fed what an engine reports and asked what a person would see."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipelines import track
from pipelines.console import LiveView, PlainView, screen, watch
from pipelines.summary import Outcome, clock, print_summary, sparkline, weights_of
from pipelines.track import Track

SILOS = ["chalk", "neon"]
PLAN: dict[str, Any] = {
    "spec": {
        "algorithm": "fedavg",
        "dataset": {"name": "styled-digits"},
        "target": "pencil",
        "rounds": 3,
        "evaluate_every": 1,
        "weights": None,
    },
    "silos": SILOS,
    "device": "cpu",
    "weights": "random",
    "classes": 10,
    "target_images": 890,
}
RESULT: dict[str, Any] = {
    "algorithm": "fedavg",
    "target": "pencil",
    "rounds": 3,
    "digest": "d" * 64,
    "accuracy": {"last": 0.5, "best_validation": 0.25, "oracle": 0.75},
    "bytes": {"up": 1_500_000, "down": 3_000_000},
    "rejected": [],
    "absent": [],
}


def terminal(file: io.StringIO) -> Console:
    return Console(file=file, force_terminal=True, width=100, markup=False, highlight=False)


def text(renderable: Any) -> str:
    file = io.StringIO()
    Console(file=file, width=100).print(renderable)
    return file.getvalue()


def train(view: PlainView | LiveView | Track, round: int, rounds: int = 3) -> None:
    for silo, loss in zip(SILOS, (1.0, 2.0), strict=True):
        view.done(silo, "silo", {"round": round, "metrics": {"loss": loss}})
    following = (round + 1, "train") if round < rounds else None
    view.done("server", "server", {"round": round, "following": following, "roster": dict.fromkeys(SILOS, 10)})


def count(view: PlainView | LiveView | Track, round: int, silos: list[str] = SILOS) -> None:
    for silo in silos:
        view.done(silo, "validate", {"round": round, "metrics": {"correct": 6.0, "total": 10.0}})
    view.done("evaluator", "evaluate", {"round": round, "metrics": {"correct": 89.0, "total": 890.0}})


@pytest.fixture
def plain() -> tuple[PlainView, io.StringIO]:
    file = io.StringIO()
    view = PlainView(Console(file=file, width=40), "siloflow")
    view.planned(PLAN)
    return view, file


def test_plain_view_prints_a_line_per_round_once_its_answers_are_counted(plain: tuple[PlainView, io.StringIO]) -> None:
    view, file = plain
    view.began(1, "train", SILOS)
    train(view, 1)
    assert "round" not in file.getvalue().replace("rounds", "")
    view.began(2, "train", SILOS)
    count(view, 1)
    header, first = file.getvalue().splitlines()
    assert header == "siloflow: fedavg, styled-digits -> pencil, 2 silos, 3 rounds, cpu, weights: random initialisation"
    assert first.startswith("round 1/3  validation 60.0 %  pencil 10.0 %  loss 1.500  ")
    assert "\x1b" not in file.getvalue()


def test_a_silo_that_cannot_count_does_not_hold_back_later_rounds(plain: tuple[PlainView, io.StringIO]) -> None:
    view, file = plain
    for round, silos in ((1, ["chalk"]), (2, SILOS)):
        view.began(round, "train", SILOS)
        train(view, round)
        count(view, round, silos)
    assert [line.split()[1] for line in file.getvalue().splitlines()[1:]] == ["1/3", "2/3"]


def test_rounds_without_evaluation_show_a_dash() -> None:
    file = io.StringIO()
    view = PlainView(Console(file=file), "siloflow")
    view.planned({**PLAN, "spec": {**PLAN["spec"], "evaluate_every": 2}})
    view.began(1, "train", SILOS)
    train(view, 1)
    assert "round 1/3  validation -  pencil -  loss 1.500" in file.getvalue()


def test_the_end_shows_rounds_that_were_never_counted(plain: tuple[PlainView, io.StringIO]) -> None:
    view, file = plain
    view.began(1, "train", SILOS)
    train(view, 1)
    view.warn("silo neon could not validate round 1")
    view.finished(RESULT)
    warning, first, ending = file.getvalue().splitlines()[1:]
    assert warning == "warning: silo neon could not validate round 1"
    assert first.startswith("round 1/3  validation -")
    assert ending.startswith("fedavg: 50.0 % on pencil after 3 rounds, ")


def test_live_view_shows_silos_accuracy_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(track.time, "monotonic", lambda: now)
    view = LiveView(terminal(io.StringIO()), "siloflow")
    assert "preparing" in text(view.render())
    view.progress("planner", "decode chalk", 3, 10, 0.0, None)
    assert "decode chalk 3/10" in text(view.render())
    view.planned(PLAN)
    view.began(1, "train", SILOS)
    view.progress("chalk", "train", 50, 100, 1234.5, float("nan"))
    shown = text(view.render())
    assert "first round" in shown and "1,234 img/s" in shown and "nan" not in shown
    now = 130.0
    train(view, 1)
    view.began(2, "train", SILOS)
    count(view, 1)
    now = 140.0
    shown = text(view.render())
    assert "round 2/3" in shown and "0:50 left" in shown  # two rounds of 30 s, ten seconds of which are over
    assert "60.0 %" in shown and "pencil (unseen)   10.0 %" in shown and "random initialisation" in shown


def test_live_view_leaves_one_line_behind() -> None:
    file = io.StringIO()
    view = LiveView(terminal(file), "siloflow")
    with view:
        view.planned(PLAN)
        view.finished(RESULT)
    assert file.getvalue().count("fedavg: 50.0 % on pencil") == 1


def test_validation_is_not_shown_before_every_silo_has_counted() -> None:
    known = Track()
    known.plan = PLAN
    known.began(1)
    train(known, 1)
    count(known, 1, ["chalk"])
    assert not known.rounds[1].validated and known.rounds[1].target == pytest.approx(0.1)


def test_a_round_of_two_exchanges_ends_with_the_second() -> None:
    known = Track()
    known.plan = PLAN
    known.began(1)
    known.done("server", "server", {"round": 1, "following": (1, "train"), "roster": {"chalk": 1}})
    assert known.rounds[1].seconds is None
    known.done("server", "server", {"round": 1, "following": (2, "statistics"), "roster": {"chalk": 1}})
    assert known.rounds[1].seconds is not None


def test_terminal_or_not_decides_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    assert isinstance(watch(terminal(io.StringIO()), ""), LiveView)
    assert isinstance(watch(Console(file=io.StringIO()), ""), PlainView)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(watch(terminal(io.StringIO()), ""), PlainView)


def test_summary_labels_the_oracle_and_names_the_weights() -> None:
    file = io.StringIO()
    outcome = Outcome(PLAN, RESULT, 12.3)
    rejected = {**RESULT, "algorithm": "fedprox", "rejected": [{"silo": "neon", "reason": "finite"}]}
    print_summary(Console(file=file, width=100), [Outcome(PLAN, rejected, 1.0), outcome], Path("runs/my run"))
    lines = file.getvalue()
    assert "oracle: picked on the target, not a result" in lines
    assert "fedavg (baseline)" in lines and "fedprox" in lines
    assert "random initialisation" in lines and "siloflow resume 'runs/my run'" in lines
    assert "1, never averaged: neon (finite)" in lines


def test_names_with_brackets_are_not_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    screen(stderr=False).print("silo [bold]x[/bold] :smile:")
    assert capsys.readouterr().out == "silo [bold]x[/bold] :smile:\n"


def test_numbers() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert clock(59.6) == "1:00" and clock(3661) == "1:01:01"
    assert weights_of({"weights": "a" * 64, "spec": {"weights": "w.pth"}}) == "weights: w.pth (SHA-256 aaaaaaaaaaaa)"
