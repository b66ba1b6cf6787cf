"""``semif-actor bench``: what the actor costs and gains, against a baseline in the same run."""
