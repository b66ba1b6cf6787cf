"""The model: the only folder that imports torch, transformers and SemIf.

``base`` is the seam the rest of the actor sees, and imports none of them.
"""
