"""semif-actor: semantic decisions on a NATS bus."""

from importlib.metadata import version

__version__ = version("semif-actor")
