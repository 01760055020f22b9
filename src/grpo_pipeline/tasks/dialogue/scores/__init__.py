"""Score single replies against their reference answers, and measure how replies differ from each other."""
