"""The policies say what the table says, and the documentation prints that table."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from components.errors import InputError
from components.store.access import parse_address
from components.store.policies import RIGHTS, check_names, policy, policy_name, roles
from tests.permissions import PAGE, PLACES, ROLES, SILOS, rights, with_table

FED = parse_address("s3://store.example/fed")


def evaluated(role: str, action: str, resource: str) -> bool:
    """The few rules of IAM that the policies use: any statement may allow, `*` matches everything, slashes too."""
    return any(
        action in statement["Action"] and any(fnmatchcase(resource, pattern) for pattern in statement["Resource"])
        for statement in policy(FED, role, SILOS)["Statement"]
    )


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("bucket", "folder"), PLACES)
def test_a_policy_is_its_row_of_the_table(role: str, bucket: str, folder: str) -> None:
    arn = f"arn:aws:s3:::fed-{bucket}"
    for right, names in RIGHTS.items():
        resource = arn if right == "list" else "/".join(filter(None, [arn, folder, "runs/r/x"]))
        for action in names:
            assert evaluated(role, action, resource) == (right in rights(role, bucket, folder)), (action, resource)


def test_a_run_called_inbox_opens_no_door() -> None:
    """`*` matches slashes: a pattern for all silos' inboxes would match this key of an update."""
    assert evaluated("server", "s3:PutObject", "arn:aws:s3:::fed-silo-a/inbox/runs/r/x")
    assert not evaluated("server", "s3:PutObject", "arn:aws:s3:::fed-silo-a/runs/inbox/rounds/1/train/update.json")


def test_names_of_two_federations_never_meet() -> None:
    names = {policy_name(FED, role) for role in roles(SILOS)}
    assert names == {"fed-server", "fed-evaluator", "fed-silo-a", "fed-silo-b"}
    for prefix in ("fed-silo", "fed-silo-a"):
        with pytest.raises(InputError, match="without '-silo' in it"):
            check_names(parse_address(f"s3://store.example/{prefix}"), SILOS)
    check_names(parse_address("s3://store.example/silo-silos"), SILOS)


def test_a_bucket_that_s3_cannot_hold() -> None:
    with pytest.raises(InputError, match="3 to 63 of a-z 0-9 -"):
        policy(FED, "s" * 63, ["s" * 63])


def test_the_page_is_current() -> None:
    page = PAGE.read_text()
    assert with_table(page) == page, "run: python -m tests.permissions"
