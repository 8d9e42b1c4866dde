"""What benchmark scripts share: prompts, timed methods, statistics, and how results are told."""
