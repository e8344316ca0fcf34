"""Who may do what where in an s3 store: the one truth behind the policies, the provisioning and docs/permissions.md.

Every silo is listed by name. A `*` in place of it would also match a `/`: what allows `fed-silo-*/inbox/*` allows
`fed-silo-a/runs/inbox/...` too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from components.errors import InputError
from components.layout import EVALUATOR, GLOBAL, INBOX, SERVER, author_bucket, buckets, silo_bucket
from components.store.access import Address

# S3 knows no difference between writing, overwriting and uploading in parts, nor between a signed and a presigned request.
RIGHTS = {
    "list": ("s3:GetBucketLocation", "s3:ListBucket"),
    "get": ("s3:GetObject",),
    "put": ("s3:AbortMultipartUpload", "s3:PutObject"),
    "delete": ("s3:DeleteObject",),
}
_READ, _WRITE = ("list", "get"), ("put", "delete")
_OF_BUCKETS = ("list",)  # the other rights are about objects


class Grant(NamedTuple):
    bucket: str
    folder: str  # inside the bucket; empty: all of it
    rights: tuple[str, ...]


def roles(silos: Sequence[str]) -> list[str]:
    """Everybody who has keys of its own. A silo's role is its name."""
    return [SERVER, EVALUATOR, *silos]


def grants(role: str, silos: Sequence[str]) -> list[Grant]:
    """All that the role may do; whatever is not here is denied."""
    if role != SERVER:
        return [Grant(author_bucket(role), "", _READ + _WRITE), Grant(GLOBAL, "", _READ)]
    readable = [Grant(bucket, "", _READ) for bucket in buckets(silos)]
    inboxes = [Grant(silo_bucket(silo), INBOX, _WRITE) for silo in silos]
    return [*readable, Grant(GLOBAL, "", _WRITE), *inboxes]


def policy(address: Address, role: str, silos: Sequence[str]) -> dict[str, Any]:
    """The role's grants as an IAM policy, one statement for each right."""
    statements = []
    for right, actions in RIGHTS.items():
        granted = [grant for grant in grants(role, silos) if right in grant.rights]
        resources = sorted(_resource(address, grant, right) for grant in granted)
        statements.append({"Sid": right.title(), "Effect": "Allow", "Action": list(actions), "Resource": resources})
    return {"Version": "2012-10-17", "Statement": statements}


def _resource(address: Address, grant: Grant, right: str) -> str:
    bucket = f"arn:aws:s3:::{address.bucket_name(grant.bucket)}"
    return bucket if right in _OF_BUCKETS else "/".join(filter(None, [bucket, grant.folder, "*"]))


def policy_name(address: Address, role: str) -> str:
    """Also what the access keys begin with that provisioning makes up."""
    return address.bucket_name(role if role == SERVER else author_bucket(role))


def check_names(address: Address, silos: Sequence[str]) -> None:
    """S3 must be able to hold the buckets, and those of `fed-silo` could be those of a silo of `fed`."""
    for bucket in buckets(silos):
        address.bucket_name(bucket)
    if re.search(r"-silo(-|$)", address.prefix):
        raise InputError(
            f"store {address.url}: expected a prefix without '-silo' in it, found {address.prefix!r}, whose buckets "
            "could be a silo's of another federation; choose another prefix"
        )
