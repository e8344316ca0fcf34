"""One contract, two stores: every test that takes `store` runs on a folder and on a real MinIO server."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from components.errors import InputError, StoreError
from components.store import ObjectTooLarge, Store, open_store

MODEL_BYTES = 40_000_000
BAD_KEYS = ["", "/etc/passwd", "a//b", "a/", "../silo-b/key", "a/../../b", "a/./b", ".hidden", "a/.b", "a\\b", "a b"]
BAD_KEYS += ["a\nb", "key\n", "a\0b", "a?b", "ä", "x" * 201, "ab/" * 400 + "c"]
BAD_ADDRESSES = ["", "http://host/x", "file://host/dir", "file:relative://x", "s3://", "s3://host", "s3:///prefix"]
BAD_ADDRESSES += ["s3://host/a/b", "s3://host/Upper", "s3://host:0/p", "s3://host:x/p", "s3://[::1/p", "s3://host/p#f"]
BAD_ADDRESSES += ["s3://host/p?tls=yes", "s3://host/p?region=a b"]


@pytest.fixture(params=["file", "s3"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Opens the same empty store again and again, as every process of a run does."""
    if request.param == "file":
        return lambda: open_store(f"file://{tmp_path}/store")
    url: str = request.getfixturevalue("s3_url")
    return lambda: open_store(url)


@pytest.fixture
def store(opened: Callable[[], Store]) -> Store:
    store = opened()
    store.prepare(["global", "silo-a"])
    return store


def one_line(error: pytest.ExceptionInfo[StoreError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    assert error.value.exit_code == 4
    return message


def fetched(store: Store, bucket: str, key: str) -> bytes | None:
    found = store.fetch(bucket, key, limit=2 * MODEL_BYTES)
    if found is None:
        return None
    with found:
        content = found.path.read_bytes()
        assert found.size == len(content)
        return content


def test_round_trip_through_a_store_opened_anew(opened: Callable[[], Store], store: Store) -> None:
    store.put("silo-a", "runs/r1/rounds/0/train/update", [b"abc", memoryview(b"defg")[1:3]])
    reader = opened()
    assert reader.get("silo-a", "runs/r1/rounds/0/train/update") == b"abcef"
    assert fetched(reader, "silo-a", "runs/r1/rounds/0/train/update") == b"abcef"
    assert reader.size("silo-a", "runs/r1/rounds/0/train/update") == 5


@pytest.mark.parametrize("chunks", [[], [b""], [b"", memoryview(b"")]])
def test_empty_object(store: Store, chunks: list[bytes | memoryview]) -> None:
    store.put("global", "empty", chunks)
    assert store.get("global", "empty") == b""
    assert fetched(store, "global", "empty") == b""
    assert store.size("global", "empty") == 0


def test_more_chunks_than_one_system_call_takes(store: Store) -> None:
    chunks = [b"%d," % number for number in range(3 * os.sysconf("SC_IOV_MAX") + 7)]
    store.put("global", "many", chunks)
    assert store.get("global", "many") == b"".join(chunks)


def test_chunks_of_any_item_type_are_stored_as_their_bytes(store: Store) -> None:
    integers = memoryview(bytes(range(24))).cast("q")
    store.put("global", "typed", [integers, memoryview(bytes(range(8))).cast("B", (2, 4))])
    assert store.get("global", "typed") == bytes(range(24)) + bytes(range(8))


def test_a_model(store: Store) -> None:
    content = os.urandom(MODEL_BYTES)
    view = memoryview(content)
    bounds = [0, 1, 5_000_000, 16 * 2**20, 16 * 2**20 + 1, MODEL_BYTES]
    chunks = [view[start:end] for start, end in itertools.pairwise(bounds)]
    store.put("silo-a", "model", chunks)
    assert store.size("silo-a", "model") == MODEL_BYTES
    assert fetched(store, "silo-a", "model") == content


def test_put_replaces(store: Store) -> None:
    store.put("global", "key", [b"first, and longer"])
    store.put("global", "key", [b"second"])
    assert store.get("global", "key") == b"second"


def test_absent_is_none(store: Store) -> None:
    store.put("global", "present", [b"x"])
    for key in ("absent", "present/below"):
        assert store.get("global", key) is None
        assert store.fetch("global", key, limit=10) is None
        assert store.size("global", key) is None


def test_delete_is_idempotent_and_takes_one_object(store: Store) -> None:
    store.put("global", "a/key", [b"x"])
    store.put("global", "a/other", [b"y"])
    store.delete("global", "a/key")
    store.delete("global", "a/key")
    store.delete("global", "never/was")
    assert store.get("global", "a/key") is None
    assert store.get("global", "a/other") == b"y"


def test_the_limit_is_the_largest_size_read(store: Store) -> None:
    store.put("global", "key", [b"12345"])
    assert store.get("global", "key", limit=5) == b"12345"
    with pytest.raises(ObjectTooLarge, match="global/key: expected at most 4 bytes, found 5"):
        store.get("global", "key", limit=4)
    with pytest.raises(ObjectTooLarge) as refusal:
        store.fetch("global", "key", limit=4)
    assert (refusal.value.size, refusal.value.limit) == (5, 4)
    assert store.get("global", "key") == b"12345"


def test_buckets_are_apart(store: Store) -> None:
    store.put("global", "key", [b"for all"])
    store.put("silo-a", "key", [b"of a"])
    assert (store.get("global", "key"), store.get("silo-a", "key")) == (b"for all", b"of a")


def test_prepare_twice_keeps_what_is_there(store: Store) -> None:
    store.put("global", "key", [b"x"])
    store.prepare(["global", "silo-b"])
    assert store.get("global", "key") == b"x"
    assert store.get("silo-b", "key") is None


def test_unprepared_bucket_is_named_not_taken_for_absent(store: Store) -> None:
    operations: list[Callable[[], object]] = [
        lambda: store.put("silo-z", "key", [b"x"]),
        lambda: store.put("silo-z", "model", [bytes(17 * 2**20)]),
        lambda: store.get("silo-z", "key"),
        lambda: store.fetch("silo-z", "key", limit=10),
        lambda: store.size("silo-z", "key"),
        lambda: store.delete("silo-z", "key"),
    ]
    for operation in operations:
        with pytest.raises(StoreError) as error:
            operation()
        assert "silo-z" in one_line(error)
        assert "prepare" in str(error.value)
    assert store.retries == 0


@pytest.mark.parametrize("key", BAD_KEYS)
def test_key_tricks_are_refused(store: Store, key: str) -> None:
    operations: list[Callable[[], object]] = [
        lambda: store.put("global", key, [b"x"]),
        lambda: store.get("global", key),
        lambda: store.fetch("global", key, limit=10),
        lambda: store.size("global", key),
        lambda: store.delete("global", key),
    ]
    for operation in operations:
        with pytest.raises(InputError, match=r"^key "):
            operation()


@pytest.mark.parametrize("bucket", ["", ".", "..", "../x", "a/b", "/abs", "a\n", "x" * 201])
def test_bucket_tricks_are_refused(store: Store, bucket: str) -> None:
    with pytest.raises(InputError, match=r"^bucket "):
        store.put(bucket, "key", [b"x"])
    with pytest.raises(InputError, match=r"^bucket "):
        store.prepare([bucket])


def test_readers_see_whole_objects_while_writers_race(opened: Callable[[], Store], store: Store) -> None:
    """Four writers, one key: whatever a reader gets was written by one of them, in full."""
    size = 300_000
    versions = {bytes([letter]) * size for letter in b"abcd"}
    store.put("global", "contested", [min(versions)])
    failures: list[BaseException] = []
    done = threading.Event()

    def write(content: bytes) -> None:
        try:
            mine = opened()
            for _ in range(8):
                mine.put("global", "contested", [content[: size // 2], content[size // 2 :]])
        except BaseException as error:
            failures.append(error)

    def read() -> None:
        try:
            mine = opened()
            while not done.is_set():
                assert mine.get("global", "contested") in versions
                assert fetched(mine, "global", "contested") in versions
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(content,)) for content in versions]
    reader = threading.Thread(target=read)
    for thread in [reader, *writers]:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert not failures
    assert store.get("global", "contested") in versions


@pytest.mark.parametrize("url", BAD_ADDRESSES)
def test_addresses_that_are_no_store(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILOFLOW_ACCESS_KEY", "somebody")
    monkeypatch.setenv("SILOFLOW_SECRET_KEY", "something")
    with pytest.raises(InputError, match=r"^store") as error:
        open_store(url)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("url", ["s3://me:canary@host/p", "s3://host/p?secret_key=canary", "ftp://me:canary@host/p"])
def test_a_password_in_an_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InputError) as error:
        open_store(url)
    assert "canary" not in str(error.value)
