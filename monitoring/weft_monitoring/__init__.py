"""Writes what monitors Weft, from one description of its metrics, alerts and panels."""
