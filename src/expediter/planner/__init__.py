"""How many of what, and will it meet the SLO."""
