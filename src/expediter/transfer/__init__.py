"""Moving KV from the worker that computed it to the worker that needs it."""
