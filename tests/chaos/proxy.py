"""A TCP proxy on the loopback that does to a connection what networks do."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy"
BLOCK = 65536


@dataclass(frozen=True)
class Fault:
    """All answers are late or slow; so large a `share` of them is replaced, cut short or ends in a reset."""

    delay: float = 0.0  # seconds before each answer
    rate: float = 0.0  # bytes per second; 0: any
    share: float = 0.0
    kind: str = ""  # unavailable, half (of the first block), reset


@dataclass
class FaultProxy:
    """Its `fault` may be changed while it runs; `hits` counts the answers that were replaced, cut or reset."""

    target: str
    fault: Fault
    endpoint: str = ""
    hits: int = 0

    def __post_init__(self) -> None:
        self._draw = random.Random(6)

    async def _serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=BLOCK)
        self.endpoint = "{}:{}".format(*server.sockets[0].getsockname())
        ready.set()
        await stop.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):
            host, port = self.target.split(":")
            from_server, to_server = await asyncio.open_connection(host, int(port))
            asked = asyncio.Event()
            pumps = [
                asyncio.ensure_future(self._ask(reader, to_server, asked)),
                asyncio.ensure_future(self._answer(from_server, writer, asked)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            to_server.close()
        writer.close()

    async def _ask(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, asked: asyncio.Event) -> None:
        with suppress(OSError):
            while block := await source.read(BLOCK):
                asked.set()
                await self._slowly(sink, block)

    async def _answer(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, asked: asyncio.Event) -> None:
        with suppress(OSError):
            while block := await source.read(BLOCK):
                fault, is_first = self.fault, asked.is_set()
                asked.clear()
                if is_first:
                    await asyncio.sleep(fault.delay)
                if is_first and self._draw.random() < fault.share:
                    self.hits += 1
                    sink.write({"unavailable": UNAVAILABLE, "half": block[: len(block) // 2], "reset": b""}[fault.kind])
                    if fault.kind == "reset":
                        sink.transport.abort()
                    return
                await self._slowly(sink, block)

    async def _slowly(self, sink: asyncio.StreamWriter, block: bytes) -> None:
        rate = self.fault.rate
        step = max(1, int(rate / 10)) if rate else len(block)
        for start in range(0, len(block), step):
            sink.write(block[start : start + step])
            await sink.drain()
            if rate:
                await asyncio.sleep(step / rate)


@contextmanager
def fault_proxy(target: str, fault: Fault) -> Iterator[FaultProxy]:
    proxy, ready, loop, stop = FaultProxy(target, fault), threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(proxy._serve(ready, stop)), daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()
