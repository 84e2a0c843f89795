"""iSpine: cli."""
