"""Which tokens one worker computes next."""
