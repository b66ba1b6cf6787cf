"""JetStream's streams and consumers: what is needed, what is there, and what to do about it."""
