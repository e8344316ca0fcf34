"""What the commands print, mostly called in this process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from components.spec import FederationSpec, parse_spec
from fl_algorithms.fedavg import FedAvgHyper
from fl_algorithms.registry import ALGORITHMS
from pipelines import catalogue, comparison
from pipelines.example import EXAMPLE, HYPER_EXAMPLE, commented
from tests.pipelines.commands import command, invoke, pictures

# ---- help, lists, specs


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    script = """
import resource, sys
from pipelines.__main__ import main
for words in (["--help"], ["run", "--help"]):
    sys.argv = ["siloflow", *words]
    try:
        main()
    except SystemExit as end:
        assert end.code == 0
used = resource.getrusage(resource.RUSAGE_SELF)
heavy = {"torch", "torchvision", "sklearn", "kfp", "matplotlib", "minio", "yaml", "numpy"} & set(sys.modules)
print(used.ru_utime + used.ru_stime, sorted(heavy), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in ("run", "resume", "init", "spec", "algorithms", "datasets", "doctor", "--baseline"))
    seconds, _, heavy = done.stderr.strip().partition(" ")
    assert heavy == "[]"
    assert float(seconds) <= 0.5


def test_algorithms_lists_all_and_describes_one() -> None:
    listed = invoke("algorithms").stdout
    assert all(name in listed for name in ALGORITHMS)
    described = invoke("algorithms", "fedccrl-official").stdout
    assert "arXiv:2410.11267" in described and "statistics 24 B a row, train" in described
    row = next(line for line in described.splitlines() if line.startswith("lambda2 "))
    assert row.split()[1] == "0.1"  # the preset's value, not that of the paper
    described = " ".join(invoke("algorithms", "csac").stdout.split())
    assert "acquire 397,832 B in round 1, then calibrate 397,832 B" in described


def test_datasets_lists_all_and_describes_one() -> None:
    assert "rotated-mnist" in invoke("datasets").stdout
    assert "pencil, neon, chalk, paper" in invoke("datasets", "styled-digits").stdout
    assert "dataset.on_broken" in invoke("datasets", "folder").stdout


def test_the_example_file_says_the_same_as_the_example() -> None:
    text = commented(EXAMPLE)
    assert parse_spec(yaml.safe_load(text)) == parse_spec(EXAMPLE)
    assert all(str(field.description) in text for field in FederationSpec.model_fields.values())
    assert set(HYPER_EXAMPLE) <= set(FedAvgHyper.__dataclass_fields__)


def test_init_refuses_to_overwrite(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    assert invoke("init", file).exit_code == 0
    file.write_text("mine")
    refused = invoke("init", file)
    assert refused.exit_code == 2 and "exists already" in refused.stderr and file.read_text() == "mine"
    assert invoke("init", file, "--force").exit_code == 0 and "rounds:" in file.read_text()


def test_spec_prints_what_would_run() -> None:
    resolved = yaml.safe_load(invoke("spec", "--set", "rounds=7").stdout)
    assert resolved["rounds"] == 7 and resolved["target"] == "paper" and "lr" in resolved["hyper"]
    digests = {invoke("spec", "--digest", *words).stdout for words in ([], ["--set", "target=paper"], ["--set", "rounds=7"])}
    assert len(digests) == 2  # naming the default target changes nothing
    schema = json.loads(invoke("spec", "--schema").stdout)
    assert set(schema["properties"]) == set(FederationSpec.model_fields)
    assert "resnet-18" in invoke("spec", "--backbones").stdout


# ---- baseline and run folder


def test_the_baseline_keeps_the_hyper_parameters_it_has_too() -> None:
    given = {"algorithm": "fedccrl", "rounds": 3, "hyper": {"lr": 0.1, "lambda1": 0.2}}
    assert comparison.same_federation(given, "fedavg") == {"algorithm": "fedavg", "rounds": 3, "hyper": {"lr": 0.1}}


def test_only_the_example_has_a_baseline_by_default() -> None:
    assert comparison.choose(None, "fedccrl", is_example=True) == "fedavg"
    assert comparison.choose(None, "fedavg", is_example=True) is None
    assert comparison.choose(None, "fedccrl", is_example=False) is None
    assert comparison.choose("none", "fedccrl", is_example=True) is None


def test_default_run_folder_is_a_valid_name_for_any_domain(tmp_path: Path) -> None:
    data = {"name": "folder", "path": str(pictures(tmp_path, domains=("Art", "Real World")))}
    folder = comparison.default_folder(parse_spec({"dataset": data, "algorithm": "fedavg"}))
    assert folder.parent == Path("runs") and folder.name.endswith("-fedavg-Real-World")


# ---- defects, pipes


def test_a_defect_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("first\nsecond")

    monkeypatch.delenv("SILOFLOW_DEBUG", raising=False)
    monkeypatch.setattr(catalogue, "list_names", broken)
    ended = invoke("algorithms")
    assert ended.exit_code == 1
    assert ended.stderr == "error: internal: RuntimeError: first second; set SILOFLOW_DEBUG=1 for the trace\n"
    monkeypatch.setenv("SILOFLOW_DEBUG", "1")
    assert "Traceback" in invoke("algorithms").stderr


def test_a_reader_that_goes_away_is_no_error() -> None:
    process = command("spec", "--schema")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None and process.stderr.read() == ""
    process.wait(30)


# ---- doctor


def test_doctor_is_content_with_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = invoke("doctor", "--json")
    checks = {check["area"]: check for check in json.loads(ended.stdout)["checks"]}
    assert ended.exit_code == 0 and torch.__version__ in checks["torch"]["found"] and "target paper" in checks["data"]["found"]
    assert not list(tmp_path.iterdir())


def test_doctor_exits_with_the_code_of_what_is_wrong(tmp_path: Path) -> None:
    assert invoke("doctor", "--set", f"weights={tmp_path / 'none.pth'}").exit_code == 2
    (tmp_path / "file").touch()
    broken = invoke("doctor", "--set", f"store={tmp_path / 'file' / 'store'}")
    assert broken.exit_code == 4
    assert any(line.split()[:2] == ["store", "fail"] for line in broken.stdout.splitlines())
    assert invoke("doctor", "--set", "rounds=0").exit_code == 2


def test_doctor_probes_an_s3_store(s3_url: str) -> None:
    checks = {check["area"]: check for check in json.loads(invoke("doctor", "--json", "--set", f"store={s3_url}").stdout)["checks"]}
    assert checks["store"] == {"area": "store", "state": "ok", "found": f"{s3_url}: written, read and deleted"}
