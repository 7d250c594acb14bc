"""The charts in C++ for the CPU."""
