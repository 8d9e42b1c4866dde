"""Which way of drafting pays for a model, prompts and a machine, predicted and then measured."""
