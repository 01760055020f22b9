"""Parts that every benchmark needs: where its figures come from, ratios within rounds, memory at the peak."""
