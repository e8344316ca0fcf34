"""What is seen of a run on Kubeflow Pipelines: `--watch`, `siloflow watch`, `runs`, `logs`, `cancel`."""

from __future__ import annotations

import io
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from components.tasks import ROUND_LINE
from pipelines import kfp_watch
from pipelines.kfp_logs import error_in, rounds_in
from pipelines.kfp_package import read_package
from pipelines.kfp_tasks import DONE, FAILED, RUNNING
from pipelines.kfp_watch import Picture, draw, summary
from tests.pipelines.commands import command, finish, invoke
from tests.pipelines.kfp_server import KfpServer, Workflow, moment, running_kfp

LAUNCHER = """time="2026-11-17T14:07:26.609Z" level=info msg="capturing logs" argo=true
I1117 14:07:26.759989      16 main.go:61] Setting log level to: '1'
[KFP Executor 2026-11-17 14:07:26,990 INFO]: Got executor_input:
{
    "inputs": {
    }
}
I1117 14:07:27.015226      16 launcher_v2.go:877] ExecutorOutput: {
  "artifacts": {
  }
}
"""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kfp_watch, "POLL", 0.01)
    monkeypatch.setattr(kfp_watch, "LOG_EVERY", 0.0)


def line(round: int, exchange: str = "train", **more: Any) -> str:
    told = {"round": round, "rounds": 2, "exchange": exchange, "accuracy": 0.1 + round / 10, "evaluated_round": round, "validation": None,
            "accepted": 2, "missing": 0, "rejected": 0, "seconds": 1.5, **more}  # fmt: skip
    return f"{ROUND_LINE} {json.dumps(told)}\n"


def two_rounds(kfp: KfpServer, last: str = "Succeeded") -> None:
    """A run that is planned, goes through its first round, then the second, and ends."""
    planned = Workflow()
    planned.task("plan-run", "Running")
    first = Workflow()
    first.task("plan-run", "Succeeded")
    first.task("silo-step", "Succeeded", at=0)
    first.task("silo-step-2", "Running", at=0)
    ended = Workflow()
    ended.task("plan-run", "Succeeded")
    for place in (0, 1):
        ended.task("silo-step", "Succeeded", at=place)
        [silo] = ended.task("silo-step-2", last if place else "Succeeded", at=place)
        told = "error: silo b: no data\nF0101 00:00:00 launcher: exit 2\n" if last == "Failed" else ""
        kfp.logs[silo] = f"{LAUNCHER}epoch {place}\n{told}"
        if last == "Succeeded" or not place:
            [server] = ended.task("server-step", "Succeeded", at=place)
            kfp.logs[server] = f"{LAUNCHER}{line(place + 1, rejected=place)}bye\n"
    kfp.moments = [("PENDING", planned), ("RUNNING", first), ("SUCCEEDED" if last == "Succeeded" else "FAILED", ended)]


def started(kfp: KfpServer, packaged: Path, *words: str) -> str:
    return str(json.loads(invoke("submit", packaged, "--host", kfp.url, "--json", *words).stdout)["run_id"])


def test_a_run_is_watched_to_its_end(kfp: KfpServer, packaged: Path) -> None:
    two_rounds(kfp)
    result = invoke("submit", packaged, "--host", kfp.url, "--watch", "--json", "--name", "mine")
    assert result.exit_code == 0, result.stderr
    about = json.loads(result.stdout)
    assert about["state"] == "SUCCEEDED"
    assert [(told["round"], told["accuracy"]) for told in about["rounds"]] == [(1, 0.2), (2, pytest.approx(0.3))]
    lines = result.stderr.splitlines()
    assert "round 1/2 train  accuracy 20.0 %  validation -  8.0 s  2 accepted" in lines
    assert [line.split(" after")[0] for line in lines if line.startswith("mine ")] == ["mine PENDING", "mine RUNNING", "mine SUCCEEDED"]


def test_a_failed_run_names_the_task_and_its_error(kfp: KfpServer, packaged: Path) -> None:
    two_rounds(kfp, last="Failed")
    result = invoke("submit", packaged, "--host", kfp.url, "--watch", "--name", "mine")
    assert result.exit_code == 3
    assert result.stderr.splitlines()[-1].startswith("error: run mine (")
    assert result.stderr.splitlines()[-1].endswith("FAILED at b: silo b: no data")
    assert result.stdout == ""


def test_the_first_failure_counts_and_a_retried_one_does_not(kfp: KfpServer, packaged: Path) -> None:
    workflow = Workflow()
    [lost, good] = workflow.task("silo-step", "Failed", "Succeeded", at=0)
    [first] = workflow.task("silo-step-2", "Failed", at=0)
    [later] = workflow.task("server-step", "Failed", at=1)
    kfp.logs |= {lost: "error: was retried", good: "fine", first: "error: the cause", later: "error: no global model"}
    kfp.moments = [("FAILED", workflow)]
    identity = started(kfp, packaged)
    assert "FAILED at b: the cause" in invoke("watch", identity, "--host", kfp.url).stderr


def test_a_run_that_never_got_a_task(kfp: KfpServer, packaged: Path) -> None:
    kfp.moments = [("FAILED", Workflow())]
    identity = started(kfp, packaged)
    kfp.runs[identity]["error"] = {"message": "workflow\nrejected"}
    result = invoke("watch", identity[:8], "--host", kfp.url)
    assert result.exit_code == 3
    assert "FAILED: workflow rejected" in result.stderr


def test_a_cancelled_run(kfp: KfpServer, packaged: Path) -> None:
    """Which a 2.14 server calls FAILED."""
    kfp.moments = [("FAILED", Workflow())]
    identity = started(kfp, packaged)
    kfp.runs[identity]["state_history"] = [{"state": state} for state in ("PENDING", "RUNNING", "CANCELING", "FAILED")]
    result = invoke("watch", identity, "--host", kfp.url)
    assert result.exit_code == 3
    assert "was cancelled" in result.stderr
    assert json.loads(invoke("runs", "--host", kfp.url, "--json").stdout)["runs"][0]["state"] == "CANCELED"


def test_why_a_pod_does_not_start_is_said_once(kfp: KfpServer, packaged: Path) -> None:
    waiting, ended = Workflow(), Workflow()
    waiting.task("silo-step", "Pending", at=0, message="Unschedulable: 0/1 nodes: Insufficient nvidia.com/gpu")
    ended.task("silo-step", "Succeeded", at=0)
    kfp.moments = [("RUNNING", waiting), ("RUNNING", waiting), ("SUCCEEDED", ended)]
    result = invoke("watch", started(kfp, packaged), "--host", kfp.url)
    assert result.stderr.count("a waits: Unschedulable: 0/1 nodes: Insufficient nvidia.com/gpu") == 1


def test_ctrl_c_leaves_the_run_alone(kfp: KfpServer, packaged: Path) -> None:
    two_rounds(kfp)
    del kfp.moments[2]
    process = command("submit", packaged, "--host", kfp.url, "--watch")
    until = time.monotonic() + 30
    while not any(asked.startswith("GET /apis/v1beta1") for asked in kfp.asked):
        assert time.monotonic() < until, kfp.asked
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    [identity] = kfp.runs
    assert code == 130
    assert f"run {identity} goes on" in err.splitlines()[-1]
    assert f"siloflow cancel {identity}" in err.splitlines()[-1]
    assert not any("terminate" in asked for asked in kfp.asked)


def test_a_server_that_is_away_for_a_moment(kfp: KfpServer, packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_rounds(kfp)
    identity = started(kfp, packaged)
    asked = len(kfp.asked)
    kfp.answer, whole = lambda *call: whole(*call) if len(kfp.asked) > asked + 6 else away(*call), kfp.answer  # type: ignore[method-assign]

    def away(method: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        return (500, {"message": "restarting"}) if len(kfp.asked) > asked + 3 else whole(method, path, query, body)

    assert invoke("watch", identity, "--host", kfp.url).exit_code == 0
    monkeypatch.setattr(kfp_watch, "SILENCE", 0.02)
    kfp.failing["v1beta1"] = (500, "{}")
    result = invoke("watch", identity, "--host", kfp.url)
    assert result.exit_code == 4
    assert f"siloflow watch {identity}" in result.stderr


def test_a_large_workflow_is_packed(kfp: KfpServer, packaged: Path) -> None:
    two_rounds(kfp)
    for _, workflow in kfp.moments:
        workflow.packed = True
    result = invoke("watch", started(kfp, packaged), "--host", kfp.url, "--json")
    assert len(json.loads(result.stdout)["rounds"]) == 2


# ---- the table


def test_the_table(kfp: KfpServer, packaged: Path) -> None:
    two_rounds(kfp)
    from pipelines.kfp_host import connect
    from pipelines.kfp_options import Access

    identity = started(kfp, packaged)
    watch = kfp_watch.Watch(connect(Access(host=kfp.url)), kfp.runs[identity], read_package(packaged).spec, Console(file=io.StringIO()))
    watch._look()
    watch._look()
    assert "1 running (b), 1 done" in shown(watch.picture)
    watch._look()
    text = shown(watch.picture)
    assert [row.split() for row in text.splitlines() if "train" in row] == [
        ["1/2", "train", "2", "done", "20.0", "%", "-", "8.0", "s"],
        ["2/2", "train", "2", "done,", "1", "rejected", "30.0", "%", "-", "8.0", "s"],
    ]
    assert "SUCCEEDED" in text
    assert "..." not in text
    assert "1/2" not in shown(watch.picture, rows=1)


def shown(picture: Picture, rows: int = 10) -> str:
    file = io.StringIO()
    Console(file=file, width=120).print(draw(picture, rows))
    return file.getvalue()


def test_states_in_words() -> None:
    assert str(summary(dict.fromkeys("abc", DONE))) == "3 done"
    assert str(summary({"a": DONE, "b": RUNNING, "c": DONE})) == "1 running (b), 2 done"
    assert str(summary({**dict.fromkeys("abcde", FAILED), "f": DONE})) == "5 failed (a, b, c and 2 more), 1 done"


# ---- lines of a log


@pytest.mark.parametrize(
    "text",
    ["siloflow-round", "siloflow-round {", "siloflow-round {}", 'siloflow-round {"round": "1"}', 'siloflow-round {"round": true}', "{}",
     "\x00", "siloflow-round [1]", 'siloflow-round {"round": ' + "[" * 100_000],
)  # fmt: skip
def test_other_lines_are_passed_over(text: str) -> None:
    assert list(rounds_in(text)) == []


def test_a_benchmark_plays_one_federation_after_another() -> None:
    log = "".join(line(*step) for step in [(1, "a"), (1, "b"), (2, "a"), (1, "a"), (1, "b"), (1, "a")])
    assert [(told["series"], told["round"], told["exchange"]) for told in rounds_in(log)] == [
        (1, 1, "a"), (1, 1, "b"), (1, 2, "a"), (2, 1, "a"), (2, 1, "b"), (3, 1, "a"),
    ]  # fmt: skip


def test_a_line_cannot_steer_the_terminal() -> None:
    [told] = rounds_in(line(1, exchange="\x1b[2Jtrain", accuracy="\x1b[31m", seconds=None))
    assert told["exchange"] == "[2Jtrain"
    assert told["accuracy"] is None
    assert told["seconds"] is None


@pytest.mark.parametrize(
    ("log", "error"),
    [
        (LAUNCHER + "error: first\nerror: a: expected b\nF0101 00:00:00 launcher: exit status 2\n", "a: expected b"),
        ("I0101 00:00:00 launcher\nSegmentation fault\nF0101 00:00:00 main.go:56] failed\n", "Segmentation fault"),
        (LAUNCHER + "F0101 00:00:00 main.go:56] no such image\n", "F0101 00:00:00 main.go:56] no such image"),
        (LAUNCHER, ""),
        ("", ""),
    ],
)
def test_why_a_step_failed(log: str, error: str) -> None:
    assert error_in(log) == error


# ---- runs, logs, cancel


def test_runs(kfp: KfpServer, packaged: Path) -> None:
    assert "no runs yet" in invoke("runs", "--host", kfp.url).stderr
    for number in range(3):
        started(kfp, packaged, "--set", "target=chalk", "--name", f"run {number}")
    run = next(iter(kfp.runs.values()))
    gone = {"created_at": moment(-1), "pipeline_version_reference": {"pipeline_id": "deleted"}}
    kfp.runs["f" * 8] = {**run, **gone, "run_id": "f" * 8, "display_name": "of others", "runtime_config": {"parameters": {"rounds": 1}}}
    kfp.runs["e" * 8] = {**run, **gone, "run_id": "e" * 8, "display_name": "of a deleted one"}
    listed = json.loads(invoke("runs", "--host", kfp.url, "--json").stdout)["runs"]
    assert [run["name"] for run in listed] == ["run 2", "run 1", "run 0", "of a deleted one"]
    assert listed[0]["pipeline"] == "siloflow-test"
    assert listed[0]["target"] == "chalk"
    assert [run["name"] for run in json.loads(invoke("runs", "--host", kfp.url, "--json", "-n", "1").stdout)["runs"]] == ["run 2"]
    text = invoke("runs", "--host", kfp.url, "--all").stdout
    assert "of others" in text
    assert "PENDING" in text


def test_more_runs_than_a_page(kfp: KfpServer, packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.kfp_runs.PAGE", 2)
    for number in range(5):
        started(kfp, packaged, "--name", f"run {number}")
    assert len(json.loads(invoke("runs", "--host", kfp.url, "--json").stdout)["runs"]) == 5
    assert invoke("cancel", "run 0", "--host", kfp.url).exit_code == 0


def test_logs_of_all_and_of_one_silo(kfp: KfpServer, packaged: Path) -> None:
    two_rounds(kfp)
    del kfp.moments[:2]
    identity = started(kfp, packaged)
    everything = invoke("logs", identity, "--host", kfp.url)
    assert everything.exit_code == 0, everything.stderr
    assert [line for line in everything.stdout.splitlines() if line.startswith("==>")][-1] == "==> server[1], done <=="
    assert "launcher" not in everything.stdout
    one = invoke("logs", identity, "--host", kfp.url, "--silo", "b").stdout.splitlines()
    assert one == ["==> b[0], done <==", "epoch 0", "==> b[1], done <==", "epoch 1"]
    raw = invoke("logs", identity, "--host", kfp.url, "--silo", "b", "--raw").stdout
    assert raw.count("==> b[0] (driver), done <==") == 1
    assert raw.count(LAUNCHER) == 2
    server = invoke("logs", identity, "--host", kfp.url, "--task", "server").stdout
    assert server.count(ROUND_LINE) == 2
    for words, hint in ((("--silo", "c"), "--silo c: expected one of a, b"), (("--task", "servr"), "did you mean 'server'?")):
        wrong = invoke("logs", identity, "--host", kfp.url, *words)
        assert wrong.exit_code == 2
        assert hint in wrong.stderr


def test_a_log_cannot_steer_the_terminal_and_may_be_gone(kfp: KfpServer, packaged: Path) -> None:
    workflow = Workflow()
    [evil] = workflow.task("silo-step", "Succeeded", at=0)
    workflow.task("silo-step-2", "Succeeded", at=0)
    kfp.logs[evil] = "one\x1b]0;title\x07\r\ntwo\ttabs\n"
    kfp.moments = [("RUNNING", workflow)]
    text = invoke("logs", started(kfp, packaged), "--host", kfp.url).stdout
    assert "one]0;title\ntwo\ttabs\n" in text
    assert "\x1b" not in text
    assert "(no log: the pod has not begun or is gone; " in text


def test_where_logs_are_found(kfp: KfpServer, packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with one user has none: its UI has them, Argo's archive has those of what ended."""
    workflow = Workflow()
    [ended] = workflow.task("silo-step", "Succeeded", at=0)
    [running] = workflow.task("silo-step-2", "Running", at=0)
    kfp.moments = [("RUNNING", workflow)]
    identity = started(kfp, packaged)
    kfp.archive[next(node for node, entry in workflow.nodes.items() if entry["name"].endswith("silo-step.executor"))] = "from the archive"
    text = invoke("logs", identity, "--host", kfp.url).stdout
    assert "==> a[0], done <==\nfrom the archive\n" in text
    assert "==> b[0], running <==\n(no log" in text
    with running_kfp() as interface:
        interface.pods = {ended: "from the UI", running: "so far"}
        monkeypatch.setenv("KF_PIPELINES_UI_ENDPOINT", interface.url)
        text = invoke("logs", identity, "--host", kfp.url).stdout
    assert "==> a[0], done <==\nfrom the UI\n==> b[0], running <==\nso far\n" in text


def test_cancel(kfp: KfpServer, packaged: Path) -> None:
    identity = started(kfp, packaged)
    assert invoke("cancel", identity, "--host", kfp.url).exit_code == 0
    assert kfp.runs[identity]["state"] == "CANCELING"
    kfp.runs[identity]["state"] = "SUCCEEDED"
    again = invoke("cancel", identity, "--host", kfp.url)
    assert again.exit_code == 2
    assert "has ended already (SUCCEEDED)" in again.stderr


@pytest.mark.parametrize("verb", ["logs", "cancel", "watch"])
@pytest.mark.parametrize("name", ["nobody", "00000000-0000-0000-0000-000000000000"])
def test_no_such_run(kfp: KfpServer, nowhere: None, verb: str, name: str) -> None:
    result = invoke(verb, name, "--host", kfp.url)
    assert result.exit_code == 2
    assert "has no such run; `siloflow runs` lists them" in result.stderr


def test_two_runs_of_one_name(kfp: KfpServer, packaged: Path) -> None:
    identities = [started(kfp, packaged, "--name", "twin") for _ in range(2)]
    result = invoke("cancel", "twin", "--host", kfp.url)
    assert result.exit_code == 2
    assert all(identity in result.stderr for identity in identities)
