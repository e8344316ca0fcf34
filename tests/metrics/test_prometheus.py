"""A real run, scraped by a real Prometheus: every metric, every panel and every rule finds what it needs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.errors import DeadlineError
from components.gateway import push_night
from components.metrics import EVERY_ROLE, METRICS, OUTCOME, PREFIX, start
from tests.federations import DOMAINS, TARGET, draw_pictures, values
from tests.metrics.dashboards import filled_in, panels, queries
from tests.metrics.prometheus_tools import Prometheus, fetch, free_port, promtool, running_prometheus
from tests.pipelines.commands import command, finish

ROUNDS = 200  # some seconds on a fast machine: rates need several scrapes


@dataclass(frozen=True)
class Scraped:
    prometheus: Prometheus
    since: float
    result: dict[str, Any]
    said: str
    exposed: str  # by the run, while it went on


def exposed_by(url: str) -> str:
    """Once the first round is over. The endpoint comes with the run and goes with it, so it is asked until then and not again."""
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        with suppress(OSError):
            if "siloflow_silo_drift" in (text := fetch(url)):
                return text
        time.sleep(0.05)
    raise AssertionError(f"{url}: no round within 60 s")


def night_row(seed: int, **changes: Any) -> dict[str, Any]:
    """As in results.jsonl."""
    return {
        "algorithm": "fedavg", "target": "night-sky", "seed": seed, "status": "done", "exit_code": 0, "exact": False, "seconds": 2.0,
        "setting": {"rounds": 3}, "accuracy": {"last": 0.5 + seed / 5, "best_validation": 0.4, "oracle": None},
        "bytes": {"up": 10, "down": 20}, **changes,
    }  # fmt: skip


@contextmanager
def scraped_run(folder: Path) -> Iterator[Scraped]:
    port, since = free_port(), time.time()
    spec = folder / "spec.yaml"
    spec.write_text(yaml.safe_dump(values(draw_pictures(folder / "pictures"), rounds=ROUNDS, threads=1)))
    with running_prometheus(folder, f"127.0.0.1:{port}") as prometheus, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SILOFLOW_CACHE", str(folder / "cache"))
        patch.setenv("SILOFLOW_METRICS_LINGER", "5")
        patch.setenv("SILOFLOW_PUSHGATEWAY", prometheus.gateway)
        run = command("run", spec, "--out", folder / "run", "--metrics-port", str(port), "--json", "--no-report")
        try:
            exposed = exposed_by(f"http://127.0.0.1:{port}/metrics")
            code, printed, said = finish(run)
        finally:
            run.kill()
            run.communicate()
        assert code == 0, said
        assert list(push_night(prometheus.gateway, "nightly", "night-1", [night_row(0), night_row(1)], {"speed": True}, 0)) == []
        prometheus.wait_for('siloflow_last_success_timestamp_seconds{pipeline="local"}')
        prometheus.wait_for('siloflow_last_success_timestamp_seconds{pipeline="nightly"} offset 2s')  # panels look second by second
        yield Scraped(prometheus, since, json.loads(printed), said, exposed)


def every_metric_of_the_table_is_there(scraped: Scraped) -> None:
    found = {row["metric"]["__name__"] for row in scraped.prometheus.now('last_over_time({__name__=~"siloflow_.+"}[5m])')}
    suffix = {"histogram": "_bucket"}
    wanted = {PREFIX + name + suffix.get(metric.kind, "") for name, metric in {**METRICS, **OUTCOME}.items()}
    assert wanted <= found
    assert {name.removesuffix("_sum").removesuffix("_count") + "_bucket" for name in found - wanted} <= wanted


def the_series_say_what_the_result_says(scraped: Scraped) -> None:
    ask, result = scraped.prometheus.value, scraped.result
    assert ask('last_over_time(siloflow_round{role="server"}[5m])') == ROUNDS
    assert ask("last_over_time(siloflow_rounds_total[5m])") == ROUNDS
    assert ask('last_over_time(siloflow_runs_total{outcome="succeeded"}[5m])') == 1
    assert ask(f'last_over_time(siloflow_accuracy_ratio{{split="target", domain="{TARGET}"}}[5m])') == result["accuracy"]["last"]
    assert ask("last_over_time(siloflow_validation_accuracy_ratio[5m])") == result["history"][-1]["validation_accuracy"]
    group = f'{{pipeline="local", algorithm="fedavg", target="{TARGET}", job="siloflow"}}'
    for rule, ratio in result["accuracy"].items():
        assert ask(f'siloflow_last_run_accuracy_ratio{group[:-1]}, rule="{rule}"}}') == ratio
    assert ask(f"siloflow_last_run_exit_code{group}") == 0
    assert ask('siloflow_last_run_accuracy_ratio{pipeline="nightly", target="night-sky", rule="last"}') == 0.6
    assert ask('siloflow_last_run_rounds{pipeline="nightly"}') == 3
    weights = scraped.prometheus.now("last_over_time(siloflow_silo_weight_ratio[5m])")
    assert {row["metric"]["silo"]: float(row["value"][1]) for row in weights} == result["history"][-1]["weights"]
    assert set(result["history"][-1]["weights"]) == set(DOMAINS)


def every_panel_has_data(scraped: Scraped) -> None:
    empty = []
    for name, panel in panels():
        for expr in queries(panel):
            if not scraped.prometheus.over(filled_in(expr, "5s"), scraped.since):
                empty.append((name, panel["title"], expr))
    assert not empty


def every_rule_evaluates_and_none_fires_without_a_reason(scraped: Scraped) -> None:
    rules = [rule for group in scraped.prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == 8
    assert {rule["name"]: rule["lastError"] for rule in rules if rule["health"] != "ok" or rule.get("lastError")} == {}
    assert {rule["name"] for rule in rules if rule["state"] == "firing"} == set()


def a_failed_run_fires_and_leaves_the_last_success_on_the_gateway(scraped: Scraped) -> None:
    recorder = start(None, EVERY_ROLE, scraped.prometheus.gateway)
    recorder.planned("bad", {**values(Path("x"), rounds=1), "deadline": 1.0}, DOMAINS)
    recorder.failed(DeadlineError("silo ash: published nothing"))
    firing = scraped.prometheus.wait_for('ALERTS{alertname="SiloflowRunFailed", alertstate="firing"}')
    assert firing[0]["metric"]["algorithm"] == "fedavg"
    assert scraped.prometheus.value('siloflow_last_run_exit_code{pipeline="local"}') == DeadlineError.exit_code
    assert scraped.prometheus.value('siloflow_last_run_accuracy_ratio{pipeline="local", rule="last"}') == scraped.result["accuracy"]["last"]


def a_red_night_fires_by_its_gate_and_its_cell(scraped: Scraped) -> None:
    """The figures of the night before stay where a seed failed; the place where none did has new ones."""
    rows = [night_row(0, status="failed", exit_code=3), night_row(1), night_row(0, target="other", accuracy={"last": 0.25})]
    rows.append(night_row(0, target="tiny", exact=True))
    assert list(push_night(scraped.prometheus.gateway, "nightly", "night-2", rows, {"speed": False, "accuracy": True}, 6)) == []
    firing = scraped.prometheus.wait_for('ALERTS{alertname="SiloflowGateFailed", alertstate="firing"}')
    assert [row["metric"]["gate"] for row in firing] == ["speed"]
    assert scraped.prometheus.wait_for('ALERTS{alertname="SiloflowRunFailed", pipeline="nightly", alertstate="firing", target="night-sky"}')
    ask = scraped.prometheus.value
    assert ask('siloflow_last_run_accuracy_ratio{pipeline="nightly", target="night-sky", rule="last"}') == 0.6
    assert ask('siloflow_last_run_accuracy_ratio{pipeline="nightly", target="other", rule="last"}') == 0.25
    assert scraped.prometheus.now('siloflow_last_run_exit_code{target="tiny"}') == []
    assert ask("siloflow_last_night_exit_code") == 6


def promtool_likes_the_metrics(scraped: Scraped) -> None:
    pushed = "\n".join(line for line in fetch(f"{scraped.prometheus.gateway}/metrics").splitlines() if PREFIX in line) + "\n"
    for text in (scraped.exposed, pushed):
        assert PREFIX in text
        checked = promtool("check", "metrics", given=text)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    assert promtool("check", "metrics", given="# HELP bad_counter x\n# TYPE bad_counter counter\nbad_counter 1\n").returncode


def test_a_real_run_and_a_real_prometheus(tmp_path: Path) -> None:
    """One test: two processes would otherwise start all of this twice."""
    with scraped_run(tmp_path) as scraped:
        every_metric_of_the_table_is_there(scraped)
        the_series_say_what_the_result_says(scraped)
        every_panel_has_data(scraped)
        every_rule_evaluates_and_none_fires_without_a_reason(scraped)
        a_failed_run_fires_and_leaves_the_last_success_on_the_gateway(scraped)
        a_red_night_fires_by_its_gate_and_its_cell(scraped)
        promtool_likes_the_metrics(scraped)
