"""Bad input is one line on stderr and exit code 2, and leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file
from torch import nn

from components.errors import InputError
from components.federation import resolve
from components.spec import parse_spec
from fl_algorithms.models import MODELS, ModelInfo, Network
from pipelines.example import EXAMPLE
from tests.pipelines.commands import command, finish, invoke, pictures


def spec_file(path: Path, content: bytes, size: int | None = None) -> list[str]:
    path.write_bytes(content)
    if size is not None:
        os.truncate(path, size)
    return [str(path)]


def folder_of(path: Path) -> list[str]:
    return ["--set", "dataset.name=folder", "--set", f"dataset.path={path}", "--set", "dataset.image_size=32"]


def truncated(root: Path) -> list[str]:
    victim = pictures(root) / "photo" / "dog" / "2.jpg"
    victim.write_bytes(victim.read_bytes()[:300])
    return folder_of(root)


def unfit_weights(path: Path) -> list[str]:
    save_file({"head.weight": torch.zeros(3, 3)}, path)
    return ["--set", f"weights={path}"]


def empty_folder(path: Path) -> list[str]:
    path.mkdir()
    return folder_of(path)


def packed_folder(path: Path) -> list[str]:
    arguments = empty_folder(path)
    (path / "photo.tar").touch()
    return arguments


def alone(algorithm: str) -> Callable[[Path], list[str]]:
    return lambda _: ["--set", f"algorithm={algorithm}", "--set", "sources=[chalk]", "--set", "target=pencil"]


def mixing(backbone: str, *layers: str) -> Callable[[Path], list[str]]:
    return lambda _: ["--set", "algorithm=mixstyle", "--set", f"backbone={backbone}", "--set", f"hyper.layers=[{', '.join(layers)}]"]


BAD: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "algorithm": (lambda _: ["--set", "algorithm=fedcrl"], "did you mean 'fedccrl'"),
    "data set": (lambda _: ["--set", "dataset=styled-digit"], "did you mean 'styled-digits'"),
    "domain": (lambda _: ["--set", "target=pencils"], "did you mean 'pencil'"),
    "field": (lambda _: ["--set", "round=3"], "did you mean 'rounds'"),
    "hyper-parameter": (lambda _: ["--set", "hyper.epoch=3"], "did you mean 'epochs'"),
    "backbone": (lambda _: ["--set", "backbone=resnet18"], "did you mean 'resnet-18'"),
    "target is a source": (lambda _: ["--set", "target=chalk", "--set", "sources=[chalk, neon]"], "target 'chalk': is also a source"),
    "no rounds": (lambda _: ["--set", "rounds=0"], "rounds: "),
    "negative lr": (lambda _: ["--set", "hyper.lr=-1"], "hyper.lr: input should be greater than 0, found '-1'"),
    "endless lr": (lambda _: ["--set", "hyper.lr=inf"], "hyper.lr: expected a finite number, found inf"),
    "ratio": (
        lambda _: ["--set", "hyper.ratio=1.5"],
        "hyper.ratio: input should be less than or equal to 1, found '1.5' (allowed: > 0, <= 1)",
    ),
    "hyper-parameter of another": (lambda _: ["--set", "algorithm=fedavg", "--set", "hyper.ratio=0.1"], "'hyper.ratio' of fedavg"),
    "too many participants": (lambda _: ["--set", "hyper.participants=4"], "hyper.participants: 4 silos a round"),
    "ccst alone": (alone("ccst"), "needs at least 2 silos, found 1"),
    "copa alone": (alone("copa"), "needs at least 2 source domains, found 1"),
    "csac alone": (alone("csac"), "needs at least 2 silos, found 1"),
    "fedccrl alone": (alone("fedccrl"), "needs at least 2 silos a round, found 1: a lone silo has no foreign statistics"),
    "feddann alone": (alone("feddann"), "needs at least 2 source domains, found 1"),
    "feddann, silos of one domain": (lambda _: [*alone("feddann")(_), "--set", "silos_per_domain=3"], "needs at least 2 source domains"),
    "feddg alone": (alone("feddg"), "needs at least 2 silos, found 1"),
    "ga alone": (alone("ga"), "needs at least 2 silos a round, found 1"),
    "mixstyle, no such block": (mixing("small-cnn", "layer1", "layer5"), "(layer1, layer2, layer3), found 'layer5'"),
    "mixstyle, the last block": (mixing("resnet-18", "layer4"), "found 'layer4'"),
    "mixstyle, no block": (mixing("small-cnn"), "hyper.layers: "),
    "setting": (lambda _: ["--set", "rounds"], "expected field=value"),
    "spec is a list": (lambda tmp: spec_file(tmp / "s.yaml", b"- rounds\n"), "found a list"),
    "spec is empty": (lambda tmp: spec_file(tmp / "s.yaml", b""), "found nothing"),
    "spec of 50 MB": (lambda tmp: spec_file(tmp / "s.yaml", b"rounds: 1\n", 50 << 20), "52428800 bytes"),
    "spec not UTF-8": (lambda tmp: spec_file(tmp / "s.yaml", b"rounds: \xff"), "byte 0xff at offset 8"),
    "spec not YAML": (lambda tmp: spec_file(tmp / "s.yaml", b"a: [1\nb: 2"), "line 2"),
    "no such spec": (lambda tmp: [str(tmp / "none.yaml")], "none.yaml"),
    "no such folder": (lambda tmp: folder_of(tmp / "none"), "found no folder"),
    "empty folder": (lambda tmp: empty_folder(tmp / "data"), "data'; name the folder that the domains are in"),
    "packed folder": (lambda tmp: packed_folder(tmp / "data"), "data'; unpack photo.tar"),
    "one class": (lambda tmp: folder_of(pictures(tmp / "data", classes=("cat",))), "at least two classes"),
    "truncated JPEG": (lambda tmp: truncated(tmp / "data"), "photo/dog/2.jpg"),
    "weights": (lambda tmp: unfit_weights(tmp / "w.safetensors"), "w.safetensors"),
    "baseline": (lambda _: ["--baseline", "fedvag"], "did you mean 'fedavg'"),
    "baseline is the algorithm": (lambda _: ["--baseline", "fedccrl"], "is the algorithm itself"),
    "option": (lambda _: ["--rounds", "3"], "No such option"),
    "workers": (lambda _: ["--workers", "0"], "--workers"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(case: str, tmp_path: Path) -> None:
    arguments, expected = BAD[case]
    out = tmp_path / "run"
    ended = invoke("run", *arguments(tmp_path), "--out", out)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1 and ended.stderr.startswith("error: ") and expected in ended.stderr
    assert not out.exists()


@pytest.mark.parametrize("case", ["algorithm", "spec is a list", "truncated JPEG"])
def test_bad_input_of_the_real_command(case: str, tmp_path: Path) -> None:
    arguments, expected = BAD[case]
    code, out, err = finish(command("run", *arguments(tmp_path), "--json", cwd=tmp_path))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and expected in err
    assert not (tmp_path / "runs").exists()


def test_csac_on_a_backbone_without_named_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ModelInfo("one layer", 16, lambda classes, _: Network(nn.Sequential(), nn.Flatten(), nn.Linear(48 * 48 * 3, classes), taps=()))
    monkeypatch.setitem(MODELS, "plain", plain)
    spec = {**EXAMPLE, "algorithm": "csac", "backbone": "plain", "hyper": {}}
    with pytest.raises(InputError, match="backbone plain: csac aligns named layers, and it names none"):
        resolve(parse_spec(spec))
    resolve(parse_spec({**spec, "hyper": {"align": "logits"}}))


def test_a_run_folder_of_another_spec_is_refused_and_kept(tmp_path: Path) -> None:
    stored = yaml.safe_dump(resolve(parse_spec({**EXAMPLE, "hyper": {"lr": 0.5}})).model_dump(mode="json"))
    (tmp_path / "spec.yaml").write_text(stored)
    ended = invoke("run", "--out", tmp_path, "--baseline", "none")
    assert (ended.exit_code, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert "hyper.lr is 0.5 there, 0.001 here" in ended.stderr
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("spec.yaml", stored)]


def test_resume_needs_a_run(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        ended = invoke("resume", folder)
        assert ended.exit_code == 2 and ended.stderr.count("\n") == 1 and "spec.yaml" in ended.stderr
