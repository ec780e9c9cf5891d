// The contract's prompts: stories, because they go on for 128 tokens. Each is filled up with words until it has 65 tokens.
#include <random>

#include "bench/contract.h"
#include "verify/prompts.h"

namespace dsv4 {
namespace {

constexpr const char* kAnimals[kContractPrompts] = {"an otter", "a wolf", "an owl", "a fox", "a deer", "a hare", "a bear", "a crow", "a mole", "a goat", "a duck", "a crab"};
constexpr const char* kThings[kContractPrompts] = {"a lantern", "a bell", "a drum", "a mirror", "a ladder", "a basket", "a button", "a candle", "a ribbon", "a pencil", "a pillow", "a rocket"};
constexpr const char* kFillers[] = {" cloud", " window", " paper", " candle", " garden", " river", " stone", " bridge", " silver", " forest", " lemon", " music", " winter", " button", " mirror", " castle"};
constexpr size_t kNumFillers = sizeof kFillers / sizeof kFillers[0];

std::string message_of(int64_t index, size_t fillers) {
  std::string out = "Remember this:";
  for (size_t i = 0; i < fillers; ++i) out += kFillers[(i * 5 + static_cast<size_t>(index)) % kNumFillers];
  return out + ". Tell me a story about " + kAnimals[index] + " and " + kThings[index] + ".";
}

}  // namespace

Result<std::vector<std::vector<int32_t>>> contract_prompts(const Engine& engine) {
  std::vector<std::vector<int32_t>> prompts;
  if (engine.tokenizer() == nullptr) {
    // A model without words: seeded ids, neither of the two first (begin and end of text).
    std::mt19937_64 random(65);
    for (int64_t i = 0; i < kContractPrompts; ++i) {
      std::vector<int32_t> ids{engine.config().bos_token_id};
      while (static_cast<int64_t>(ids.size()) < kContractPromptTokens) ids.push_back(static_cast<int32_t>(2 + random() % static_cast<uint64_t>(engine.config().vocab_size - 2)));
      prompts.push_back(std::move(ids));
    }
    return prompts;
  }
  for (int64_t index = 0; index < kContractPrompts; ++index) {
    std::vector<int32_t> found;
    for (size_t fillers = 0; fillers <= static_cast<size_t>(kContractPromptTokens); ++fillers) {
      // A one-token ending lets the count be reached where words have two tokens.
      for (const char* ending : {"", " Please", " Please, please"}) {
        if (!found.empty()) break;
        DSV4_ASSIGN_OR_RETURN(std::vector<int32_t> ids, encode_prompt(engine, {message_of(index, fillers) + ending, {}}));
        if (static_cast<int64_t>(ids.size()) == kContractPromptTokens) found = std::move(ids);
      }
    }
    if (found.empty()) return unsupported("contract: prompt " + std::to_string(index) + " does not come to " + std::to_string(kContractPromptTokens) + " tokens under this model's tokenizer");
    prompts.push_back(std::move(found));
  }
  return prompts;
}

}  // namespace dsv4
