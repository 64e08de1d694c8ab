"""The input engine against its peers, its bound, slow sources and the memory it takes."""
