"""What the actor counts and writes down."""
