"""A worker's part in serving one request on two workers."""
