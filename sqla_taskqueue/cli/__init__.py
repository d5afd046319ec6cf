"""The command ``sqla-taskqueue worker``: a host's worker in processes of its own."""
