"""Kedro datasets: how the catalogue reads and writes images, tables, checkpoints and metric rows."""
