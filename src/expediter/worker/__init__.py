"""One replica, alive."""
