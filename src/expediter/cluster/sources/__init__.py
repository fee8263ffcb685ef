"""Where workers are found: a file, DNS, Kubernetes."""
