// One function per group of operators; each appends its named cases.
#pragma once

#include <vector>

#include "ops/testing/op_cases.h"

namespace dsv4::optest {

void add_row_cases(std::vector<OpCase>& cases);  // rms_norm, swiglu, embed, rope_table, argmax, query_norm_rope

}  // namespace dsv4::optest
