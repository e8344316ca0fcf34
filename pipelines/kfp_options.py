"""The options that say where Kubeflow Pipelines is, the same for every command that talks to it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer


@dataclass(frozen=True)
class Access:
    """What the options say; the rest is found by `kfp_host.connect`."""

    host: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="API of Kubeflow Pipelines. Default: KF_PIPELINES_ENDPOINT, this pod's cluster, or by KUBECONFIG."
        ),
    ] = None
    token: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Bearer token. Others on this machine can see it: prefer --token-file.")
    ] = None
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with a bearer token. Default: KF_PIPELINES_SA_TOKEN_PATH.")
    ] = None
    ca: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate of the CA that signed the server's.")] = None
    namespace: Annotated[str | None, typer.Option(metavar="NAME", help="Where the runs are, on a server with many users.")] = None
    kfp_namespace: Annotated[str, typer.Option(metavar="NAME", help="Where Kubeflow Pipelines is installed, for use without --host.")] = (
        "kubeflow"
    )


def with_access(command: Callable[..., None]) -> Callable[..., None]:
    """The command, whose first parameter is an `Access`, with these options in its place."""
    hints = get_type_hints(command, include_extras=True)
    _, *own = inspect.signature(command).parameters.values()
    options = get_type_hints(Access, include_extras=True)

    @functools.wraps(command)
    def call(**given: Any) -> None:
        command(Access(**{name: given.pop(name) for name in options}), **given)

    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(Access, name), annotation=options[name]) for name in options
    ]
    kept = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name]) for one in own]
    call.__signature__ = inspect.Signature([*kept, *added])  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in (*kept, *added)}
    return call
