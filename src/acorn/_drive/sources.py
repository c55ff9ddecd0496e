"""Sources of tools: opened for a run, and closed with it."""

from __future__ import annotations

from typing import Any

from acorn._drive.bridge import call_async, call_sync


class OpenSources:
    def __init__(self, agent: object) -> None:
        self._opened: list[Any] = []

    def open(self, source: Any) -> Any:
        self._opened.append(source)
        if hasattr(source, "open"):
            call_sync(source.open)
        return call_sync(source.tools)

    def close(self) -> None:
        for source in reversed(self._opened):
            if hasattr(source, "close"):
                call_sync(source.close)

    async def aopen(self, source: Any) -> Any:
        self._opened.append(source)
        if hasattr(source, "open"):
            await call_async(source.open)
        return await call_async(source.tools)

    async def aclose(self) -> None:
        for source in reversed(self._opened):
            if hasattr(source, "close"):
                await call_async(source.close)
