"""What can be said about the image without building it: its recipe, its pinned versions, and the package it is made of."""

from __future__ import annotations

import json
import platform
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from components.allocator import LIBRARY
from components.nightly import night
from tests.images.dockerfile import ROOT, Dockerfile, ignore_patterns, ignored
from tests.minio_server import skip_or_fail

DOCKERFILE = Dockerfile((ROOT / "images" / "Dockerfile").read_text(encoding="utf-8"))
PACKAGES = ("fl_algorithms", "components", "pipelines")
TARGETS = ("cpu", "gpu")
BUILDS_SOMETHING = re.compile(r"\b(apt|apt-get|apk|dnf|gcc|g\+\+|make|pip install|curl|wget)\b")


def pins() -> dict[str, str]:
    lines = (ROOT / "images" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def tracked(*folders: str) -> list[str]:
    """Files of these folders as a clone has them, and those about to be added."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if answer.returncode:
        pytest.skip("not a git checkout")
    return [name for name in answer.stdout.splitlines() if (ROOT / name).exists()]


# ---- the recipe


@pytest.mark.parametrize("target", TARGETS)
class TestRecipe:
    def test_nothing_of_the_build_is_in_it(self, target: str) -> None:
        stages = DOCKERFILE.made_of(target)
        assert stages[0].base == "${BASE}"
        for stage in stages:
            assert not [line for line in stage.all("RUN") if BUILDS_SOMETHING.search(line)]
            assert all(line.startswith("--from=") for line in stage.all("COPY"))

    def test_the_user_is_a_number_and_not_root(self, target: str) -> None:
        assert DOCKERFILE.last(target, "USER") == "10001:10001"  # a name could not be checked by runAsNonRoot

    def test_it_is_the_command_line_and_asks_the_doctor(self, target: str) -> None:
        assert json.loads(DOCKERFILE.last(target, "ENTRYPOINT")) == ["siloflow"]
        assert json.loads(DOCKERFILE.last(target, "HEALTHCHECK").partition("CMD ")[2]) == ["siloflow", "doctor"]

    def test_layers_come_in_the_order_in_which_they_change(self, target: str) -> None:
        copied = [line.split()[1] for stage in DOCKERFILE.made_of(target) for line in stage.all("COPY")]
        assert copied == ["/layers/allocator", "/layers/torch", "/layers/dependencies", "/layers/product"]

    def test_every_process_has_the_allocator(self, target: str) -> None:
        environment = [line for stage in DOCKERFILE.made_of(target) for line in stage.all("ENV")]
        assert any(f"LD_PRELOAD=/usr/local/lib/{LIBRARY} " in line for line in environment)

    def test_it_says_what_it_is(self, target: str) -> None:
        label = DOCKERFILE.last(target, "LABEL")
        for name in ("title", "description", "version", "revision", "source", "licenses"):
            assert re.search(rf'org\.opencontainers\.image\.{name}="[^"]+"', label), name
        assert {"VERSION", "REVISION", "SOURCE"} <= set(DOCKERFILE.stages[target].all("ARG"))


def test_a_build_without_a_target_makes_the_cpu_image() -> None:
    assert list(DOCKERFILE.stages)[-1] == "cpu"


def test_no_stage_hides_behind_an_argument() -> None:
    """Buildah would skip it as unused, and then not find it."""
    assert not set(DOCKERFILE.arguments.values()) & set(DOCKERFILE.stages)


def test_only_the_builder_has_a_compiler_and_both_have_one_python() -> None:
    builder, base = DOCKERFILE.arguments["BUILDER"], DOCKERFILE.arguments["BASE"]
    assert "slim" in base
    assert "slim" not in builder
    assert builder == base.replace("-slim", "")


def test_what_is_copied_is_there_and_not_ignored() -> None:
    copied = {
        source.rstrip("/")
        for stage in DOCKERFILE.stages.values()
        for line in stage.all("COPY")
        if not line.startswith("--from=")
        for source in line.split()[:-1]
    } - {"."} | {"pyproject.toml", "README.md", "LICENSE", *PACKAGES}  # what a build of the package needs
    assert "images/constraints.txt" in copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert not ignored(source, ignore_patterns()), source


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        ".venv/bin/python",
        ".env",
        ".netrc",
        ".pytest_cache/v",
        ".mypy_cache/3.11/x.json",
        "build/lib/components/spec.py",
        "siloflow.egg-info/PKG-INFO",
        "tests/conftest.py",
        "tests/data/a.png",
        "bench/exchange.py",
        "bench/reproduce/pacs.yaml",
        "docs/results/README.md",
        "helm/siloflow/values.yaml",
        "runs/one/result.json",
        "keys/server/secret_key",
        "credentials/a/access_key",
        "silos.yaml",
        "images/sbom.json",
        "components/__pycache__/spec.cpython-311.pyc",
        "fl_algorithms/data/__pycache__/cache.cpython-311.pyc",
        "pipelines/.env",
        "pipelines/server.key",
        "components/store/ca.pem",
        "pipelines/keys/a/access_key",
        "pipelines/keys/a/secret_key",
    ],
)
def test_what_has_no_business_in_an_image_is_ignored(path: str) -> None:
    assert ignored(path, ignore_patterns())


def test_the_nightly_benchmark_is_where_the_chart_and_the_pipeline_look_for_it() -> None:
    (copied,) = [line for line in DOCKERFILE.stages["product"].all("RUN") if line.startswith("install ")]
    where, *files = copied.partition("--target-directory ")[2].split()
    assert Path(where.removeprefix("/layers/product")) == night.FOLDER
    assert [Path(file).name for file in files] == [night.SPEC, night.BASELINE]
    for file in files:
        name = file.removeprefix("/build/siloflow/")
        assert (ROOT / name).is_file() and not ignored(name, ignore_patterns()), name


def test_no_file_of_the_product_is_ignored() -> None:
    files = tracked(*PACKAGES)
    assert "components/spec.py" in files
    assert [name for name in files if ignored(name, ignore_patterns())] == []


# ---- pinned versions


def requirements() -> list[Requirement]:
    lock = runpy.run_path(str(ROOT / "images" / "lock"), run_name="lock")
    return [Requirement(line) for line in lock["wanted"]()]


needs_tomllib = pytest.mark.skipif(sys.version_info < (3, 11), reason="images/lock is for the image's Python")


@needs_tomllib
def test_every_dependency_is_pinned_to_a_version_it_allows() -> None:
    pinned, wanted = pins(), requirements()
    assert {"torch", "kfp", "h5py"} <= {item.name for item in wanted}
    for item in wanted:
        name = canonicalize_name(item.name)
        assert name in pinned, f"{name}: not in images/constraints.txt; run images/lock"
        assert item.specifier.contains(pinned[name]), f"{name}=={pinned[name]}: pyproject.toml wants {item.specifier}; run images/lock"


@pytest.mark.skipif(platform.system() != "Linux" or sys.version_info[:2] != (3, 11), reason="pinned for the image's platform")
def test_what_pinned_versions_need_is_pinned_too() -> None:
    pinned, compared = pins(), 0
    for name, version in pinned.items():
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        if found.version.partition("+")[0] != version:  # a newer one has come out since: its needs are not this one's
            continue
        compared += 1
        for need in map(Requirement, found.requires or ()):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                assert canonicalize_name(need.name) in pinned, f"{name} needs {need}"
                assert need.specifier.contains(pinned[canonicalize_name(need.name)]), f"{name} needs {need}"
    assert compared


def test_the_file_is_what_lock_writes() -> None:
    head, *lines = (ROOT / "images" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert head.startswith("# Written by images/lock")
    assert list(pins()) == sorted(pins())
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line) for line in lines)
    assert len(pins()) == len(lines)


# ---- torch without CUDA


def gcc(source: str, *options: str | Path) -> None:
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", *options], input=source, text=True, check=True)


def test_a_library_that_is_linked_against_cuda_loads_without_it(tmp_path: Path) -> None:
    """As in torch: one CUDA library with symbol versions, one without, called by two others that are bound at load."""
    if not shutil.which("gcc") or not shutil.which("objdump"):
        skip_or_fail("IMAGE TESTS: no gcc and binutils on PATH")
    lib, cuda = tmp_path / "torch" / "lib", tmp_path / "cuda"
    for folder in (lib, cuda, tmp_path / "torchvision"):
        folder.mkdir(parents=True)
    versions = cuda / "versions"
    versions.write_text("libcudart.so.13 { global: cudaGetDeviceCount; };")
    gcc(
        "int cudaGetDeviceCount(int *n) { return 0; }",
        "-Wl,-soname,libcudart.so.13",
        f"-Wl,--version-script={versions}",
        "-o",
        cuda / "libcudart.so.13",
    )
    gcc("int ncclInit(void) { return 0; }", "-Wl,-soname,libnccl.so.2", "-o", cuda / "libnccl.so.2")
    linked = ["-Wl,-z,now", "-Wl,-rpath,$ORIGIN", f"-L{cuda}", "-l:libcudart.so.13", "-l:libnccl.so.2"]
    gcc("int cudaGetDeviceCount(int *); int ncclInit(void); int devices(void) { int n; return cudaGetDeviceCount(&n) + ncclInit(); }",
        *linked, "-o", lib / "libtorch_cuda.so")  # fmt: skip
    library = lib / "libtorch_cuda.so"
    loads = f"import ctypes, os; print(ctypes.CDLL({str(library)!r}, mode=os.RTLD_NOW).devices())"  # where no torch has loaded the real one
    refused = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=False)
    assert "libcudart.so.13" in refused.stderr
    answer = subprocess.run([sys.executable, "images/no_cuda.py", tmp_path], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line.split(":")[0] for line in answer.stdout.splitlines()] == ["libcudart.so.13", "libnccl.so.2"]
    called = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True)
    assert called.stdout == "200\n"  # "no device", twice
    assert called.stderr == ""  # the loader has nothing to say about versions
    again = subprocess.run([sys.executable, "images/no_cuda.py", tmp_path], cwd=ROOT, capture_output=True, text=True, check=True)
    assert again.stdout == ""  # nothing is missing any more: a CPU build of torch is left alone


# ---- the package


BUILD = "import setuptools.build_meta as b, sys; print(getattr(b, sys.argv[1])(sys.argv[2]))"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a clone has, so that building leaves nothing behind in the checkout, and what lies around there is not taken along."""
    copy = tmp_path_factory.mktemp("source")
    for name in tracked():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    return copy


def built(source: Path, hook: str, out: Path) -> Path:
    command: list[Any] = [sys.executable, "-c", BUILD, hook, out]
    answer = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0, answer.stderr
    return out / answer.stdout.splitlines()[-1]


def test_the_wheel_is_the_three_packages_and_nothing_else(source: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(built(source, "build_wheel", tmp_path)) as wheel:
        names = set(wheel.namelist())
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        entry = wheel.read(metadata.replace("METADATA", "entry_points.txt")).decode()
    files = {name for name in names if ".dist-info/" not in name}
    assert files == {name for name in tracked(*PACKAGES) if not name.endswith(".md")}
    assert "siloflow = pipelines.__main__:main" in entry


def test_the_source_archive_can_be_built_from_and_has_no_tests(source: Path, tmp_path: Path) -> None:
    with tarfile.open(built(source, "build_sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()} - {""}
    assert {"pyproject.toml", "README.md", "LICENSE", "components/spec.py"} <= names
    assert {name.split("/")[0] for name in names} <= {
        *PACKAGES,
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "MANIFEST.in",
        "PKG-INFO",
        "setup.cfg",
        "siloflow.egg-info",
    }
