"""What only the benchmark of `auto` needs."""
