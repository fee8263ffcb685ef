"""A page to learn in: what routing, transfers and bursts do, computed as the sliders move."""
