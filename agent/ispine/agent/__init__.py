"""iSpine: agent."""
