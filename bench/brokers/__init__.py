"""Measurements of the brokers: publishing, receiving, and a relay from PostgreSQL."""
