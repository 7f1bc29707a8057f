"""Implementations of the contract in `postroom.store`, one folder or file per database."""
