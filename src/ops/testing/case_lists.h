// One function per group of operators; each appends its named cases.
#pragma once

#include <vector>

#include "ops/testing/op_cases.h"

namespace dsv4::optest {

void add_row_cases(std::vector<OpCase>& cases);     // rms_norm, query_norm_rope, swiglu
void add_sample_cases(std::vector<OpCase>& cases);  // sample
void add_table_cases(std::vector<OpCase>& cases);   // embed, rope_table, argmax
void add_linear_cases(std::vector<OpCase>& cases);  // linear, grouped_linear
void add_hc_cases(std::vector<OpCase>& cases);      // hc_pre, hc_post, hc_head
void add_kv_insert_cases(std::vector<OpCase>& cases);
void add_compressor_cases(std::vector<OpCase>& cases);
void add_indexer_cases(std::vector<OpCase>& cases);  // indexer_query, indexer_topk
void add_attention_cases(std::vector<OpCase>& cases);
void add_moe_route_cases(std::vector<OpCase>& cases);
void add_moe_experts_cases(std::vector<OpCase>& cases);

}  // namespace dsv4::optest
