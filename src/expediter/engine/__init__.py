"""The model; all of torch lives here."""
