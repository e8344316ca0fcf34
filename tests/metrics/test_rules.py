"""The alerts: each is tried firing and silent by promtool, and each leads to a page that says what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.metrics import METRICS, OUTCOME, PREFIX
from tests.metrics.prometheus_tools import ROOT, RULES, promtool

CASES = [Path(__file__).with_name(name) for name in ("rules_test.yaml", "nightly_rules_test.yaml")]
ALERTS = (
    "SiloflowRoundStalled", "SiloflowSiloMissing", "SiloflowUpdateRejected", "SiloflowRunFailed", "SiloflowAccuracyDrop",
    "SiloflowNightlyNotRun", "SiloflowGateFailed",
)  # fmt: skip


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def tried() -> set[tuple[str, bool]]:
    """Alert, and whether promtool expects it to fire."""
    cases = [case for path in CASES for case in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]]
    return {(check["alertname"], bool(check.get("exp_alerts"))) for case in cases for check in case["alert_rule_test"]}


def test_promtool_accepts_the_rules_and_every_case() -> None:
    checked = promtool("check", "rules", RULES)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = promtool("test", "rules", *CASES)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_is_tried_firing_and_silent(alert: str) -> None:
    assert {(alert, True), (alert, False)} <= tried()


# What must not go unnoticed if somebody writes it: the alert would then never fire, or always.
@pytest.mark.parametrize(
    ("rule", "instead"),
    [
        ("siloflow_run_active == 1\n        for: 1m", "siloflow_run_active == 0\n        for: 1m"),
        ("or time() - siloflow_last_progress_timestamp_seconds > siloflow_deadline_seconds", ""),
        ("clamp_min(5 * siloflow_last_round_seconds, 300)", "300"),
        (
            "siloflow_silo_present[1m]) == 0 and on (namespace, job, instance)",
            "siloflow_silo_present[1m]) == 0 unless on (namespace, job, instance)",
        ),
        ("unless on (namespace, silo)", "and on (namespace, silo)"),
        ("            and on (namespace, silo) (", "            unless on (namespace, silo) ("),
        ("increase(siloflow_silo_rejected_total[15m])", "siloflow_silo_rejected_total"),
        ("< 86400", "< 864000"),
        ('siloflow_runs_total{outcome="failed"}', "siloflow_runs_total"),
        (", 0.01)", ", 0.001)"),
        ("2 * stddev_over_time", "0 * stddev_over_time"),
        ("> 26 * 3600", "> 20 * 3600"),
        ("for: 26h", "for: 20h"),
        ('gate_passed{pipeline="nightly"} == 0', "gate_passed == 0"),
        ('gate_passed{pipeline="nightly"} == 0', 'gate_passed{pipeline="nightly"} == 1'),
    ],
)
def test_a_wrong_rule_is_noticed(rule: str, instead: str, tmp_path: Path) -> None:
    text = RULES.read_text(encoding="utf-8")
    assert rule in text
    (tmp_path / "rules.yaml").write_text(text.replace(rule, instead))
    for path in CASES:
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8").replace("../../helm/siloflow/rules/siloflow.yaml", "rules.yaml"))
    assert promtool("check", "rules", tmp_path / "rules.yaml").returncode == 0, "not even a rule"
    assert any(promtool("test", "rules", tmp_path / path.name).returncode == 1 for path in CASES)


def test_alerts_are_complete_and_lead_to_a_runbook() -> None:
    assert {rule["alert"] for rule in rules()} == set(ALERTS)
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs/runbooks.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == list(ALERTS)
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{rule['alert'].lower()}"


def test_rules_ask_only_for_metrics_that_exist() -> None:
    asked = {name for rule in rules() for name in re.findall(rf"\b{PREFIX}\w+", rule["expr"])}
    assert asked
    assert asked <= {PREFIX + name for name in {**METRICS, **OUTCOME}}
