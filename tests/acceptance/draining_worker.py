"""A process with one worker, for tests that signal it: `draining_worker.py URL QUEUE`. It tells what it does."""

import os
import sys
import threading

from driftq.client import Client, Job, Worker


def tell(text: str) -> None:
    """A line in one write, for handlers tell at the same time."""
    os.write(1, f"{text}\n".encode())


def main(url: str, queue: str) -> None:
    """Work until a signal comes."""

    def handle(job: Job) -> None:
        tell(f"begun {job.data}")
        threading.Event().wait(1.0)
        tell(f"ended {job.data}")

    with Client(url) as client:
        worker = Worker.queue(client, queue, handle, concurrency=2)
        worker.run()
        tell(f"acked {worker.stats.acked}")


if __name__ == "__main__":
    main(*sys.argv[1:])
