"""`siloflow compile`: a package for Kubeflow Pipelines from silos.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compile_package(
    silos: Annotated[Path, typer.Argument(metavar="SILOS", help="The federation's silos.yaml.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where to write the package.")] = Path("siloflow.yaml"),
    pipeline: Annotated[str, typer.Option(help="stepwise: see every round; resident: many rounds; benchmark; nightly.")] = "stepwise",
    spec: Annotated[Path | None, typer.Option(metavar="FILE", help="Spec for the run form's defaults; none: the example.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Set a field of it. Repeatable.")] = None,
    server: Annotated[str, typer.Option(help="Oldest server it must run on: 2.14, or 2.17 for drop-downs and sub paths.")] = "2.14",
    manifest: Annotated[bool, typer.Option("--kubernetes-manifest", help="Write Pipeline and PipelineVersion resources instead.")] = False,
    namespace: Annotated[str | None, typer.Option(help="Namespace of these resources.")] = None,
) -> None:
    """Make a pipeline package from silos.yaml. The same input gives the same bytes."""
    from components.errors import InputError
    from components.spec import apply_overrides, read_spec
    from components.store.file import write_file
    from pipelines.compile import as_manifests, as_yaml, compiled
    from pipelines.example import EXAMPLE
    from pipelines.silos import read_silos

    if pipeline == "nightly" and (spec is not None or settings):
        given = "--spec" if spec is not None else "--set"
        raise InputError(f"{given}: expected none with --pipeline nightly, whose form has no spec; `siloflow submit --set benchmark=...`")
    file = read_silos(silos)
    values = apply_overrides(read_spec(spec) if spec is not None else EXAMPLE, settings or [])
    documents = compiled(file, values, pipeline, server)
    package = as_yaml(as_manifests(documents, namespace) if manifest else documents)
    try:
        write_file(out, [package.encode()])
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror}); choose another name") from None
    what = f"siloflow-{pipeline} for {len(file.silos)} silos, {len(package) // 1024} KB"
    typer.echo(f"wrote {out}: {what}; run it with: siloflow submit {out}", err=True)
