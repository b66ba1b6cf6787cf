"""NATS: the only folder that imports it."""
