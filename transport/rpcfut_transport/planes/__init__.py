"""Ways to move the bulk of a value."""

__all__: list[str] = []
