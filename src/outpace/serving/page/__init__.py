"""The page at `/`: one form that talks to this server's own API. See docs/page.md."""
