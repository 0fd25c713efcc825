"""What is closed at the end of a `with`."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

Kind = type[BaseException] | None


class Closing(ABC):
    """For `with`."""

    @abstractmethod
    def close(self) -> None:
        """Let go."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Kind, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class AsyncClosing(ABC):
    """For `async with`."""

    @abstractmethod
    async def close(self) -> None:
        """Let go."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: Kind, error: BaseException | None, at: TracebackType | None) -> None:
        await self.close()
