"""Other engines beside ours, on the same weights, prompts and threads; see `base.open_peers`."""
