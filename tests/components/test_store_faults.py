"""The s3 store behind a proxy that breaks connections to the real server, and before no server at all."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from components.errors import StoreError
from components.store import Store, open_store

UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy"


@contextmanager
def faulty_proxy(target: str, faults: list[int | bytes]) -> Iterator[str]:
    """Forwards to `target`, but ends the first connections after so many bytes of the answer, or with that answer."""
    host, port = target.split(":")
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, sink: socket.socket, budget: int | None) -> None:
        with suppress(OSError):
            while block := source.recv(65536 if budget is None else min(65536, budget)):
                sink.sendall(block)
                budget = None if budget is None else budget - len(block)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            fault = faults.pop(0) if faults else None
            if isinstance(fault, bytes):
                client.recv(65536)
                client.sendall(fault)
                client.close()
                continue
            server = socket.create_connection((host, int(port)))
            threading.Thread(target=pump, args=(client, server, None), daemon=True).start()
            threading.Thread(target=pump, args=(server, client, fault), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@contextmanager
def store_through(url: str, faults: list[int | bytes]) -> Iterator[Store]:
    endpoint = urlsplit(url).netloc
    with faulty_proxy(endpoint, faults) as proxy:
        yield open_store(url.replace(endpoint, proxy))


def filled_store(url: str, content: bytes) -> Store:
    store = open_store(url)
    store.prepare(["global"])
    store.put("global", "key", [content])
    return store


def open_spools() -> int:
    return sum("siloflow-spool" in str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())


@pytest.mark.parametrize("fault", [0, 10, UNAVAILABLE], ids=["no answer", "half a status line", "503"])
def test_failed_requests_are_repeated(s3_url: str, fault: int | bytes) -> None:
    direct = filled_store(s3_url, b"content")
    with store_through(s3_url, [fault] * 2) as store:
        store.put("global", "other", [b"other ", b"content"])
        assert store.retries == 2
    assert direct.get("global", "other") == b"other content"
    with store_through(s3_url, [fault]) as store:
        assert store.size("global", "key") == 7
    with store_through(s3_url, [fault]) as store:
        store.delete("global", "key")
    assert direct.size("global", "key") is None


@pytest.mark.parametrize("received", [100, 500_000], ids=["half the headers", "half the body"])
def test_broken_downloads_are_repeated(s3_url: str, received: int) -> None:
    content = bytes(range(250)) * 4_000
    filled_store(s3_url, content)
    with store_through(s3_url, [received]) as store:
        found = store.fetch("global", "key", limit=len(content))
        assert found is not None
        assert found.path.read_bytes() == content
        assert open_spools() == 1
        found.release()
        assert open_spools() == 0
        assert store.retries == 1
    with store_through(s3_url, [received]) as store:
        assert store.get("global", "key") == content
        assert store.retries == 1


def test_a_body_that_stays_short_is_never_trusted(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILOFLOW_STORE_ATTEMPTS", "2")
    filled_store(s3_url, bytes(1_000_000))
    with store_through(s3_url, [500_000] * 4) as store:
        with pytest.raises(StoreError, match="fetch global/key failed after 2 attempts: connection broken; check"):
            store.fetch("global", "key", limit=2_000_000)
        with pytest.raises(StoreError, match="get global/key failed after 2 attempts: connection broken; check"):
            store.get("global", "key")
    assert open_spools() == 0


@pytest.mark.parametrize("received", [0, 130, 600])
def test_a_broken_multipart_upload_is_repeated(s3_url: str, received: int) -> None:
    content = bytes(range(256)) * 80_000
    direct = filled_store(s3_url, b"")
    with store_through(s3_url, [received] * 3) as store:
        store.put("global", "model", [content])
        assert store.retries >= 1
    assert direct.get("global", "model", limit=len(content)) == content


def test_dead_server(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("SILOFLOW_ACCESS_KEY", "canary-access")
    monkeypatch.setenv("SILOFLOW_SECRET_KEY", "canary-secret")
    monkeypatch.setenv("SILOFLOW_STORE_ATTEMPTS", "3")
    caplog.set_level(logging.DEBUG)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    store = open_store(f"s3://127.0.0.1:{port}/fed")
    started = time.monotonic()
    with pytest.raises(StoreError) as error:
        store.put("global", "key", [b"x"])
    assert time.monotonic() - started < 5
    assert error.value.exit_code == 4
    assert str(error.value) == (
        f"s3://127.0.0.1:{port}/fed: put global/key failed after 3 attempts: cannot connect; "
        "check that the server runs, is reachable from here and has free space"
    )
    assert store.retries == 2
    assert "canary" not in caplog.text
