"""Missing and late silos: named when the deadline is over, or left out with a quorum; back in the round that is current then."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.chaos.processes import Bed, Ended, Run, difference, outcome
from tests.chaos.rows import Row

AT_ONCE = 2
SILO, OTHERS = "birch", ["ash", "cedar"]
DEADLINE = 6.0  # seconds; a step takes a tenth of one
WITH_QUORUM = {"quorum": 0.6, "deadline": DEADLINE}


def disturbed(bed: Bed, algorithm: str, order: str, **fields: Any) -> tuple[Run, Ended]:
    """A run in which SILO is killed (`self`) or stopped (`frozen`) at that place."""
    run = bed.run(bed.spec(algorithm, **fields))
    sign = run.folder.with_name("sign")
    run.start(f"{SILO} {order}", sign)
    ended = run.end()
    if not sign.exists():
        raise RuntimeError(f"never came to {order}: {ended.line}")
    return run, ended


def named(bed: Bed, algorithm: str, victim: str) -> tuple[float, str]:
    """Everybody is needed: exit code 3 and the silo's name, in time; afterwards the run is resumed."""
    run, ended = disturbed(bed, algorithm, f"before payload 2 {victim}", deadline=DEADLINE)
    why = f"missed its deadline of {DEADLINE:g} s" if victim == "frozen" else "its process ended (killed by SIGKILL)"
    if ended.code != 3 or f"silo {SILO}: {why}" not in ended.said or ended.left:
        return ended.seconds, f"not named: {ended.line}"
    run.start()
    again = run.end()
    if again.result is None:
        return again.seconds, f"not resumed: {again.line}"
    return again.seconds, difference(again.result, bed.undisturbed(algorithm).result)


def left_out(bed: Bed, algorithm: str, victim: str) -> tuple[float, str]:
    """A quorum is left: the second round goes on without the silo, the result says so, and in the third it is back."""
    _, ended = disturbed(bed, algorithm, f"before payload 2 {victim}", **WITH_QUORUM)
    return ended.seconds, absent_once(ended, 2)


def absent_once(ended: Ended, round: int) -> str:
    """What is wrong with a result that must say: SILO took part in every round but this one."""
    if ended.result is None:
        return ended.line
    found = {entry["round"]: (entry["participants"], entry["missing"]) for entry in ended.result["history"]}
    expected: Mapping[int, Any] = {number: (OTHERS, [SILO]) if number == round else (sorted([*OTHERS, SILO]), []) for number in found}
    return "" if found == expected else f"participants and missing are {found}"


def frozen_while_validating(bed: Bed) -> tuple[float, str]:
    """Nobody waits for counts longer than for an update."""
    _, ended = disturbed(bed, "fedavg", "inside evaluation 1 frozen", deadline=DEADLINE)
    if ended.result is None:
        return ended.seconds, ended.line
    same = ended.result["digest"] == bed.undisturbed("fedavg").result["digest"]
    return ended.seconds, "" if same else "another model"


def late_update(bed: Bed) -> tuple[float, str]:
    """The update of a round that is over, published while later rounds run, changes nothing."""
    fields = {"quorum": 0.6, "rounds": 6}
    _, without = disturbed(bed, "fedavg", "before payload 2 self", **fields)
    run = bed.run(bed.spec("fedavg", **fields))
    run.start(f"{SILO} before payload 2 self", run.folder.with_name("sign"))
    over = run.folder / "store/global/runs/run/rounds/2/train/broadcast.json"
    while run.process.poll() is None and not over.exists():
        time.sleep(0.01)
    run.process.send_signal(signal.SIGSTOP)  # the run must not be over before the silo is back
    words = [sys.executable, "-m", "tests.chaos.late_silo", run.folder, SILO, "2", "train"]
    late = subprocess.run(words, env=bed.environment, capture_output=True, text=True, timeout=120, check=False)
    run.process.send_signal(signal.SIGCONT)
    ended = run.end()
    if not late.stdout.startswith(("published 2", "refused")):
        return ended.seconds, f"no late update: {late.stdout}{late.stderr[-300:]}"
    if without.result is None or ended.result is None:
        return ended.seconds, f"{without.line}; {ended.line}"
    return ended.seconds, absent_once(ended, 2) or ("" if ended.result["digest"] == without.result["digest"] else "another model")


Attempt = Callable[[Bed], tuple[float, str]]
FAULTS: dict[str, Attempt] = {
    "a silo misses its deadline: named, exit 3, resumed": lambda bed: named(bed, "fedavg", "frozen"),
    "a silo dies: named, exit 3, resumed": lambda bed: named(bed, "fedadg", "self"),
    "a silo misses its deadline, a quorum is left: left out of that round, back in the next": lambda bed: left_out(bed, "fedavg", "frozen"),
    "a silo dies, a quorum is left: left out of that round, back in the next": lambda bed: left_out(bed, "fedadg", "self"),
    "a silo hangs while it validates: the run goes on after the deadline": frozen_while_validating,
    "an update of a round that is over comes late: not used": late_update,
}


def campaign(full: bool) -> Iterator[Row]:
    """Each of them once, or five times."""
    jobs = list(FAULTS.items()) * (5 if full else 1)
    rows = {name: Row("silo", name) for name in FAULTS}
    with tempfile.TemporaryDirectory(prefix="siloflow-chaos-") as folder:
        bed = Bed(Path(folder))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for (name, _), (seconds, wrong) in zip(jobs, pool.map(lambda job: outcome(lambda: job[1](bed)), jobs), strict=True):
                rows[name].attempt(not wrong, seconds, wrong)
    yield from rows.values()
