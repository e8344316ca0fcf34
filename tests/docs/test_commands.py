"""Every command that a page tells its reader to type is run, or the page says why it cannot be and it is at least parsed."""

from __future__ import annotations

import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipelines.bench_file import read_bench, work_of
from tests.docs.pages import FENCE, PROGRAMS, ROOT, Command, File, read_page, steps_of
from tests.docs.parsing import check_mention, parse
from tests.docs.shell import Desk
from tests.pipelines.commands import pictures

OWN_TESTS = {
    "docs/tutorial-your-own-algorithm.md": "test_own_algorithm.py",  # writes into a copy of the product
    "docs/faq.md": "test_faq.py",  # breaks things
}
PATHS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = {str(path.relative_to(ROOT)): read_page(path) for path in PATHS}
LISTED = PAGES | {str(path.relative_to(ROOT)): read_page(path) for path in sorted((ROOT / "docs").glob("*/*.md"))}
RUN = [name for name, page in PAGES.items() if name not in OWN_TESTS and any(one.mark is None for one in page.commands)]
NEED_MORE = {  # what no test of a page can run: Kubeflow Pipelines, a store with keys, hours
    *(f"siloflow {name}" for name in ("submit", "watch", "runs", "logs", "cancel", "silo", "server", "evaluator", "bench")),
    *(f"siloflow store {name}" for name in ("provision", "verify")),
}  # fmt: skip
SPEC = "algorithm: fedavg\nhyper: {epochs: 1}\ndataset: {name: folder, path: photos, image_size: 16}\nrounds: 1\n"
SILOS = "store: s3://store.example:9000/fed\nsilos:\n  - name: hospital-a\n  - name: hospital-b\n"


@pytest.fixture
def desk(tmp_path: Path, cache: Path) -> Desk:
    """What a reader has who comes from another page: images, a spec for them, a description of the silos."""
    pictures(tmp_path / "photos")
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "silos.yaml").write_text(SILOS)
    return Desk(tmp_path, cache)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", RUN)
def test_the_page_can_be_followed(name: str, desk: Desk) -> None:
    if name.startswith("docs/tutorial-"):
        for path in ("spec.yaml", "silos.yaml"):  # a tutorial begins with nothing
            (desk.folder / path).unlink()
        shutil.rmtree(desk.folder / "photos")
    for step in PAGES[name].steps:
        if isinstance(step, File) or (step.mark is None and not is_make(step)):
            desk.follow(step)


def is_make(step: Command) -> bool:
    """Targets set up environments and run all tests, this one among them: they are looked up, not run."""
    return step.text.split()[0] == "make"


@pytest.mark.parametrize("name", LISTED)
def test_what_the_page_names_exists(name: str) -> None:
    for command in LISTED[name].commands:
        for words in command.calls() if command.exit_code != 2 else ():  # the page shows what is wrong with it
            try:
                parse(words)
            except Exception as error:  # of typer, or of the click of older typers
                pytest.fail(f"{command.where}: {command.text}: {error}")
    for mention in LISTED[name].mentions:
        check_mention(mention.text.split()[1:])


@pytest.mark.parametrize("name", PAGES)
def test_targets_and_modules_exist_and_no_command_hides(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:`|^|&& |=\S+ )make ([\w-]+)", text, re.MULTILINE)) <= targets
    assert [module for module in re.findall(r"python -m (\w+(?:\.\w+)+)", text) if find_spec(module) is None] == []
    hidden = [block for block in FENCE.finditer(text) if block["language"] not in ("", "sh", "console")]
    assert not any(line.split(" ")[0] in PROGRAMS for block in hidden for line in block["text"].splitlines())


def test_the_benchmark_of_the_tutorial_is_one(tmp_path: Path) -> None:
    """It takes minutes, so its file is only read."""
    (file,) = (step for step in PAGES["docs/tutorial-your-own-data.md"].steps if isinstance(step, File) and step.name == "compare.yaml")
    (tmp_path / file.name).write_text(file.text)
    work = work_of(read_bench(tmp_path / file.name))
    assert len(work) == 24


def test_every_command_is_run_on_some_page() -> None:
    done = [command for page in PAGES.values() for command in page.commands if command.mark is None and command.exit_code in (0, 6)]
    run = {parse(words) for command in done for words in command.calls()}
    named = set(re.findall(r"^## (siloflow .*)$", (ROOT / "docs" / "cli.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert named - NEED_MORE <= run
    assert not run & NEED_MORE, "it can be run after all"


def test_marks_and_comments_are_told_apart() -> None:
    text = """\
## A heading

```sh
siloflow doctor                 # looks
siloflow submit a.yaml          # needs a cluster: uploads
siloflow run --set 'a=#1'
# takes minutes
siloflow run
siloflow report runs/...
```
"""
    found = list(steps_of(next(iter(FENCE.finditer(text))), text.partition("```")[0], "here"))
    assert [(one.text, one.mark) for one in found if isinstance(one, Command)] == [
        ("siloflow doctor", None),
        ("siloflow submit a.yaml", "needs a cluster"),
        ("siloflow run --set 'a=#1'", None),
        ("siloflow run", "takes minutes"),
        ("siloflow report runs/...", "takes minutes"),
    ]


def test_a_name_that_does_not_exist_is_noticed() -> None:
    for words in (["rum"], ["run", "--rounds", "3"], ["data", "chek"], ["store", "verify", "silos.yaml"], ["run", "--workers", "none"]):
        with pytest.raises(Exception, match=r"(?i)no such|missing|valid"):
            parse(words)
    with pytest.raises(AssertionError):
        check_mention(shlex.split("run --rounds"))
