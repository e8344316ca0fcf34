"""The commands of `siloflow`. Whatever a command needs is imported inside it: `siloflow --help` must not wait for torch."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from components.errors import InputError, SiloflowError
from pipelines.bench_commands import bench, gate
from pipelines.compile_command import compile_package
from pipelines.data_commands import data_app
from pipelines.kfp_commands import register as register_kfp
from pipelines.report_commands import report as write_report
from pipelines.resident_commands import evaluator, server, silo
from pipelines.store_commands import store_app

SpecFile = Annotated[
    Path | None, typer.Argument(metavar="SPEC", help="A spec in YAML; without one, the embedded example.", show_default=False)
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Set a field of the spec, e.g. hyper.lr=0.01. Repeatable.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; everything else goes to stderr.")]
AtOnce = Annotated[int | None, typer.Option("--workers", min=1, help="Silos that train at once. Changes no digit of the result.")]
MetricsPort = Annotated[
    int | None,
    typer.Option("--metrics-port", min=1, max=65535, envvar="SILOFLOW_METRICS_PORT", help="Serve Prometheus metrics on this port."),
]
Gateway = Annotated[
    str | None, typer.Option("--pushgateway", metavar="URL", envvar="SILOFLOW_PUSHGATEWAY", help="Push the outcome to this Pushgateway.")
]
NoReport = Annotated[bool, typer.Option("--no-report", help="Do not write report.html at the end.")]
Name = Annotated[str | None, typer.Argument(metavar="NAME", help="Describe this one.", show_default=False)]


class OneLineErrors(TyperGroup):
    """Every way a command can end becomes an exit code and at most one line on stderr."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's stop is as orderly as Ctrl-C
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
            sys.stdout.flush()
        except BrokenPipeError:  # the reader of our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 1
        except (KeyboardInterrupt, typer.Abort):
            code = 130
        except SiloflowError as error:
            code = _say(str(error), error.exit_code)
        except Exception as error:
            code = _unexpected(error)
        sys.exit(code if isinstance(code, int) else 0)


def _unexpected(error: Exception) -> int:
    """A wrong option, as typer or the click of older typers reports it, or a defect of ours."""
    describe = getattr(error, "format_message", None)
    if describe is not None:
        return _say(f"{describe()} (see siloflow --help)", getattr(error, "exit_code", 2))
    if os.environ.get("SILOFLOW_DEBUG"):
        traceback.print_exc()
    return _say(f"internal: {type(error).__name__}: {error}; set SILOFLOW_DEBUG=1 for the trace", 1)


def _say(message: str, code: int) -> int:
    typer.secho("error: " + " ".join(message.split("\n")), fg=typer.colors.RED, err=True)
    return code


app = typer.Typer(cls=OneLineErrors, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.add_typer(store_app, name="store")
app.add_typer(data_app, name="data")


@app.callback(invoke_without_command=True)
def siloflow(context: typer.Context) -> None:
    """Train one image model where the data is, for a domain that none of the silos has seen."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


# ---- running


@app.command()
def run(
    spec: SpecFile = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/<time>-<algorithm>-<target>.")] = None,
    as_json: AsJson = False,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Run this algorithm first, to compare with; none: do not. Default: fedavg for the example, else none."
        ),
    ] = None,
    workers: AtOnce = None,
    metrics_port: MetricsPort = None,
    gateway: Gateway = None,
    no_report: NoReport = False,
) -> None:
    """Run a federation on this machine. If the run folder holds this run already, it goes on from there."""
    from components.spec import parse_spec
    from pipelines import comparison
    from pipelines.exporter import Outlets

    values = _values(spec, settings)
    parsed = parse_spec(values)
    name = comparison.choose(baseline, parsed.algorithm, is_example=spec is None)
    compared = comparison.same_federation(values, name) if name is not None else None
    folder = out if out is not None else comparison.default_folder(parsed)
    comparison.federate(values, compared, folder, as_json, workers, Outlets(metrics_port, gateway), not no_report)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Run folder of an earlier `siloflow run`.")],
    as_json: AsJson = False,
    workers: AtOnce = None,
    metrics_port: MetricsPort = None,
    gateway: Gateway = None,
    no_report: NoReport = False,
) -> None:
    """Continue an interrupted run. Of a finished one it prints the result again."""
    from components.spec import read_spec
    from pipelines import comparison
    from pipelines.exporter import Outlets

    stored = folder / "spec.yaml"
    if not stored.is_file():
        raise InputError(f"run folder {folder}: expected the spec.yaml of a run, found none; `siloflow run --out {folder}` starts one")
    compared = comparison.subfolder(folder) / "spec.yaml"
    baseline = read_spec(compared) if compared.is_file() else None
    comparison.federate(read_spec(stored), baseline, folder, as_json, workers, Outlets(metrics_port, gateway), not no_report)


app.command("report")(write_report)
for measured in (bench, gate):
    app.command()(measured)


# ---- specs


@app.command()
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")] = Path("spec.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a commented example spec."""
    from pipelines.example import EXAMPLE, commented

    try:
        with file.open("w" if force else "x", encoding="utf-8") as opened:
            opened.write(commented(EXAMPLE))
    except FileExistsError:
        raise InputError(f"{file}: exists already; choose another name, or --force to overwrite it") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror}); choose another name") from None
    typer.echo(f"wrote {file}; run it with: siloflow run {file}", err=True)


@app.command("spec")
def show_spec(
    spec: SpecFile = None,
    settings: Settings = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of a spec.")] = False,
    digest: Annotated[bool, typer.Option("--digest", help="Print the digest of the resolved spec.")] = False,
    backbones: Annotated[bool, typer.Option("--backbones", help="List the networks.")] = False,
) -> None:
    """Check a spec and print it with every default filled in."""
    import json

    import yaml

    from components.spec import FederationSpec, parse_spec

    if schema:
        typer.echo(json.dumps(FederationSpec.model_json_schema(), indent=2))
        return
    if backbones:
        from fl_algorithms.models import MODELS
        from pipelines.catalogue import list_names
        from pipelines.console import screen

        list_names(screen(stderr=False), [(name, info.summary) for name, info in MODELS.items()])
        return
    from components.federation import resolve

    resolved = resolve(parse_spec(_values(spec, settings)))
    typer.echo(resolved.digest() if digest else yaml.safe_dump(resolved.model_dump(mode="json"), sort_keys=False).rstrip())


# ---- what there is


@app.command()
def algorithms(name: Name = None) -> None:
    """List the algorithms, or describe one. Shows its paper, what leaves the silo, and its hyper-parameters."""
    from pipelines import catalogue
    from pipelines.console import screen

    if name is None:
        catalogue.list_names(screen(stderr=False), [(name, entry.summary) for name, entry in catalogue.ALGORITHMS.items()])
    else:
        catalogue.describe_algorithm(screen(stderr=False), name)


@app.command()
def datasets(name: Name = None) -> None:
    """List the data sets, or describe one. Shows its options, domains and classes."""
    from pipelines import catalogue
    from pipelines.console import screen

    if name is None:
        catalogue.list_names(screen(stderr=False), [(info.name, info.summary) for info in catalogue.DATASETS.values()])
    else:
        catalogue.describe_dataset(screen(stderr=False), name)


@app.command()
def doctor(spec: SpecFile = None, settings: Settings = None, as_json: AsJson = False) -> None:
    """Check what a run needs and say what to fix. Looks at this machine, the store, the data and the weights."""
    from pipelines.console import screen
    from pipelines.doctor import examine, report

    checks = examine(_values(spec, settings))
    raise typer.Exit(report(screen(stderr=False), checks, as_json))


# ---- on Kubeflow Pipelines

app.command("compile")(compile_package)
register_kfp(app)
for role in (silo, server, evaluator):
    app.command()(role)


def _values(spec: Path | None, settings: list[str] | None) -> dict[str, Any]:
    from components.spec import apply_overrides, read_spec
    from pipelines.example import EXAMPLE

    return apply_overrides(read_spec(spec) if spec is not None else EXAMPLE, settings or [])
