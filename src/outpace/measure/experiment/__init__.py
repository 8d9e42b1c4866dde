"""The published experiment with losing drafts, repeated and taken apart."""
