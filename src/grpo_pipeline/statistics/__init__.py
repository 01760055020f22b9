"""Statistics of prediction tables, for every task: weighted metrics, clustered bootstrap, intervals over seeds, wording."""
