"""What only the folder store does."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from components.errors import StoreError
from components.store import open_store


def test_layout_and_no_copy(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "with space"))
    store.prepare(["global"])
    store.put("global", "runs/r/manifest.json", [b"{}"])
    path = tmp_path / "with space" / "global" / "runs" / "r" / "manifest.json"
    assert path.read_bytes() == b"{}"
    found = store.fetch("global", "runs/r/manifest.json", limit=10)
    assert found is not None
    with found:
        assert found.path == path
    assert path.exists()
    assert open_store(store.url).get("global", "runs/r/manifest.json") == b"{}"


def test_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = open_store(f"file://{tmp_path}/file/store")
    with pytest.raises(StoreError) as error:
        store.prepare(["global"])
    assert f"file://{tmp_path}/file/store: prepare global failed: " in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(StoreError, match="global"):
        store.put("global", "key", [b"x"])


def test_failed_write_keeps_the_object_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path))
    store.prepare(["global"])
    store.put("global", "key", [b"old"])

    def disk_full(descriptor: int, views: list[memoryview]) -> int:
        os.write(descriptor, views[0][:1])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "writev", disk_full)
    with pytest.raises(StoreError, match="put global/key failed: No space left on device; check"):
        store.put("global", "key", [b"new"])
    assert store.get("global", "key") == b"old"
    assert [path.name for path in (tmp_path / "global").iterdir()] == ["key"]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short_write(descriptor: int, views: list[memoryview]) -> int:
        return os.write(descriptor, b"".join(views)[:5])

    monkeypatch.setattr(os, "writev", short_write)
    store = open_store(str(tmp_path))
    store.prepare(["global"])
    store.put("global", "key", [b"abc", b"defg", b"hijklmnopqrst", b"u"])
    assert store.get("global", "key") == b"abcdefghijklmnopqrstu"


def test_everything_is_synced_before_put_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The object's content before its name, then its name, and the name of every folder that was created for it."""
    synced: list[str] = []
    sync = os.fsync

    def recording(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path)))
        sync(descriptor)

    store = open_store(str(tmp_path))
    store.prepare(["global"])
    monkeypatch.setattr(os, "fsync", recording)
    store.put("global", "runs/r/key", [b"x"])
    *folders, content, parent = synced
    assert folders == ["global", "global/runs"]
    assert content.startswith("global/runs/r/.key.")
    assert parent == "global/runs/r"


def test_a_killed_writers_rest_is_no_object(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.prepare(["global"])
    (tmp_path / "global" / ".key.0123456789abcdef").write_bytes(b"half")
    assert store.get("global", "key") is None
    store.put("global", "key", [b"whole"])
    assert store.get("global", "key") == b"whole"
