"""What several drafters share. No drafting methods themselves."""
