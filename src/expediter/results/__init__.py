"""What came of many requests: estimates, objectives, rows. A simulation and a live run share it."""
