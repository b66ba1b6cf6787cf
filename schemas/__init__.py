"""The wire contract of semif-actor, version 1.

What other languages read is generated from here into ``schemas/v1``. This package knows nothing
of nats, torch or asyncio, so a client written in Python may import it alone.
"""
