"""The measurements of the PostgreSQL store: `python -m bench --store postgresql[://...]`."""
