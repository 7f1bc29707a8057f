"""Other people's frameworks: a thin hook each, never a second API."""
