"""Trained parts that draft with what a target knows: EAGLE layers, Medusa heads, early exits."""
