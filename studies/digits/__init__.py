"""The study of the default problem, digits on noise: small enough for two CPU cores and an hour."""
