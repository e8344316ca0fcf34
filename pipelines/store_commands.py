"""`siloflow store`: sets up the exchange store of a federation, or says how."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SilosArgument = Annotated[Path, typer.Argument(metavar="SILOS", help="The federation's silos.yaml.")]

store_app = typer.Typer(help="Set up the exchange store of a federation.", rich_markup_mode=None, no_args_is_help=True)


@store_app.command()
def provision(
    silos: SilosArgument,
    credentials: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the keys, DIR/<role>/{access_key,secret_key}.")],
    rotate: Annotated[list[str] | None, typer.Option(metavar="NAME", help="New keys for this silo or role. Repeatable.")] = None,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="The keys in DIR win: a role's user with other keys is removed. DIR is only read.")
    ] = False,
) -> None:
    """Make buckets, users, keys and policies on a MinIO server. Safe to repeat: what is there is kept.

    Its administrator's keys come from the environment, or from SILOFLOW_CREDENTIALS/admin.
    """
    from rich.table import Table
    from rich.text import Text

    from components.store.provision import UNCHANGED, provision
    from pipelines.console import screen
    from pipelines.silos import read_silos

    file = read_silos(silos)
    changes = provision(file.store, file.names, credentials, rotate or (), adopt)
    table = Table.grid(padding=(0, 3))
    for change in changes:
        style = "dim" if change.state == UNCHANGED else "green"
        table.add_row(Text(change.kind, style="dim"), change.name, Text(change.state, style=style))
    screen(stderr=False).print(table)
    typer.echo(f"keys are in {credentials}, a folder for each role; give a silo its own and no other", err=True)


@store_app.command()
def verify(
    silos: SilosArgument,
    credentials: Annotated[Path, typer.Option(metavar="DIR", help="Folder with the keys, DIR/<role>/{access_key,secret_key}.")],
    role: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Try only as this silo or role. Repeatable.")] = None,
) -> None:
    """Try what every role may and may not do, with its own keys, and fail if the store allows or denies what it should not."""
    from rich.table import Table
    from rich.text import Text

    from components.store.policies import RIGHTS
    from components.store.verify import refuse_wrong, verify
    from pipelines.console import screen
    from pipelines.silos import read_silos

    file = read_silos(silos)
    cells = verify(file.store, file.names, credentials, role or ())
    by_row: dict[tuple[str, str], dict[str, Text]] = {}
    for cell in cells:
        shown = ("yes" if cell.found else "-") + (" WRONG" if cell.wrong else "")
        by_row.setdefault((cell.role, str(cell.place)), {})[cell.right] = Text(shown, style="bold red" if cell.wrong else "")
    table = Table("role", "place", *RIGHTS, box=None, pad_edge=False)
    for (name, place), found in sorted(by_row.items()):
        table.add_row(name, place, *(found[right] for right in RIGHTS))
    screen(stderr=False).print(table)
    refuse_wrong(file.store, cells)
    typer.echo(f"all {len(cells)} tries ended as they must", err=True)


@store_app.command()
def policies(silos: SilosArgument, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Print buckets and IAM policies for any other S3."""
    import json

    from components import layout
    from components.store.access import parse_address
    from components.store.policies import check_names, policy, roles
    from pipelines.silos import read_silos

    file = read_silos(silos)
    address = parse_address(file.store)
    check_names(address, file.names)
    names = [address.bucket_name(bucket) for bucket in layout.buckets(file.names)]
    by_role = {role: policy(address, role, file.names) for role in roles(file.names)}
    if as_json:
        typer.echo(json.dumps({"buckets": names, "policies": by_role}))
        return
    typer.echo("\n".join(["buckets:", *(f"  {name}" for name in names)]))
    for role, document in by_role.items():
        typer.echo(f"\npolicy of {role}:\n{json.dumps(document, indent=2)}")
