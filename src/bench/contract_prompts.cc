// The contract's prompts: the end of one story and the first sentence of another, because an answer to that is a whole story and goes on
// for 128 tokens.
#include <random>

#include "bench/contract.h"

namespace dsv4 {
namespace {

struct Story {
  const char* animal;   // of the story that ends
  const char* friend_;  // its two people
  const char* name;
  const char* thing;
  const char* mood;  // of the story that begins
  const char* next_animal;
  const char* next_name;
  const char* place;
};
constexpr Story kStories[kContractPrompts] = {
    {"otter", "Rosa", "Viktor", "lantern", "happy", "hare", "Nora", "garden"}, {"wolf", "Viktor", "Clara", "bell", "clever", "bear", "Emil", "river"},
    {"owl", "Clara", "Felix", "drum", "quiet", "crow", "Vera", "garden"},      {"fox", "Felix", "Yara", "mirror", "proud", "mole", "Anton", "river"},
    {"deer", "Yara", "Iris", "ladder", "brave", "goat", "Marta", "garden"},    {"hare", "Iris", "Oskar", "basket", "small", "duck", "Rosa", "river"},
    {"bear", "Oskar", "Nora", "button", "happy", "crab", "Viktor", "garden"},  {"crow", "Nora", "Emil", "candle", "gentle", "otter", "Clara", "river"},
    {"mole", "Emil", "Vera", "ribbon", "old", "wolf", "Felix", "garden"},      {"goat", "Vera", "Anton", "pencil", "young", "owl", "Yara", "river"},
    {"duck", "Anton", "Marta", "pillow", "shy", "fox", "Iris", "garden"},      {"crab", "Marta", "Rosa", "boat", "lazy", "deer", "Oskar", "river"},
};

// Longer than 65 tokens under any tokenizer that has words.
std::string text_of(const Story& s) {
  const std::string animal = s.animal, other = s.friend_, name = s.name, thing = s.thing;
  return "\"I lost it last winter,\" said " + other + ". \"It belonged to my family.\" " + name + " felt proud, but gave the " + thing + " back at once. " +
         other + " smiled and thanked the " + animal + " again and again. When the snow came, the black " + thing + " hung above " + other +
         "'s door. And whenever " + name + " saw it, the " + animal + " remembered that kindness is never lost. Once there was a " + s.mood + " " +
         s.next_animal + " named " + s.next_name + " who lived near the " + s.place + ".";
}

}  // namespace

Result<std::vector<std::vector<int32_t>>> contract_prompts(const Engine& engine) {
  std::vector<std::vector<int32_t>> prompts;
  const int32_t bos = engine.config().bos_token_id;
  if (engine.tokenizer() == nullptr) {
    // Neither of the two first ids (begin and end of text) but at the beginning.
    std::mt19937_64 random(65);
    for (int64_t i = 0; i < kContractPrompts; ++i) {
      std::vector<int32_t> ids{bos};
      while (static_cast<int64_t>(ids.size()) < kContractPromptTokens)
        ids.push_back(static_cast<int32_t>(2 + random() % static_cast<uint64_t>(engine.config().vocab_size - 2)));
      prompts.push_back(std::move(ids));
    }
    return prompts;
  }
  for (const Story& story : kStories) {
    DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, engine.tokenizer()->encode(text_of(story)));
    const int64_t count = static_cast<int64_t>(ids.size());
    if (count < kContractPromptTokens) {
      return unsupported("contract: a prompt has " + std::to_string(count) + " tokens under this model's tokenizer, " + std::to_string(kContractPromptTokens) +
                         " are needed");
    }
    std::vector<int32_t>& prompt = prompts.emplace_back(1, bos);
    prompt.insert(prompt.end(), ids.end() - (kContractPromptTokens - 1), ids.end());
  }
  return prompts;
}

}  // namespace dsv4
