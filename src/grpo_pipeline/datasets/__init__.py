"""Read and write the catalogue's files as Kedro datasets: images, tables, checkpoints and metric rows."""
