// The constraint a request asks for: its grammar compiled once and kept for the next request with the same one.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "engine/constraint/grammar_constraint.h"
#include "server/api_error.h"
#include "server/chat_spec.h"
#include "text/chat_markup.h"

namespace dsv4 {

class ConstraintCache {
 public:
  ConstraintCache(const Tokenizer& tokenizer, const ChatMarkup& markup, int32_t eos_token);

  // `count` constraints for one request each, none (an empty list) when it is free. `start_after`: as in GrammarConstraintOptions. Any
  // thread.
  ApiResult<std::vector<std::shared_ptr<TokenConstraint>>> make(const ChatSpec& spec, int32_t start_after, int count);

  size_t compilations() const;  // for tests

 private:
  Result<std::shared_ptr<CompiledGrammar>> compile(const ChatSpec& spec) const;

  const Tokenizer tokenizer_;  // shares the tables
  const ChatMarkup markup_;
  const int32_t eos_token_;
  std::shared_ptr<const TokenTrie> plain_, with_markup_;

  mutable std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<CompiledGrammar>>> recent_;  // latest first
  size_t compilations_ = 0;
};

}  // namespace dsv4
