// The backend that a test program of whole engines judges: "cpu", or what --backend=NAME says. `--backend=gpu` is how these tests are run by
// hand on a card; a backend that is missing fails them.
#pragma once

#include <string>

namespace dsv4 {

const std::string& tested_backend();

}  // namespace dsv4
