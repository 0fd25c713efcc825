"""The name of a client for queues and groups: the name it was given, or a generated one that no other process has."""

import os
import socket

from driftq.system.entropy import Entropy


class NodeName:
    """Provides the name of one client. A forked child generates a new name, unless a name was given."""

    def __init__(self, given: str | None, entropy: Entropy) -> None:
        self._given = given
        self._entropy = entropy
        self._made, self._process = "", 0

    def current(self) -> str:
        """Return the name of this client in this process."""
        if self._given is not None:
            return self._given
        process = os.getpid()
        if process != self._process:
            self._made = f"{socket.gethostname()[:64]}-{process}-{self._entropy.token(4).hex()}"
            self._process = process
        return self._made
