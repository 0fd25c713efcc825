"""Appends from plain sockets: `HOST PORT CONNECTIONS RATE SECONDS`. The least that a client can make of a server.

The bytes are those of DriftQ's client: one append of it is recorded first, from a socket that answers it. A connection
has one request on its way; its next leaves when it is due, or as soon as it is answered.
"""

import heapq
import json
import re
import secrets
import selectors
import socket
import sys
import threading
import time
from contextlib import suppress

from bench.programs.driftq_appends import TOPIC, value_of
from bench.programs.loops import Figures
from driftq.cli.server.load_generator import http_length
from driftq.client import Client, ClientError

_KEY = re.compile(rb'"idempotency_key":"([0-9a-f]+)"')


def recorded() -> bytes:
    """Return the request that the client sends for an append."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sent: list[bytes] = []

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                request = b""
                while not (length := http_length(request)) or len(request) < length:
                    request += connection.recv(65536)
                sent.append(request)
                answer = b'{"topic":"bench","first_seq":1,"last_seq":1,"count":1,"head_seq":2}'
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer))

        serving = threading.Thread(target=serve)
        serving.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with suppress(ClientError), Client(url, retries=1, timeout=5) as client:  # the answer is not a server's
            client.topic(TOPIC).append(value_of(1), tag="order-1")
        serving.join()
    return sent[0]


def run(host: str, port: str, connections: str, rate: str, seconds: str) -> Figures:
    """Send at a rate. Returns how many appends a second that came to."""
    request = recorded()
    start, end = _KEY.search(request).span(1)  # type: ignore[union-attr]
    before, after, key_bytes = request[:start], request[end:], (end - start) // 2
    selector = selectors.SelectSelector()  # the others round their waits up to a millisecond
    sockets = [socket.create_connection((host, int(port))) for _ in range(int(connections))]
    interval = len(sockets) / float(rate)
    began = time.perf_counter()
    due: list[tuple[float, int]] = [(began + place * interval / len(sockets), place) for place in range(len(sockets))]
    heapq.heapify(due)
    sent_at = [0.0] * len(sockets)
    replies = [b""] * len(sockets)
    for place, one in enumerate(sockets):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(one, selectors.EVENT_READ, place)
    answered = 0
    while (now := time.perf_counter()) - began < float(seconds):
        while due and due[0][0] <= now:
            at, place = heapq.heappop(due)
            sent_at[place] = at
            sockets[place].sendall(before + secrets.token_hex(key_bytes).encode() + after)
        for key, _ in selector.select(max(0.0, due[0][0] - now) if due else 1.0):
            place = key.data
            replies[place] += sockets[place].recv(65536)
            length = http_length(replies[place])
            if length and len(replies[place]) >= length:
                assert replies[place].startswith(b"HTTP/1.1 200"), replies[place]
                replies[place] = b""
                answered += 1
                heapq.heappush(due, (max(sent_at[place] + interval, time.perf_counter()), place))
    return {"per_s": answered / (time.perf_counter() - began), "answered": answered}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(*sys.argv[1:])) + "\n")
