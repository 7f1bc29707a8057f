"""The failure lab: a small shop in real processes, killed at every point on the way."""
