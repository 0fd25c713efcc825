"""Base classes of what a program closes: clients, streams and producers."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

Kind = type[BaseException] | None


class Closing(ABC):
    """Base of classes whose instances `with` closes at its end."""

    @abstractmethod
    def close(self) -> None:
        """Close the object; it cannot be used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Kind, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class AsyncClosing(ABC):
    """Base of classes whose instances `async with` closes at its end."""

    @abstractmethod
    async def close(self) -> None:
        """Close the object; it cannot be used afterwards."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: Kind, error: BaseException | None, at: TracebackType | None) -> None:
        await self.close()
