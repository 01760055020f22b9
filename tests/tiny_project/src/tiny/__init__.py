"""The smallest project with this package's hooks: two arms, a generator node each, a comparison."""
