// What module.cpp calls to add attention, dropout and LSTMs to the Python module.
#pragma once
#include <nanobind/nanobind.h>

#include "network.h"

void add_network(nanobind::module_& m, const Network& network);
