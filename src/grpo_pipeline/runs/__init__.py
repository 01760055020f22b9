"""Ownership of results: one writing run per folder, a record of where every artefact comes from, and when it is put in place."""
