"""The command ``semif-actor``."""
