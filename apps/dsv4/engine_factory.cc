#include "engine_factory.h"

#include <charconv>

#include "base/file.h"
#include "checkpoint/synthetic.h"

namespace dsv4 {
namespace {

constexpr const char* kParagraph =
    "The river rises in the hills above the town and takes two days to reach the sea. In spring it is wide and brown, and the lower meadows stand under water; in August a child can cross it "
    "without wetting more than her knees. For three hundred years there was a mill at the bend, until the railway came and flour was brought from the plains for half the price. The wheel is still "
    "there, and so is the miller's house, where the school keeps its library. Every October the older children clear the race of leaves, and for one afternoon the stones turn again, slowly, "
    "grinding nothing, while their parents stand on the bridge and listen. It is said that the sound can be heard as far as the church. Nobody remembers what bread from that mill tasted like, but "
    "everyone in the town will tell you that it was better than what you can buy today.";

}  // namespace

EngineFactory factory_of(const EngineFlags& base) {
  return [base](const EngineOptions& options) {
    EngineFlags flags = base;
    flags.engine = options;
    // What a check leaves at its default is the user's to choose, but for roundings: a check that counts on them gets no "exact".
    if (options.arithmetic != Arithmetic::kQat || base.arithmetic == "exact") flags.arithmetic = arithmetic_name(options.arithmetic);
    flags.cache = options.cache_format == RowFormat::kF32 ? "f32" : "fp8_ds_mla";
    flags.graph = options.graph == GraphMode::kFull ? base.graph : graph_mode_name(options.graph);
    return make_engine(flags);
  };
}

Result<EngineFlags> with_settings(EngineFlags flags, const std::map<std::string, std::string>& settings) {
  for (const auto& [key, value] : settings) {
    int64_t number = 0;
    const auto parsed = std::from_chars(value.data(), value.data() + value.size(), number);
    const bool is_number = parsed.ec == std::errc() && parsed.ptr == value.data() + value.size();
    const bool wants_number = key == "chunk" || key == "context" || key == "threads";
    if (wants_number && !is_number) return invalid_argument("setting " + key + " is \"" + value + "\", it must be an integer");
    if (key == "arithmetic") {
      flags.arithmetic = value;
    } else if (key == "cache") {
      flags.cache = value;
    } else if (key == "graph") {
      flags.graph = value;
    } else if (key == "chunk") {
      flags.engine.prefill_chunk = number;
    } else if (key == "context") {
      flags.engine.max_context_tokens = number;
    } else if (key == "backend") {
      flags.device.backend = value;
    } else if (key == "threads") {
      flags.device.num_threads = static_cast<int>(number);
    } else if (key == "isa") {
      flags.device.isa = value;
    } else {
      return invalid_argument("there is no setting \"" + key + "\"");
    }
  }
  return flags;
}

Result<std::vector<int32_t>> evaluation_tokens(const Engine& engine, const std::string& file, int64_t max_tokens) {
  std::vector<int32_t> ids;
  if (engine.tokenizer() == nullptr) {
    if (!file.empty()) return invalid_argument("--text needs a model with a tokenizer.json");
    for (int64_t i = 0; i < max_tokens; ++i) {
      ids.push_back(static_cast<int32_t>(synthetic_mix(static_cast<uint64_t>(i) * kSyntheticStep) % static_cast<uint64_t>(engine.config().vocab_size)));
    }
    return ids;
  }
  std::string text = kParagraph;
  if (!file.empty()) {
    DSV4_ASSIGN_OR_RETURN(text, read_file(file, uint64_t{1} << 26));
  } else if (auto own = read_file(engine.checkpoint().directory() + "/eval.txt", uint64_t{1} << 26); own.ok()) {
    text = std::move(*own);
  }
  DSV4_ASSIGN_OR_RETURN(ids, engine.tokenizer()->encode(text));
  const int32_t bos = engine.config().bos_token_id;
  if (ids.empty() || ids.front() != bos) ids.insert(ids.begin(), bos);
  if (static_cast<int64_t>(ids.size()) > max_tokens) ids.resize(static_cast<size_t>(max_tokens));
  return ids;
}

Status write_optional(const std::string& path, const std::string& text) { return path.empty() ? ok_status() : write_file_atomic(path, text); }

}  // namespace dsv4
