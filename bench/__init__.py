"""What Postroom costs, measured on real files and real processes: `python -m bench`."""
