"""Reports: one-file HTML pages, small charts and Markdown, made from plain values."""
