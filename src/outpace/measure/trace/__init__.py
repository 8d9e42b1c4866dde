"""How a generation went, step by step: what was drafted, p and q, what was decided, and times."""
