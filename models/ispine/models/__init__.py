"""iSpine: models."""
