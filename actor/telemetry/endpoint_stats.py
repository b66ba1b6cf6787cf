"""Counts of each endpoint, as the STATS answer of the services protocol shows them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from schemas.errors import SemifError

__all__ = ["EndpointCounters", "EndpointFigures"]


@dataclass(slots=True)
class EndpointFigures:
    """What an endpoint has done since the start."""

    requests: int = 0
    """Requests answered, with a result or with an error."""
    errors: int = 0
    """Those of them answered with an error."""
    processing_ns: int = 0
    """Nanoseconds from receipt to reply, of all requests together."""
    last_error_type: type[SemifError] | None = None
    """The class alone: an instance would keep its frames alive, and all that they hold."""

    @property
    def average_ns(self) -> int:
        """Nanoseconds for each request; 0 without requests."""
        return self.processing_ns // self.requests if self.requests else 0

    @property
    def last_error(self) -> str:
        """Code and fixed text of the last error; empty without one."""
        error = self.last_error_type
        return f"{error.code}: {error.summary}" if error else ""


class EndpointCounters:
    """One owner's counters: everything is called on the event loop."""

    def __init__(self, endpoints: Iterable[str]) -> None:
        self._figures = {endpoint: EndpointFigures() for endpoint in endpoints}

    def observe(self, endpoint: str, seconds: float, error: SemifError | None = None) -> None:
        """Count a request that was answered ``seconds`` after its receipt."""
        figures = self._figures[endpoint]
        figures.requests += 1
        figures.processing_ns += int(seconds * 1e9)
        if error is not None:
            figures.errors += 1
            figures.last_error_type = type(error)

    def figures(self, endpoint: str) -> EndpointFigures:
        """Give the figures of ``endpoint``, to read."""
        return self._figures[endpoint]
