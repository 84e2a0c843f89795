"""iSpine: sdk."""
