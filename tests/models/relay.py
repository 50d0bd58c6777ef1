"""A relay on loopback that breaks the first long answer off."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.models.connections import Connections, listening


@dataclass
class Relay:
    """Where it listens, and how many connections it has broken."""

    port: int = 0
    n_cut: int = 0


@asynccontextmanager
async def relaying(target_port: int, *, cut_after: int = 3000) -> AsyncGenerator[Relay, None]:
    """Pass bytes on both ways; the first chat answer is broken after so many bytes."""
    relay, connections = Relay(), Connections()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, seen: list[bytes]) -> None:
        while received := await source.read(65_536):
            seen.append(received)
            sink.write(received)
            await sink.drain()

    async def answer(source: asyncio.StreamReader, sink: asyncio.StreamWriter, asked: list[bytes]) -> None:
        n_sent = 0
        while received := await source.read(512):
            sink.write(received)
            await sink.drain()
            n_sent += len(received)
            if not relay.n_cut and n_sent > cut_after and b"/chat/completions" in b"".join(asked):
                relay.n_cut += 1
                sink.transport.abort()
                return

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", target_port)
        connections.begin(writer, behind_writer)
        asked: list[bytes] = []
        ways = [
            asyncio.create_task(pump(reader, behind_writer, asked)),
            asyncio.create_task(answer(behind_reader, writer, asked)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            behind_writer.close()
            writer.close()

    async with listening(await asyncio.start_server(handle, "127.0.0.1", 0), connections) as relay.port:
        yield relay
