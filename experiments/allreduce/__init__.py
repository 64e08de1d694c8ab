"""All-reduce on real links: a network lab of namespaces, and a benchmark in it."""
