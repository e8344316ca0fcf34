"""The table of docs/permissions.md, from the data that the policies are made of, and a way to try a role on a real server.

`python -m tests.permissions` writes the table into the page again.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import urllib3
from minio import Minio
from minio.error import S3Error

from components.layout import EVALUATOR, GLOBAL, INBOX, SERVER, silo_bucket
from components.store.policies import grants

PAGE = Path(__file__).parents[1] / "docs" / "permissions.md"
BEGIN, END = "<!-- python -m tests.permissions -->\n", "<!-- end -->\n"
SILOS = ("a", "b")
ROLES = ("a", SERVER, EVALUATOR)
PLACES = [
    (GLOBAL, ""),
    (EVALUATOR, ""),
    *((silo_bucket(silo), folder) for silo in SILOS for folder in ("", INBOX)),
]
ACTIONS = {  # and the right that each needs; None: nobody has it
    "list": "list",
    "get": "get",
    "presigned get": "get",
    "put": "put",
    "overwrite": "put",
    "multipart": "put",
    "presigned put": "put",
    "delete": "delete",
    "create bucket": None,
    "delete bucket": None,
    "change policy": None,
}
MULTIPART = 5 * 2**20  # the smallest part S3 allows


def rights(role: str, bucket: str, folder: str) -> set[str]:
    """What the product's table grants there."""
    return {right for grant in grants(role, SILOS) if grant.bucket == bucket and grant.folder in ("", folder) for right in grant.rights}


def actions(granted: set[str]) -> dict[str, bool]:
    return {action: right in granted for action, right in ACTIONS.items()}


def table() -> str:
    lines = [f"| role | bucket | {' | '.join(ACTIONS)} |", "|---|---" + "|:-:" * len(ACTIONS) + "|"]
    for role in ROLES:
        for bucket, folder in PLACES:
            cells = ["yes" if allowed else "-" for allowed in actions(rights(role, bucket, folder)).values()]
            name = role if role in (SERVER, EVALUATOR) else f"silo {role}"
            lines.append(f"| {name} | `{'/'.join(filter(None, [bucket, folder]))}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    before, rest = page.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


def observed(client: Minio, root: Minio, bucket: str, folder: str) -> dict[str, bool]:
    """Every action, tried for real; `root` puts an object there before each and cleans up."""
    key, new = "/".join(filter(None, [folder, "object"])), "/".join(filter(None, [folder, "new"]))
    tries: dict[str, Callable[[], Any]] = {
        "list": lambda: list(client.list_objects(bucket, prefix=folder)),
        "get": lambda: client.get_object(bucket, key).read(),
        "presigned get": lambda: _open_link(client, "GET", bucket, key),
        "put": lambda: client.put_object(bucket, new, io.BytesIO(b"put"), 3),
        "overwrite": lambda: client.put_object(bucket, key, io.BytesIO(b"other"), 5),
        "multipart": lambda: client.put_object(bucket, new, io.BytesIO(bytes(MULTIPART + 1)), MULTIPART + 1, part_size=MULTIPART),
        "presigned put": lambda: _open_link(client, "PUT", bucket, new),
        "delete": lambda: client.remove_object(bucket, key),
        "create bucket": lambda: client.make_bucket(f"{bucket}-more"),
        "delete bucket": lambda: client.remove_bucket(bucket),
        "change policy": lambda: client.set_bucket_policy(bucket, _public(bucket)),
    }
    found = {}
    for action, attempt in tries.items():
        root.put_object(bucket, key, io.BytesIO(b"object"), 6)
        root.remove_object(bucket, new)
        try:
            attempt()
            found[action] = True
        except S3Error as error:
            found[action] = error.code != "AccessDenied"  # a bucket that is not empty was refused for another reason
        if not found[action]:
            assert root.get_object(bucket, key).read() == b"object", action
    return found


def _public(bucket: str) -> str:
    everybody = {"Effect": "Allow", "Principal": {"AWS": ["*"]}, "Action": ["s3:GetObject"], "Resource": [f"arn:aws:s3:::{bucket}/*"]}
    return json.dumps({"Version": "2012-10-17", "Statement": [everybody]})


def _open_link(client: Minio, method: str, bucket: str, key: str) -> None:
    """Opened by somebody without keys."""
    response = urllib3.request(method, client.get_presigned_url(method, bucket, key), body=b"put" if method == "PUT" else None)
    if response.status != 200:
        code = "AccessDenied" if b"<Code>AccessDenied</Code>" in response.data else str(response.status)
        raise S3Error(response, code, None, None, None, None, bucket, key)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
