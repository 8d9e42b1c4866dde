"""What only the benchmark of the server needs."""
