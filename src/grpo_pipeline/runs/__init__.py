"""What a run owns: one writer per folder of results, where every artefact comes from, and when it is put in place."""
