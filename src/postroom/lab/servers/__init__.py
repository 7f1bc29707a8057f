"""Real servers that the lab and the tests start for themselves, on loopback and a free port."""
