"""Audit of a reward before training: policies that need no training are scored with it."""
