"""A gateway and its workers as processes of one machine, kept running."""
