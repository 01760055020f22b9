"""Use of a trained attention model: scores of new images, calibration, and images that are unlike the training ones."""
