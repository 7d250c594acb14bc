// Adds attention, dropout, cross-entropy and LSTMs to the Python module; called by module.cpp.
#pragma once
#include <nanobind/nanobind.h>

#include "network.h"

void add_network(nanobind::module_& m, const Network& network);
