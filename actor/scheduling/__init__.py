"""Who is scored when: pure decisions, and the one thread that carries them out.

No nats and no torch here.
"""
