"""iSpine: broker."""
