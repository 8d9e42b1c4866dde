"""Rules that decide which draft tokens stay. Pure functions: no model, no state, no randomness."""
