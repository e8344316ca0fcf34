"""`siloflow data`: look at a data set before a federation trains on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from components.errors import InputError

if TYPE_CHECKING:
    from components.spec import DataSpec
    from fl_algorithms.data import DataSet
    from fl_algorithms.data.inspection import Inspection

Where = Annotated[
    Path | None,
    typer.Argument(
        metavar="PATH", help="A folder of domain/class/file, a CSV of path,label,domain, or a spec in YAML.", show_default=False
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="E.g. dataset=pacs or dataset.image_size=128. Repeatable.")
]
Domains = Annotated[
    list[str] | None, typer.Option("--domain", metavar="NAME", help="Only this domain, as a silo has only its own. Repeatable.")
]

data_app = typer.Typer(help="Check, prepare or look at the images of a data set.", rich_markup_mode=None, no_args_is_help=True)


@data_app.command()
def check(path: Where = None, settings: Settings = None, domain: Domains = None) -> None:
    """Count the images of every domain and class, and list all that is wrong with them. Exit code 2: not usable as it is."""
    from fl_algorithms.data.inspection import inspect
    from pipelines.console import screen

    spec, data = _open(path, settings)
    chosen = _chosen(data, domain)
    with _bar("checking") as advance:
        found = inspect(data, chosen, spec.on_broken == "skip", advance)
    _show(spec, data, found)
    if not found.usable:
        errors = [finding.text for finding in found.findings if finding.severity == "error"]
        more = f" (and {len(errors) - 1} more, listed above)" if len(errors) > 1 else ""
        raise InputError(errors[0] + more)
    screen(stderr=False).print("usable", style="green")


@data_app.command()
def prepare(path: Where = None, settings: Settings = None, domain: Domains = None) -> None:
    """Decode the images once, into the cache that all runs on this machine share. After Ctrl-C it goes on where it was."""
    from rich.table import Table
    from rich.text import Text

    from fl_algorithms.data.cache import cache_root
    from fl_algorithms.errors import Unusable
    from pipelines.console import screen

    _, data = _open(path, settings)
    table, problems = Table.grid(padding=(0, 3)), []
    for name in _chosen(data, domain):
        try:
            with _bar(name) as advance:
                images = data.domain(name, advance)
        except Unusable as error:
            problems.append(str(error))
            table.add_row(name, Text("not decoded", style="bold red"))
            continue
        left_out = Text(f"{len(images.skipped)} left out" if images.skipped else "", style="yellow")
        table.add_row(name, f"{len(images):,} images", f"{images.pixels.nbytes / 1e6:,.0f} MB", left_out)
        for skipped in images.skipped:
            table.add_row("", Text(skipped, style="yellow"))
    console = screen(stderr=False)
    console.print(table)
    if problems:
        raise InputError(problems[0] + "; `siloflow data check` lists all")
    console.print(f"ready in {cache_root()}", style="dim", soft_wrap=True)


@data_app.command()
def preview(
    path: Where = None,
    settings: Settings = None,
    domain: Domains = None,
    out: Annotated[Path, typer.Option(help="PNG to write.")] = Path("preview.png"),
    per_class: Annotated[int, typer.Option(min=1, max=50, help="Images of each class and domain.")] = 4,
    side: Annotated[int, typer.Option(min=16, max=512, help="Pixels of each image.")] = 64,
) -> None:
    """Draw a contact sheet: a row for each class, a column for each domain."""
    from fl_algorithms.data.contact_sheet import contact_sheet
    from fl_algorithms.errors import Unusable

    _, data = _open(path, settings)
    try:
        sheet = contact_sheet(data, _chosen(data, domain), per_class, side)
        sheet.save(out, "PNG")
    except Unusable as error:
        raise InputError(str(error)) from None
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror or error}); choose another --out") from None
    typer.echo(f"wrote {out}, {sheet.width} x {sheet.height} pixels", err=True)


# ---- which data set


def _open(path: Path | None, settings: list[str] | None) -> tuple[DataSpec, DataSet]:
    from components.spec import apply_overrides, parse_spec, read_spec
    from fl_algorithms.data import open_dataset
    from fl_algorithms.errors import Unusable

    is_spec = path is not None and path.suffix in (".yaml", ".yml")
    values: dict[str, Any] = read_spec(path) if path is not None and is_spec else {}
    if path is not None and not is_spec:
        values = {"dataset": {"name": "csv" if path.suffix == ".csv" else "folder", "path": str(path)}}
    named = apply_overrides(values, settings or [])
    if not named.get("dataset"):
        raise InputError("PATH: expected a folder, a CSV, a spec or --set dataset=NAME, found none; `siloflow datasets` lists the names")
    if isinstance(named["dataset"], str):
        named["dataset"] = {"name": named["dataset"]}
    if path is not None and not is_spec:  # `PATH --set dataset=pacs`: the name is new, the path stays
        named["dataset"].setdefault("path", str(path))
    spec = parse_spec(named).dataset
    try:
        return spec, open_dataset(spec.name, spec.path, spec.image_size, spec.on_broken, spec.protocol, spec.lists)
    except Unusable as error:
        raise InputError(str(error)) from None


def _chosen(data: DataSet, names: list[str] | None) -> Sequence[str]:
    from components.spec import nearest

    for name in names or ():
        if name not in data.domains:
            raise InputError(f"--domain {name}: {nearest(name, data.domains)}")
    return names or data.domains


# ---- showing


class _bar:
    """A progress bar on a terminal, nothing elsewhere. Gives a function to call with what is done and the total."""

    def __init__(self, title: str) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from pipelines.console import screen

        console = screen(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task(title, total=None)

    def __enter__(self) -> Callable[[int, int], None]:
        self._progress.start()
        return lambda done, total: self._progress.update(self._task, completed=done, total=total)

    def __exit__(self, *ended: object) -> None:
        self._progress.stop()


def _show(spec: DataSpec, data: DataSet, found: Inspection) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from pipelines.console import screen

    console = screen(stderr=False)
    images = sum(int(counts.sum()) for counts in found.counts.values())
    where = f" in {spec.path}" if spec.path else ""
    domains = "1 domain" if len(found.counts) == 1 else f"{len(found.counts)} domains"
    console.print(f"{data.name}{where}: {images:,} images, {domains}, {len(data.classes)} classes", soft_wrap=True)
    table = Table(box=SIMPLE_HEAD)
    table.add_column("class")
    for domain in found.counts:
        table.add_column(domain, justify="right")
    for label, name in enumerate(data.classes):
        numbers = [int(counts[label]) for counts in found.counts.values()]
        table.add_row(name, *(Text(f"{number:,}", style="" if number else "yellow") for number in numbers))
    table.add_section()
    table.add_row("all", *(f"{counts.sum():,}" for counts in found.counts.values()), style="bold")
    if found.held_out:
        table.add_row("held out by its lists", *(f"{found.held_out.get(domain, 0):,}" for domain in found.counts), style="dim")
    if found.counts:
        console.print(table)
    for finding in found.findings:
        style = "red" if finding.severity == "error" else "yellow"
        console.print(Text.assemble((f"{finding.severity}: ", style), finding.text), soft_wrap=True)
