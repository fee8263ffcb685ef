"""Many workers as one."""
