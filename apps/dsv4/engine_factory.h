// Engines for checks: the check says what it needs, the command line's flags say on which model and device.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "engine_flags.h"
#include "verify/runs.h"

namespace dsv4 {

// The check's EngineOptions replace those of the flags.
EngineFactory factory_of(const EngineFlags& flags);

// The flags with some settings replaced by text, as in experiment files: arithmetic, cache, graph, chunk, context, backend, threads, isa.
Result<EngineFlags> with_settings(EngineFlags flags, const std::map<std::string, std::string>& settings);

// The token ids of a text to judge a model on: `file`, else the model's eval.txt, else a paragraph in English; models without a
// tokenizer get seeded ids. At most `max_tokens`, <bos> first.
Result<std::vector<int32_t>> evaluation_tokens(const Engine& engine, const std::string& file, int64_t max_tokens);

// Writes `text` to the file `path` when one is given.
Status write_optional(const std::string& path, const std::string& text);

}  // namespace dsv4
