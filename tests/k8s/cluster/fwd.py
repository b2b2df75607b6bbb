"""A forwarder of TCP connections: fwd.py NETNS LISTEN_IP:PORT DEST_IP:PORT.

Listens in the caller's network namespace, connects inside NETNS.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import sys

CLONE_NEWNET = 0x40000000


def address(text):
    host, _, port = text.rpartition(":")
    return host, int(port)


def enter(netns):
    """Let sockets that are made from here on live in `netns`."""
    handle = os.open(f"/run/netns/{netns}", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(handle, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter {netns}")


async def pump(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def serve(listener, target):
    async def connected(reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection(*target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    async with await asyncio.start_server(connected, sock=listener) as server:
        await server.serve_forever()


def main():
    netns, listen, target = sys.argv[1:]
    listener = socket.create_server(address(listen), backlog=256)
    enter(netns)
    asyncio.run(serve(listener, address(target)))


main()
