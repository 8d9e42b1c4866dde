"""What benchmarks/step.py is made of: engines in their own processes, figures, tables, curves."""
