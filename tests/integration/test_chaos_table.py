"""docs/reliability.md says what was run, and nothing else."""

from __future__ import annotations

from tests.chaos.rows import Row
from tests.chaos.table import document


def test_a_table_of_what_was_run() -> None:
    row = Row("kill", "the server killed", note="file and s3")
    row.attempt(True, 3.0)
    row.attempt(False, 5.0, "digest is a | b")
    text = document({"kill": {"commit": "abc", "rows": [row.as_json()]}}, "make chaos")
    assert "1 of 2 survived, at commit abc." in text
    assert "| the server killed (file and s3) | 2 | 1 | 4.0 | 5.0 | digest is a \\| b |" in text
    assert "Fuzzing" not in text
