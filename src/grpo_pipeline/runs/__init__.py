"""Provide services for every run, outside of pipelines: lock, record, threads, progress, the code's version.

Ownership of results: a single writing run per folder (``lock``), and a record of every artefact's origin (``artefact_records``,
``provenance``). The process: its name, threads and memory, progress, and the code's version.
"""
