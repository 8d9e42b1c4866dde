"""What only the benchmark of drafting methods needs."""
