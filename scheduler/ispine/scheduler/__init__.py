"""iSpine: scheduler."""
