"""Log lines: one JSON object a line, or columns for people. Never a payload."""

from __future__ import annotations

import logging
import sys

import structlog

from actor.settings import Settings
from actor.telemetry.traces import trace_of

__all__ = ["set_up"]


def set_up(settings: Settings) -> None:
    """Send structlog and the libraries' logging to standard error, from ``log_level`` on."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    renderer: structlog.typing.Processor
    if settings.log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # The usual formats show the text of an exception or the variables of its frames: payloads.
        structlog.processors.ExceptionRenderer(lambda info: trace_of(info[1])),
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=shared)
    )
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING), force=True)
    # Deprecation notices of libraries are for the people who change constraints.txt.
    logging.captureWarnings(capture=True)
    logging.getLogger("py.warnings").setLevel(logging.ERROR)
