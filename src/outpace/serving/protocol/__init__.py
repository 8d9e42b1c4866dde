"""What requests may say: pydantic models, one file per kind of endpoint."""
