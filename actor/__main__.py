"""``python -m actor`` is ``semif-actor``."""

from actor.cli.app import main

if __name__ == "__main__":
    main()
