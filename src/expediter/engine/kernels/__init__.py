"""Machine code for steps of few rows, compiled when a model is loaded."""
