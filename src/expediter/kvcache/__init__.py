"""Which blocks of KV memory hold which prefix."""
