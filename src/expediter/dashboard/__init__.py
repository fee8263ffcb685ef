"""Pages to operate a fleet with and to talk to it, on the gateway's admin port."""
