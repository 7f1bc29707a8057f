"""Observers that show what happens: logs."""
