"""Connections of an asyncio loop to a server: by TCP or a Unix socket, through a proxy and with TLS if configured.

Names are resolved in a thread that nothing waits for. The executor of the loop would keep a program from ending while
the system's resolver does not answer.
"""

import asyncio
import socket
from contextlib import suppress

from driftq.system.http_client.dialing import Address, Lookup, literal_address
from driftq.system.http_client.http1 import Endpoint


async def made(
    endpoint: Endpoint, loop: asyncio.AbstractEventLoop, protocol: asyncio.BaseProtocol, deadline: float
) -> asyncio.Transport:
    """Connect a protocol to the server, or to its proxy if `endpoint` has a tunnel. Raise OSError or ValueError."""
    is_direct = endpoint.tunnel() is None
    tls = endpoint.tls if is_direct else None
    name = endpoint.host if tls is not None else None
    if endpoint.unix_path is not None:
        transport, _ = await loop.create_unix_connection(
            lambda: protocol, endpoint.unix_path, ssl=tls, server_hostname=name
        )
        return transport
    connected = await _dialled(endpoint, loop, deadline)
    transport, _ = await loop.create_connection(lambda: protocol, sock=connected, ssl=tls, server_hostname=name)
    return transport


async def secured(
    endpoint: Endpoint, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, protocol: asyncio.BaseProtocol
) -> asyncio.Transport:
    """Return the transport with TLS on top of one through a tunnel. Raise OSError."""
    assert endpoint.tls is not None, "a tunnel is for TLS"
    found = await loop.start_tls(transport, protocol, endpoint.tls, server_hostname=endpoint.host)
    assert found is not None, "TLS gives a transport"
    return found


async def _dialled(endpoint: Endpoint, loop: asyncio.AbstractEventLoop, deadline: float) -> socket.socket:
    failed: OSError | None = None
    found = await _addresses(*endpoint.dialled, loop)
    for number, (family, kind, protocol, address) in enumerate(found):
        connected = socket.socket(family, kind, protocol)
        try:
            connected.setblocking(False)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # An address that does not answer leaves time for the next ones.
            async with asyncio.timeout((deadline - loop.time()) / (len(found) - number)):
                await loop.sock_connect(connected, address)
        except OSError as error:
            connected.close()
            failed = error
        except BaseException:
            connected.close()
            raise
        else:
            return connected
    raise failed or OSError(f"{endpoint.dialled[0]} has no address")


async def _addresses(host: str, port: int, loop: asyncio.AbstractEventLoop) -> list[Address]:
    """Return the addresses of a host, in the order in which to try them. Raise OSError or UnicodeError."""
    if (known := literal_address(host, port)) is not None:
        return known
    done = asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(done.set)

    lookup = Lookup(host, port, wake)
    await done.wait()
    return lookup.addresses()
