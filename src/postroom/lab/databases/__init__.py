"""The databases that the shop can stand on, one module each."""
