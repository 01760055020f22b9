"""Services that every run needs and that are no pipeline: lock, record, threads, progress, the code's version.

Ownership of results: one writing run per folder (``lock``), a record of where every artefact comes from (``artefact_records``,
``provenance``) and when it is put in place. The process: its name, threads and memory, progress, and the code's version.
"""
