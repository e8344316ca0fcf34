"""`images/build` and its neighbours: what they ask the tool for, and what they say when they cannot."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from components import VERSION
from tests.images.dockerfile import ROOT, Dockerfile

PRINTS_ITS_ARGUMENTS = '#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n'


def call(script: str, *words: str, path: Path | None = None, code: int = 0) -> str:
    """What it prints; of a failure, the one line."""
    environment = os.environ | ({"PATH": f"{path}:/usr/bin:/bin"} if path else {})
    answer = subprocess.run([ROOT / "images" / script, *words], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == code, answer.stderr
    if code:
        assert answer.stderr.startswith("error: ")
        assert answer.stderr.count("\n") == 1
    return answer.stderr if code else answer.stdout


def tool(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(PRINTS_ITS_ARGUMENTS)
    file.chmod(0o755)
    return folder


@pytest.mark.parametrize("name", ["docker", "podman", "buildah"])
def test_each_tool_builds_the_cpu_image_of_this_version(name: str, tmp_path: Path) -> None:
    words = call("build", "--tool", name, path=tool(tmp_path, name)).splitlines()
    assert words[0] == "build"
    assert words[words.index("-t") + 1] == f"siloflow:{VERSION}"
    assert words[words.index("--target") + 1] == "cpu"
    assert f"VERSION={VERSION}" in words
    assert words[-1] == "."
    assert ("docker" in words) == (name != "docker")  # the format that has a health check: docker knows no other


def test_another_program_gets_name_folder_file_and_options(tmp_path: Path) -> None:
    program = tool(tmp_path, "image.sh") / "image.sh"
    words = call("build", "--tool", str(program), "--tag", "siloflow:dev", "--base", "b", "--builder", "c", "--", "--quiet").splitlines()
    assert words[:4] == ["build", "siloflow:dev", ".", "images/Dockerfile"]
    assert {"BASE=b", "BUILDER=c"} <= set(words)
    assert words[-1] == "--quiet"
    assert not [word for word in words if word.startswith("TORCH_INDEX")]


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_the_thin_image_goes_on_an_image_instead_of_all_those_stages(target: str, tmp_path: Path) -> None:
    program = tool(tmp_path, "image.sh") / "image.sh"
    program.write_text('#!/bin/sh\ncat "$4"\n')
    recipe = Dockerfile(call("build", "--tool", str(program), "--on", "siloflow-base:1", "--target", target))
    assert [stage.name for stage in recipe.made_of(target)] == [target]
    assert recipe.stages[target].base == "siloflow-base:1"
    other = {"cpu": "gpu", "gpu": "cpu"}[target]
    assert recipe.stages[other].base == f"base-{other}"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--target", "tpu"), "target tpu: expected cpu, gpu"),
        (("--tool", "no-such-tool"), "tool no-such-tool: not found"),
        (("--tag",), "--tag: no value"),
        (("--colour", "red"), "option --colour: unknown"),
    ],
)
def test_what_cannot_be_built_is_said_in_one_line(words: tuple[str, ...], expected: str) -> None:
    assert expected in call("build", *words, code=2)


def test_a_load_or_a_list_of_nothing_is_refused() -> None:
    assert "expected one image" in call("load", code=2)
    assert "no image given" in call("sbom", code=2)
