"""Train trials for comparisons and cross-validation; a trial is the training of an arm with a seed, stored when finished."""
