"""Postroom: a transactional outbox and inbox. What you commit gets sent, once in effect."""
